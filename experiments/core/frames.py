"""Results as a pandas data frame, and the tables and lines that studies read from it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from experiments.core.measures import ACCURACY, DIVERGED
from experiments.core.study import Results
from experiments.report import tables
from experiments.report.plots import Bars, Line
from experiments.report.tables import NONE, Table, new_table
from secure_fd.data.image_sets import IMAGE_SETS

Frame = Any
"""A pandas data frame: pandas ships no types, and --help does not wait for it."""
Values = Any
"""A pandas series: values over seeds."""
Column = tuple[str, object]
"""A column of a frame, and the function that makes a text of its values over seeds."""


def frame(results: Results, **columns: Callable[[Any], object]) -> Frame:
    """Return a row a result: fields of its cell, figures, CPU seconds, and both objects.

    place, images: title of the image set, with its split and without. columns: further ones, each
    a function of the cell.
    """
    from pandas import DataFrame

    rows = []
    for result in results.cells:
        cell, image_set = result.cell, getattr(result.cell, "image_set", "")
        own = {"place": getattr(cell, "place", "")}
        own["images"] = IMAGE_SETS[image_set].title if image_set in IMAGE_SETS else image_set
        own |= {part.name: getattr(cell, part.name) for part in fields(cell)}
        own |= {**result.figures, "seconds": result.seconds, "cell": cell, "result": result}
        rows.append({**own, **{name: value(cell) for name, value in columns.items()}})
    return DataFrame(rows)


def having(runs: Frame, *figures: str) -> Frame:
    """Return results with these figures, NaN if no run has one."""
    return runs.reindex(columns=[*dict.fromkeys([*runs.columns, *figures])])


def points(runs: Frame) -> Frame:
    """Return a row a point of each curve: its round, accuracy, and bytes a client had moved."""
    made = runs.assign(point=[result.curve for result in runs.result]).explode("point")
    moved = [point.up + point.down for point in made.point]
    accuracies = {ACCURACY: [point.accuracy for point in made.point]}
    return made.assign(round=[point.round for point in made.point], moved=moved, **accuracies)


def ordered(runs: Frame, rank: Callable[[Any], int]) -> Frame:
    """Return results by place, in the order in which places come, then by rank of the cell."""
    ranked = runs.assign(at=runs.place.factorize()[0], rank=runs.cell.map(rank))
    return ranked.sort_values(["at", "rank"], kind="stable")


# Texts.


def percent(shares: Values) -> str:
    """Return mean and deviation over seeds, in percent without the sign."""
    return tables.percent(shares.dropna().to_list())


def mean(values: Values, show: str = "{:.3f}") -> str:
    """Return mean and deviation over the seeds that have a figure."""
    if not values.count():
        return NONE
    spread = f" ± {show.format(values.std())}" if values.count() > 1 else ""
    return show.format(values.mean()) + spread


def seeds_of(seeds: Iterable[int]) -> str:
    """Return seeds as a reader names them: 10, or 10 to 12, or 10, 12."""
    chosen = sorted(set(seeds))
    if len(chosen) > 2 and chosen[-1] - chosen[0] == len(chosen) - 1:
        return f"{chosen[0]} to {chosen[-1]}"
    return ", ".join(map(str, chosen))


def epsilon_text(epsilon: float) -> str:
    """Return an epsilon as a heading."""
    return "ε = ∞" if math.isinf(epsilon) else f"ε = {epsilon:g}"


# Tables.


def table(title: str, texts: Frame) -> Table:
    """Return a table of a frame of texts, whose index names the rows."""
    heads = texts.index.names
    made = new_table(title, (*heads, *texts.columns), left=len(heads))
    for row in texts.astype(object).fillna(NONE).reset_index().itertuples(index=False, name=None):
        made.add_row(*(part if isinstance(part, str) else f"{part:g}" for part in row))
    return made


def summary(title: str, runs: Frame, heads: Sequence[str], columns: Mapping[str, Column]) -> Table:
    """Return a table with a row for each value of `heads`, and columns by their headings."""
    by_head = having(runs, *(name for name, _ in columns.values())).groupby([*heads], sort=False)
    return table(title, by_head.agg(**columns))


def percents(runs: Frame, heads: Sequence[str], column: str, value: str = ACCURACY) -> Frame:
    """Return texts with a row for each value of `heads` and a column for each value of `column`.

    Rows are in the order of the results, columns ascend.
    """
    wide = runs.pivot_table(value, heads, column, percent)
    return wide.reindex(runs.groupby(heads, sort=False).size().index)


def diverged(runs: Frame, *names: str) -> Iterator[str]:
    """Yield a sentence for each run in which training diverged. names: columns that name a run."""
    runs = having(runs, DIVERGED)
    for _, run in runs[runs[DIVERGED] > 0].iterrows():
        often = f"training diverged in {run[DIVERGED]:g} rounds of a client, mean"
        yield f"{', '.join(filter(None, run[[*names]]))}, seed {run.seed}: {often}."


def with_seeds(
    tables: Callable[[Results], Sequence[Table | str]],
) -> Callable[[Results], Sequence[Table | str]]:
    """Add the seeds below the tables of a study."""
    return lambda results: [*tables(results), f"Seeds of all cells: {seeds_of(results.seeds)}."]


# Panels.


def line(runs: Frame, x: str, value: str = ACCURACY, *, second: bool = False) -> Line:
    """Return a line over x, with deviations over seeds."""
    by_x = runs.groupby(x)[value]
    deviations = by_x.std().fillna(0)
    return Line(tuple(deviations.index), tuple(by_x.mean()), tuple(deviations), second)


def lines(runs: Frame, names: str, x: str, value: str = ACCURACY) -> dict[str, Line]:
    """Return a line over x for each name in a column."""
    return {name: line(of, x, value) for name, of in runs.groupby(names, sort=False)}


def bars(
    title: str, y: str, runs: Frame, names: tuple[str, str], columns: tuple[str, str, str]
) -> Bars:
    """Return bars of every group and series.

    names: columns that name group and series. columns: of the value, of its deviation ("" for that
    over seeds), and of the published mean ("" where there is none).
    """
    group, series = names
    value, deviation, published = columns
    every = runs.groupby([group, series])

    def wide(values: Frame) -> Frame:
        return values.unstack().reindex(runs[group].unique(), columns=runs[series].unique())

    mean = every[value].mean()
    spread = every[deviation].mean() if deviation else every[value].std().fillna(0)
    known = every[published].first() if published else mean * np.nan
    return Bars(title, y, *map(wide, (mean, spread, known)))
