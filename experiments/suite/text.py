"""The suite in words: figures as people read them, and the sentences around them."""

from experiments.results import NOT_APPLICABLE
from experiments.suite.results import (
    FALSE_ALARMS,
    NOT_RUN,
    VERDICTS,
    Interval,
    Measured,
    SceneResults,
    SuiteResults,
)
from experiments.tables import MINUS, number, with_unit

LIMITS = (
    "A figure at its control says that this attack, with this effort, found nothing. It does not "
    "say that nothing is there: an attack bounds leakage from below, only a proof from above.",
    "Intervals over seeds cover what a seed draws: split, training, attack, and the records that "
    "are compared. They cover no other data set, architecture, schedule or attacker. With two or "
    "three seeds they are wide, and they are approximate where figures are far from normal; the "
    "end of one may lie outside a figure's range.",
    "With one seed, intervals cover the records or reconstructions of that seed alone.",
    "An average hides single records. Read the true-positive rate at a low false-positive rate, "
    "and remember that it too is an average over the records that were tried.",
    "An image that looks like its class is no record of anybody. Only what exceeds the same "
    "figure for held-out images, or the same attack without access, speaks of leakage.",
    "An epsilon is a claim about every attacker and the worst record; these are some attackers "
    "and ordinary records. The audit, not this suite, tests the claim.",
    "Rows are compared within a scene only: another scene is another set-up.",
)
"""What no figure of the suite shows."""

ERROR = "TV error"
"""How the name of a figure starts that is an attacker's error: the lower, the more leaks."""
SIDES = {
    1: "leaking more than the control",
    0: "at the control",
    -1: "leaking less than the control",
}


def precise(value: float) -> str:
    """Three digits or so, also below one, where rates live."""
    if abs(value) >= 0.9995:
        return number(value)
    text = f"{value:.3f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", MINUS)


def brackets(interval: Interval | None) -> str:
    """The interval in brackets, or nothing."""
    return "" if interval is None else "[{}, {}]".format(*map(precise, interval))


def reading(found: Measured) -> str:
    """The figure and its interval."""
    return f"{precise(found.figure)} {brackets(found.interval)}".strip()


def difference(found: Measured) -> str:
    """Figure minus control with its sign, and the interval over seeds where there is one."""
    sign = "+" if found.difference >= 0.0005 else ""
    return f"{sign}{precise(found.difference)} {brackets(found.difference_interval)}".strip()


def apart(found: Measured) -> bool:
    """Whether figure and control differ by more than chance explains."""
    return found.verdict != VERDICTS[0]


def absence(scene: SceneResults, row: str, attack: str) -> str:
    """Why a row has no figure, as a whole sentence."""
    found = scene.cells.get(row, {}).get(attack)
    return found if isinstance(found, str) else "not run"


def blank(scene: SceneResults, row: str, attack: str) -> str:
    """Two words for the table where a row has no figure."""
    return absence(scene, row, attack).partition(":")[0]


def without_figure(scene: SceneResults, attack: str) -> dict[str, list[str]]:
    """Row labels by the reason that they have no figure for an attack."""
    reasons: dict[str, list[str]] = {}
    for row, label in scene.rows.items():
        if scene.figure(row, attack) is None:
            why = absence(scene, row, attack).removeprefix(NOT_APPLICABLE).removeprefix(NOT_RUN)
            reasons.setdefault(why, []).append(label)
    return reasons


def figure_names(scene: SceneResults, attack: str) -> list[str]:
    """The distinct figures, with units, that the rows report for one attack."""
    firsts = [found.first for found in scene.measured(attack).values()]
    return list(dict.fromkeys(with_unit(f.figure_name, f.unit) for f in firsts))


def control_names(scene: SceneResults, attack: str) -> list[str]:
    """The distinct controls of one attack."""
    return list(dict.fromkeys(f.first.control_name for f in scene.measured(attack).values()))


def caveats(scene: SceneResults) -> dict[str, str]:
    """Each caveat of a scene once, with the attacks, and the rows where not all, that carry it."""
    carriers: dict[str, list[str]] = {}
    for attack in scene.attacks:
        measured = scene.measured(attack)
        for caveat in dict.fromkeys(c for found in measured.values() for c in found.caveats):
            rows = [scene.rows[row] for row, found in measured.items() if caveat in found.caveats]
            some = f" ({', '.join(rows)})" if len(rows) < len(measured) else ""
            carriers.setdefault(caveat, []).append(attack + some)
    return {caveat: ", ".join(attacks) for caveat, attacks in carriers.items()}


def samples(found: Measured) -> str:
    """How many records scored a figure, and how many queries were asked; means over seeds."""
    seeds = found.seeds
    members, others = (
        sum(getattr(of, name) for of in seeds) / len(seeds)
        for name in ("n_members", "n_non_members")
    )
    queries = sum(of.figure.queries for of in seeds) / len(seeds)
    parts = [f"{members:,.0f} private, {others:,.0f} held out"] if members or others else []
    return "; ".join([*parts, *([f"{queries:,.0f} queries"] if queries else [])])


def summary(results: SuiteResults) -> list[str]:
    """How much was measured, how it came out, and what chance alone would call apart."""
    every = [_figures(scene) for scene in results.scenes]
    figures = [found for of in every for found in of]
    most = max((len(found.seeds) for found in figures), default=1)
    seeds = f"{most} seeds" if most > 1 else "one seed"
    return [
        f"{len(figures)} figures over {seeds}: {_counts(figures)}.{_by_chance(figures)}",
        *(f"{s.title}: {_counts(f)}." for s, f in zip(results.scenes, every, strict=True) if f),
    ]


def _by_chance(figures: list[Measured]) -> str:
    """A rule with a known false-alarm rate needs seeds, and figures that could have differed."""
    open_ones = sum(found.difference != 0 for found in figures if len(found.seeds) > 1)
    if not open_ones:
        return ""
    return (
        f" Were nothing leaking anywhere, chance would still set one in twenty apart, about "
        f"{FALSE_ALARMS * open_ones:.1f} of the {open_ones} whose figure and control are not equal."
    )


def _figures(scene: SceneResults) -> list[Measured]:
    return [found for attack in scene.attacks for found in scene.measured(attack).values()]


def side(found: Measured) -> str:
    """On which side of its control a figure lies, in terms of what leaks: an error leaks if low."""
    if not apart(found):
        return SIDES[0]
    above = found.verdict == VERDICTS[1]
    return SIDES[1] if above != found.first.figure_name.startswith(ERROR) else SIDES[-1]


def _counts(figures: list[Measured]) -> str:
    """How many figures are on each side that occurs."""
    of = {words: sum(side(found) == words for found in figures) for words in SIDES.values()}
    return ", ".join(f"{count} {words}" for words, count in of.items() if count) or "none"


def findings(scene: SceneResults) -> list[str]:
    """For each attack, the rows in which its figure and its control differ."""
    return [
        f"{scene.title}, {scene.attacks[attack]}: {_where(scene, measured)}."
        for attack in scene.attacks
        if (measured := scene.measured(attack))
    ]


def _where(scene: SceneResults, measured: dict[str, Measured]) -> str:
    parts = []
    for words in (SIDES[1], SIDES[-1]):
        labels = [scene.rows[row] for row, found in measured.items() if side(found) == words]
        if len(labels) == len(measured):
            return f"{words} in {'every' if len(labels) > 1 else 'the one'} row measured"
        if labels:
            parts.append(f"{words} in {len(labels)} of {len(measured)} ({', '.join(labels)})")
    return "; ".join(parts) or f"{SIDES[0]} in all {len(measured)} rows measured"
