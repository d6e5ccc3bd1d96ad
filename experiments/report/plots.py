"""Figures from plain data: bars, lines and strips of images.

Every function returns a matplotlib Figure that belongs to no window and no global state. Colours,
sizes and grid are in `plots.mplstyle`.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secure_fd.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

INK, PAPER = "#1f2328", "#ffffff"
GAP = 2
"""White pixels between images."""

# Paul Tol's "muted" scheme, safe for colour-blind readers, ordered so that neighbours contrast.
_COLOURS = (
    "#332288", "#999933", "#CC6677", "#44AA99", "#AA4499",
    "#117733", "#88CCEE", "#882255", "#DDAA33",
)  # fmt: skip
_MARKERS = "osD^vPX<>"
_WIDTH, _HEIGHT = 5.6, 4.4
"""Size of a panel, in inches."""
_BAR = 0.62
"""Inches of a group of bars."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of all figures, whatever the user's own settings are."""
    from matplotlib import rc_context  # most of a second to import, so only to draw

    with rc_context(fname=Path(__file__).with_name("plots.mplstyle")):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that belongs to no window and no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def line_style(i: int) -> tuple[str, str]:
    """Colour and marker of the i-th row or line; no pair comes twice before the 81st."""
    count = len(_COLOURS)
    return _COLOURS[i % count], _MARKERS[(i + i // count) % count]


def percent(axes: "Axes") -> None:
    """Show shares on the y axis in percent."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


@styled()
def save(figures: Mapping[str, "Figure | None"], folder: Path, *kinds: str) -> None:
    """Write figures as files of these kinds (PNG by default), whole or not at all.

    A figure that is None removes the file of an earlier run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        for kind in kinds or ("png",):
            path = folder / f"{name}.{kind}"
            if figure is None:
                path.unlink(missing_ok=True)
            elif kind == "svg":
                write_atomically(path, partial(_write_svg, figure))
            else:
                write_atomically(path, partial(figure.savefig, format=kind))


_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_FRACTION = re.compile(r"-?[0-9]+\.[0-9]{2,}")


def _write_svg(figure: "Figure", file: BinaryIO) -> None:
    """Write a figure as SVG without metadata and indentation, to a tenth of a point."""
    made = StringIO()
    figure.savefig(made, format="svg", metadata=_NO_METADATA)

    def shorter(tag: re.Match[str]) -> str:
        return _FRACTION.sub(lambda number: f"{float(number[0]):.1f}", tag[0].replace("\n", ""))

    text = re.sub(r"<[^>]*>", shorter, made.getvalue())
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # nothing refers to a group
    file.write(re.sub(r"\n *", "\n", text).encode())


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """Images [n, H, W] in [0, 1] beside their name. reading: text at the right."""

    label: str
    images: NDArray[np.floating] = field(repr=False)
    reading: str = ""


@styled()
def strips(lines: Sequence[Strip], title: str, columns: int = 10) -> "Figure":
    """Lines of images below one another, at most `columns` in each."""
    columns = min(columns, max(len(line.images) for line in lines))
    height, width = (side + GAP for side in lines[0].images.shape[1:])
    cells = np.full((len(lines), columns, height, width), np.nan)  # NaN draws as paper
    for row, line in zip(cells, lines, strict=True):
        row[: len(line.images), :-GAP, :-GAP] = line.images[:columns]
    scale = 0.5 / height
    figure = new_figure(4.5 + scale * columns * width, 0.8 + scale * len(lines) * height)
    axes = figure.subplots()
    image = cells.swapaxes(1, 2).reshape(len(lines) * height, columns * width)
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(title)
    axes.set_xticks([])
    axes.grid(visible=False)
    names = [textwrap.fill(line.label, 46) for line in lines]
    readings = [line.reading for line in lines]
    centres = height * np.arange(len(lines)) + (height - GAP - 1) / 2
    for side, texts in ((axes, names), (axes.secondary_yaxis("right"), readings)):
        side.set_yticks(centres, texts)
        side.tick_params(length=0)
        side.spines[:].set_visible(False)
    return figure


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Data frames with a row a group of bars and a column a series; NaN is no bar.

    published: means in a paper, which are marked.
    """

    title: str
    y: str
    mean: Any
    deviation: Any
    published: Any


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

    ticks: texts by x.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    published: Sequence[tuple[float, float]] = ()
    share: bool = True
    scales: tuple[str, str] = ("linear", "linear")
    second: str = ""
    ticks: Mapping[float, str] = field(default_factory=dict)


@styled()
def drawn(panels: Sequence[Bars | Lines]) -> "Figure":
    """Panels from left to right, two in a row."""
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    groups = max((len(panel.mean) for panel in panels if isinstance(panel, Bars)), default=0)
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
    groups, count = panel.mean.index, len(panel.mean.columns)
    wide = 0.8 / count
    x = np.arange(len(groups))[:, None] + wide * (np.arange(count) - (count - 1) / 2)
    for s, name in enumerate(panel.mean.columns):
        look: dict[str, Any] = {"color": line_style(2 * s)[0], "label": name}
        error = {"elinewidth": 1.0, "ecolor": INK, "capsize": 0}
        axes.bar(
            x[:, s], panel.mean[name], wide, yerr=panel.deviation[name], error_kw=error, **look
        )
    known = panel.published.notna().to_numpy()
    _marks(axes, x[known], panel.published.to_numpy()[known])
    axes.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
    axes.set(ylim=(0, 1), ylabel=panel.y)
    across = 3 if count < 4 else 2  # of the legend, which stands between title and bars
    axes.set_title(panel.title, pad=12 + 14 * -(-(count + known.any()) // across))
    axes.grid(visible=False, axis="x")
    if panel.y != "AUROC":
        percent(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=across)


def _lines(axes: "Axes", panel: Lines) -> None:
    across, up = panel.scales
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, xscale=across, yscale=up)
    right = axes
    if any(line.second for line in panel.lines.values()):
        right = axes.twinx()
        right.set_ylabel(panel.second)
        right.grid(visible=False)
        percent(right)
    handles: list[Any] = []
    for i, (name, line) in enumerate(panel.lines.items()):
        colour, marker = line_style(i)
        on, form = (right, f"{marker}--") if line.second else (axes, f"{marker}-")
        look: dict[str, Any] = {
            "fmt": form,
            "color": colour,
            "markeredgecolor": PAPER,
            "label": name,
        }
        handles.append(on.errorbar(line.x, line.mean, line.deviation, **look))
    handles += _marks(axes, *zip(*panel.published, strict=True))
    if panel.ticks:
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
    if panel.share:
        percent(axes)
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(-0.02, -0.2), ncols=2)


def _marks(axes: "Axes", x: ArrayLike = (), y: ArrayLike = ()) -> "list[PathCollection]":
    """Hollow marks at the published points."""
    if not np.size(x):
        return []
    look: dict[str, Any] = {
        "marker": "D",
        "s": 28,
        "facecolor": PAPER,
        "edgecolor": INK,
        "zorder": 4,
    }
    return [axes.scatter(x, y, label="published", **look)]
