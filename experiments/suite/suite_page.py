"""The suite in words, in tables, in figures and on one page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attacks.core.view import THREATS, Capability
from experiments.compare.leakage import (
    BETWEEN,
    Leakage,
    Measured,
)
from experiments.core.study import Result, Results, grouped, save_arrays
from experiments.report import attack_summary, plots
from experiments.report.page import Pairs, Picture, Section, data_uri, page, png, write_page
from experiments.report.tables import Table, human_seconds, new_table
from experiments.suite.scenes import ASKED_FOR, SCENES, load
from secure_fd.errors import ConfigurationError

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
    return [_seen(name, by_scene[name]) for name in (*SCENES, *ASKED_FOR) if name in by_scene]


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
        f"{title}: {_where(scene.leakage, measured)}."
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

    def picture(self, scene: str) -> Picture:
        """As a part of the page."""
        source = data_uri(png(self.figure))
        return Picture(f"{scene}-{self.name}", self.heading, self.caption, self.alt, source)


LOW_FPR = "tpr_at_0.01_fpr"
"""A further figure: members found at 1 % FPR."""


def drawings(scene: Seen) -> Iterator[Drawing]:
    """What was rebuilt, attack by attack; then members at a low rate, of all attacks."""
    leakage = scene.leakage
    for attack, title in leakage.attacks.items():
        if leakage.measured(attack):
            yield from rebuilt(leakage, attack, title, scene.pictures.get(attack, {}))
    yield from _low_rates(leakage)


def rebuilt(
    leakage: Leakage, attack: str, title: str, by_row: Mapping[str, Named]
) -> Iterator[Drawing]:
    """Lines of images: originals, what each row gave away, and controls; evenly chosen."""
    lines = named_strips(leakage.rows, by_row) if by_row else []
    if not lines:
        return
    figures = {
        leakage.rows[row]: attack_summary.reading(f) for row, f in leakage.measured(attack).items()
    }
    shown = [
        plots.Strip(label, made[:: max(1, len(made) // _COLUMNS)], figures.get(label, ""))
        for label, made in lines
    ]
    caption = (
        "One seed. Right: the row's figure over all seeds. A plausible image is no leak where the "
        "controls look the same."
    )
    alt = f"Lines of images: {'; '.join(label for label, _ in lines)}."
    figure = plots.strips(shown, f"{title}: images", _COLUMNS)
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
    figure = plots.new_figure(8.4, 1.6 + 0.4 * len(leakage.rows))
    axes = figure.add_axes(plots.margins(figure, left=plots.LEFT, right=1.75))
    axes.axvline(0.01, color=plots.MUTED, linewidth=1, linestyle=(0, (2, 2)), label="chance")
    order = list(leakage.rows)
    shifts = np.linspace(-0.25, 0.25, len(shown)) if len(shown) > 1 else np.zeros(1)
    for i, (attack, found) in enumerate(shown.items()):
        colour, marker = plots.line_style(i)
        rates_of = list(found.values())
        y = [order.index(row) + float(shifts[i]) for row in found]
        for height, rate in zip(y, rates_of, strict=True):
            if rate.interval is not None:
                axes.plot(rate.interval, [height, height], color=colour)
        axes.plot([rate.value for rate in rates_of], y, marker, color=colour, label=attack)
    plots.name_rows(axes, list(leakage.rows.values()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.02), fontsize=plots.SMALL, frameon=False)
    heading = "True positives at 1 % false positives"
    plots.headed(figure, heading)
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
_ONE_SEED = (
    "with one seed, Student's p-value of their difference is below .05, by √2 times the wider side "
    "of the figure's interval over records, as the control is an estimate too"
)
_READING = (
    "Every figure stands beside its control: the same attack without access to the run. Only the "
    "distance between the two speaks of leakage: above the control for most figures, below it for "
    "an attacker's error (TV error). An asterisk marks figures that tell more than their control "
    "by more than chance explains, at 95 % each: {rule}. Where an attack would need what its "
    "attacker does not have, it is not applicable, and the missing capability is named; nothing is "
    "simulated in its place."
)
_FRESH = (
    "Seeds drive data, training and attacks. Keys and noise are fresh in every run, so private "
    "rows vary within their noise."
)


def write_report(results: Results, folder: Path) -> Path:
    """Write images by scene, figures and report.html; the page's path."""
    for kind in (folder / PLOTS, folder / IMAGES):
        for earlier in kind.glob("*.*"):
            earlier.unlink()
    scenes = seen(results)
    made = {scene.name: list(drawings(scene)) for scene in scenes}
    for scene in scenes:
        figures = {f"{scene.name}-{one.name}": one.figure for one in made[scene.name]}
        plots.save(figures, folder / PLOTS)
        arrays = {
            BETWEEN.join((attack, row, name)): images
            for attack, rows in scene.pictures.items()
            for row, named in rows.items()
            for name, images in named.items()
        }
        if arrays:
            save_arrays(folder / IMAGES / f"{scene.name}.npz", arrays)
    path = write_page(render(results, made), folder)
    print(f"report: {path}")
    return path


def render(results: Results, drawn: Mapping[str, Sequence[Drawing]]) -> str:
    """The page as text. drawn: by scene, its figures."""
    scenes = seen(results)
    seconds = human_seconds(sum(found.seconds for found in results.cells))
    return page(
        "What attackers still learn",
        f"{results.schema} · {results.created} · {seconds} of CPU time in all rows, without what "
        "they share",
        summary(scenes),
        list(_sections(results, scenes, drawn)),
        results.command,
        _FRESH,
    )


def _sections(
    results: Results, scenes: Sequence[Seen], drawn: Mapping[str, Sequence[Drawing]]
) -> Iterator[Section]:
    seeds = _seeds(results)
    several = (
        "the interval of the difference, paired by seed, excludes zero (Student's, over "
        f"{seeds} seeds)"
    )
    yield Section("How to read", [_READING.format(rule=several if seeds > 1 else _ONE_SEED)])
    yield Section("Attackers", [threats()])
    for scene in scenes:
        yield from _of_scene(scene, drawn.get(scene.name, ()), seeds)
    yield Section("What this does not show", [LIMITS])
    machine, versions = Pairs("Machine", results.machine), Pairs("Versions", results.versions)
    yield Section("Settings", [Pairs("Run", results.settings), machine, versions])


def _seeds(results: Results) -> int:
    return len({found.cell.seed for found in results.cells})


def threats() -> Table:
    """What each attacker can have at most."""
    title = "What each attacker can have at most. A run gives less: under masks nobody has "
    title += "clients' uploads in clear"
    table = new_table(title, ["capability", *(threat.name for threat in THREATS)])
    for capability in Capability:
        held = ("yes" if capability in threat.most else "no" for threat in THREATS)
        table.add_row(capability.value, *held)
    return table


def _of_scene(scene: Seen, drawn: Sequence[Drawing], seeds: int) -> Iterator[Section]:
    leakage = scene.leakage
    yield Section(scene.title, [scene.about, findings(scene), attack_summary.overview(leakage)])
    for attack, title in leakage.attacks.items():
        parts = attack_summary.attack_parts(leakage, attack, seeds)
        parts += [one.picture(scene.name) for one in drawn if one.attack == attack]
        yield Section(f"{scene.name}: {title} ({attack})", parts, 3)
    if several := [one.picture(scene.name) for one in drawn if not one.attack]:
        yield Section(f"{scene.name}: all attacks", several, 3)
    known = [f"{caveat} ({where})" for caveat, where in attack_summary.caveats(leakage).items()]
    yield Section(f"{scene.name}: caveats", [known], 3)


def tables(results: Results) -> list[Table | str]:
    """What a terminal shows: the page's sections of scenes; then all in short."""
    scenes, seeds = seen(results), _seeds(results)
    parts: list[Table | str] = []
    for section in (one for scene in scenes for one in _of_scene(scene, (), seeds)):
        parts.append(f"\n{section.title}")
        for part in section.parts:
            if isinstance(part, Table):
                parts += [part] if len(part.columns) <= _NARROW else []
            elif isinstance(part, str):
                parts.append(part)
            elif not isinstance(part, Pairs | Picture):
                parts += [f"· {line}" for line in part]
    return [*parts, "\nIn short", *(f"· {line}" for line in summary(scenes))]


_NARROW = 6
"""Columns of a table that a terminal shows."""
