"""Tables of results: a row for each value of a property of their cells."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from experiments.core.study import Result, Value, grouped, measure, over
from experiments.report.plots import Line
from experiments.report.tables import NONE, Table, new_table

Show = Callable[[Sequence[Result]], str]
Column = tuple[str, Show]
"""Heading, and the text of a row's results."""


def summary(
    title: str,
    heads: Sequence[str],
    results: Iterable[Result],
    rows: Callable[[Any], tuple[str, ...]],
    columns: Sequence[Column],
) -> Table:
    """Return a table with a row for each text that `rows` gives to cells, in the results' order.

    heads: headings of the texts that name a row.
    """
    table = new_table(title, (*heads, *(name for name, _ in columns)), left=len(heads))
    for key, found in grouped(results, rows).items():
        table.add_row(*key, *(show(found) for _, show in columns))
    return table


def figures(names: Iterable[str]) -> list[Column]:
    """Return columns of figures by their names: means with three digits."""
    return [(name, partial(measure, name=name)) for name in names]


def columns_by(
    results: Iterable[Result], column: Callable[[Any], tuple[float, str]], show: Show
) -> list[Column]:
    """Return a column for each value of a property, by its number and heading, of its results."""

    def shown(key: tuple[float, str], found: Sequence[Result]) -> str:
        own = grouped(found, column).get(key)
        return show(own) if own else NONE

    return [(key[1], partial(shown, key)) for key in sorted(grouped(results, column))]


def lines_of(
    results: Iterable[Result],
    line: Callable[[Any], str],
    x: Callable[[Any], float],
    value: Value = lambda result: result.accuracy,
) -> dict[str, Line]:
    """Return a line of means over x for each text that `line` gives to cells."""
    by_line = grouped(results, line)
    return {name: over(grouped(found, x), value) for name, found in by_line.items()}
