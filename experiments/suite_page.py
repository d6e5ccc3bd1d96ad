"""The suite in words, in a terminal table, in figures and on one page."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attacks.base import ImageArray
from attacks.statistics import OverSeeds
from attacks.view import THREATS, Capability
from experiments.page import REPORT_FILE, data_uri, environment, png
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
    strips,
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
    named_strips,
    save_pictures,
    save_suite,
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


def drawings(scene: SceneResults, pictures: Pictures) -> Iterator[Drawing]:
    """Every figure that has data, attack by attack; then those of several attacks."""
    for attack in scene.attacks:
        if scene.measured(attack):
            yield _forest(scene, attack)
            yield from _roc(scene, attack)
            yield from literal_and_excess(scene, attack)
            yield from rebuilt(scene, attack, pictures.get(attack, {}))
    yield from _low_rates(scene)


def _styles(scene: SceneResults) -> dict[str, Style]:
    """By label, colour and marker of a row, the same in every figure of the scene."""
    return {label: line_style(i) for i, label in enumerate(scene.rows.values())}


def _forest(scene: SceneResults, attack: str) -> Drawing:
    """Rows on y: figure with interval, its seeds, and the control."""
    marks: dict[str, Mark | str] = {}
    spoken = []
    for row, label in scene.rows.items():
        found = scene.figure(row, attack)
        if found is None:
            marks[label] = blank(scene, row, attack)
            spoken.append(f"{label}: {absence(scene, row, attack)}")
            continue
        singles = [of.figure.figure for of in found.seeds]
        shown = reading(found)
        marks[label] = Mark(
            found.figure, found.interval, found.control, singles, apart(found), shown
        )
        spoken.append(f"{label}: {shown}, control {precise(found.control)}")
    x = " / ".join(figure_names(scene, attack))
    caption = (
        "Each mark is a mean with its 95 % interval, filled where it lies apart from its control "
        "(the upright line); small dots are single seeds."
    )
    figure = forest([Forest(scene.attacks[attack], x, marks, _styles(scene))])
    return Drawing(
        f"forest-{attack}", attack, "Figure and control", caption, "; ".join(spoken), figure
    )


def _roc(scene: SceneResults, attack: str) -> Iterator[Drawing]:
    """Mean curves over seeds on log-log axes, from the lowest rate that can be resolved."""
    styles = _styles(scene)
    curves = {
        scene.rows[row]: Curve(
            found.roc["fpr"], found.roc["tpr"], found.figure, styles[scene.rows[row]]
        )
        for row, found in scene.measured(attack).items()
        if found.roc
    }
    if not curves:
        return
    names = " / ".join(figure_names(scene, attack))
    alt = "; ".join(f"{label} {precise(curve.figure)}" for label, curve in curves.items())
    caption = (
        "Log-log, mean over seeds: what counts is the left, where an accusation is rarely wrong. "
        "The axes start at the lowest rate that the non-members resolve."
    )
    figure = roc(curves, f"ROC: {scene.attacks[attack]}", names)
    heading = "Receiver operating characteristic"
    yield Drawing(f"roc-{attack}", attack, heading, caption, f"{names}: {alt}", figure)


def literal_and_excess(scene: SceneResults, attack: str) -> Iterator[Drawing]:
    """PSNR as papers report it beside its excess over held-out images; controls below."""
    pairs = {**_pairs(scene, attack), **_pairs_of_controls(scene, attack)}
    if not pairs:
        return
    styles = dict.fromkeys(pairs, (MUTED, "o")) | _styles(scene)
    sides = [
        {label: Mark(pair[i].value, pair[i].interval) for label, pair in pairs.items()}
        for i in (0, 1)
    ]
    figure = forest(
        [
            Forest(scene.attacks[attack], "best PSNR (A), dB", sides[0], styles),
            Forest("", "excess (Δ), dB", sides[1], styles),
        ]
    )
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
    yield Drawing(f"psnr-{attack}", attack, heading, caption, alt, figure)


_Pairs = dict[str, tuple[OverSeeds, OverSeeds]]


def _pairs(scene: SceneResults, attack: str) -> _Pairs:
    """By row label, A and Δ of the rows that have both."""
    found: _Pairs = {}
    for row, measured in scene.measured(attack).items():
        literal, excess = measured.detail(LITERAL), measured.detail(DELTA)
        if measured.first.figure_name.startswith(EXCESS):
            excess = OverSeeds(measured.figure, measured.interval)
        if literal is not None and excess is not None:
            found[scene.rows[row]] = literal, excess
    return found


def _pairs_of_controls(scene: SceneResults, attack: str) -> _Pairs:
    """Controls whose figures are the same in every row; other names belong to one row's access."""
    measured = list(scene.measured(attack).values())
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
    scene: SceneResults, attack: str, by_row: Mapping[str, Mapping[str, ImageArray]]
) -> Iterator[Drawing]:
    """Lines of images: originals, what each row gave away, and controls; evenly chosen."""
    lines = named_strips(scene.rows, by_row) if by_row else []
    if not lines:
        return
    figures = {scene.rows[row]: reading(f) for row, f in scene.measured(attack).items()}
    figure = strips(
        [
            Strip(label, made[:: max(1, len(made) // _COLUMNS)], figures.get(label, ""))
            for label, made in lines
        ],
        f"{scene.attacks[attack]}: images",
        _COLUMNS,
    )
    caption = (
        "One seed. Right: the row's figure over all seeds. A plausible image is no leak where the "
        "controls look the same."
    )
    alt = f"Lines of images: {'; '.join(label for label, _ in lines)}."
    yield Drawing(f"images-{attack}", attack, "What was rebuilt", caption, alt, figure)


_COLUMNS = 10


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
        heights = [order.index(row) + float(shifts[i]) for row in found]
        for y, rate in zip(heights, found.values(), strict=True):
            draw_mark(axes, y, Mark(rate.value, rate.interval), line_style(i))
        axes.plot([], [], line_style(i)[1], color=line_style(i)[0], label=attack)
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
    return (
        environment()
        .get_template(_TEMPLATE)
        .render(
            results=results,
            text={word.__name__: word for word in _WORDS},
            limits=LIMITS,
            pictures={scene.name: embedded.get(scene.name, ()) for scene in results.scenes},
            threats=THREATS,
            capabilities=list(Capability),
            command=shlex.join(results.command),
            human_seconds=human_seconds,
        )
    )


def _kept(drawing: Drawing, path: Path) -> Embedded:
    """The figure as a file, and as a part of the page."""
    image = png(drawing.figure)
    write_atomically(path, lambda file: file.write(image))
    return Embedded(drawing.attack, drawing.heading, drawing.caption, drawing.alt, data_uri(image))
