"""What the text tables of all studies share."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import rich.table
from rich import box
from rich.console import Console

from experiments.papers.published import Published
from experiments.papers.results import CellResult, moments
from secure_fd.errors import LocalError

_WIDTH = 150
NONE = "\N{EN DASH}"

_TITLES = {
    "independent": "Independent",
    "fedmd": "FedMD",
    "feded": "FedED",
    "ds-fl": "DS-FL",
    "fkd": "FKD",
    "pls": "PLS",
    "fedavg": "FedAvg",
    "selective-fd": "Selective-FD",
}
_SELECTORS = {
    "ratio": "ratio to proxies",
    "kulsif": "KuLSIF",
    "confidence": "confidence",
    "energy": "energy",
}


def method_title(method: str, selector: str = "") -> str:
    """A method as a reader names it, with its client selector."""
    return _TITLES[method] + (f", {selector_title(selector)}" if selector else "")


def selector_title(selector: str) -> str:
    """A client selector as a reader names it."""
    return _SELECTORS.get(selector, selector)


def percent(
    found: Sequence[CellResult], value: Callable[[CellResult], float] = lambda r: r.accuracy
) -> str:
    """Mean and deviation over seeds of a share, in percent without the sign."""
    if not found:
        return NONE
    mean, deviation = moments(found, value)
    return f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if len(found) > 1 else "")


def seeds(found: Iterable[CellResult]) -> str:
    """The seeds of cells, as a reader says them: 10, or 10 to 12, or 10, 12."""
    chosen = sorted({result.cell.seed for result in found})
    if len(chosen) > 2 and chosen[-1] - chosen[0] == len(chosen) - 1:
        return f"{chosen[0]} to {chosen[-1]}"
    return ", ".join(map(str, chosen))


def known_percent(known: Published | None) -> str:
    """The same for a published accuracy."""
    return NONE if known is None else f"{known[0]:.2f} ± {known[1]:.2f}"


def measure(
    found: Sequence[CellResult], name: str, show: Callable[[float], str] = "{:.3f}".format
) -> str:
    """The mean over the seeds that have a figure."""
    having = [result for result in found if name in result.figures]
    return show(moments(having, lambda r: r.figures[name])[0]) if having else NONE


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; the first `left` columns are flush left, the others right."""

    title: str
    columns: tuple[str, ...]
    left: int
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        """One more row, of as many cells as there are columns."""
        if len(cells) != len(self.columns):
            raise LocalError(f"a row of {len(cells)} cells under {len(self.columns)} columns")
        self.rows.append(cells)


def new_table(title: str, columns: Iterable[str], left: int = 1) -> Table:
    """A table without rows."""
    return Table(title, tuple(columns), left)


def rendered(parts: Iterable[Table | str]) -> str:
    """Tables and sentences as text, one below the other."""
    out = io.StringIO()
    console = Console(file=out, width=_WIDTH, highlight=False)
    for part in parts:
        console.print(part if isinstance(part, str) else _boxed(part))
    return out.getvalue()


def _boxed(table: Table) -> rich.table.Table:
    made = rich.table.Table(
        title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for i, name in enumerate(table.columns):
        made.add_column(name, justify="left" if i < table.left else "right")
    for row in table.rows:
        made.add_row(*row)
    return made


def markdown(parts: Iterable[Table | str]) -> str:
    """The same as Markdown; a title becomes a line in front of its table."""
    return "\n\n".join(part if isinstance(part, str) else _piped(part) for part in parts)


def _piped(table: Table) -> str:
    rule = ["---" if i < table.left else "--:" for i in range(len(table.columns))]
    lines = [f"| {' | '.join(row)} |" for row in (table.columns, rule, *table.rows)]
    return "\n".join([f"{table.title}.", "", *lines])
