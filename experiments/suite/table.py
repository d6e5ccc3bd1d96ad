"""The leakage table in a terminal: a scene's rows by its attacks, and how to read them."""

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.suite.results import Measured, SceneResults, SuiteResults
from experiments.suite.text import (
    apart,
    blank,
    caveats,
    control_names,
    figure_names,
    precise,
    reading,
    summary,
    without_figure,
)
from experiments.tables import hanging, section, sentence, stdout_console

_ROWS, _ATTACK = 34, 32
"""Columns that the names of rows, and one attack, take."""


def print_table(results: SuiteResults, console: Console | None = None) -> None:
    """Print every scene, what its attacks measure, and their caveats; then all in short."""
    console = console or stdout_console()
    for scene in results.scenes:
        _print_scene(scene, console)
    section(console, "In short")
    console.print(hanging(("·", Text(line)) for line in summary(results)))


def _print_scene(scene: SceneResults, console: Console) -> None:
    section(console, f"{scene.title} ({scene.name})")
    console.print(Text(scene.about))
    names = list(scene.attacks)
    at_once = max(1, (console.width - _ROWS) // _ATTACK)
    for i in range(0, len(names), at_once):
        console.print(_table(scene, names[i : i + at_once]))
    if not names:
        console.print(Text("Nothing was run.", style="dim"))
    console.print(hanging(("·", note) for note in _notes(scene)))


def _table(scene: SceneResults, attacks: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, padding=(0, 1))
    table.add_column(Text("figure [interval] · control", style="not bold dim"))
    for attack in attacks:
        table.add_column(_header(scene, attack), justify="right")
    for row, label in scene.rows.items():
        table.add_row(Text(label), *(_cell(scene, row, attack) for attack in attacks))
    return table


def _header(scene: SceneResults, attack: str) -> Text:
    """The attack, and its figure where all rows share one."""
    figures = figure_names(scene, attack)
    title = Text(attack)
    if len(figures) == 1:
        title.append(f"\n{figures[0]}", style="not bold dim")
    return title


def _cell(scene: SceneResults, row: str, attack: str) -> Text:
    found = scene.figure(row, attack)
    if found is None:
        return Text(blank(scene, row, attack), style="dim")
    return _measured(found)


def _measured(found: Measured) -> Text:
    far = apart(found)
    cell = Text(reading(found), style="bold" if far else "")
    cell.append("*" if far else " ")
    return cell.append(f" · {precise(found.control)}", style="not bold dim")


def _notes(scene: SceneResults) -> Iterator[Text]:
    """What each attack's figure and control are, where it does not apply, and its caveats."""
    if scene.attacks:
        yield Text("* figure and control differ by more than chance explains, at about 95 %")
    for attack, title in scene.attacks.items():
        figures, controls = figure_names(scene, attack), control_names(scene, attack)
        parts = [title, *([" / ".join(figures)] if figures else [])]
        parts += [f"control: {' / '.join(controls)}"] if controls else []
        for why, labels in without_figure(scene, attack).items():
            parts.append(f"none for {', '.join(labels)}: {why}")
        yield sentence(attack, "; ".join(parts))
    for caveat, where in caveats(scene).items():
        yield sentence("caveat", f"{caveat} [{where}]")
