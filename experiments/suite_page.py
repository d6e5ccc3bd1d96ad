"""The suite in words: figures as people read them, and the sentences around them."""

import base64
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attacks.base import ImageArray
from attacks.statistics import OverSeeds
from attacks.view import THREATS, Capability
from experiments.page import REPORT_FILE, shown
from experiments.plots import (
    DPI,
    FAINT,
    INK,
    MUTED,
    PAPER,
    SMALL,
    beside,
    headed,
    line_style,
    margins,
    new_figure,
    plain,
    titled,
    wrapped,
)
from experiments.results import EXCESS, NOT_APPLICABLE, write_atomically
from experiments.suite import (
    FALSE_ALARMS,
    NOT_RUN,
    VERDICTS,
    Interval,
    Measured,
    Pictures,
    SceneResults,
    SuiteResults,
    save_pictures,
    save_suite,
    strips,
)
from experiments.tables import (
    MINUS,
    hanging,
    human_seconds,
    number,
    section,
    sentence,
    stdout_console,
    with_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


# The leakage table in a terminal: a scene's rows by its attacks, and how to read them.


_ROWS, _ATTACK = 34, 32
"""Columns that the names of rows, and one attack, take."""


def print_table(results: SuiteResults, console: Console | None = None) -> None:
    """Print every scene, what its attacks measure, and their caveats; then all in short."""
    console = console or stdout_console()
    for scene in results.scenes:
        _print_scene(scene, console)
    section(console, "In short")
    console.print(hanging(("·", Text(line)) for line in summary(results)))


def _print_scene(scene: SceneResults, console: Console) -> None:
    section(console, f"{scene.title} ({scene.name})")
    console.print(Text(scene.about))
    names = list(scene.attacks)
    at_once = max(1, (console.width - _ROWS) // _ATTACK)
    for i in range(0, len(names), at_once):
        console.print(_table(scene, names[i : i + at_once]))
    if not names:
        console.print(Text("Nothing was run.", style="dim"))
    console.print(hanging(("·", note) for note in _notes(scene)))


def _table(scene: SceneResults, attacks: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, padding=(0, 1))
    table.add_column(Text("figure [interval] · control", style="not bold dim"))
    for attack in attacks:
        table.add_column(_header(scene, attack), justify="right")
    for row, label in scene.rows.items():
        table.add_row(Text(label), *(_cell(scene, row, attack) for attack in attacks))
    return table


def _header(scene: SceneResults, attack: str) -> Text:
    """The attack, and its figure where all rows share one."""
    figures = figure_names(scene, attack)
    title = Text(attack)
    if len(figures) == 1:
        title.append(f"\n{figures[0]}", style="not bold dim")
    return title


def _cell(scene: SceneResults, row: str, attack: str) -> Text:
    found = scene.figure(row, attack)
    if found is None:
        return Text(blank(scene, row, attack), style="dim")
    return _measured(found)


def _measured(found: Measured) -> Text:
    far = apart(found)
    cell = Text(reading(found), style="bold" if far else "")
    cell.append("*" if far else " ")
    return cell.append(f" · {precise(found.control)}", style="not bold dim")


def _notes(scene: SceneResults) -> Iterator[Text]:
    """What each attack's figure and control are, where it does not apply, and its caveats."""
    if scene.attacks:
        yield Text("* figure and control differ by more than chance explains, at about 95 %")
    for attack, title in scene.attacks.items():
        figures, controls = figure_names(scene, attack), control_names(scene, attack)
        parts = [title, *([" / ".join(figures)] if figures else [])]
        parts += [f"control: {' / '.join(controls)}"] if controls else []
        for why, labels in without_figure(scene, attack).items():
            parts.append(f"none for {', '.join(labels)}: {why}")
        yield sentence(attack, "; ".join(parts))
    for caveat, where in caveats(scene).items():
        yield sentence("caveat", f"{caveat} [{where}]")


# What the figures of a scene have in common: words beside a figure, rows, and intervals.


LEFT = 2.9
"""Inches for the names of rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A figure and its words. attack: "" where it is about several."""

    name: str
    attack: str
    heading: str
    caption: str
    alt: str
    figure: "Figure" = field(repr=False)


def row_style(scene: SceneResults, row: str) -> tuple[str, str]:
    """Colour and marker of a row, the same in every figure of the scene."""
    return line_style(list(scene.rows).index(row))


def draw_interval(
    axes: "Axes", y: float, value: float, interval: Interval | None, colour: str
) -> None:
    """A value on a row; a line where it has an interval."""
    if interval is not None:
        axes.plot(interval, [y, y], color=colour, linewidth=1.5)
    axes.plot(value, y, ",", color=colour)  # the limits of the axes know it even without


def name_rows(axes: "Axes", labels: Sequence[str]) -> None:
    """Rows from top to bottom, named at the left."""
    axes.set_yticks(range(len(labels)), [wrapped(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.margins(x=0.06)
    plain(axes, grid="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


# Figures of attacks that rebuild images: PSNR as papers print it, its excess, and the images.


LITERAL, DELTA = "A", "delta"
"""Further figures of an attack in dB: best PSNR to a private image, and its excess Δ.

Those of a control carry its name in front: "black: A".
"""
_COLUMNS = 10
_GAP = 2
"""White pixels between images."""


@dataclass(frozen=True, slots=True)
class _Line:
    label: str
    literal: OverSeeds
    excess: OverSeeds
    colour: str


def literal_and_excess(scene: SceneResults, attack: str) -> Iterator[Drawing]:
    """PSNR as papers report it beside its excess over held-out images; controls below."""
    lines = [*_rows(scene, attack), *_controls(scene, attack)]
    if not lines:
        return
    figure = new_figure(8.4, 1.5 + 0.32 * len(lines))
    left, bottom, width, height = margins(figure, left=LEFT, right=0.25)
    places = [(left + i * 0.53 * width, bottom, 0.47 * width, height) for i in range(2)]
    literal, excess = map(figure.add_axes, places)
    for y, line in enumerate(lines):
        literal.barh(y, line.literal.value, height=0.6, color=line.colour, alpha=0.6, linewidth=0)
        draw_interval(literal, y, line.literal.value, line.literal.interval, INK)
        draw_interval(excess, y, line.excess.value, line.excess.interval, line.colour)
        excess.plot(line.excess.value, y, "o", color=line.colour, markersize=5.5)
    for axes in (literal, excess):
        name_rows(axes, [line.label for line in lines])
    excess.axvline(0, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
    excess.set_yticklabels([])
    literal.set_xlabel("best PSNR to a private image (A), dB", fontsize=SMALL, color=INK)
    excess.set_xlabel("excess over held-out images (Δ), dB", fontsize=SMALL, color=INK)
    heading = "PSNR as papers print it, and its excess over held-out images"
    headed(figure, f"{scene.attacks[attack]}: A and Δ")
    alt = "; ".join(
        f"{line.label}: A {precise(line.literal.value)} dB, Δ {precise(line.excess.value)}"
        for line in lines
    )
    caption = (
        "Left, the literal figure: it rewards blur, so images made without access score high. "
        "Right, what remains against as many images that nobody trained on; grey lines are "
        "controls without access."
    )
    yield Drawing(f"psnr-{attack}", attack, heading, caption, alt, figure)


def _rows(scene: SceneResults, attack: str) -> Iterator[_Line]:
    for row, found in scene.measured(attack).items():
        is_excess = found.first.figure_name.startswith(EXCESS)
        literal = found.detail(LITERAL)
        excess = OverSeeds(found.figure, found.interval) if is_excess else found.detail(DELTA)
        if literal is not None and excess is not None:
            yield _Line(scene.rows[row], literal, excess, row_style(scene, row)[0])


def _controls(scene: SceneResults, attack: str) -> Iterator[_Line]:
    """Controls whose figures are the same in every row; other names belong to one row's access."""
    measured = list(scene.measured(attack).values())
    for name in dict.fromkeys(name for found in measured for name in found.details):
        control, _, what = name.rpartition(": ")
        if not control or what != LITERAL:
            continue
        pairs = [(f.detail(name), f.detail(f"{control}: {DELTA}")) for f in measured]
        literal, excess = pairs[0]
        if literal is not None and excess is not None and all(p == pairs[0] for p in pairs):
            yield _Line(f"control: {control}", literal, excess, MUTED)


def rebuilt(
    scene: SceneResults, attack: str, by_row: Mapping[str, Mapping[str, ImageArray]]
) -> Iterator[Drawing]:
    """Lines of images: originals, what each row gave away, and controls."""
    lines = strips(scene.rows, by_row) if by_row else []
    if not lines:
        return
    made = [_strip(images) for _, images in lines]
    width = max(strip.shape[1] for strip in made)
    height = made[0].shape[0] + _GAP
    wide = [
        np.pad(strip, ((0, _GAP), (0, width - strip.shape[1])), constant_values=np.nan)
        for strip in made
    ]
    scale = 0.5 / height
    figure = new_figure(LEFT + 2.0 + scale * width, 1.0 + scale * height * len(made))
    axes = figure.add_axes(margins(figure, left=LEFT, right=2.0))
    axes.imshow(np.concatenate(wide), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    centres = height * np.arange(len(made)) + (height - _GAP) / 2
    axes.set_yticks(centres, [wrapped(label) for label, _ in lines])
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=INK)
    axes.spines[:].set_visible(False)
    figures = {scene.rows[row]: reading(f) for row, f in scene.measured(attack).items()}
    for centre, (label, _) in zip(centres, lines, strict=True):
        beside(axes, centre, figures.get(label, ""))
    headed(figure, f"{scene.attacks[attack]}: images")
    caption = (
        "One seed. Right: the row's figure over all seeds. A plausible image is no leak where the "
        "controls look the same."
    )
    alt = f"Lines of images: {'; '.join(label for label, _ in lines)}."
    yield Drawing(f"images-{attack}", attack, "What was rebuilt", caption, alt, figure)


def _strip(images: ImageArray) -> NDArray[np.floating]:
    """At most _COLUMNS of [n, H, W], evenly chosen, side by side; NaN draws as paper."""
    chosen = images[:: max(1, len(images) // _COLUMNS)][:_COLUMNS]
    padded = np.pad(chosen, ((0, 0), (0, 0), (0, _GAP)), constant_values=np.nan)
    return np.concatenate(list(padded), axis=1)


# The figures of a scene: every attack beside its control, curves, low rates, and images.


LOW_FPR = "tpr_at_0.01_fpr"
"""The further figure that membership attacks report, chance being 1 %."""
_CONTROL: dict[str, Any] = {"color": INK, "markersize": 11, "markeredgewidth": 1.4}


def drawings(scene: SceneResults, pictures: Pictures) -> Iterator[Drawing]:
    """Every figure that has data, attack by attack; then those of several attacks."""
    for attack in scene.attacks:
        if scene.measured(attack):
            yield _forest(scene, attack)
            yield from _roc(scene, attack)
            yield from literal_and_excess(scene, attack)
            yield from rebuilt(scene, attack, pictures.get(attack, {}))
    yield from _low_rates(scene)


def _forest(scene: SceneResults, attack: str) -> Drawing:
    """Rows on y: figure with interval, its seeds, and the control."""
    figure = new_figure(8.4, 1.45 + 0.34 * len(scene.rows))
    axes = figure.add_axes(margins(figure, left=LEFT, right=1.75))
    for y, row in enumerate(scene.rows):
        found = scene.figure(row, attack)
        if found is None:
            why = blank(scene, row, attack)
            beside(axes, y, why, x=0.5, color=MUTED, ha="center")
            continue
        _draw_measured(axes, y, found, row_style(scene, row))
        beside(axes, y, reading(found))
    name_rows(axes, list(scene.rows.values()))
    axes.set_xlabel(" / ".join(figure_names(scene, attack)), fontsize=SMALL, color=INK)
    headed(figure, scene.attacks[attack])
    alt = "; ".join(_spoken(scene, row, attack) for row in scene.rows)
    caption = (
        "Each mark is a mean with its 95 % interval, filled where it lies apart from its control "
        "(the upright line); small dots are single seeds."
    )
    return Drawing(f"forest-{attack}", attack, "Figure and control", caption, alt, figure)


def _spoken(scene: SceneResults, row: str, attack: str) -> str:
    found = scene.figure(row, attack)
    if found is None:
        return f"{scene.rows[row]}: {absence(scene, row, attack)}"
    return f"{scene.rows[row]}: {reading(found)}, control {precise(found.control)}"


def _draw_measured(axes: "Axes", y: float, found: Measured, style: tuple[str, str]) -> None:
    colour, marker = style
    ends = [found.control, found.figure]
    axes.plot(ends, [y, y], color=FAINT, linewidth=3.5, zorder=1.5, solid_capstyle="butt")
    axes.plot(found.control, y, "|", **_CONTROL)
    if len(found.seeds) > 1:
        single = [of.figure.figure for of in found.seeds]
        axes.plot(single, np.full(len(single), y + 0.28), ".", color=MUTED, markersize=3.5)
    face = colour if apart(found) else PAPER
    draw_interval(axes, y, found.figure, found.interval, colour)
    axes.plot(found.figure, y, marker, color=colour, markersize=6.5, markerfacecolor=face)


def _roc(scene: SceneResults, attack: str) -> Iterator[Drawing]:
    """Mean curves over seeds on log-log axes, from the lowest rate that can be resolved."""
    curves = {row: found for row, found in scene.measured(attack).items() if found.roc}
    if not curves:
        return
    figure = new_figure(8.4, 4.6)
    axes = figure.add_axes((0.085, 0.12, 0.47, 0.78))
    low = min(0.1, *(found.roc["fpr"][0] for found in curves.values() if found.roc))
    axes.plot([low, 1], [low, 1], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="chance")
    for row, found in sorted(curves.items(), key=lambda item: -item[1].figure):
        label = f"{precise(found.figure)}  {wrapped(scene.rows[row])}"
        _draw_curve(axes, found, row_style(scene, row), label)
    axes.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    plain(axes)
    titled(axes, f"ROC: {scene.attacks[attack]}", "false positives", "true positives")
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.03, 1.02)}
    axes.legend(**place, fontsize=SMALL, frameon=False, labelcolor=INK)
    names = " / ".join(figure_names(scene, attack))
    alt = f"{names}: " + "; ".join(
        f"{scene.rows[row]} {precise(found.figure)}" for row, found in curves.items()
    )
    caption = (
        "Log-log, mean over seeds: what counts is the left, where an accusation is rarely wrong. "
        "The axes start at the lowest rate that the non-members resolve."
    )
    yield Drawing(
        f"roc-{attack}", attack, "Receiver operating characteristic", caption, alt, figure
    )


def _draw_curve(axes: "Axes", found: Measured, style: tuple[str, str], label: str) -> None:
    rates = found.roc or {"fpr": [], "tpr": []}
    tpr = np.asarray(rates["tpr"])
    tpr = np.where(tpr > 0, tpr, np.nan)  # a log axis has no zero
    look: dict[str, Any] = {"markersize": 4.5, "markevery": (0.05, 0.15), "linewidth": 1.5}
    axes.plot(rates["fpr"], tpr, color=style[0], marker=style[1], label=label, **look)


def _low_rates(scene: SceneResults) -> Iterator[Drawing]:
    """TPR at 1 % FPR of every attack that resolves it, side by side on each row."""
    rates = {
        attack: {
            row: rate
            for row, found in scene.measured(attack).items()
            if (rate := found.detail(LOW_FPR))
        }
        for attack in scene.attacks
    }
    shown = {attack: found for attack, found in rates.items() if found}
    if not shown:
        return
    figure = new_figure(8.4, 1.6 + 0.4 * len(scene.rows))
    axes = figure.add_axes(margins(figure, left=LEFT, right=1.75))
    axes.axvline(0.01, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="chance")
    order = list(scene.rows)
    shifts = np.linspace(-0.25, 0.25, len(shown)) if len(shown) > 1 else np.zeros(1)
    for i, (attack, found) in enumerate(shown.items()):
        colour, marker = line_style(i)
        heights = [order.index(row) + float(shifts[i]) for row in found]
        for y, rate in zip(heights, found.values(), strict=True):
            draw_interval(axes, y, rate.value, rate.interval, colour)
        values = [rate.value for rate in found.values()]
        axes.plot(values, heights, marker, color=colour, markersize=5.5, label=attack)
    name_rows(axes, list(scene.rows.values()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.02), fontsize=SMALL, frameon=False)
    heading = "True positives at 1 % false positives"
    headed(figure, heading)
    alt = "; ".join(
        f"{attack} on {scene.rows[row]} {100 * rate.value:.1f} %"
        for attack, found in shown.items()
        for row, rate in found.items()
    )
    caption = "How many members an attack names while it accuses one non-member in a hundred."
    yield Drawing("low-fpr", "", heading, caption, alt, figure)


# Everything that a run of the suite leaves behind, and its one self-contained page.


PLOTS, IMAGES = "plots", "images"
"""Folders of PNG figures, and of the arrays of images."""
_TEMPLATE = "suite.html.j2"
_WORDS: tuple[Callable[..., object], ...] = (
    absence,
    apart,
    blank,
    brackets,
    caveats,
    control_names,
    difference,
    figure_names,
    findings,
    precise,
    samples,
    summary,
)
"""What the template calls by name."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """A figure of the page. source: a data URI."""

    attack: str
    heading: str
    caption: str
    alt: str
    source: str


def write_report(results: SuiteResults, images: Mapping[str, Pictures], folder: Path) -> Path:
    """Write the JSON file, images by scene, figures and report.html; the page's path.

    The numbers come first: a failure later never costs a finished run.
    """
    save_suite(results, folder)
    for scene in results.scenes:
        save_pictures(images.get(scene.name, {}), folder / IMAGES / f"{scene.name}.npz")
    plots = folder / PLOTS
    plots.mkdir(exist_ok=True)
    for stale in plots.glob("*.png"):
        stale.unlink()
    embedded: dict[str, list[Embedded]] = {}
    for scene in results.scenes:
        made = drawings(scene, images.get(scene.name, {}))
        embedded[scene.name] = [
            _kept(drawing, plots / f"{scene.name}-{drawing.name}.png") for drawing in made
        ]
    path = folder / REPORT_FILE
    page = render(results, embedded).encode()
    write_atomically(path, lambda file: file.write(page))
    return path


def render(results: SuiteResults, embedded: Mapping[str, Sequence[Embedded]]) -> str:
    """The page as text. embedded: by scene, its figures."""
    # Autoescape is on for everything: labels and caveats are text, never markup.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    return environment.get_template(_TEMPLATE).render(
        results=results,
        text={word.__name__: word for word in _WORDS},
        limits=LIMITS,
        pictures={scene.name: embedded.get(scene.name, ()) for scene in results.scenes},
        threats=THREATS,
        capabilities=list(Capability),
        command=shlex.join(results.command),
        human_seconds=human_seconds,
    )


def _kept(drawing: Drawing, path: Path) -> Embedded:
    """The figure as a file, and as a part of the page."""
    buffer = BytesIO()
    drawing.figure.savefig(buffer, format="png", dpi=DPI)
    png = buffer.getvalue()
    write_atomically(path, lambda file: file.write(png))
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return Embedded(drawing.attack, drawing.heading, drawing.caption, drawing.alt, source)
