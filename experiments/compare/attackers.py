"""What each attacker learns of each protocol: one table, its notes, and a verdict from it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from attacks import PLAYED
from experiments.compare.leakage import (
    ERROR,
    NOT_APPLICABLE,
    NOT_RUN,
    AttackFigure,
    Leakage,
    Measured,
)
from experiments.report.exhibits import brackets, control_names, figure_names
from experiments.report.tables import NONE, Table, counted, new_table, number

LEGEND = (
    "Under each attack: its figure, the 95 % interval of this figure alone (unadjusted), and in "
    "round brackets its control, the same attack without access. * tells more than the control: by "
    "Holm's correction for all figures of the table, at most one table in 20 has a * by chance."
)
_HEADINGS: Mapping[str, str] = {
    "label-distribution": "server: a client's labels",
    "update-inversion": "server: picture behind one update",
    "update-inversion-8": "server: picture behind one update",
    "update-inversion-cnn": "server: picture behind one update",
    "inversion": "server: pictures from models or ensembles",
    "label-only": "outsider, final model: members",
    "server-members": "server: members, without shadow runs",
    "tracing": "server: members, from class sums",
    "game-server": "server: members",
    "game-lira": "outsider, final model: members by probabilities",
    "game-labels": "outsider, final model: members by labels alone",
}
"""Who learns what, by attack."""
STAND_INS: Mapping[str, str] = {
    "update-inversion": "one step of an MLP on 1 record, not this run",
    "update-inversion-8": "one step of an MLP on 8 records, not this run",
    "update-inversion-cnn": "one step of a CNN on 1 record, not this run",
    **dict.fromkeys(PLAYED, "small federations of digits, not your data"),
}
"""By attack that is not made on the run itself, what its figures are measured on."""
_SHORT = dict.fromkeys(PLAYED, "digits, not your data")
RECOGNISED = 20.0
"""dB from which a digit is recognised as the same handwriting."""
_PICTURES, _MEMBERS, _LABELS, _TRACES = "pictures", "members", "labels", "traces of pictures"
_ANSWERS = "answers of final networks"
_KINDS = (_PICTURES, _MEMBERS, _LABELS, _ANSWERS, _TRACES)
"""What can be learnt, worst first: a record, that it was there, how many of a class; that it was
there, by an outsider who asks what is deployed, whichever way that learnt; a blur."""
_EQUAL = 120.0
_POSITIVE = "positive_control"


def by_attacker(leaks: Leakage) -> Table | None:
    """A row's figure, interval and control under each attacker; None without attacks."""
    attacks = list(leaks.attacks)
    if not attacks:
        return None
    columns = ["method", *(_heading(leaks, name) for name in attacks)]
    table = new_table("What each attacker learns", columns)
    for i, (row, label) in enumerate(leaks.rows.items(), 1):
        table.add_row(f"{i}. {label}", *(_cell(leaks.cell(row, name)) for name in attacks))
    return replace(table, narrow=_figures(leaks, attacks))


def _figures(leaks: Leakage, attacks: Sequence[str]) -> Table:
    """The same for few columns: rows by number, figures, and the range of the controls below."""
    title = "What each attacker learns of each row, by number; intervals are in the files"
    table = new_table(title, ["row", *(short_heading(name).replace("-", " ") for name in attacks)])
    for i, row in enumerate(leaks.rows, 1):
        found = (leaks.cell(row, name) for name in attacks)
        table.add_row(f"{i}.", *(_absent(f) if isinstance(f, str) else marked(f) for f in found))
    for name, pick in (("least control", min), ("most", max)):
        every = ([f.control for f in leaks.measured(attack).values()] for attack in attacks)
        table.add_row(name, *(number(pick(known)) if known else NONE for known in every))
    return table


def _absent(why: str) -> str:
    return NONE if why.startswith(NOT_APPLICABLE) else "not run"


def _heading(leaks: Leakage, attack: str) -> str:
    names = figure_names(leaks, attack, " or ")
    return f"{heading(attack)}; {names}" if names else heading(attack)


def heading(attack: str) -> str:
    """Who learns what, and what it was measured on where that is not the run.

    >>> heading("game-server")
    'server: members, small federations of digits, not your data'
    """
    learnt = _HEADINGS.get(attack, attack)
    return f"{learnt}, {STAND_INS[attack]}" if attack in STAND_INS else learnt


def short_heading(attack: str) -> str:
    """The name of an attack, and that it was not made on the run where that is so.

    >>> short_heading("tracing"), short_heading("update-inversion"), short_heading("game-lira")
    ('tracing', 'update-inversion, not this run', 'game-lira, digits, not your data')
    """
    return f"{attack}, {_SHORT.get(attack, 'not this run')}" if attack in STAND_INS else attack


def _cell(found: Measured | str) -> str:
    if isinstance(found, str):
        return _absent(found)
    exact, gap = found.first.exact, found.detail("delta")
    parts = [f"{marked(found)} {brackets(found.interval, number)} ({number(found.control)})"]
    parts += [] if exact is None else [f"{100 * exact:.0f} % exact"]
    parts += [f"Δ {number(gap.value)}"] if gap and not _excess(found) else []
    return " ".join(parts)


def _excess(found: Measured) -> bool:
    return found.first.figure_name.startswith("Δ")


def marked(found: Measured) -> str:
    """The figure; * where it tells more than its control."""
    return number(found.figure) + ("*" if found.leaks else "")


def attack_notes(leaks: Leakage) -> Iterator[str]:
    """What each attack's figure and controls are, and the rows that have none."""
    for name in leaks.attacks:
        measured = f"measured on {STAND_INS.get(name, 'this run')}"
        parts = [measured, figure_names(leaks, name) or "no figure"]
        if controls := control_names(leaks, name):
            parts.append(f"control: {controls}")
        if positive := _positive(leaks, name):
            parts.append(f"positive control, another training with nothing protected: {positive}")
        for why, labels in _without_figure(leaks, name).items():
            parts.append(f"n/a for {', '.join(labels)}: {why}")
        yield f"{name}: {'; '.join(parts)}"


def _positive(leaks: Leakage, attack: str) -> str:
    """One number, or several where rows are read in ways that have a control each."""
    every = leaks.measured(attack).items()
    controls: dict[str, list[str]] = {}
    for row, found in every:
        if _POSITIVE in found.details:
            known = number(found.details[_POSITIVE])
            controls.setdefault(known, []).append(leaks.rows[row])
    if len(controls) < 2:
        return "".join(controls)
    return ", ".join(f"{known} ({', '.join(rows)})" for known, rows in controls.items())


def _without_figure(leaks: Leakage, attack: str) -> dict[str, list[str]]:
    """Row labels by the reason that they have no figure."""
    reasons: dict[str, list[str]] = {}
    for row, label in leaks.rows.items():
        if why := leaks.absence(row, attack):
            short = why.removeprefix(NOT_APPLICABLE).removeprefix(NOT_RUN)
            reasons.setdefault(short, []).append(label)
    return reasons


# The verdict.


@dataclass(frozen=True, slots=True)
class _Leak:
    """The strongest figure of one kind in a row. share: of the way from control to knowing all."""

    kind: str
    found: Measured
    share: float

    @property
    def figure(self) -> str:
        """With name and unit."""
        name = "error " if self.kind == _LABELS else "AUC " if self.kind == _MEMBERS else ""
        unit = f" {self.found.first.unit}" if self.found.first.unit else ""
        excess = "Δ " if _excess(self.found) else ""
        return f"{excess}{name}{number(self.found.figure)}{unit}"

    @property
    def beside(self) -> str:
        """The control, and what else says how much the figure is."""
        first = self.found.first
        exact = "" if first.exact is None else f", {100 * first.exact:.0f} % exact"
        return f"(control {number(self.found.control)}{exact})"


def verdict(leaks: Leakage) -> list[str]:
    """Which protocol leaks what, worst first: at most six sentences, made from the figures.

    A row is the worse the graver the kinds of what it leaks, and then the nearer the attacker gets
    to all of it. What clients declare in public is known. Attacks that were not made on the run
    have the last sentence to themselves, which draws no conclusion about it.
    """
    every = {row: _leaks(leaks, row) for row in leaks.rows if _attacked(leaks, row)}
    leaking = sorted((row for row in every if every[row]), key=lambda row: _grave(every[row]))
    sentences = []
    if leaking:
        sentences.append(_ranking(leaks, {row: every[row] for row in leaking}))
        for kind in _KINDS[:3]:
            sentences += _of_kind(leaks, every, kind)
        sentences += _silent(leaks, every)
    elif every:
        rows = counted(len(every), "row")
        sentences.append(f"No attack on this run tells more than its control in any of {rows}.")
    return [*sentences, *_of_stand_ins(leaks)]


def kinds(leaks: Leakage, row: str) -> tuple[str, ...] | None:
    """What a row leaks, worst first; None where no attack on the run has a figure of it."""
    return tuple(_leaks(leaks, row)) if _attacked(leaks, row) else None


def _on_the_run(leaks: Leakage) -> list[str]:
    return [attack for attack in leaks.attacks if attack not in STAND_INS]


def _attacked(leaks: Leakage, row: str) -> bool:
    return any(leaks.figure(row, attack) for attack in _on_the_run(leaks))


def _leaks(leaks: Leakage, row: str) -> dict[str, _Leak]:
    """By kind, the strongest figure on the run that tells more than its control."""
    strongest: dict[str, _Leak] = {}
    for attack in _on_the_run(leaks):
        found = leaks.figure(row, attack)
        if found is None or not found.leaks:
            continue
        kind = _kind(attack, found)
        if kind == _TRACES and not _beyond_all(found):
            continue
        if kind and (kind not in strongest or strongest[kind].share < _share(found)):
            strongest[kind] = _Leak(kind, found, _share(found))
    if _PICTURES in strongest:
        strongest.pop(_TRACES, None)
    return {kind: strongest[kind] for kind in _KINDS if kind in strongest}


def _kind(attack: str, found: Measured) -> str:
    """What a figure is about; "" of an attack of one's own that measures something else."""
    first = found.first
    if first.unit == "dB":
        seen = found.details.get("A", found.figure)
        return _PICTURES if seen >= RECOGNISED else _TRACES
    if first.figure_name.startswith(ERROR):
        return _LABELS
    told = _ANSWERS if _HEADINGS.get(attack, "").startswith("outsider") else _MEMBERS
    return told if _ranks(first) else ""


def _beyond_all(found: Measured) -> bool:
    """Whether a blur exceeds every image made without access, and not the named control alone."""
    others = [value for name, value in found.details.items() if name.endswith(": delta")]
    low = -math.inf if found.interval is None else found.interval[0]
    return all(low > other for other in others)


def _ranks(first: AttackFigure) -> bool:
    return first.figure_name.startswith("AUC")


def _share(found: Measured) -> float:
    """Of the way from the control to knowing everything, in [0, 1]."""
    first = found.first
    best = _EQUAL if first.unit == "dB" else 0.0 if first.figure_name.startswith(ERROR) else 1.0
    whole = best - found.control
    return 0.0 if whole == 0 else min(1.0, max(0.0, (found.figure - found.control) / whole))


def _grave(found: Mapping[str, _Leak]) -> tuple[tuple[bool, ...], tuple[float, ...]]:
    """Sorts the worst first: kinds that are there, then how much of each."""
    shares = tuple(-found[kind].share if kind in found else 0.0 for kind in _KINDS)
    return tuple(kind not in found for kind in _KINDS), shares


def _ranking(leaks: Leakage, leaking: Mapping[str, Mapping[str, _Leak]]) -> str:
    """Rows that leak the same kinds, together."""
    groups: list[tuple[tuple[str, ...], list[str]]] = []
    for row, found in leaking.items():
        if not groups or groups[-1][0] != tuple(found):
            groups.append((tuple(found), []))
        groups[-1][1].append(leaks.rows[row])
    parts = [f"{', '.join(labels)}: {_joined(kinds)}" for kinds, labels in groups]
    return f"What attacks on this run learn, worst first: {'; '.join(parts)}."


def _of_kind(leaks: Leakage, every: Mapping[str, Mapping[str, _Leak]], kind: str) -> Iterator[str]:
    """The rows that leak one kind, each with figure and control; traces go with pictures."""
    names = (kind, _TRACES) if kind == _PICTURES else (kind,)
    found = [
        (each[name], leaks.rows[row])
        for row, each in every.items()
        for name in names
        if name in each
    ]
    if found:
        yield f"{kind.capitalize()}: {_readings(found)}."


def _readings(found: list[tuple[_Leak, str]]) -> str:
    """Figures with the labels of their rows, the strongest first."""
    found.sort(key=lambda one: (_KINDS.index(one[0].kind), -one[0].share))
    of = groupby(found, key=lambda one: one[0].beside)
    return "; ".join(
        f"{', '.join(f'{label} {leak.figure}' for leak, label in same)} {beside}"
        for beside, same in of
    )


def _of_stand_ins(leaks: Leakage) -> Iterator[str]:
    """What attacks that were not made on the run tell more than their controls, each by itself."""
    parts = []
    for attack in leaks.attacks:
        if attack in STAND_INS:
            found = [
                (_Leak(kind, one, _share(one)), leaks.rows[row])
                for row, one in leaks.measured(attack).items()
                if one.leaks and (kind := _kind(attack, one))
            ]
            if found:
                parts.append(f"{attack} ({STAND_INS[attack]}): {_readings(found)}")
    if parts:
        yield f"Not measured on this run: {'; '.join(parts)}."


def _silent(leaks: Leakage, every: Mapping[str, Mapping[str, _Leak]]) -> Iterator[str]:
    """Rows, and attacks, that tell nothing."""
    rows = [leaks.rows[row] for row, found in every.items() if not found]
    attacks = [
        name
        for name in _on_the_run(leaks)
        if (measured := leaks.measured(name).values()) and not _tells(measured)
    ]
    learnt = "no attack on this run tells more than its control of"
    parts = [f"{learnt} {_joined(rows)}"] if rows else []
    tell = "" if rows else " tell more than its control"
    parts += [f"in no row does {_joined(attacks, 'or')}{tell}"] if attacks else []
    if parts:
        text = "; ".join(parts)
        yield f"{text[0].upper()}{text[1:]}."


def _tells(measured: Iterable[Measured]) -> bool:
    return any(found.leaks for found in measured)


def _joined(words: Sequence[str], last: str = "and") -> str:
    """A list as one says it.

    >>> _joined(["a", "b", "c"])
    'a, b and c'
    """
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end
