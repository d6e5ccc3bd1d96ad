"""The study as text: accuracy against epsilon, and what a fleet's figures rest on."""

import io
from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from experiments.tables import human_bytes
from experiments.utility.results import PUBLISHED, CellResult, Results, moments

_WIDTH = 160
_FLEET_COLUMNS = {
    "released proxies": ("proxies", "{:,.0f}"),
    "kept proxies": ("kept", "{:.2f}"),
    "right labels among kept": ("right", "{:.3f}"),
    "right labels without noise": ("no noise", "{:.3f}"),
    "noise multiplier": ("z", "{:.2f}"),
    "deviation of the noise, votes": ("noise", "{:.1f}"),
    "units in a vote": ("scale", "{:.0f}"),
    "bits in a lane": ("bits", "{:.0f}"),
}

Epsilon = float | None


def lines(results: Results) -> dict[tuple[str, str], dict[Epsilon, list[CellResult]]]:
    """By place and line, then by epsilon in ascending order, infinite last: one result a seed."""
    found: dict[tuple[str, str], dict[Epsilon, list[CellResult]]] = {}
    ordered = sorted(results.cells, key=lambda r: _order(r.cell.epsilon))
    for result in sorted(ordered, key=lambda r: _first_place(results, r)):
        line = found.setdefault((result.cell.place, result.cell.line), {})
        line.setdefault(result.cell.epsilon, []).append(result)
    return found


def _first_place(results: Results, result: CellResult) -> int:
    """Where the line of a result begins in the results: lines keep the order of the studies."""
    key = (result.cell.place, result.cell.line)
    return next(i for i, r in enumerate(results.cells) if (r.cell.place, r.cell.line) == key)


def text(results: Results) -> str:
    """Both tables."""
    out = io.StringIO()
    console = Console(file=out, width=_WIDTH, highlight=False)
    console.print(_accuracies(results))
    if any(result.cell.fleet is not None for result in results.cells):
        console.print(_fleets(results))
    return out.getvalue()


def _accuracies(results: Results) -> Table:
    epsilons = sorted({result.cell.epsilon for result in results.cells}, key=_order)
    table = _table("Test accuracy after the last round, %: mean ± deviation over seeds")
    for name in ("image set, split", "unit", *(f"ε = {_shown(e)}" for e in epsilons), "published"):
        table.add_column(name, justify="left" if name[0] in "iu" else "right")
    before = ""
    for (place, line), by_epsilon in lines(results).items():
        cell = next(iter(by_epsilon.values()))[0].cell
        published = None if cell.fleet else PUBLISHED.get((cell.image_set, cell.split))
        shown = [_percent(by_epsilon.get(epsilon, [])) for epsilon in epsilons]
        last = f"{100 * published:.1f}" if published and line == "no protection" else ""
        table.add_row("" if place == before else place, line, *shown, last)
        before = place
    return table


def _fleets(results: Results) -> Table:
    table = _table("Fleets: right labels, and noise in votes; means over seeds")
    for name in ("image set, split", "clients", "ε", "accuracy, %"):
        table.add_column(name, no_wrap=True)
    for heading, _ in _FLEET_COLUMNS.values():
        table.add_column(heading, justify="right")
    table.add_column("up, a client", justify="right")
    for (place, line), by_epsilon in lines(results).items():
        for epsilon, found in by_epsilon.items():
            if found[0].cell.fleet is not None:
                figures = [_mean(found, name, form) for name, (_, form) in _FLEET_COLUMNS.items()]
                sent = human_bytes(float(np.mean([r.figures["bytes up a client"] for r in found])))
                short = line.removeprefix("client unit, ").replace(" clients", "")
                table.add_row(place, short, _shown(epsilon), _percent(found), *figures, sent)
    return table


def _mean(found: Sequence[CellResult], name: str, form: str) -> str:
    """The mean over the seeds that have the figure."""
    values = [result.figures[name] for result in found if name in result.figures]
    return form.format(float(np.mean(values))) if values else ""


def _percent(found: Sequence[CellResult]) -> str:
    if not found:
        return ""
    mean, deviation = moments(found)
    return f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if len(found) > 1 else "")


def _shown(epsilon: Epsilon) -> str:
    return "∞" if epsilon is None else f"{epsilon:g}"


def _order(epsilon: Epsilon) -> float:
    return float("inf") if epsilon is None else epsilon


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
