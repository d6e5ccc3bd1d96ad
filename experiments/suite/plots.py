"""The figures of a scene: every attack beside its control, curves, low rates, and images."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.plots import (
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
from experiments.suite.drawing import LEFT, Drawing, draw_interval, name_rows, row_style
from experiments.suite.picture_plots import literal_and_excess, rebuilt
from experiments.suite.pictures import Pictures
from experiments.suite.results import Measured, SceneResults
from experiments.suite.text import absence, apart, blank, figure_names, precise, reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
