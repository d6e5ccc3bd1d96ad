"""Accuracy against epsilon: one panel an image set and split, one line a unit."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.plots import INK, MUTED, PAPER, SMALL, line_style, new_figure, plain, titled
from experiments.results import write_atomically
from experiments.utility.results import PUBLISHED, CellResult, Results, moments
from experiments.utility.table import Epsilon, lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 180
_PANEL = (5.6, 4.4)
"""Width and height of a panel, in inches."""
_Line = dict[Epsilon, list[CellResult]]


def save(results: Results, folder: Path) -> list[Path]:
    """The figure as PNG and SVG; nothing where no line has two epsilons to compare."""
    made = figure(results)
    paths = [folder / f"dp_utility.{kind}" for kind in ("png", "svg")]
    for path in paths:
        if made is None:
            path.unlink(missing_ok=True)  # one of an earlier run
        else:
            kind = path.suffix.removeprefix(".")
            write_atomically(path, partial(made.savefig, format=kind, dpi=_DPI))
    return paths if made is not None else []


def figure(results: Results) -> "Figure | None":
    """Every panel that has a line of two epsilons or more, side by side."""
    panels: dict[tuple[str, bool], dict[str, _Line]] = {}
    for (place, name), line in lines(results).items():
        fleet = next(iter(line.values()))[0].cell.fleet is not None
        panels.setdefault((place, fleet), {})[name] = line
    shown = {key: panel for key, panel in panels.items() if max(map(len, panel.values())) > 1}
    if not shown:
        return None
    width, height = _PANEL
    made = new_figure(width * len(shown), height)
    for i, ((place, fleet), panel) in enumerate(shown.items()):
        axes = made.add_axes(((i + 0.12) / len(shown), 0.31, 0.82 / len(shown), 0.58))
        _draw(axes, panel)
        titled(axes, f"{place}{', fleets' if fleet else ''}", "epsilon", "" if i else "accuracy")
    return made


def _draw(axes: "Axes", panel: dict[str, _Line]) -> None:
    """Lines over epsilons at even steps, infinite last; references across the whole width."""
    epsilons = sorted(
        {epsilon for line in panel.values() for epsilon in line},
        key=lambda epsilon: np.inf if epsilon is None else epsilon,
    )
    place = {epsilon: x for x, epsilon in enumerate(epsilons)}
    for i, (name, line) in enumerate(panel.items()):
        colour, marker = line_style(i)
        if name == "no protection":
            level, _ = moments(next(iter(line.values())))
            _reference(axes, level, name, color=colour, linestyle=(0, (5, 3)))
            continue
        x = [place[epsilon] for epsilon in line]
        y, error = zip(*map(moments, line.values()), strict=True)
        style: dict[str, Any] = {"color": colour, "markeredgecolor": PAPER, "markersize": 7}
        axes.errorbar(x, y, error, fmt=f"{marker}-", linewidth=1.6, capsize=3, label=name, **style)
    cell = next(iter(next(iter(panel.values())).values()))[0].cell
    published = PUBLISHED.get((cell.image_set, cell.split))
    if published is not None and cell.fleet is None:
        name = "published, hard labels, no protection"
        _reference(axes, published, name, color=MUTED, linestyle=":")
    axes.set_xticks(range(len(epsilons)), ["∞" if e is None else f"{e:g}" for e in epsilons])
    axes.margins(x=0.06, y=0.08)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    plain(axes)
    below: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.2), "ncols": 2}
    axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK, **below)


def _reference(axes: "Axes", level: float, name: str, **style: Any) -> None:  # noqa: ANN401 - of matplotlib
    axes.axhline(level, linewidth=1.3, label=name, **style)
