"""Figures from plain data: bars, lines and strips of images.

Every function returns a matplotlib Figure that belongs to no window and no global state.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from secure_fd.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, PAPER = "#1f2328", "#d8dbe0", "#ffffff"
MUTED = "#6a727d"
SMALL, NORMAL = 8.5, 9.5
DPI = 180
GAP = 2
"""White pixels between images."""
PUBLISHED = "published"

# Paul Tol's "muted" scheme, safe for colour-blind readers, ordered so that neighbours contrast.
_COLOURS = (
    "#332288", "#999933", "#CC6677", "#44AA99", "#AA4499",
    "#117733", "#88CCEE", "#882255", "#DDAA33",
)  # fmt: skip
_MARKERS = "osD^vPX<>"
_WIDTH, _HEIGHT = 5.6, 4.4
"""Of a panel, in inches."""
_BAR = 0.62
"""Inches of a group of bars."""


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that belongs to no window and no global state."""
    # matplotlib takes most of a second to import: import it only to draw.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")


def line_style(i: int) -> tuple[str, str]:
    """Colour and marker of the i-th row or line; no pair comes twice before the 81st."""
    count = len(_COLOURS)
    return _COLOURS[i % count], _MARKERS[(i + i // count) % count]


def plain(axes: "Axes", grid: str = "both") -> None:
    """Two spines, small ticks, a faint grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(which="both", colors=MUTED, labelcolor=INK, labelsize=SMALL)
    axes.tick_params(which="minor", length=2)
    if grid:
        axes.grid(axis=grid, color=FAINT, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def titled(axes: "Axes", title: str, x: str = "", y: str = "", pad: float = 10) -> None:
    """A title at the left, so many points above the axes, and axis labels."""
    axes.set_title(title, loc="left", fontsize=NORMAL + 1, color=INK, pad=pad, fontweight="bold")
    axes.set_xlabel(x, fontsize=NORMAL, color=INK)
    axes.set_ylabel(y, fontsize=NORMAL, color=INK)


def save(figures: Mapping[str, "Figure | None"], folder: Path, *kinds: str) -> dict[str, Path]:
    """Write figures as files of these kinds (PNG by default), whole or not at all.

    A figure that is None removes the file of an earlier run. Returns the first path of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for name, figure in figures.items():
        for kind in kinds or ("png",):
            path = folder / f"{name}.{kind}"
            if figure is None:
                path.unlink(missing_ok=True)
                continue
            write_atomically(path, partial(figure.savefig, format=kind, dpi=DPI))
            paths.setdefault(name, path)
    return paths


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """Images [n, H, W] in [0, 1] beside their name. reading: text at the right."""

    label: str
    images: NDArray[np.floating] = field(repr=False)
    reading: str = ""


def strips(lines: Sequence[Strip], title: str, columns: int = 10) -> "Figure":
    """Lines of images below one another, at most `columns` in each."""
    made = [_joined(line.images[:columns]) for line in lines]
    width, height = max(strip.shape[1] for strip in made), made[0].shape[0]
    wide = [
        np.pad(strip, ((0, GAP), (0, width - strip.shape[1])), constant_values=np.nan)
        for strip in made
    ]
    scale = 0.5 / (height + GAP)
    figure = new_figure(4.5 + scale * width, 0.8 + scale * len(made) * (height + GAP))
    axes = figure.subplots()
    axes.imshow(np.concatenate(wide), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    centres = (height + GAP) * np.arange(len(made)) + (height - 1) / 2
    readings = axes.secondary_yaxis("right")
    for side, texts in (
        (axes.yaxis, [textwrap.fill(line.label, 46) for line in lines]),
        (readings.yaxis, [line.reading for line in lines]),
    ):
        side.set_ticks(centres, texts)
        side.set_tick_params(length=0, labelsize=SMALL, labelcolor=INK)
    axes.set_xticks([])
    for frame in (axes, readings):
        frame.spines[:].set_visible(False)
    titled(axes, title)
    return figure


def _joined(images: NDArray[np.floating]) -> NDArray[np.floating]:
    """[n, H, W] as one [H, n (W + GAP)] strip; NaN draws as paper."""
    padded = np.pad(images, ((0, 0), (0, 0), (0, GAP)), constant_values=np.nan)
    return np.concatenate(list(padded), axis=1)


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
    """Lines by name. published: points (x, y). share: whether y is in percent.

    ticks: texts by x."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    published: Sequence[tuple[float, float]] = ()
    share: bool = True
    scales: tuple[str, str] = ("linear", "linear")
    second: str = ""
    ticks: Mapping[float, str] = field(default_factory=dict)


def drawn(panels: Sequence[Bars | Lines], columns: int | None = None) -> "Figure":
    """Panels from left to right, in rows of so many; by default all in one."""
    across = columns or len(panels)
    down = -(-len(panels) // across)
    groups = max((len(panel.groups) for panel in panels if isinstance(panel, Bars)), default=0)
    made = new_figure(max(_WIDTH, _BAR * groups + 1.4) * across, _HEIGHT * down)
    places = made.subplots(down, across, squeeze=False).ravel()
    for axes, panel in zip_longest(places, panels):
        if panel is None:
            axes.remove()
        elif isinstance(panel, Bars):
            _bars(axes, panel)
        else:
            _lines(axes, panel)
    return made


def _bars(axes: "Axes", panel: Bars) -> None:
    wide = 0.8 / len(panel.series)
    known: list[tuple[float, float]] = []
    for s, name in enumerate(panel.series):
        shift = (s - (len(panel.series) - 1) / 2) * wide
        shown = [(i + shift, bar) for i, row in enumerate(panel.groups.values()) if (bar := row[s])]
        x, means = [place for place, _ in shown], [bar.mean for _, bar in shown]
        errors = [bar.deviation for _, bar in shown]
        colour, _ = line_style(2 * s)
        style: dict[str, Any] = {"color": colour, "error_kw": {"elinewidth": 1.0, "ecolor": INK}}
        axes.bar(x, means, wide, yerr=errors, label=name, **style)
        known += [(place, bar.published) for place, bar in shown if bar.published is not None]
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
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
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
