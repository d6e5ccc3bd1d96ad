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
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

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
    """Milliseconds below one second, then seconds, then minutes and seconds.

    >>> human_seconds(0.0004), human_seconds(0.012), human_seconds(4.2), human_seconds(725)
    ('0.4 ms', '12 ms', '4.2 s', '12 min 05 s')
    """
    for unit, size, most in (("ms", 0.001, 0.9995), ("s", 1.0, 119.5)):
        if seconds < most:
            return f"{seconds / size:.{1 if seconds < 9.95 * size else 0}f} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def number(value: float, *, fine: bool = False) -> str:
    """Three digits or so, a real minus sign, and no negative zero.

    fine: three decimals below one, where rates live.

    >>> number(0.1234), number(-0.001), number(23.45), number(0.0614, fine=True)
    ('0.12', '0.00', '23.4', '0.061')
    """
    size = abs(value)
    digits = 3 if fine and size < 0.9995 else 2 if size < 9.995 else 1 if size < 99.95 else 0
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


class Toned(str):
    """Text of a cell that stands out or back. tone: full, leak or quiet."""

    __slots__ = ("tone",)
    tone: str

    def __new__(cls, text: str, tone: str) -> "Toned":
        """Return the text with its tone."""
        made = super().__new__(cls, text)
        made.tone = tone
        return made


QUIET = "~"
"""Mark before a quiet text where nothing can be dimmed."""
_STYLES = {"full": "bold red", "leak": "yellow", "quiet": "dim"}


def tone_of(cell: str) -> str:
    """Return the tone of a cell; "" of a plain text."""
    return cell.tone if isinstance(cell, Toned) else ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; the first `left` columns are flush left, the others right.

    grouped: columns are named "group: name"; a terminal shows group above name, without rules.
    """

    title: str
    columns: tuple[str, ...]
    left: int = 1
    rows: list[tuple[str, ...]] = field(default_factory=list)
    grouped: bool = False

    def add_row(self, *cells: str) -> None:
        """Append a row. Raises LocalError unless there is one cell a column."""
        if len(cells) != len(self.columns):
            raise LocalError(f"a row of {len(cells)} cells under {len(self.columns)} columns")
        self.rows.append(cells)


def new_table(title: str, columns: Iterable[str], left: int = 1) -> Table:
    """A table without rows."""
    return Table(title, tuple(columns), left)


def rendered(parts: Iterable[Table | str], width: int = _PAGE, *, colour: bool = False) -> str:
    """Tables and sentences as text, one below the other. colour: for a terminal that has it."""
    from rich.console import Console  # slow to import

    out = io.StringIO()
    forced = True if colour else None
    console = Console(file=out, width=width, highlight=False, markup=False, force_terminal=forced)
    for part in parts:
        styled = console.color_system is not None
        console.print(part if isinstance(part, str) else _boxed(part, styled=styled))
    return out.getvalue()


def _boxed(table: Table, *, styled: bool) -> "rich.table.Table":
    """A table as rich prints it.

    styled: quiet cells are dimmed; otherwise they are marked.
    """
    from rich import box
    from rich.table import Table as Boxed
    from rich.text import Text

    whole = {"box": None, "padding": (0, 1, 0, 0)}
    framed = {"box": box.SIMPLE_HEAD, "title": table.title, "title_justify": "left"}
    made = Boxed(pad_edge=False, **(whole if table.grouped else framed))
    for i, name in enumerate(table.columns):
        group, _, own = name.rpartition(": ")
        head = Text("\n".join([*group.split(", "), own]), "not bold")
        named = i < table.left
        justify: Literal["left", "right"] = "left" if named else "right"
        made.add_column(head, justify=justify, vertical="bottom", no_wrap=named and table.grouped)
    for row in table.rows:
        marked = (cell if styled or tone_of(cell) != "quiet" else QUIET + cell for cell in row)
        styles = (_STYLES.get(tone_of(cell), "") for cell in row)
        made.add_row(*map(Text, marked, styles))
    return made


def markdown(parts: Iterable[Table | str]) -> str:
    """Tables and sentences as Markdown; a title becomes a line in front of its table."""
    return "\n\n".join(
        part if isinstance(part, str) else f"{part.title}.\n\n{piped(part)}" for part in parts
    )


def piped(table: Table) -> str:
    """Return a table as Markdown, without its title."""
    rule = ["---" if i < table.left else "--:" for i in range(len(table.columns))]
    lines = [f"| {' | '.join(row)} |" for row in (table.columns, rule, *table.rows)]
    return "\n".join(lines)


def terminal_width() -> int:
    """Columns of the terminal, or COLUMNS; of a file or a pipe those of a page."""
    return shutil.get_terminal_size((_PAGE, 1)).columns
