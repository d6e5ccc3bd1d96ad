"""The comparison in a terminal: one line a row, and what each row guarantees."""

import os
import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.report.results import AttackFigure, Results, Row
from experiments.report.text import (
    attendance,
    control_names,
    drop_rate,
    exact,
    figure_names,
    human_bytes,
    interval,
    marked,
    number,
    percent,
    without_figure,
)

WIDE = 140
"""Columns from which intervals fit beside the figures."""
NO_TERMINAL = 120
"""Columns of a table that goes to a file or a pipe."""
_LEGEND = (
    "What the attacks measure: figure (control); * differs from control; "
    "† declared by clients in public, not attacked"
)


def stdout_console() -> Console:
    """A console on stdout; COLUMNS decides its width where there is no terminal."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=int(os.environ.get("COLUMNS") or NO_TERMINAL), highlight=False)


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


def sentence(head: str, body: str) -> Text:
    """A line that starts with what it is about."""
    return Text.assemble((head, "bold"), ": ", body)


def hanging(lines: Iterable[tuple[str, Text]]) -> Table:
    """Lines whose continuation is indented."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", style="dim")
    grid.add_column()
    for mark, line in lines:
        grid.add_row(mark, line)
    return grid


def section(console: Console, title: str, style: str = "bold") -> None:
    """Print a heading after an empty line."""
    console.print()
    console.print(Text(title, style=style))
