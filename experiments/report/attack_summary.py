"""Attack figures as tables and sentences, for every report that shows a leakage."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from experiments.compare.leakage import NOT_APPLICABLE, NOT_RUN, Interval, Leakage, Measured
from experiments.report.page import Pairs, Part
from experiments.report.tables import MINUS, Table, Toned, counted, new_table, number

_POSITIVE = "positive_control"


def precise(value: float) -> str:
    """Three digits or so, also below one, where rates live.

    >>> precise(0.0614), precise(46.54)
    ('0.061', '46.5')
    """
    if abs(value) >= 0.9995:
        return number(value)
    text = f"{value:.3f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", MINUS)


def brackets(interval: Interval | None, show: Callable[[float], str] = precise) -> str:
    """The interval in brackets, or nothing."""
    return "" if interval is None else "[{}, {}]".format(*map(show, interval))


def reading(found: Measured) -> str:
    """The figure and its interval."""
    return f"{precise(found.figure)} {brackets(found.interval)}"


def starred(found: Measured) -> str:
    """The figure, * where it tells more than its control, and its interval."""
    return f"{precise(found.figure)}{'*' if found.leaks else ''} {brackets(found.interval)}"


def difference(found: Measured) -> str:
    """Figure minus control with its sign, and the interval over seeds where there is one."""
    gap = found.difference
    sign = "+" if gap.value >= 0.0005 else ""
    return f"{sign}{precise(gap.value)} {brackets(gap.interval)}".strip()


def figure_names(leakage: Leakage, attack: str, between: str = " / ") -> str:
    """The figures, with units, that the rows report for one attack, each once."""
    firsts = [found.first for found in leakage.measured(attack).values()]
    named = (f"{first.figure_name}, {first.unit}".removesuffix(", ") for first in firsts)
    return between.join(dict.fromkeys(named))


def control_names(leakage: Leakage, attack: str) -> str:
    """The controls of one attack, each once."""
    found = leakage.measured(attack).values()
    return " / ".join(dict.fromkeys(one.first.control_name for one in found))


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
    """How many records scored a figure, and how many queries were asked; means over seeds."""
    members, others, queries = (
        float(np.mean([getattr(figure, name) for figure in found.every]))
        for name in ("n_members", "n_non_members", "queries")
    )
    parts = [f"{members:,.0f} private, {others:,.0f} held out"] if members or others else []
    return "; ".join([*parts, *([f"{queries:,.0f} queries"] if queries else [])])


def overview(leakage: Leakage) -> Table:
    """A row's figure, interval and control under each attack."""
    title = "Under each attack: its figure, its 95 % interval, and the control without access"
    table = new_table(f"{title}; * where it tells more than that", ["protocol", *leakage.attacks])
    for row, label in leakage.rows.items():
        cells = (leakage.cell(row, attack) for attack in leakage.attacks)
        table.add_row(
            label, *(c.partition(":")[0] if isinstance(c, str) else _short(c) for c in cells)
        )
    return table


def _short(found: Measured) -> str:
    return f"{starred(found)} ({precise(found.control)})"


def matrix(leakage: Leakage, names: Sequence[str]) -> Table:
    """A row's figure above its interval under each attack, and the range of the controls.

    names: of the rows.
    """
    table = new_table("Each attack's figure and its 95 % interval", ["row", *leakage.attacks])
    for row, name in zip(leakage.rows, names, strict=True):
        found = (leakage.figure(row, attack) for attack in leakage.attacks)
        table.add_row(name, *("-" if one is None else _stacked(one) for one in found))
    controls: list[str] = []
    for attack in leakage.attacks:
        known = sorted(one.control for one in leakage.measured(attack).values())
        ends = dict.fromkeys(map(number, (known[0], known[-1]) if known else ()))
        controls.append(" to ".join(ends) or "-")
    table.add_row("control", *controls)
    return table


def _stacked(found: Measured) -> str:
    text = f"{number(found.figure)}\n{brackets(found.interval, number)}"
    return Toned(text, "leak" if found.leaks else "quiet")


def attack_table(leakage: Leakage, attack: str, seeds: int) -> Table:
    """Every row's figure of one attack in full, or why there is none."""
    columns = ["protocol", "figure", "control", "difference", "verdict", "besides"]
    names = f"{figure_names(leakage, attack)}; control: {control_names(leakage, attack)}"
    table = new_table(names, columns)
    for row, label in leakage.rows.items():
        found = leakage.cell(row, attack)
        if isinstance(found, str):
            table.add_row(label, *[""] * 4, found)
            continue
        few = f" ({len(found.seeds)} of {seeds} seeds)" if len(found.seeds) < seeds else ""
        figures = starred(found), precise(found.control), difference(found)
        table.add_row(label, *figures, found.verdict + few, samples(found))
    return table


def attack_parts(leakage: Leakage, attack: str, seeds: int) -> list[Part]:
    """The table of one attack, and behind each row's name what else was measured."""
    measured = leakage.measured(attack)
    return [
        attack_table(leakage, attack, seeds),
        *(
            Pairs(
                f"Further figures: {leakage.rows[row]}",
                {name: precise(value) for name, value in found.details.items()},
                folded=True,
            )
            for row, found in measured.items()
            if found.details
        ),
    ]


def attack_notes(leakage: Leakage, measured_on: Callable[[str], str]) -> Iterator[str]:
    """What each attack's figure and controls are, and why rows have none.

    measured_on: of the name of an attack.
    """
    for attack, title in leakage.attacks.items():
        found = list(leakage.measured(attack).values())
        parts = [title, f"measured on {measured_on(attack)}"]
        if found:
            parts += [figure_names(leakage, attack), f"control: {control_names(leakage, attack)}"]
            parts.append(samples(found[0]))
        positive = [number(f.details[_POSITIVE]) for f in found if _POSITIVE in f.details]
        if positive:
            parts.append(f"positive control: {' / '.join(dict.fromkeys(positive))}")
        reasons = [why for row in leakage.rows if (why := leakage.absence(row, attack))]
        for why in dict.fromkeys(reasons):
            short = why.removeprefix(NOT_APPLICABLE).removeprefix(NOT_RUN)
            parts.append(f"no figure in {counted(reasons.count(why), 'row')}: {short}")
        yield f"{attack}: {'; '.join(filter(None, parts))}."
