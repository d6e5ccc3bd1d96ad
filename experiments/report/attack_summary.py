"""Attack figures as tables and sentences, for every report that shows a leakage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from attacks.core.result import POSITIVE
from experiments.compare.leakage import (
    BETWEEN,
    NOT_APPLICABLE,
    NOT_RUN,
    Interval,
    Leakage,
    Measured,
    Pictures,
)
from experiments.report.plots import Strip
from experiments.report.tables import Table, Toned, counted, new_table, number

ATTACK, ORIGINALS = "attack", ("originals", "record")
"""Names of an attack's pictures and of what they show; every other name is a control's."""


precise = partial(number, fine=True)


def brackets(interval: Interval | None, show: Callable[[float], str] = precise) -> str:
    """The interval in brackets, or nothing."""
    return "" if interval is None else "[{}, {}]".format(*map(show, interval))


def caveats(leakage: Leakage) -> dict[str, str]:
    """Each caveat once, with the attacks, and the rows where not all, that carry it."""
    carriers: dict[str, list[str]] = {}
    for attack in leakage.attacks:
        measured = leakage.measured(attack)
        for caveat in dict.fromkeys(c for found in measured.values() for c in found.caveats):
            rows = [leakage.rows[row] for row, found in measured.items() if caveat in found.caveats]
            some = f" ({', '.join(rows)})" if len(rows) < len(measured) else ""
            carriers.setdefault(caveat, []).append(attack + some)
    return {caveat: ", ".join(attacks) for caveat, attacks in carriers.items()}


def samples(every: Sequence[Measured]) -> str:
    """Return the scored records and queries of figures, means over seeds, as spans over figures."""
    parts = []
    nouns = {"n_members": "private", "n_non_members": "held out", "queries": "queries"}
    for name, noun in nouns.items():
        means = [float(np.mean([getattr(one, name) for one in found.every])) for found in every]
        ends = dict.fromkeys(f"{end:,.0f}" for end in (min(means), max(means)))
        parts += [f"{' to '.join(ends)} {noun}"] if max(means) else []
    return ", ".join(parts)


def matrix(
    leakage: Leakage,
    names: Sequence[str],
    title: str = "Each attack's figure and its 95 % interval",
    show: Callable[[Measured], str] | None = None,
) -> Table:
    """A row's figures under each attack, and the range of the controls.

    Args:
        leakage: the figures.
        names: of the rows.
        title: of the table.
        show: text of a figure; by default the figure above its interval.
    """
    table = new_table(title, ["row", *leakage.attacks])
    for row, name in zip(leakage.rows, names, strict=True):
        found = (leakage.figure(row, attack) for attack in leakage.attacks)
        table.add_row(name, *("-" if one is None else (show or _stacked)(one) for one in found))
    controls = []
    for attack in leakage.attacks:
        known = [one.control for one in leakage.measured(attack).values()]
        ends = map(number, (min(known), max(known))) if known else ("-",)
        controls.append(" to ".join(dict.fromkeys(ends)))
    table.add_row("control", *controls)
    return table


def _stacked(found: Measured) -> str:
    text = f"{number(found.figure)}\n{brackets(found.interval, number)}"
    return Toned(text, "leak" if found.leaks else "quiet")


def details(leakage: Leakage, name: str, title: str) -> Table | None:
    """A further figure by row and attack; None where no attack has it."""
    known = {at: one.details for at, one in leakage.cells.items() if isinstance(one, Measured)}
    shown = {at: precise(values[name]) for at, values in known.items() if name in values}
    attacks = [attack for attack in leakage.attacks if any(a == attack for _, a in shown)]
    table = new_table(title, ["row", *attacks])
    for row, label in leakage.rows.items():
        cells = [shown.get((row, attack), "-") for attack in attacks]
        if set(cells) != {"-"}:
            table.add_row(label, *cells)
    return table if attacks else None


def picture_strips(leakage: Leakage, pictures: Mapping[str, Pictures], attack: str) -> list[Strip]:
    """Lines of images: the originals, reconstructions and controls of each row.

    Images that an earlier row has too are left out; every line carries its row's name.

    Args:
        leakage: the figures, which stand beside the reconstructions.
        pictures: by row key, images by "attack/name".
        attack: whose images are shown.
    """
    lines: list[Strip] = []
    for row, found in leakage.measured(attack).items():
        reading = f"{precise(found.figure)} {brackets(found.interval)} {found.first.unit}"
        named = {
            place.removeprefix(attack + BETWEEN): images
            for place, images in pictures.get(row, {}).items()
            if place.startswith(attack + BETWEEN)
        }
        for name in sorted(named, key=lambda name: (name not in ORIGINALS, name != ATTACK)):
            if any(np.array_equal(named[name], line.images) for line in lines):
                continue
            text = reading if name == ATTACK else ""
            lines.append(Strip(f"{leakage.rows[row]}: {name}", named[name], text))
    return lines


def attack_notes(leakage: Leakage, elsewhere: Mapping[str, str]) -> Iterator[str]:
    """Yield each attack's figure and controls, and why rows have none.

    elsewhere: by attack, what it was measured on, where that is not the run; "" is not shown.
    """
    for attack, title in leakage.attacks.items():
        found = list(leakage.measured(attack).values())
        place = elsewhere.get(attack, "this run")
        parts = [title, f"measured on {place}" if place else ""]
        if found:
            firsts = [one.first for one in found]
            figures = (f"{first.figure_name}, {first.unit}".removesuffix(", ") for first in firsts)
            parts.append(" / ".join(dict.fromkeys(figures)))
            controls = dict.fromkeys(first.control_name for first in firsts)
            parts += [f"control: {' / '.join(controls)}", samples(found)]
        positive = [number(f.details[POSITIVE]) for f in found if POSITIVE in f.details]
        if positive:
            parts.append(f"positive control: {' / '.join(dict.fromkeys(positive))}")
        reasons = [why for row in leakage.rows if (why := leakage.absence(row, attack))]
        for why in dict.fromkeys(reasons):
            short = why.removeprefix(NOT_APPLICABLE).removeprefix(NOT_RUN)
            parts.append(f"no figure in {counted(reasons.count(why), 'row')}: {short}")
        yield f"{attack}: {'; '.join(filter(None, parts))}."
