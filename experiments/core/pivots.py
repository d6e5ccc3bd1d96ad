"""Tables of results: one row and one column for each value of a property of their cells."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from experiments.core.study import Result, grouped
from experiments.report.tables import NONE, Table, new_table

Show = Callable[[Sequence[Result]], str]


def pivot(
    title: str,
    heads: Sequence[str],
    results: Iterable[Result],
    rows: Callable[[Any], tuple[str, ...]],
    columns: Callable[[Any], tuple[float, str]],
    show: Show,
    further: Sequence[tuple[str, Show]] = (),
) -> Table:
    """Return a table with a text for the results of each row and column.

    Args:
        title: of the table.
        heads: headings of the texts that name a row.
        results: in the order of rows.
        rows: from a cell to the texts that name its row.
        columns: from a cell to its column: a number, by which columns are ordered, and a heading.
        show: text of the results of one row and column.
        further: headings and texts of further columns, each of a whole row.
    """
    found = list(results)
    keys = sorted(grouped(found, columns))
    names = [name for _, name in keys] + [name for name, _ in further]
    table = new_table(title, (*heads, *names), left=len(heads))
    for key, own in grouped(found, rows).items():
        by = grouped(own, columns)
        shown = [show(by[column]) if column in by else NONE for column in keys]
        table.add_row(*key, *shown, *(text(own) for _, text in further))
    return table
