"""What rows promise, from the claims in their notes: in a title, and one line a row in a table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.report.tables import NONE, Table, new_table
from secure_fd.privacy.guarantee import format_epsilon

Claim = Mapping[str, Any]
"""A guarantee as `Guarantee.to_json` gives it."""


_SEEDED = "ε of each mechanism with fresh noise; here seeded, so that the run can be repeated"


def promised(claim: Claim | None) -> str:
    """What a title says of a claim: its epsilon with the unit; "" where none holds.

    >>> promised({"unit": "record", "holds": True, "epsilon": 4.0})
    ', record ε 4'
    >>> promised({"unit": "label", "holds": True, "epsilon": 4.0, "groups": [[1, 3552.2]]})
    ', ε 4 per label (3,553 per record)'
    """
    if claim is None or not claim["holds"]:
        return ""
    epsilon = format_epsilon(claim["epsilon"])
    if claim["unit"] != "label":
        return f", {claim['unit']} ε {epsilon}"
    return f", ε {epsilon} per label ({_of(claim, 1)} per record)"


def privacy(
    rows: Iterable[tuple[str, Claim | None]], images_per_person: int, *, seeded: bool = False
) -> Table | None:
    """Epsilon over the whole run, by what neighbours differ in, of rows that claim any; else None.

    rows: label and claim. images_per_person: records that one person has at one client. seeded:
    whether the noise of the run was.
    """
    held = list(rows)
    if all(claim is None for _, claim in held):
        return None
    person = f"person, {images_per_person} records"
    title = "Privacy: ε over the whole run, by what two worlds differ in; other rows promise none"
    table = new_table(
        f"{title}; {_SEEDED}" if seeded else title,
        ("method", "unit", "δ", "one record", "replaced", person, "client"),
    )
    for i, (label, claim) in enumerate(held, 1):
        if claim is not None:
            table.add_row(f"{i}. {label}", *_line(claim, images_per_person))
    return table


def _line(claim: Claim, records: int) -> Sequence[str]:
    if not claim["holds"]:
        return ("void", *[NONE] * 5)
    swapped = claim.get("epsilon_replace_one")
    return (
        claim["unit"],
        short(claim["delta"]),
        _of(claim, 1),
        "no" if swapped is None else format_epsilon(swapped),
        _of(claim, records),
        _client(claim),
    )


def short(value: float) -> str:
    """A small number as people write it.

    >>> short(1e-5), short(0.25)
    ('1e-5', '0.25')
    """
    return f"{value:.2g}".replace("e-0", "e-")


def _of(claim: Claim, records: int) -> str:
    """Epsilon of neighbours that differ in so many records of one client; "no" without a bound."""
    known = dict(claim.get("groups", []))
    return _bounded(known.get(records))


def _client(claim: Claim) -> str:
    if claim["unit"] == "client":
        return _bounded(claim["epsilon"])
    found = [c["epsilon"] for c in claim["composes_to"] if c["unit"] == "client"]
    return _bounded(found[0] if found else None)


def _bounded(epsilon: float | None) -> str:
    return "no" if epsilon is None or math.isinf(epsilon) else format_epsilon(epsilon)


def voids(rows: Iterable[tuple[str, Claim | None]]) -> list[str]:
    """Why rows have no epsilon that were to have one, a sentence each."""
    return [
        f"{label} promises nothing: {'; '.join(claim.get('unmet', [])) or 'no noise is added'}."
        for label, claim in rows
        if claim is not None and not claim["holds"]
    ]


def below(levels: Mapping[str, float], alone: str) -> set[str]:
    """Labels of rows that end below clients that learn alone.

    >>> below({"alone": 0.8, "noisy": 0.7, "good": 0.9}, "alone")
    {'noisy'}
    """
    if alone not in levels:
        return set()
    return {label for label, level in levels.items() if level < levels[alone]}
