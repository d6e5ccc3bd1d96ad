"""Numbers as people read them, and one table for a terminal, Markdown and HTML.

>>> table = new_table("Accuracy, %", ["method", "IID", "strong"])
>>> table.add_row("FedMD", "91.2", "78.4")
>>> print(markdown([table]))
Accuracy, %.
<BLANKLINE>
| method | IID | strong |
| --- | --: | --: |
| FedMD | 91.2 | 78.4 |
"""

import io
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from secure_fd.errors import LocalError

if TYPE_CHECKING:
    import rich.table

MINUS = "\N{MINUS SIGN}"
NONE = "\N{EN DASH}"
"""A cell without a value."""
_PAGE = 150


def human_bytes(count: float) -> str:
    """Bytes in decimal units with two or three digits.

    >>> human_bytes(0), human_bytes(1234), human_bytes(34e6)
    ('0 B', '1.2 kB', '34 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            digits = 1 if unit != "B" and count < 9.95 else 0
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Seconds, or minutes and seconds.

    >>> human_seconds(4.2), human_seconds(87), human_seconds(725)
    ('4.2 s', '87 s', '12 min 05 s')
    """
    if seconds < 119.5:
        return f"{seconds:.{1 if seconds < 9.95 else 0}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def milliseconds(seconds: float) -> str:
    """Seconds, shown in milliseconds below one.

    >>> milliseconds(0.0004), milliseconds(0.012), milliseconds(4.2)
    ('0.4 ms', '12 ms', '4.2 s')
    """
    if seconds >= 0.9995:
        return human_seconds(seconds)
    return f"{1000 * seconds:.{1 if seconds < 0.00995 else 0}f} ms"


def number(value: float) -> str:
    """Three digits or so, a real minus sign, and no negative zero.

    >>> number(0.1234), number(-0.001), number(23.45)
    ('0.12', '0.00', '23.4')
    """
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", MINUS)


def percent(shares: Sequence[float]) -> str:
    """Mean and sample deviation of shares, in percent without the sign.

    >>> percent([0.914]), percent([0.9, 0.92]), percent([])
    ('91.4', '91.0 ± 1.4', '–')
    """
    if not len(shares):
        return NONE
    mean = f"{100 * float(np.mean(shares)):.1f}"
    return f"{mean} ± {100 * float(np.std(shares, ddof=1)):.1f}" if len(shares) > 1 else mean


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "round"), counted(3, "round")
    ('1 round', '3 rounds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; the first `left` columns are flush left, the others right.

    narrow: the table that stands for it where columns are few, None for this one with its first
    column cut to the numbers of rows, if they have any.
    """

    title: str
    columns: tuple[str, ...]
    left: int = 1
    rows: list[tuple[str, ...]] = field(default_factory=list)
    narrow: "Table | None" = None

    def add_row(self, *cells: str) -> None:
        """Append a row. Raises LocalError unless there is one cell a column."""
        if len(cells) != len(self.columns):
            raise LocalError(f"a row of {len(cells)} cells under {len(self.columns)} columns")
        self.rows.append(cells)


def new_table(title: str, columns: Iterable[str], left: int = 1) -> Table:
    """A table without rows."""
    return Table(title, tuple(columns), left)


def rendered(parts: Iterable[Table | str], width: int = _PAGE) -> str:
    """Tables and sentences as plain text, one below the other."""
    from rich.console import Console  # slow to import

    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False)
    for part in parts:
        console.print(part if isinstance(part, str) else boxed(_fitting(part, width)))
    return out.getvalue()


_NUMBERED = re.compile(r"(\d+\.) .*")
_NAME = 24
"""Columns that a row's name needs at least."""


def _fitting(table: Table, width: int) -> Table:
    """The table, or its narrow form where names would have too few columns."""
    cells = list(zip(*table.rows, strict=True))[1:]
    heads = [head.split() for head in table.columns[1:]]
    needed = [max(map(len, (*h, *c))) for h, c in zip(heads, cells, strict=False)]
    if _NAME + sum(needed) + 2 * len(table.columns) <= width:
        return table
    if table.narrow is not None:
        return table.narrow
    cut = [(_NUMBERED.sub(r"\1", name), *others) for name, *others in table.rows]
    return replace(table, rows=cut)


def boxed(table: Table) -> "rich.table.Table":
    """A table as rich prints it."""
    from rich import box
    from rich.table import Table as Boxed

    made = Boxed(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(table.columns):
        made.add_column(name, justify="left" if i < table.left else "right")
    for row in table.rows:
        made.add_row(*row)
    return made


def markdown(parts: Iterable[Table | str]) -> str:
    """Tables and sentences as Markdown; a title becomes a line in front of its table."""
    return "\n\n".join(part if isinstance(part, str) else _piped(part) for part in parts)


def _piped(table: Table) -> str:
    rule = ["---" if i < table.left else "--:" for i in range(len(table.columns))]
    lines = [f"| {' | '.join(row)} |" for row in (table.columns, rule, *table.rows)]
    return "\n".join([f"{table.title}.", "", *lines])


def html(table: Table) -> str:
    """A table as HTML with every text escaped.

    >>> html(Table("A < B", ("row", "x"), rows=[("a", "1")]))[:39]
    '<table><caption>A &lt; B</caption><thea'
    """

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ["name" if i < table.left else "number" for i in range(len(row))]
        tags = [
            'th scope="row"' if tag == "td" and i < table.left else tag for i in range(len(row))
        ]
        made = (
            f'<{tag} class="{kind}">{escape(cell)}</{tag[:2]}>'
            for tag, kind, cell in zip(tags, kinds, row, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(cells("td", row) for row in table.rows)
    heads = cells('th scope="col"', table.columns)
    head = f"<caption>{escape(table.title)}</caption><thead>{heads}</thead>"
    return f"<table>{head}<tbody>{body}</tbody></table>"


def terminal_width() -> int:
    """Columns of the terminal, or what COLUMNS says; of a file or a pipe those of a page."""
    return shutil.get_terminal_size((_PAGE, 1)).columns
