"""How every figure of a report looks: size, ink, one colour and marker a row, labels apart."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.report.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, PAPER = "#1f2328", "#d8dbe0", "#ffffff"
MUTED = "#6a727d"
SMALL, NORMAL = 8.5, 9.5

# Paul Tol's "muted" scheme, safe for colour-blind readers, ordered so that neighbours contrast.
_COLOURS = (
    "#332288", "#999933", "#CC6677", "#44AA99", "#AA4499",
    "#117733", "#88CCEE", "#882255", "#DDAA33",
)  # fmt: skip
_MARKERS = "osD^vPX<>"


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that belongs to no window and no global state."""
    # matplotlib takes most of a second to import: only who draws waits for it.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=PAPER)


def row_styles(results: Results) -> dict[str, tuple[str, str]]:
    """Colour and marker by row key, the same in every figure."""
    return {row.key: line_style(i) for i, row in enumerate(results.rows)}


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


def wrapped(label: str) -> str:
    """A label in lines short enough for the margins."""
    return textwrap.fill(label, 46)


def titled(axes: "Axes", title: str, x: str = "", y: str = "", pad: float = 10) -> None:
    """A title at the left, so many points above the axes, and axis labels."""
    axes.set_title(title, loc="left", fontsize=NORMAL + 1, color=INK, pad=pad, fontweight="bold")
    axes.set_xlabel(x, fontsize=NORMAL, color=INK)
    axes.set_ylabel(y, fontsize=NORMAL, color=INK)


def headed(figure: "Figure", title: str) -> None:
    """A title flush with the left edge of the figure, for axes that begin far from it."""
    height = float(figure.get_size_inches()[1])
    place: dict[str, Any] = {
        "ha": "left",
        "va": "top",
        "fontsize": NORMAL + 1,
        "fontweight": "bold",
    }
    figure.text(0.015, 1 - 0.16 / height, title, color=INK, **place)


def margins(figure: "Figure", left: float, right: float) -> tuple[float, float, float, float]:
    """Axes rectangle with margins in inches, whatever the figure's size."""
    width, height = map(float, figure.get_size_inches())
    above = 0.55
    return left / width, above / height, 1 - (left + right) / width, 1 - 2 * above / height


def beside(
    axes: "Axes", y: float, text: str, *, x: float = 1.015, color: str = INK, ha: str = "left"
) -> None:
    """Text at a data height, and at a fraction of the axes' width."""
    transform = axes.get_yaxis_transform()
    axes.text(x, y, text, color=color, ha=ha, va="center", fontsize=SMALL, transform=transform)


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> NDArray[np.float64]:
    """Positions moved as little as possible (least squares) to lie `gap` apart in [low, high].

    Order is kept. Subtracting i * gap from the i-th turns "at least a gap apart" into "not
    decreasing", which pooling adjacent violators solves exactly; clipping keeps it optimal.
    A gap that does not fit is made smaller.
    """
    values = np.asarray(positions, dtype=np.float64)
    count = len(values)
    gap = min(gap, (high - low) / max(count - 1, 1))
    order = np.argsort(values, kind="stable")
    offsets = gap * np.arange(count)
    pools: list[tuple[float, int]] = []
    for value in values[order] - offsets:
        pools.append((float(value), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    pooled = np.repeat([value for value, _ in pools], [n for _, n in pools])
    result = np.empty(count)
    result[order] = np.clip(pooled, low, high - gap * (count - 1)) + offsets
    return result
