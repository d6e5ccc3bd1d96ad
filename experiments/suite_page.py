"""The suite in words, in tables, in figures and on one page."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attacks.view import THREATS, Capability
from experiments.leakage import (
    BETWEEN,
    EXCESS,
    NOT_APPLICABLE,
    NOT_RUN,
    AttackFigure,
    Interval,
    Leakage,
    Measured,
    Pictures,
)
from experiments.page import data_uri, environment, png, write_page
from experiments.plots import (
    LEFT,
    MUTED,
    SMALL,
    Curve,
    Forest,
    Mark,
    Strip,
    Style,
    draw_mark,
    forest,
    headed,
    line_style,
    margins,
    name_rows,
    new_figure,
    roc,
    save,
    strips,
)
from experiments.scenes import SCENES, load
from experiments.study import Result, Results, grouped, save_arrays
from experiments.tables import MINUS, Table, human_seconds, new_table, number, with_unit
from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attacks.statistics import OverSeeds

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

SIDES = {
    1: "leaking more than the control",
    0: "at the control",
    -1: "leaking less than the control",
}
FALSE_ALARMS = 0.05
"""Of verdicts away from the control where nothing leaks."""
Named: TypeAlias = Mapping[str, NDArray[np.float32]]
ATTACK = "attack"
ORIGINALS = ("originals", "record", "nearest private")
"""Names that an attack's pictures go by; every other name is that of a control."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A scene and its results. pictures: by attack, row key and name; of each row's lowest seed."""

    name: str
    title: str
    about: str
    leakage: Leakage
    pictures: Mapping[str, Mapping[str, Named]] = field(repr=False)


def seen(results: Results) -> list[Seen]:
    """The scenes of a run, in the suite's order."""
    by_scene = grouped(results.cells, lambda cell: cell.scene)
    return [_seen(name, by_scene[name]) for name in SCENES if name in by_scene]


def _seen(name: str, found: Sequence[Result]) -> Seen:
    scene, by_row = load(name), grouped(found, lambda cell: cell.row)
    labels = scene.rows(found[0].cell.job())
    rows = {row: labels.get(row, row) for row in [*labels, *by_row]}
    given = {row: [(r.cell.seed, r.attacks) for r in of] for row, of in by_row.items()}
    first = {row: min(by_row[row], key=lambda r: r.cell.seed) for row in rows if row in by_row}
    return Seen(
        name, scene.title, scene.about, Leakage(rows, given), pictures_of(first)
    )  # fmt: skip


def pictures_of(results: Mapping[str, Result]) -> Mapping[str, Mapping[str, Named]]:
    """By attack, row key and name. Raises ConfigurationError for other arrays than images."""
    found: dict[str, dict[str, dict[str, NDArray[np.float32]]]] = {}
    for row, result in results.items():
        for place, images in result.pictures.items():
            attack, _, name = place.partition(BETWEEN)
            found.setdefault(attack, {}).setdefault(row, {})[name] = images
            if images.ndim != 3 or not images.size or not np.isfinite(images).all():
                allowed = "use finite images [n, H, W]"
                raise ConfigurationError(place, images.shape, allowed)
    return found


# Words.


def precise(value: float) -> str:
    """Three digits or so, also below one, where rates live.

    >>> precise(0.0614), precise(46.54)
    ('0.061', '46.5')
    """
    if abs(value) >= 0.9995:
        return number(value)
    text = f"{value:.3f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", MINUS)


def brackets(interval: Interval | None) -> str:
    """The interval in brackets, or nothing."""
    return "" if interval is None else "[{}, {}]".format(*map(precise, interval))


def reading(found: Measured) -> str:
    """The figure and its interval."""
    return f"{precise(found.figure)} {brackets(found.interval)}"


def difference(found: Measured) -> str:
    """Figure minus control with its sign, and the interval over seeds where there is one."""
    gap = found.difference
    sign = "+" if gap.value >= 0.0005 else ""
    return f"{sign}{precise(gap.value)} {brackets(gap.interval)}".strip()


def without_figure(leakage: Leakage, attack: str) -> dict[str, list[str]]:
    """Row labels by the reason that they have no figure for an attack."""
    reasons: dict[str, list[str]] = {}
    for row, label in leakage.rows.items():
        if why := leakage.absence(row, attack):
            bare = why.removeprefix(NOT_APPLICABLE).removeprefix(NOT_RUN)
            reasons.setdefault(bare, []).append(label)
    return reasons


def shared(leakage: Leakage, attack: str, word: Callable[[AttackFigure], str]) -> str:
    """What the rows say of one attack, each once."""
    said = dict.fromkeys(word(found.first) for found in leakage.measured(attack).values())
    return " / ".join(said)


def figure_names(leakage: Leakage, attack: str) -> str:
    """The figures, with units, that the rows report for one attack."""
    return shared(leakage, attack, lambda f: with_unit(f.figure_name, f.unit))


def control_names(leakage: Leakage, attack: str) -> str:
    """The controls of one attack."""
    return shared(leakage, attack, lambda f: f.control_name)


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


def summary(scenes: Sequence[Seen]) -> list[str]:
    """How much was measured, how it came out, and what chance alone would call apart."""
    every = [_figures(scene.leakage) for scene in scenes]
    figures = [found for of in every for found in of]
    most = max((len(found.seeds) for found in figures), default=1)
    seeds = f"{most} seeds" if most > 1 else "one seed"
    return [
        f"{len(figures)} figures over {seeds}: {_counts(figures)}.{_by_chance(figures)}",
        *(f"{s.title}: {_counts(f)}." for s, f in zip(scenes, every, strict=True) if f),
    ]


def _by_chance(figures: list[Measured]) -> str:
    """A rule with a known false-alarm rate needs seeds, and figures that could have differed."""
    open_ones = sum(found.difference.value != 0 for found in figures if len(found.seeds) > 1)
    if not open_ones:
        return ""
    return (
        f" Were nothing leaking anywhere, chance would still set one in twenty apart, about "
        f"{FALSE_ALARMS * open_ones:.1f} of the {open_ones} whose figure and control are not equal."
    )


def _figures(leakage: Leakage) -> list[Measured]:
    return [found for attack in leakage.attacks for found in leakage.measured(attack).values()]


def side(found: Measured) -> str:
    """On which side of its control a figure lies, in terms of what leaks: an error leaks if low."""
    if not found.apart:
        return SIDES[0]
    return SIDES[1 if found.leaks else -1]


def _counts(figures: list[Measured]) -> str:
    """How many figures are on each side that occurs."""
    of = {words: sum(side(found) == words for found in figures) for words in SIDES.values()}
    return ", ".join(f"{count} {words}" for words, count in of.items() if count) or "none"


def findings(scene: Seen) -> list[str]:
    """For each attack, the rows in which its figure and its control differ."""
    return [
        f"{scene.title}, {title}: {_where(scene.leakage, measured)}."
        for attack, title in scene.leakage.attacks.items()
        if (measured := scene.leakage.measured(attack))
    ]


def _where(leakage: Leakage, measured: dict[str, Measured]) -> str:
    parts = []
    for words in (SIDES[1], SIDES[-1]):
        labels = [leakage.rows[row] for row, found in measured.items() if side(found) == words]
        if len(labels) == len(measured):
            return f"{words} in {'every' if len(labels) > 1 else 'the one'} row measured"
        if labels:
            parts.append(f"{words} in {len(labels)} of {len(measured)} ({', '.join(labels)})")
    return "; ".join(parts) or f"{SIDES[0]} in all {len(measured)} rows measured"


# In a terminal.


def tables(results: Results) -> list[Table | str]:
    """Every scene, what its attacks measure, and their caveats; then all in short."""
    scenes = seen(results)
    parts = [part for scene in scenes for part in _parts(scene)]
    return [*parts, "\nIn short", *(f"· {line}" for line in summary(scenes))]


def _parts(scene: Seen) -> Iterator[Table | str]:
    leakage = scene.leakage
    table = new_table(scene.title, ("attack", "protocol", "figure", "control", "difference"), 2)
    for attack in leakage.attacks:
        for i, (row, label) in enumerate(leakage.rows.items()):
            found = leakage.cell(row, attack)
            shown = (found.partition(":")[0], "", "") if isinstance(found, str) else _cells(found)
            table.add_row("" if i else attack, label, *shown)
    yield scene.about
    yield table
    yield "* figure and control differ by more than chance explains, at about 95 %"
    yield from _notes(leakage)


def _cells(found: Measured) -> tuple[str, str, str]:
    star = "*" if found.apart else ""
    return reading(found) + star, precise(found.control), difference(found)


def _notes(leakage: Leakage) -> Iterator[str]:
    """What each attack's figure and control are, where it does not apply, and its caveats."""
    for attack, title in leakage.attacks.items():
        controls = control_names(leakage, attack)
        parts = [title, figure_names(leakage, attack), controls and f"control: {controls}"]
        for why, labels in without_figure(leakage, attack).items():
            parts.append(f"none for {', '.join(labels)}: {why}")
        yield f"· {attack}: {'; '.join(filter(None, parts))}"
    for caveat, where in caveats(leakage).items():
        yield f"· caveat: {caveat} [{where}]"


# Figures.


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A figure and its words. attack: "" where it is about several."""

    name: str
    attack: str
    heading: str
    caption: str
    alt: str
    figure: "Figure" = field(repr=False)


LITERAL, DELTA, LOW_FPR = "A", "delta", "tpr_at_0.01_fpr"
"""Further figures: best PSNR to a private image in dB, its excess Δ, and members found at 1 % FPR.

Those of a control carry its name in front: "black: A".
"""


def drawings(scene: Seen) -> Iterator[Drawing]:
    """Every figure that has data, attack by attack; then those of several attacks."""
    leakage = scene.leakage
    for attack, title in leakage.attacks.items():
        if leakage.measured(attack):
            yield _forest(leakage, attack, title)
            yield from _roc(leakage, attack, title)
            yield from literal_and_excess(leakage, attack, title)
            yield from rebuilt(leakage, attack, title, scene.pictures.get(attack, {}))
    yield from _low_rates(leakage)


def _styles(leakage: Leakage) -> dict[str, Style]:
    """By label, colour and marker of a row, the same in every figure of the scene."""
    return {label: line_style(i) for i, label in enumerate(leakage.rows.values())}


def _forest(leakage: Leakage, attack: str, title: str) -> Drawing:
    """Rows on y: figure with interval, its seeds, and the control."""
    marks: dict[str, Mark | str] = {}
    spoken = []
    for row, label in leakage.rows.items():
        found = leakage.cell(row, attack)
        if isinstance(found, str):
            marks[label] = found.partition(":")[0]
            spoken.append(f"{label}: {found}")
            continue
        singles, shown = [figure.figure for figure in found.every], reading(found)
        marks[label] = Mark(
            found.figure, found.interval, found.control, singles, found.apart, shown
        )
        spoken.append(f"{label}: {shown}, control {precise(found.control)}")
    caption = (
        "Each mark is a mean with its 95 % interval, filled where it lies apart from its control "
        "(the upright line); small dots are single seeds."
    )
    figure = forest([Forest(title, figure_names(leakage, attack), marks, _styles(leakage))])
    heading = "Figure and control"
    return Drawing(f"forest-{attack}", attack, heading, caption, "; ".join(spoken), figure)


def _roc(leakage: Leakage, attack: str, title: str) -> Iterator[Drawing]:
    """Mean curves over seeds on log-log axes, from the lowest rate that can be resolved."""
    styles = _styles(leakage)
    curves = {
        leakage.rows[row]: Curve(
            curve["fpr"], curve["tpr"], found.figure, styles[leakage.rows[row]]
        )
        for row, found in leakage.measured(attack).items()
        if (curve := found.roc)
    }
    if not curves:
        return
    names = figure_names(leakage, attack)
    alt = "; ".join(f"{label} {precise(curve.figure)}" for label, curve in curves.items())
    caption = (
        "Log-log, mean over seeds: what counts is the left, where an accusation is rarely wrong. "
        "The axes start at the lowest rate that the non-members resolve."
    )
    figure = roc(curves, f"ROC: {title}", names)
    heading = "Receiver operating characteristic"
    yield Drawing(f"roc-{attack}", attack, heading, caption, f"{names}: {alt}", figure)


def literal_and_excess(leakage: Leakage, attack: str, title: str) -> Iterator[Drawing]:
    """PSNR as papers report it beside its excess over held-out images; controls below."""
    pairs = {**_pairs(leakage, attack), **_pairs_of_controls(leakage, attack)}
    if not pairs:
        return
    styles = dict.fromkeys(pairs, (MUTED, "o")) | _styles(leakage)
    sides = [
        {label: Mark(pair[i].value, pair[i].interval) for label, pair in pairs.items()}
        for i in (0, 1)
    ]
    names = (title, "best PSNR (A), dB"), ("", "excess (Δ), dB")
    panels = [Forest(*name, marks, styles) for name, marks in zip(names, sides, strict=True)]
    alt = "; ".join(
        f"{label}: A {precise(literal.value)} dB, Δ {precise(excess.value)}"
        for label, (literal, excess) in pairs.items()
    )
    heading = "PSNR as papers print it, and its excess over held-out images"
    caption = (
        "Left, the literal figure: it rewards blur, so images made without access score high. "
        "Right, what remains against as many images that nobody trained on; grey lines are "
        "controls without access."
    )
    yield Drawing(f"psnr-{attack}", attack, heading, caption, alt, forest(panels))


_Pairs = dict[str, tuple["OverSeeds", "OverSeeds"]]


def _pairs(leakage: Leakage, attack: str) -> _Pairs:
    """By row label, A and Δ of the rows that have both."""
    found: _Pairs = {}
    for row, measured in leakage.measured(attack).items():
        literal, excess = measured.detail(LITERAL), measured.detail(DELTA)
        if measured.first.figure_name.startswith(EXCESS):
            excess = measured.mean
        if literal is not None and excess is not None:
            found[leakage.rows[row]] = literal, excess
    return found


def _pairs_of_controls(leakage: Leakage, attack: str) -> _Pairs:
    """Controls whose figures are the same in every row; other names belong to one row's access."""
    measured = list(leakage.measured(attack).values())
    found: _Pairs = {}
    for name in dict.fromkeys(name for one in measured for name in one.details):
        control, _, what = name.rpartition(": ")
        if not control or what != LITERAL:
            continue
        pairs = [(f.detail(name), f.detail(f"{control}: {DELTA}")) for f in measured]
        literal, excess = pairs[0]
        if literal is not None and excess is not None and all(p == pairs[0] for p in pairs):
            found[f"control: {control}"] = literal, excess
    return found


def rebuilt(
    leakage: Leakage, attack: str, title: str, by_row: Mapping[str, Named]
) -> Iterator[Drawing]:
    """Lines of images: originals, what each row gave away, and controls; evenly chosen."""
    lines = named_strips(leakage.rows, by_row) if by_row else []
    if not lines:
        return
    figures = {leakage.rows[row]: reading(f) for row, f in leakage.measured(attack).items()}
    shown = [
        Strip(label, made[:: max(1, len(made) // _COLUMNS)], figures.get(label, ""))
        for label, made in lines
    ]
    caption = (
        "One seed. Right: the row's figure over all seeds. A plausible image is no leak where the "
        "controls look the same."
    )
    alt = f"Lines of images: {'; '.join(label for label, _ in lines)}."
    figure = strips(shown, f"{title}: images", _COLUMNS)
    yield Drawing(f"images-{attack}", attack, "What was rebuilt", caption, alt, figure)


_COLUMNS = 10


def named_strips(
    labels: Mapping[str, str], by_row: Mapping[str, Named]
) -> list[tuple[str, NDArray[np.float32]]]:
    """An attack's images as named lines: originals, what each row gave away, then the controls.

    Images under one name that are the same in every row are shown once, under that name.
    """
    names = dict.fromkeys([*ORIGINALS, ATTACK, *(n for named in by_row.values() for n in named)])
    once = {name for name in names if name != ATTACK and _same(name, by_row)}
    shared = [(name, next(iter(by_row.values()))[name]) for name in names if name in once]
    own = [
        (labels[row] if name == ATTACK else f"{labels[row]}: {name}", named[name])
        for row, named in by_row.items()
        for name in names
        if name in named and name not in once
    ]
    before = [line for line in shared if line[0] in ORIGINALS]
    return [*before, *own, *shared[len(before) :]]


def _same(name: str, by_row: Mapping[str, Named]) -> bool:
    """Whether every row has the same images under this name."""
    first, *others = (named.get(name) for named in by_row.values())
    return first is not None and all(
        other is not None and np.array_equal(first, other) for other in others
    )


def _low_rates(leakage: Leakage) -> Iterator[Drawing]:
    """TPR at 1 % FPR of every attack that resolves it, side by side on each row."""
    rates = {
        attack: {
            row: rate
            for row, found in leakage.measured(attack).items()
            if (rate := found.detail(LOW_FPR))
        }
        for attack in leakage.attacks
    }
    shown = {attack: found for attack, found in rates.items() if found}
    if not shown:
        return
    figure = new_figure(8.4, 1.6 + 0.4 * len(leakage.rows))
    axes = figure.add_axes(margins(figure, left=LEFT, right=1.75))
    axes.axvline(0.01, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="chance")
    order = list(leakage.rows)
    shifts = np.linspace(-0.25, 0.25, len(shown)) if len(shown) > 1 else np.zeros(1)
    for i, (attack, found) in enumerate(shown.items()):
        for row, rate in found.items():
            y = order.index(row) + float(shifts[i])
            draw_mark(axes, y, Mark(rate.value, rate.interval), line_style(i))
        axes.plot([], [], line_style(i)[1], color=line_style(i)[0], label=attack)
    name_rows(axes, list(leakage.rows.values()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.02), fontsize=SMALL, frameon=False)
    heading = "True positives at 1 % false positives"
    headed(figure, heading)
    alt = "; ".join(
        f"{attack} on {leakage.rows[row]} {100 * rate.value:.1f} %"
        for attack, found in shown.items()
        for row, rate in found.items()
    )
    caption = "How many members an attack names while it accuses one non-member in a hundred."
    yield Drawing("low-fpr", "", heading, caption, alt, figure)


# The page.

PLOTS, IMAGES = "plots", "images"
"""Folders of PNG figures, and of the arrays of images."""
_WORDS: tuple[Callable[..., object], ...] = (
    *(brackets, caveats, control_names, difference, figure_names, findings),
    *(precise, samples, summary),
)
"""What the template calls by name."""


def write_report(results: Results, folder: Path) -> Path:
    """Write images by scene, figures and report.html; the page's path."""
    for kind in (folder / PLOTS, folder / IMAGES):
        for earlier in kind.glob("*.*"):
            earlier.unlink()
    scenes = seen(results)
    made = {scene.name: list(drawings(scene)) for scene in scenes}
    for scene in scenes:
        figures = {f"{scene.name}-{one.name}": one.figure for one in made[scene.name]}
        save(figures, folder / PLOTS)
        if arrays := _arrays(scene):
            save_arrays(folder / IMAGES / f"{scene.name}.npz", arrays)
    return write_page(render(results, made), folder)


def _arrays(scene: Seen) -> Pictures:
    """By attack/row/name."""
    return {
        BETWEEN.join((attack, row, name)): images
        for attack, rows in scene.pictures.items()
        for row, named in rows.items()
        for name, images in named.items()
    }


def render(results: Results, drawn: Mapping[str, Sequence[Drawing]]) -> str:
    """The page as text. drawn: by scene, its figures."""
    scenes = seen(results)
    return (
        environment()
        .get_template("suite.html.j2")
        .render(
            results=results,
            scenes=scenes,
            seeds=sorted({found.cell.seed for found in results.cells}),
            seconds=human_seconds(sum(found.seconds for found in results.cells)),
            text={word.__name__: word for word in _WORDS},
            limits=LIMITS,
            drawings={scene.name: drawn.get(scene.name, ()) for scene in scenes},
            source=lambda drawing: data_uri(png(drawing.figure)),
            threats=THREATS,
            capabilities=list(Capability),
            command=shlex.join(results.command),
        )
    )
