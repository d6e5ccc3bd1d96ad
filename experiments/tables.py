"""Numbers as people read them, and tables for a terminal."""

import os
import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.results import NOT_APPLICABLE, SINGLE, Aggregation, AttackFigure, Results, Row

MINUS = "\N{MINUS SIGN}"


def human_bytes(count: float) -> str:
    """Bytes in decimal units with two or three digits: 0 B, 1.2 kB, 34 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            digits = 1 if unit != "B" and count < 9.95 else 0
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """4.2 s, 87 s, 12 min 05 s."""
    if seconds < 119.5:
        return f"{seconds:.{1 if seconds < 9.95 else 0}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def milliseconds(seconds: float) -> str:
    """0.4 ms, 12 ms, 4.2 s."""
    if seconds >= 0.9995:
        return human_seconds(seconds)
    return f"{1000 * seconds:.{1 if seconds < 0.00995 else 0}f} ms"


def percent(row: Row) -> str:
    """Accuracy as mean ± spread over clients, in percent, without the sign."""
    return f"{100 * row.accuracy.mean:.1f} ± {100 * row.accuracy.std_over_clients:.1f}"


def number(value: float) -> str:
    """Three digits or so, a real minus sign, and no negative zero."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", MINUS)


def interval(attack: AttackFigure) -> str:
    """The interval in brackets, or nothing."""
    return "" if attack.interval is None else "[{}, {}]".format(*map(number, attack.interval))


def marked(attack: AttackFigure) -> str:
    """The figure; † where clients declare it, * where it differs from its control."""
    mark = "†" if attack.declared else "*" if attack.differs_from_control else ""
    return number(attack.figure) + mark


def exact(attack: AttackFigure) -> str:
    """The share of exact records, or nothing."""
    return "" if attack.exact is None else f"{100 * attack.exact:.0f} % exact"


def with_unit(name: str, unit: str) -> str:
    """A figure's name followed by its unit."""
    return f"{name}, {unit}" if unit else name


def reason(attack: AttackFigure | str | None) -> str:
    """Why an attack has no figure in a row."""
    return attack.removeprefix(NOT_APPLICABLE) if isinstance(attack, str) else "not run"


def absence(row: Row, attack: str) -> str:
    """Why there is no figure, in two words."""
    return "not applicable" if attack in row.attacks else "not run"


def shared_caveats(results: Results, attack: str) -> list[str]:
    """The caveats that every figure of an attack carries."""
    found = [f for row in results.rows if (f := row.figure(attack))]
    return [c for c in found[0].caveats if all(c in f.caveats for f in found)] if found else []


def figure_names(results: Results, attack: str) -> list[str]:
    """The distinct figures, with units, that the rows report for one attack."""
    found = [row.figure(attack) for row in results.rows]
    return list(dict.fromkeys(with_unit(f.figure_name, f.unit) for f in found if f))


def control_names(results: Results, attack: str) -> list[str]:
    """The distinct controls that the rows of one attack are held against."""
    found = [row.figure(attack) for row in results.rows]
    return list(dict.fromkeys(f.control_name for f in found if f))


def without_figure(results: Results, attack: str) -> dict[str, list[str]]:
    """Row labels by the reason that they have no figure for one attack."""
    reasons: dict[str, list[str]] = {}
    for row in results.rows:
        if row.figure(attack) is None:
            reasons.setdefault(reason(row.attacks.get(attack)), []).append(row.label)
    return reasons


def summary(results: Results) -> list[str]:
    """Sentences computed from the figures: ranges, sparse votes, releases, what attacks show."""
    return [
        _ranges(results),
        *_sparse_votes(results),
        *_releases(results),
        *(_attack_sentence(results, name) for name in results.attacks),
    ]


def drop_rate(results: Results) -> float:
    """The chance that a client dropped out of a round; 0 where no faults were simulated."""
    rate = results.settings.get("drop", 0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


def attendance(row: Row, made: Aggregation, seeds: int) -> str:
    """Who was in a row's sums, in one line."""
    clients = len(row.accuracy.per_client)
    rounds = _counted(row.rounds * seeds, "round")
    lost = ", ".join(f"{stage} {sum(counts)}" for stage, counts in made.missing.items())
    return (
        f"{made.survivors:.1f} of {clients} clients in a sum, {made.void_rounds} of {rounds} void; "
        f"silent from {lost}"
    )


def _sparse_votes(results: Results) -> list[str]:
    """The sentence on votes that no mask hides, where they are more than half; else nothing."""
    noiseless = [row for row in results.rows if row.privacy is None]
    masked = [row for row in noiseless if row.aggregation and row.aggregation.name == "masks"]
    open_rows = masked or noiseless
    shares = {row.label: row.diagnostics[SINGLE] for row in open_rows if SINGLE in row.diagnostics}
    label = max(shares, key=shares.__getitem__, default="")
    if shares.get(label, 0.0) <= 0.5:
        return []
    return [
        f"{100 * shares[label]:.0f} % of the answered proxies were answered by one client alone "
        f"({label}): masks hide the author there, not the vote; only differential privacy helps."
    ]


def _releases(results: Results) -> list[str]:
    """How often a client answers one proxy, where the run says so."""
    if "releases" not in results.settings:
        return []
    agreed, rounds = results.settings["releases"], results.settings.get("rounds")
    if agreed is None:
        often = f"up to {rounds} times, once a round"
    else:
        often = "once in the whole run" if agreed == 1 else f"up to {agreed} times in the whole run"
    sentence = f"A client answers the same proxy {often}"
    if agreed == 1 or drop_rate(results) == 0:
        return [f"{sentence}."]
    return [
        f"{sentence}, and clients drop out: sums of two rounds whose cohorts differ by one client "
        f"give away about that client's vote on a proxy that both rounds asked about."
    ]


def _ranges(results: Results) -> str:
    rows, seeds = results.rows, len(results.seeds)
    opening = f"{_counted(len(rows), 'method')} over {_counted(seeds, 'seed')}: accuracy "
    if len(rows) == 1:
        return f"{opening}{percent(rows[0])} %, {human_bytes(rows[0].bytes_up)} sent by a client."
    by_accuracy = sorted(rows, key=lambda row: row.accuracy.mean)
    least = min(rows, key=lambda row: row.bytes_up)
    most = max(rows, key=lambda row: row.bytes_up)
    low, high = (
        f"{100 * r.accuracy.mean:.1f} % ({r.label})" for r in by_accuracy[:: len(rows) - 1]
    )
    return (
        f"{opening}from {low} to {high}; a client sends from {human_bytes(least.bytes_up)} "
        f"({least.label}) to {human_bytes(most.bytes_up)} ({most.label})."
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _attack_sentence(results: Results, attack: str) -> str:
    """In which rows an attack and its control differ, told by the shorter list of names."""
    figures = {row.label: found for row in results.rows if (found := row.figure(attack))}
    comparable = {
        label: f
        for label, f in figures.items()
        if f.interval and f.control is not None and not f.declared
    }
    if not comparable:
        return f"Attack {attack}: no row has an interval and a control to compare."
    apart = [label for label, found in comparable.items() if found.differs_from_control]
    level = [label for label in comparable if label not in apart]
    head = f"Attack {attack}: the figure differs from its control in "
    if not apart or not level:
        return f"{head}{'all' if apart else 'none'} of {_counted(len(comparable), 'row')}."
    names = f"all but {', '.join(level)}" if len(level) < len(apart) else ", ".join(apart)
    return f"{head}{len(apart)} of {_counted(len(comparable), 'row')} ({names})."


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
