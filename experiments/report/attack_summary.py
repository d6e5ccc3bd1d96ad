"""Attack figures as tables and sentences, for every report that shows a leakage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from experiments.compare.leakage import (
    BETWEEN,
    NOT_APPLICABLE,
    NOT_RUN,
    Interval,
    Leakage,
    Measured,
    Pictures,
)
from experiments.report.page import Pairs
from experiments.report.plots import Strip
from experiments.report.tables import Table, Toned, counted, new_table, number

_POSITIVE = "positive_control"
LOW_FPR = "tpr_at_0.01_fpr"
"""The detail of a result that holds the members found at 1 % false positives."""
ATTACK, ORIGINALS = "attack", ("originals", "record")
"""Names of an attack's pictures and of what they show; every other name is a control's."""


precise = partial(number, fine=True)


def brackets(interval: Interval | None, show: Callable[[float], str] = precise) -> str:
    """The interval in brackets, or nothing."""
    return "" if interval is None else "[{}, {}]".format(*map(show, interval))


def difference(found: Measured) -> str:
    """Figure minus control with its sign, and the interval over seeds where there is one."""
    gap = found.difference
    sign = "+" if gap.value >= 0.0005 else ""
    return f"{sign}{precise(gap.value)} {brackets(gap.interval)}".strip()


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


def samples(found: Measured) -> str:
    """Return the number of scored records and of queries of a figure; means over seeds."""
    members, others, queries = (
        float(np.mean([getattr(figure, name) for figure in found.every]))
        for name in ("n_members", "n_non_members", "queries")
    )
    parts = [f"{members:,.0f} private, {others:,.0f} held out"] if members or others else []
    return "; ".join([*parts, *([f"{queries:,.0f} queries"] if queries else [])])


def every_figure(leakage: Leakage, seeds: int) -> Table:
    """One row for each attack and protocol: figure, control and difference, or why there is none.

    seeds: of the whole run.
    """
    title = "Figure, 95 % interval and control without access; * where the figure tells more"
    table = new_table(title, ["attack", "protocol", "figure", "control", "difference", "notes"], 2)
    for attack in leakage.attacks:
        for row, label in leakage.rows.items():
            found = leakage.cell(row, attack)
            if isinstance(found, str):
                table.add_row(attack, label, "", "", "", found)
                continue
            figure = f"{precise(found.figure)}{'*' * found.leaks} {brackets(found.interval)}"
            count = len(found.every)
            few = f"{count} of {seeds} seeds" if count < seeds else ""
            rate = found.details.get(LOW_FPR)
            low = "" if rate is None else f"{100 * rate:.1f} % of members at 1 % false positives"
            notes = "; ".join(filter(None, [few, samples(found), low]))
            table.add_row(attack, label, figure, precise(found.control), difference(found), notes)
    return table


def matrix(leakage: Leakage, names: Sequence[str]) -> Table:
    """A row's figure above its interval under each attack, and the range of the controls.

    names: of the rows.
    """
    table = new_table("Each attack's figure and its 95 % interval", ["row", *leakage.attacks])
    for row, name in zip(leakage.rows, names, strict=True):
        found = (leakage.figure(row, attack) for attack in leakage.attacks)
        table.add_row(name, *("-" if one is None else _stacked(one) for one in found))
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


def further_figures(leakage: Leakage) -> Pairs:
    """The details of all figures, folded, by attack and row."""
    known = {
        f"{attack}, {leakage.rows[row]}": {k: precise(v) for k, v in found.details.items()}
        for attack in leakage.attacks
        for row, found in leakage.measured(attack).items()
        if found.details
    }
    return Pairs("Further figures", known, folded=True)


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

    elsewhere: by attack, what it was measured on, where that is not the run.
    """
    for attack, title in leakage.attacks.items():
        found = list(leakage.measured(attack).values())
        parts = [title, f"measured on {elsewhere.get(attack, 'this run')}"]
        if found:
            firsts = [one.first for one in found]
            figures = (f"{first.figure_name}, {first.unit}".removesuffix(", ") for first in firsts)
            parts.append(" / ".join(dict.fromkeys(figures)))
            controls = dict.fromkeys(first.control_name for first in firsts)
            parts += [f"control: {' / '.join(controls)}", samples(found[0])]
        positive = [number(f.details[_POSITIVE]) for f in found if _POSITIVE in f.details]
        if positive:
            parts.append(f"positive control: {' / '.join(dict.fromkeys(positive))}")
        reasons = [why for row in leakage.rows if (why := leakage.absence(row, attack))]
        for why in dict.fromkeys(reasons):
            short = why.removeprefix(NOT_APPLICABLE).removeprefix(NOT_RUN)
            parts.append(f"no figure in {counted(reasons.count(why), 'row')}: {short}")
        yield f"{attack}: {'; '.join(filter(None, parts))}."
