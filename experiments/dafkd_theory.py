"""DaFKD's Theorems 1 and 2, and equation 19 between them, on mixtures of known densities.

python experiments/dafkd_theory.py --quick
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.grid import later
from experiments.plots import Line, Lines, drawn
from experiments.study import (
    Result,
    Results,
    Study,
    at_least,
    grouped,
    main,
    measure,
    moments,
    over,
    seeds_of,
    whole_numbers,
)
from experiments.tables import MINUS, Table, new_table
from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

F_STAR, FROM_P, UNIFORM = "f*", "f, against p", "uniform"
UNTRAINED = "f, untrained"
NON_SATURATING, MINIMAX, MAXIMUM_LIKELIHOOD = "-log f", "log(1 - f)", "-f / (1 - f)"
GENERATORS: Final = (NON_SATURATING, MINIMAX, MAXIMUM_LIKELIHOOD)
"""Losses of a generator: that of most GANs, equation 13's, and the one that leads to p."""
AWAY = "distance to f*"
"""Mean of |f_k(x) - f*_k(x)| over clients and x of p."""
OVERLAP = "p_k to p"
"""Total variation, mean over clients; 0 where all clients are alike."""
TO_P, TO_REST = "p_g to p", "p_g to where it rests"
"""Total variation, over tiles."""
REST = ", at rest"
"""After a name: where a generator of this loss rests, computed and not trained."""
NOT_ONE = "sum of alpha away from 1"
"""Largest of all x."""
VIOLATED, EXCESS = "violations of (19)", "largest excess over (19)"
"""Share of all x and k; largest alpha_k - (K + 1) / K p_k / p."""
LOSS = "loss of the ensemble"
"""The left side of Theorem 2, on fresh x of p."""
LOCAL = "(K + 1) / K sum of losses on p_k"
"""Right side of (20), on fresh points."""
LOCAL_EMPIRICAL = "(K + 1) / K sum of losses on own records"
"""Right side of (24) without its deviation."""
POOLED = "(K + 1) x loss of h on all records"
"""Of the network that all records train."""
DEVIATION, BOUND = "deviation", "bound"
"""For DELTA; POOLED + DEVIATION."""
WORSE = "h_k over h, own records"
"""Largest difference of losses over clients; the proof's step (25) needs 0 or less."""
OVERFIT = "p_k over own records"
"""Largest difference of losses of h_k over clients; step (22) needs DEVIATION / (K + 1) or less."""
ALONG = "along the diagonal"
"""Name of the note with f of the first client at points (t, t), by the name of f."""
DELTA = 0.05
TARGET = 0.05
"""Of AWAY, for discriminators that are trained against p."""
_MEASURE = "experiments.dafkd_terms:measure_cell"
_STEPS, _ROUNDS, _LOCAL_STEPS = 5000, 1000, 1500
_QUICK = 10
"""Times fewer steps."""
_MOST_CLIENTS = 20


def of(name: str, figure: str) -> str:
    """The name of a figure that there is one of for every f, or for every generator.

    >>> of(F_STAR, NOT_ONE)
    'f*: sum of alpha away from 1'
    """
    return f"{name}: {figure}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One draw of densities and records.

    records: m of each client. steps: of discriminators against p. rounds: steps of a generator;
    generators: their losses. local_steps: of the networks h.
    """

    seed: int
    records: int
    clients: int = 4
    steps: int = _STEPS
    rounds: int = _ROUNDS
    local_steps: int = _LOCAL_STEPS
    generators: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.clients} clients of {self.records} records, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Settings:
    """DaFKD's theorems on mixtures of known densities: what holds, how tightly, and what not."""

    records: str = "200,1000,5000"
    """Records of each client, with commas."""
    seeds: str = "20,21,22"
    """Other densities and other records each, with commas."""
    clients: int = 4
    """K."""
    quick: bool = False
    """One seed, two numbers of records, a tenth of the steps: shows the way, proves little."""
    out: Path = Path("runs/dafkd_theory")
    """Folder of the results, and of the cells that are done."""
    workers: int = 2
    """Processes that share the work."""


def cells(settings: Settings) -> list[Cell]:
    """Every number of records on every seed; generators where there are most records.

    Raises ConfigurationError for clients other than 2 to 20.
    """
    if not 2 <= settings.clients <= _MOST_CLIENTS:
        allowed = f"use 2 to {_MOST_CLIENTS}"
        raise ConfigurationError("clients", settings.clients, allowed)
    sizes, seeds = (whole_numbers(n, getattr(settings, n)) for n in ("records", "seeds"))
    at_least(1, records=min(sizes))
    less = _QUICK if settings.quick else 1
    most = max(sizes)
    if settings.quick:
        sizes, seeds = tuple(sorted(sizes)[-2:]), seeds[:1]
    steps = (_STEPS // less, _ROUNDS // less, _LOCAL_STEPS // less)
    return [
        Cell(seed, size, settings.clients, *steps, GENERATORS if size == most else ())
        for seed in seeds
        for size in sizes
    ]


# Tables.


def by_records(results: Results) -> Mapping[float, Sequence[Result]]:
    """The seeds' results by records of a client, ascending."""
    return dict(sorted(grouped(results.cells, lambda cell: cell.records).items()))


def tables(results: Results) -> list[Table | str]:
    """Theorem 1, equation 19 and Theorem 2, and what they say together."""
    largest = [result for result in results.cells if result.cell.generators]
    bound = _bound(results)
    return [
        _generators(largest),
        _weights(largest),
        _discriminators(results),
        *bound,
        _note(results),
    ]


def _where(found: Sequence[Result]) -> str:
    cell = found[0].cell
    return f"{cell.clients} clients of {cell.records} records"


def _mean(found: Sequence[Result], name: str) -> str:
    return measure(found, name).replace("-", MINUS)


def _generators(found: Sequence[Result]) -> Table:
    """A row a loss of the generator, and exact samples of p as control."""
    title = f"Theorem 1, {_where(found)}: where generators rest, and what training reaches"
    columns = ("TV to p at rest", "f to f* at rest", "TV to p", "TV to rest", "f to f*")
    table = new_table(title, ("generator's loss", *columns))
    figures = (TO_P + REST, AWAY + REST, TO_P, TO_REST, AWAY)
    for name in (*GENERATORS, FROM_P):
        shown = [_mean(found, of(name, figure)) for figure in figures]
        table.add_row("none: samples of p" if name == FROM_P else name, *shown)
    return table


def _weights(found: Sequence[Result]) -> Table:
    """A row a weight."""
    columns = ("violated, %", "largest excess", "sum of alpha off 1", "loss of the ensemble")
    table = new_table(f"Equation 19, {_where(found)}", ("weights", *columns))
    for name in (F_STAR, FROM_P, *GENERATORS, UNIFORM):
        title = f"f, generator by {name}" if name in GENERATORS else name
        table.add_row(
            title,
            measure(found, of(name, VIOLATED), lambda share: f"{100 * share:.1f}"),
            _mean(found, of(name, EXCESS)),
            measure(found, of(name, NOT_ONE), "{:.0e}".format),
            measure(found, of(name, LOSS), "{:.4f}".format),
        )
    return table


def _discriminators(results: Results) -> Table:
    """A row a number of records: f against samples of p."""
    columns = ("f to f*", "largest of seeds", "f untrained", "violated, %", "largest excess")
    table = new_table("Theorem 1 against samples of p", ("records of a client", *columns))
    for records, found in by_records(results).items():
        table.add_row(
            f"{records:g}",
            _mean(found, of(FROM_P, AWAY)),
            f"{max(result.figures[of(FROM_P, AWAY)] for result in found):.3f}",
            _mean(found, of(UNTRAINED, AWAY)),
            measure(found, of(FROM_P, VIOLATED), lambda share: f"{100 * share:.1f}"),
            _mean(found, of(FROM_P, EXCESS)),
        )
    return table


def _bound(results: Results) -> list[Table]:
    """A row a number of records: the theorem's terms; then what its proof needs."""
    sides = (of(F_STAR, LOSS), of(FROM_P, LOSS), of(UNIFORM, LOSS))
    terms = (LOCAL, LOCAL_EMPIRICAL, POOLED, DEVIATION, BOUND)
    heads = ("left, f*", "left, f against p", "left, uniform", *terms, "bound / left")
    one = new_table(f"Theorem 2, delta {DELTA:g}", ("records of a client", *heads))
    needs = ("holds", OVERFIT, "allowed by (22)", WORSE, "(25) met")
    two = new_table("Theorem 2: what its proof needs", ("records of a client", *needs))
    for records, found in by_records(results).items():
        loose = moments(found, lambda r: r.figures[BOUND] / r.figures[of(FROM_P, LOSS)])[0]
        shown = [measure(found, name, "{:.4f}".format) for name in (*sides, *terms)]
        one.add_row(f"{records:g}", *shown, f"{loose:.0f}")
        allowed = moments(found, lambda r: r.figures[DEVIATION] / (r.cell.clients + 1))[0]
        two.add_row(
            f"{records:g}",
            _count(found, holds),
            f"{max(r.figures[OVERFIT] for r in found):.4f}",
            f"{allowed:.4f}",
            f"{max(r.figures[WORSE] for r in found):.4f}".replace("-", MINUS),
            _count(found, lambda r: r.figures[WORSE] <= 0),
        )
    return [one, two]


def holds(result: Result) -> bool:
    """Whether Theorem 2's bound holds for f* and for f trained against p."""
    figures = result.figures
    return max(figures[of(name, LOSS)] for name in (F_STAR, FROM_P)) <= figures[BOUND]


def _count(found: Sequence[Result], met: Callable[[Result], bool]) -> str:
    return f"{sum(map(met, found))} of {len(found)}"


def _note(results: Results) -> str:
    apart = moments(results.cells, lambda r: r.figures[OVERLAP])[0]
    return (
        f"Mixtures of seeds {seeds_of(results.cells)}; p_k lie {apart:.2f} from p in total "
        f"variation (TV). f to f*: mean of |f_k - p_k / (p_k + p)| over clients and x of p; the "
        f"target against p is {TARGET:g}. At rest: computed from the densities. Losses: half the "
        "squared distance to the class's corner, so sigma is 1; bound / left is for f against p. "
        "Differences of losses in the last table are the largest over seeds and clients."
    )


# Figure.


def figure(results: Results) -> "Figure":
    """f along a line through the square; its distance to f*; and Theorem 2's terms."""
    by = {math.log10(records): found for records, found in by_records(results).items()}
    ticks = {at: f"{10**at:.0f}" for at in by}
    names = {name: of(name, AWAY) for name in (FROM_P, UNTRAINED)}
    records = "records of a client"
    away = Lines("Distance to f*", records, AWAY, _over(by, names), share=False, ticks=ticks)
    names = {
        "left, f against p": of(FROM_P, LOSS),
        "left, uniform": of(UNIFORM, LOSS),
        **{name: name for name in (LOCAL, POOLED, DEVIATION, BOUND)},
    }
    up, scales = _over(by, names), ("linear", "log")
    terms = Lines("Theorem 2", records, "loss", up, share=False, scales=scales, ticks=ticks)
    return drawn([_along(results), away, terms])


def _over(by: Mapping[float, Sequence[Result]], names: Mapping[str, str]) -> Mapping[str, Line]:
    """A line a figure, by its title."""
    return {title: over(by, partial(_figure, name=name)) for title, name in names.items()}


def _along(results: Results) -> Lines:
    """f of the first client of the first seed that has generators."""
    found = next(result for result in results.cells if result.cell.generators)
    note: Any = found.notes[ALONG]
    shown = {}
    for name in (F_STAR, FROM_P, NON_SATURATING, MAXIMUM_LIKELIHOOD):
        x = tuple(i / (len(note[name]) - 1) for i in range(len(note[name])))
        title = f"f, generator by {name}" if name in GENERATORS else name
        shown[title] = Line(x, tuple(note[name]), (0.0,) * len(x))
    title = f"One client, seed {found.cell.seed}, at (t, t)"
    return Lines(title, "t", "f", shown, share=False)


def _figure(result: Result, name: str) -> float:
    return result.figures[name]


STUDY = Study(
    name="dafkd_theory",
    script="dafkd_theory.py",
    about=str(Settings.__doc__),
    settings=Settings,
    cell=Cell,
    cells=cells,
    group=lambda cell: cell,
    prepare=lambda *_: None,  # cells share nothing
    measure=later(_MEASURE),
    shown=tables,
    figure=figure,
    image_set=lambda _: None,
    cost=lambda cell: 100 * (1 + len(cell.generators)),
)

if __name__ == "__main__":
    sys.exit(main("experiments.dafkd_theory"))
