"""What the figures of a scene have in common: words beside a figure, rows, and intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from experiments.plots import line_style, plain, wrapped
from experiments.suite.results import Interval, SceneResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
