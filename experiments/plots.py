"""Figures: how each looks, and those of a comparison."""

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.results import (
    CONTROL,
    ORIGINALS,
    AttackFigure,
    Images,
    Results,
    Row,
    load_images,
    write_atomically,
)
from experiments.tables import absence, figure_names, human_bytes, interval, number, percent

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


MEMBERSHIP = "label-only"
INVERSION = "inversion"
MAX_COLUMNS = 10
DPI = 180
GAP = 2
"""White pixels between images."""
_POINT: dict[str, Any] = {"markersize": 6.5, "markeredgecolor": PAPER, "markeredgewidth": 0.6}
_FLAT: dict[str, Any] = {"solid_capstyle": "butt"}
_CONTROL: dict[str, Any] = {"color": INK, "markersize": 11, "markeredgewidth": 1.4}


def save_all(results: Results, folder: Path) -> dict[str, Path]:
    """Write every figure that has data as PNG; paths by figure name."""
    images = load_images(folder)
    figures = {
        "accuracy_bytes": accuracy_bytes(results),
        "accuracy": accuracy(results),
        "attacks": attacks(results),
        "roc": roc(results),
        "reconstructions": reconstructions(results, images) if images else None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        if figure is None:
            path.unlink(missing_ok=True)  # one of an earlier run
            continue
        write_atomically(path, partial(figure.savefig, format="png", dpi=DPI))
        paths[name] = path
    return paths


def accuracy_bytes(results: Results) -> "Figure":
    """Accuracy of every round against the bytes of a client until then, on a log axis.

    A row that sends nothing is a level line: a log axis has no zero.
    """
    figure = new_figure(8.4, 4.4)
    axes = figure.add_axes((0.085, 0.13, 0.515, 0.76))
    for row in results.rows:
        _draw_curve(axes, row, *row_styles(results)[row.key])
    _log_bytes(axes, [p.bytes for row in results.rows for p in row.curve if p.bytes > 0])
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.margins(y=0.06)
    plain(axes)
    axes.minorticks_off()
    titled(axes, "Accuracy against communication", "sent and received by a client, cumulative")
    _label_ends(axes, results)
    return figure


def _log_bytes(axes: "Axes", counts: list[float]) -> None:
    """A log axis in bytes, with enough ticks when it spans little; none without bytes."""
    if not counts:
        axes.set_xticks([])
        return
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: human_bytes(value).replace(".0 ", " "))
    if max(counts) < 30 * min(counts):
        axes.set_xticks([d * 10.0**e for e in range(13) for d in (1, 2, 5)])
        axes.set_xlim(0.8 * min(counts), 1.25 * max(counts))


def _total(row: Row) -> float:
    return row.bytes_up + row.bytes_down


def _draw_curve(axes: "Axes", row: Row, colour: str, marker: str) -> None:
    points = [(p.bytes, p.accuracy) for p in row.curve if p.bytes > 0]
    if not points:
        axes.axhline(row.accuracy.mean, color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
        return
    x, y = zip(*points, strict=True)
    axes.plot(x, y, color=colour, linewidth=1.6, solid_joinstyle="round")
    axes.plot(x[-1], y[-1], marker, color=colour, markersize=7, markeredgecolor=PAPER)


def _label_ends(axes: "Axes", results: Results) -> None:
    """Names beside the axes, near the height of their end points and never on one another."""
    low, high = axes.get_ylim()
    ends = [row.curve[-1].accuracy if row.curve else row.accuracy.mean for row in results.rows]
    heights = spread([(end - low) / (high - low) for end in ends], 0.075, 0.02, 0.98)
    styles = row_styles(results)
    for row, end, height in zip(results.rows, ends, heights, strict=True):
        colour, marker = styles[row.key]
        start = (end - low) / (high - low)
        place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "color": colour}
        axes.plot([1.01, 1.04], [start, height], linewidth=0.7, **place)
        axes.plot(1.06, height, marker if _total(row) else "_", **place)
        place["color"] = INK
        axes.text(1.085, height, wrapped(row.label), va="center", fontsize=SMALL, **place)


def accuracy(results: Results) -> "Figure":
    """Mean accuracy of each row, its spread over clients, and every client."""
    figure = new_figure(8.4, 1.3 + 0.36 * len(results.rows))
    axes = figure.add_axes(margins(figure, left=2.9, right=1.0))
    styles = row_styles(results)
    for y, row in enumerate(results.rows):
        colour, mean = styles[row.key][0], 100 * row.accuracy.mean
        clients = 100 * np.asarray(row.accuracy.per_client)
        axes.barh(y, mean, height=0.6, color=PAPER)
        axes.barh(y, mean, height=0.6, color=colour, alpha=0.6, linewidth=0)
        error = 100 * row.accuracy.std_over_clients
        axes.errorbar(mean, y, xerr=error, color=INK, elinewidth=1.2, capsize=3)
        axes.plot(clients, np.full(len(clients), y + 0.4), "|", color=MUTED, markersize=3.5)
        beside(axes, y, f"{percent(row)} %")
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    _name_rows(axes, results)
    plain(axes, grid="x")
    axes.spines["left"].set_visible(False)
    headed(figure, "Test accuracy: mean ± spread over clients; ticks are single clients")
    return figure


def _name_rows(axes: "Axes", results: Results) -> None:
    axes.set_yticks(range(len(results.rows)), [wrapped(row.label) for row in results.rows])
    axes.set_ylim(len(results.rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def attacks(results: Results) -> "Figure | None":
    """Each attack's figure with its interval, joined to its control; None without attacks."""
    names = [name for name in results.attacks if any(r.figure(name) for r in results.rows)]
    if not names:
        return None
    figure = new_figure(2.9 + 2.35 * len(names), 1.6 + 0.34 * len(results.rows))
    left, bottom, width, height = margins(figure, left=2.85, right=0.15)
    panel = width / len(names)
    for i, name in enumerate(names):
        axes = figure.add_axes((left + i * panel, bottom + 0.04, 0.87 * panel, height - 0.05))
        _draw_attack(axes, results, name)
        if i:
            axes.set_yticklabels([])
    _attack_key(figure)
    return figure


def _draw_attack(axes: "Axes", results: Results, name: str) -> None:
    styles = row_styles(results)
    for y, row in enumerate(results.rows):
        found = row.figure(name)
        if found:
            _draw_dumbbell(axes, y, found, *styles[row.key])
        else:
            beside(axes, y, absence(row, name), x=0.5, color=MUTED, ha="center")
    axes.margins(x=0.08)
    axes.locator_params(axis="x", nbins=4)
    _name_rows(axes, results)
    plain(axes, grid="x")
    axes.spines["left"].set_visible(False)
    titled(axes, name, "\n".join(figure_names(results, name)))


def _draw_dumbbell(axes: "Axes", y: int, found: AttackFigure, colour: str, marker: str) -> None:
    if found.control is not None:
        axes.plot(
            [found.control, found.figure], [y, y], color=FAINT, linewidth=3.5, zorder=1.5, **_FLAT
        )
        axes.plot(found.control, y, "|", **_CONTROL)
    if found.interval is not None:
        axes.plot(found.interval, [y, y], color=colour, linewidth=1.5)
    axes.plot(found.figure, y, marker, color=colour, **_POINT)


def _attack_key(figure: "Figure") -> None:
    axes = figure.axes[0]
    attack = axes.plot([], [], "o-", color=MUTED, linewidth=1.5, **_POINT)
    control = axes.plot([], [], "|", **_CONTROL)
    names = ["attack, with its interval", "control, without access"]
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.005, 0.005)}
    figure.legend([*attack, *control], names, fontsize=SMALL, frameon=False, **place)


def roc(results: Results, attack: str = MEMBERSHIP) -> "Figure | None":
    """ROC of membership inference on log-log axes; None where no row has one.

    The axes start at the smallest false-positive rate that the non-members can resolve.
    """
    curves = [(row, found) for row in results.rows if (found := row.figure(attack)) and found.roc]
    if not curves:
        return None
    figure = new_figure(8.4, 4.6)
    axes = figure.add_axes((0.085, 0.12, 0.47, 0.78))
    low = min(0.1, *(_first_positive(found) for _, found in curves))
    axes.plot([low, 1], [low, 1], color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
    axes.text(0.27, 0.19, "chance", color=MUTED, fontsize=SMALL, transform=axes.transAxes)
    for row, found in sorted(curves, key=lambda pair: -pair[1].figure):
        _draw_roc(axes, row, found, *row_styles(results)[row.key])
    axes.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    plain(axes)
    axes.grid(visible=False, which="minor")
    titled(axes, f"Membership inference ({attack})", "false positives", "true positives")
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.03, 1.02)}
    place |= {"title": " / ".join(figure_names(results, attack)), "alignment": "left"}
    axes.legend(**place, fontsize=SMALL, title_fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure


def _first_positive(found: AttackFigure) -> float:
    rates = found.roc["fpr"] if found.roc else []
    return min((rate for rate in rates if rate > 0), default=1e-3)


def _draw_roc(axes: "Axes", row: Row, found: AttackFigure, colour: str, marker: str) -> None:
    rates = found.roc or {"fpr": [], "tpr": []}
    fpr, tpr = np.asarray(rates["fpr"]), np.asarray(rates["tpr"])
    keep = (fpr > 0) & (tpr > 0)
    label = f"{number(found.figure)}  {wrapped(row.label)}"
    axes.plot(
        fpr[keep],
        tpr[keep],
        color=colour,
        linewidth=1.5,
        marker=marker,
        markersize=4.5,
        markevery=(0.05, 0.15),
        markeredgecolor=PAPER,
        markeredgewidth=0.5,
        label=label,
    )


def reconstructions(results: Results, images: Images) -> "Figure":
    """Rows of images: the originals, what each method let out, and the controls."""
    labels = {row.key: row.label for row in results.rows}
    names = [ORIGINALS, *(key for key in labels if key in images)]
    names += [name for name in images if name.startswith(CONTROL)]
    strips = [_strip(images[name]) for name in names]
    height, width = strips[0].shape
    scale = 0.5 / (height + GAP)
    figure = new_figure(2.9 + 1.6 + scale * width, 0.8 + scale * len(names) * (height + GAP))
    axes = figure.add_axes(margins(figure, left=2.9, right=1.6))
    canvas = np.concatenate([np.pad(s, ((0, GAP), (0, 0)), constant_values=np.nan) for s in strips])
    axes.imshow(canvas, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    centres = (height + GAP) * np.arange(len(names)) + (height - 1) / 2
    axes.set_yticks(centres, [wrapped(labels.get(name, name)) for name in names])
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=INK)
    axes.spines[:].set_visible(False)
    headed(figure, "Reconstructions beside the private originals")
    for centre, name in zip(centres, names, strict=True):
        _annotate(axes, centre, next((r for r in results.rows if r.key == name), None))
    return figure


def _strip(images: NDArray[np.floating]) -> NDArray[np.floating]:
    """[n, H, W] as one [H, n (W + GAP)] strip; NaN draws as paper."""
    kept = np.pad(images[:MAX_COLUMNS], ((0, 0), (0, 0), (0, GAP)), constant_values=np.nan)
    return np.concatenate(list(kept), axis=1)


def _annotate(axes: "Axes", centre: float, row: Row | None) -> None:
    """The attack's figure beside the images of its row."""
    found = row.figure(INVERSION) if row else None
    if found is None:
        return
    beside(axes, centre, f"{number(found.figure)} {found.unit}\n{interval(found)}".strip())
