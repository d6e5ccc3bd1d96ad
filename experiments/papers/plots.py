"""Bars, lines and dots, as the figures of all studies draw them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.papers.results import CellResult, moments
from experiments.plots import INK, PAPER, SMALL, line_style, new_figure, plain, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 5.6, 4.4
"""Of a panel, in inches."""
_BAR, _ROW, _ROW_WIDTH = 0.62, 0.3, 6.4
PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Bar:
    """A mean, a deviation, and the published mean where there is one."""

    mean: float
    deviation: float
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars by name, one bar a series; None where a group has none."""

    title: str
    y: str
    series: tuple[str, ...]
    groups: Mapping[str, Sequence[Bar | None]]


@dataclass(frozen=True, slots=True)
class Line:
    """Means and deviations over x; second: on the scale at the right."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    second: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines by name. published: points (x, y). share: whether y is shown in percent."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    published: Sequence[tuple[float, float]] = ()
    share: bool = True
    scales: tuple[str, str] = ("linear", "linear")
    second: str = ""
    ticks: Sequence[float] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Dots:
    """Values along x by series and row; the rows stand below one another."""

    title: str
    x: str
    rows: tuple[str, ...]
    series: Mapping[str, Mapping[str, float]]


def over(
    found: Mapping[float, Sequence[CellResult]],
    value: Callable[[CellResult], float] = lambda result: result.accuracy,
    *,
    second: bool = False,
) -> Line:
    """A line over x of the results there; seeds give the deviations."""
    ordered = sorted(found.items())
    means, deviations = zip(*(moments(results, value) for _, results in ordered), strict=True)
    return Line(tuple(x for x, _ in ordered), means, deviations, second)


def drawn(panels: Sequence[Bars | Lines], columns: int | None = None) -> "Figure":
    """Panels from left to right, in rows of so many; by default all in one."""
    across = columns or len(panels)
    down = -(-len(panels) // across)
    groups = max((len(panel.groups) for panel in panels if isinstance(panel, Bars)), default=0)
    made = new_figure(max(_WIDTH, _BAR * groups + 1.4) * across, _HEIGHT * down)
    for i, panel in enumerate(panels):
        left, bottom = i % across, down - 1 - i // across
        width = 0.74 if isinstance(panel, Lines) else 0.82
        axes = made.add_axes(
            ((left + 0.14) / across, (bottom + 0.33) / down, width / across, 0.54 / down)
        )
        if isinstance(panel, Bars):
            _bars(axes, panel)
        else:
            _lines(axes, panel)
    return made


def dotted(panels: Sequence[Dots], columns: int = 2) -> "Figure":
    """Panels of dots from left to right, in rows of so many; x is linear around 0 alone."""
    across = min(columns, len(panels))
    down = -(-len(panels) // across)
    high = _ROW * max(len(panel.rows) for panel in panels) + 1.5
    made = new_figure(_ROW_WIDTH * across, high * down)
    for i, panel in enumerate(panels):
        left, top = i % across, (down - i // across) * high - 0.6
        tall = _ROW * max(1, len(panel.rows))
        place = ((left + 0.32) / across, (top - tall) / (high * down))
        _dots(made.add_axes((*place, 0.62 / across, tall / (high * down))), panel)
    return made


def _dots(axes: "Axes", panel: Dots) -> None:
    for s, (name, values) in enumerate(panel.series.items()):
        shift = (s - (len(panel.series) - 1) / 2) * 0.22
        y = [panel.rows.index(row) + shift for row in values]
        colour, marker = line_style(s)
        axes.scatter(list(values.values()), y, color=colour, marker=marker, s=26, label=name)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_xscale("symlog", linthresh=1)
    ticks = (-100, -30, -10, -3, -1, 0, 1, 3)
    axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axes.set_xlim(-100, 4)
    axes.minorticks_off()
    axes.set_yticks(range(len(panel.rows)), list(panel.rows))
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    plain(axes)
    titled(axes, panel.title, panel.x, pad=22)
    _legend(axes, 3, (-0.02, 0.99), "lower left")


def _bars(axes: "Axes", panel: Bars) -> None:
    wide = 0.8 / len(panel.series)
    for s, name in enumerate(panel.series):
        shift = (s - (len(panel.series) - 1) / 2) * wide
        shown = [(i + shift, bar) for i, row in enumerate(panel.groups.values()) if (bar := row[s])]
        x, means = [place for place, _ in shown], [bar.mean for _, bar in shown]
        errors = [bar.deviation for _, bar in shown]
        colour, _ = line_style(2 * s)
        style: dict[str, Any] = {"color": colour, "error_kw": {"elinewidth": 1.0, "ecolor": INK}}
        axes.bar(x, means, wide, yerr=errors, label=name, **style)
    known = [
        (i + (s - (len(panel.series) - 1) / 2) * wide, bar.published)
        for i, row in enumerate(panel.groups.values())
        for s, bar in enumerate(row)
        if bar is not None and bar.published is not None
    ]
    _marks(axes, known)
    axes.set_xticks(range(len(panel.groups)), list(panel.groups), rotation=30, ha="right")
    axes.set_ylim(0, 1)
    if panel.y != "AUROC":
        _percent(axes)
    plain(axes, "y")
    titled(axes, panel.title, y=panel.y, pad=26)
    _legend(axes, 6, (-0.02, 0.99), "lower left")


def _lines(axes: "Axes", panel: Lines) -> None:
    across, up = panel.scales
    axes.set_xscale(across)
    axes.set_yscale(up)
    second = axes.twinx() if any(line.second for line in panel.lines.values()) else None
    for i, (name, line) in enumerate(panel.lines.items()):
        colour, marker = line_style(i)
        style: dict[str, Any] = {"color": colour, "markeredgecolor": PAPER, "markersize": 6}
        form = f"{marker}--" if line.second else f"{marker}-"
        if line.second and second is not None:
            second.errorbar(line.x, line.mean, line.deviation, fmt=form, capsize=3, **style)
            axes.plot([], [], form, label=name, **style)  # the first scale's legend is for both
        else:
            axes.errorbar(
                line.x, line.mean, line.deviation, fmt=form, capsize=3, label=name, **style
            )
    _marks(axes, panel.published)
    if panel.ticks:
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
    if panel.share:
        _percent(axes)
    plain(axes)
    if second is not None:
        _percent(second)
        plain(second, "")
        titled(second, "", y=panel.second)
    titled(axes, panel.title, panel.x, panel.y)
    _legend(axes, 2, (-0.02, -0.2), "upper left")


def _marks(axes: "Axes", points: Sequence[tuple[float, float]]) -> None:
    """Hollow marks at the published points."""
    if points:
        x, y = zip(*points, strict=True)
        style: dict[str, Any] = {"facecolor": PAPER, "edgecolor": INK, "zorder": 4}
        axes.scatter(x, y, marker="D", s=28, label=PUBLISHED, **style)


def _legend(axes: "Axes", columns: int, place: tuple[float, float], corner: str) -> None:
    style: dict[str, Any] = {"loc": corner, "bbox_to_anchor": place, "ncols": columns}
    axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK, **style)


def _percent(axes: "Axes") -> None:
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
