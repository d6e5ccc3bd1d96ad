"""What a comparison leaves behind: its table in a terminal, its figures, and one HTML page."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import sentences
from experiments.page import Picture, data_uri, environment, write_page
from experiments.plots import (
    INK,
    LEFT,
    MUTED,
    PAPER,
    SMALL,
    Curve,
    Forest,
    Mark,
    Strip,
    Style,
    beside,
    forest,
    headed,
    line_style,
    margins,
    name_rows,
    new_figure,
    plain,
    roc,
    save,
    spread,
    strips,
    titled,
    wrapped,
)
from experiments.results import (
    CONTROL,
    IMAGES_FILE,
    ORIGINALS,
    AttackFigure,
    Images,
    Results,
    Row,
    load_images,
    save_images,
    save_results,
)
from experiments.sentences import (
    absence,
    attendance,
    control_names,
    drop_rate,
    exact,
    figure_names,
    interval,
    marked,
    percent,
    without_figure,
)
from experiments.tables import (
    WIDE,
    hanging,
    human_bytes,
    number,
    section,
    sentence,
    stdout_console,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEMBERSHIP = "label-only"
INVERSION = "inversion"
_TEMPLATE = "report.html.j2"
_LEGEND = (
    "What the attacks measure: figure (control); * differs from control; "
    "† declared by clients in public, not attacked"
)


def write_report(results: Results, images: Images, folder: Path) -> Path:
    """Write results.json, reconstructions.npz, the figures and report.html; the page's path.

    The numbers come first: a failure later never costs a finished run.
    """
    save_results(results, folder)
    if images:
        save_images(images, folder)
    else:
        (folder / IMAGES_FILE).unlink(missing_ok=True)  # one of an earlier run
    save_figures(results, folder)
    figures = {path.stem: path.read_bytes() for path in folder.glob("*.png")}
    return write_page(render(results, figures), folder)


def print_table(results: Results, console: Console | None = None) -> None:
    """Print the table, the guarantee of each row, what the attacks measure, and weak settings."""
    console = console or stdout_console()
    console.print(_table(results, wide=console.width >= WIDE))
    section(console, "What each row guarantees")
    guarantees = enumerate(results.rows, 1)
    console.print(hanging((str(i), sentence(r.label, r.guarantee)) for i, r in guarantees))
    if drop_rate(results) > 0:
        section(console, f"Clients that drop out of a round with chance {drop_rate(results):g}")
        console.print(hanging(_attendances(results)))
    if results.attacks:
        section(console, _LEGEND)
        console.print(hanging(("·", _attack_note(results, name)) for name in results.attacks))
    if results.insecure:
        section(console, "Insecure settings of this run", "bold red")
        console.print(hanging(("!", Text(flag)) for flag in results.insecure))


def _table(results: Results, *, wide: bool) -> Table:
    # Collapsed padding: eight columns and long names have to fit in 100.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, padding=(0, 1))
    table.add_column("#", justify="right", style="dim")
    table.add_column("method", ratio=1)
    for header in ("accuracy %", "up", "down", "CPU s"):
        table.add_column(header, justify="right", no_wrap=True)
    for name in results.attacks:
        table.add_column(_attack_header(results, name, wide=wide), justify="right")
    for i, row in enumerate(results.rows, 1):
        table.add_row(str(i), *_cells(row, results.attacks, wide=wide))
    return table


def _attack_header(results: Results, name: str, *, wide: bool) -> Text:
    """The attack, and its figure where all rows share one."""
    figures = figure_names(results, name)
    title = Text(name if wide else name.replace("-", "-\n"))
    if len(figures) == 1:
        title.append(f"\n{figures[0]}", style="not bold dim")
    return title


def _cells(row: Row, attacks: list[str], *, wide: bool) -> list[Text]:
    figures = [_attack_cell(row.figure(name), wide=wide) for name in attacks]
    up, down = human_bytes(row.bytes_up), human_bytes(row.bytes_down)
    plain = (row.label, percent(row), up, down, f"{row.seconds:.0f}")
    return [*map(Text, plain), *figures]


def _attack_cell(found: AttackFigure | None, *, wide: bool) -> Text:
    if found is None:
        return Text("n/a", style="dim")
    apart = found.differs_from_control
    cell = Text(marked(found), style="bold" if apart else "")
    if wide and found.interval is not None:
        cell.append(f" {interval(found)}", style="not bold")
    if found.control is not None:
        cell.append(f" ({number(found.control)})", style="not bold dim")
    if found.exact is not None:
        cell.append(f" {exact(found)}", style="not bold")
    return cell


def _attack_note(results: Results, name: str) -> Text:
    """What an attack's figure and control are, and the rows that it does not apply to."""
    figures, controls = figure_names(results, name), control_names(results, name)
    parts = [" / ".join(figures) or "no figure"]
    if controls:
        parts.append(f"control: {' / '.join(controls)}")
    for why, labels in without_figure(results, name).items():
        parts.append(f"n/a for {', '.join(labels)}: {why}")
    return sentence(name, "; ".join(parts))


def _attendances(results: Results) -> Iterable[tuple[str, Text]]:
    """Who was in the sums, said once for all rows of which it is true."""
    rows: dict[str, list[str]] = {}
    for i, row in enumerate(results.rows, 1):
        if row.aggregation is not None:
            line = attendance(row, row.aggregation, len(results.seeds))
            rows.setdefault(line, []).append(str(i))
    return [(", ".join(numbers), Text(line)) for line, numbers in rows.items()]


def save_figures(results: Results, folder: Path) -> dict[str, Path]:
    """Write every figure that has data as PNG; paths by figure name."""
    images = load_images(folder)
    figures = {
        "accuracy_bytes": accuracy_bytes(results),
        "accuracy": accuracy(results),
        "attacks": attacks(results),
        "roc": membership(results),
        "reconstructions": reconstructions(results, images) if images else None,
    }
    return save(figures, folder)


def row_styles(results: Results) -> dict[str, Style]:
    """Colour and marker by row key, the same in every figure."""
    return {row.key: line_style(i) for i, row in enumerate(results.rows)}


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
    axes = figure.add_axes(margins(figure, left=LEFT, right=1.0))
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
    name_rows(axes, [row.label for row in results.rows])
    headed(figure, "Test accuracy: mean ± spread over clients; ticks are single clients")
    return figure


def attacks(results: Results) -> "Figure | None":
    """Each attack's figure with its interval, joined to its control; None without attacks."""
    names = [name for name in results.attacks if any(r.figure(name) for r in results.rows)]
    if not names:
        return None
    styles = {row.label: style for row, style in zip(results.rows, _styles(results), strict=True)}
    panels = [
        Forest(
            name,
            "\n".join(figure_names(results, name)),
            {row.label: _mark(row, name) for row in results.rows},
            styles,
        )
        for name in names
    ]
    return forest(panels, ("attack, with its interval", "control, without access"))


def _styles(results: Results) -> list[Style]:
    return list(row_styles(results).values())


def _mark(row: Row, attack: str) -> Mark | str:
    found = row.figure(attack)
    if found is None:
        return absence(row, attack)
    return Mark(found.figure, found.interval, found.control)


def membership(results: Results, attack: str = MEMBERSHIP) -> "Figure | None":
    """ROC of membership inference; None where no row has one."""
    styles = row_styles(results)
    curves = {
        row.label: Curve(found.roc["fpr"], found.roc["tpr"], found.figure, styles[row.key])
        for row in results.rows
        if (found := row.figure(attack)) and found.roc
    }
    if not curves:
        return None
    legend = " / ".join(figure_names(results, attack))
    return roc(curves, f"Membership inference ({attack})", legend)


def reconstructions(results: Results, images: Images) -> "Figure":
    """Rows of images: the originals, what each method let out, and the controls."""
    rows = {row.key: row for row in results.rows}
    names = [ORIGINALS, *(key for key in rows if key in images)]
    names += [name for name in images if name.startswith(CONTROL)]
    lines = [
        Strip(rows[name].label if name in rows else name, images[name], _reading(rows.get(name)))
        for name in names
    ]
    return strips(lines, "Reconstructions beside the private originals")


def _reading(row: Row | None) -> str:
    """The attack's figure beside the images of its row."""
    found = row.figure(INVERSION) if row else None
    if found is None:
        return ""
    return f"{number(found.figure)} {found.unit}\n{interval(found)}".strip()


def render(results: Results, figures: Mapping[str, bytes]) -> str:
    """The page as text. figures: PNG bytes by the names of `save_figures`."""
    return (
        environment()
        .get_template(_TEMPLATE)
        .render(
            results=results,
            text=sentences,
            colours={key: colour for key, (colour, _) in row_styles(results).items()},
            pictures=[picture for picture in _pictures(results, figures) if picture.source],
            diagnostics=list(
                dict.fromkeys(name for row in results.rows for name in row.diagnostics)
            ),
            command=shlex.join(results.command),
        )
    )


def _pictures(results: Results, figures: Mapping[str, bytes]) -> list[Picture]:
    aucs = [(row.label, row.figure(MEMBERSHIP)) for row in results.rows]
    texts = [
        (
            "accuracy_bytes",
            "Accuracy against communication",
            "Each line is one method, from its first round to its last; the mark is its end. "
            "A dashed line sends nothing.",
            _listed(results, _traffic),
        ),
        (
            "accuracy",
            "Accuracy",
            "Mean over clients and seeds; whiskers are one standard deviation over clients.",
            _listed(results, lambda row: f"± {100 * row.accuracy.std_over_clients:.1f}"),
        ),
        (
            "attacks",
            "Attacks against their controls",
            "A figure says something only by its distance from the control: the same attack "
            "without access.",
            "The figures of every attack, as in the tables of this page.",
        ),
        (
            "reconstructions",
            "Reconstructions beside originals",
            "Right: the leakage figure of the row. A plausible image is no leak if the controls "
            "look the same.",
            "Private originals, what each method let out, and controls without access.",
        ),
        (
            "roc",
            "Membership inference",
            "Log-log: what counts is the left, where an accusation is rarely wrong. The axes "
            "start at the smallest rate that the non-members resolve.",
            "Area under the curve: "
            + "; ".join(f"{label} {number(found.figure)}" for label, found in aucs if found),
        ),
    ]
    return [
        Picture(name, heading, caption, alt, data_uri(figures.get(name)))
        for name, heading, caption, alt in texts
    ]


def _listed(results: Results, more: Callable[[Row], str]) -> str:
    """Alternative text: every row's accuracy, and one thing more."""
    return "; ".join(
        f"{row.label} {100 * row.accuracy.mean:.1f} %, {more(row)}" for row in results.rows
    )


def _traffic(row: Row) -> str:
    return f"{human_bytes(row.bytes_up + row.bytes_down)} per client"
