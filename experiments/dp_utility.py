"""What does each privacy unit cost in accuracy? Cells that resume, one table, one plot.

python experiments/dp_utility.py --study small
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from experiments.measures import BYTES_UP, KEPT_ONCE, RIGHT_ONCE
from experiments.papers import published
from experiments.plots import INK, MUTED, PAPER, SMALL, line_style, new_figure, plain, titled
from experiments.rows import LEAST_EPSILON, MOST_EPSILON
from experiments.study import (
    Progress,
    Result,
    Results,
    Study,
    at_least,
    main,
    moments,
    percent,
    whole_numbers,
)
from experiments.study import (
    measure as mean_of,
)
from experiments.tables import Table, human_bytes, new_table
from secure_fd.errors import ConfigurationError
from secure_fd.recipes import IMAGE_SETS, Schedule, schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.runs import WarmUp
    from secure_fd.fleet import FleetVotes

UNITS = ("none", "record", "label", "client")
ALPHABETS = ("", "full", "declared")
DELTA = 1e-5
_CLIENTS = 10
_MOST_ROUNDS = 40
_QUICK_ROUNDS = 4
_QUICK_WARMUP = 25
_FLEETS = (100, 1_000, 10_000)
_QUICK_FLEETS = (100, 300)
_FEW = (4.0, None)
"""The epsilons of the studies that ask one question of several image sets or splits."""


@dataclass(frozen=True, slots=True)
class FleetTerms:
    """A fleet's one round. absent, corrupt: shares of the clients that its noise provides for.

    sample_rate: below 1 in stored cells that sampled clients; every new cell asks all. most:
    proxies asked at most. steps: of the student.
    """

    absent: float = 0.1
    corrupt: float = 0.1
    sample_rate: float = 1.0
    most: int = 2048
    steps: int = 1500


@dataclass(frozen=True, slots=True)
class Cell:
    """epsilon: None is infinite. fleet: None for a federation of few clients, which has a schedule.

    unit "none" is hard labels without protection; a record unit without noise keeps its own,
    network-free votes, so that the price of noise and that of asking no network stand apart.
    """

    image_set: str
    split: str
    unit: str
    alphabet: str
    epsilon: float | None
    delta: float
    clients: int
    seed: int
    rounds: int
    schedule: Schedule | None
    fleet: FleetTerms | None

    def __post_init__(self) -> None:
        if self.image_set not in IMAGE_SETS:
            raise ConfigurationError("image_set", self.image_set, f"use {', '.join(IMAGE_SETS)}")
        for name, value, allowed in (
            ("unit", self.unit, UNITS),
            ("alphabet", self.alphabet, ALPHABETS),
        ):
            if value not in allowed:
                raise ConfigurationError(name, value, f"use one of {', '.join(allowed)}")
        if (self.schedule is None) == (self.fleet is None):
            raise ConfigurationError("fleet", self.fleet, "a cell has a schedule or a fleet")

    @property
    def group(self) -> "Cell":
        """What its preparation depends on: the warm-up, or the votes, that cells share."""
        fleet = None if self.fleet is None else replace(self.fleet, sample_rate=1.0)
        return replace(self, unit="none", alphabet="", epsilon=None, fleet=fleet)

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return f"{IMAGE_SETS[self.image_set].title}, {self.split}"

    @property
    def line(self) -> str:
        """What stays the same while epsilon and the seed change."""
        if self.fleet is not None:
            coin = f", sampled at {self.fleet.sample_rate:g}" if self.fleet.sample_rate < 1 else ""
            return f"client unit, {self.clients:,} clients{coin}"
        classes = {"": "", "full": ", all classes", "declared": ", declared classes"}
        if self.unit == "none":
            return "no protection"
        return f"{self.unit} unit{classes[self.alphabet]}"

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        epsilon = "inf" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.place}: {self.line}, epsilon {epsilon}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Grid:
    """What the command line chose."""

    epsilons: tuple[float | None, ...]
    seeds: tuple[int, ...]
    rounds: int | None
    quick: bool


def cells_of(study: str, grid: Grid) -> tuple[Cell, ...]:
    """The cells of a study, or of all of them; what two studies share is there once.

    Raises ConfigurationError where a study has none of the epsilons.
    """
    if study != "all" and study not in STUDIES:
        raise ConfigurationError("study", study, f"use one of {', '.join(STUDIES)}, all")
    chosen = list(STUDIES) if study == "all" else [study]
    made = [cell for name in chosen for cell in STUDIES[name](grid)]
    if not made:
        raise ConfigurationError("epsilons", _listed(grid.epsilons), f"study {study} has 4 and inf")
    return tuple(dict.fromkeys(made))


def _strong(grid: Grid) -> Iterator[Cell]:
    for seed in grid.seeds:
        yield from _federated(grid, seed, "mnist", "strong", grid.epsilons)


def _small(grid: Grid) -> Iterator[Cell]:
    for seed in grid.seeds:
        yield from _federated(grid, seed, "mnist5k", "strong", grid.epsilons)
        base = _base(grid, seed, "mnist5k", "strong")
        if None in grid.epsilons:  # the price of asking no network, told apart from that of noise
            yield replace(base, unit="record", epsilon=None)
        if 4.0 in grid.epsilons:
            yield replace(base, unit="label", alphabet="full", epsilon=4.0)


def _splits(grid: Grid) -> Iterator[Cell]:
    for split in ("weak", "iid"):
        for seed in grid.seeds:
            yield from _record(grid, seed, "mnist", split, _few(grid))


def _fashion(grid: Grid) -> Iterator[Cell]:
    for seed in grid.seeds:
        yield from _record(grid, seed, "fashion_mnist", "strong", _few(grid))


def _fleet(grid: Grid) -> Iterator[Cell]:
    """Fleets of every size, the largest under every seed."""
    sizes = _QUICK_FLEETS if grid.quick else _FLEETS
    terms = FleetTerms(most=256, steps=100) if grid.quick else FleetTerms()
    for split in ("strong", "iid"):
        for seed in grid.seeds:
            for clients in sizes if seed == grid.seeds[0] else sizes[-1:]:
                base = Cell(
                    image_set="mnist5k" if grid.quick else "mnist",
                    split=split,
                    unit="client",
                    alphabet="",
                    epsilon=None,
                    delta=DELTA,
                    clients=clients,
                    seed=seed,
                    rounds=1,
                    schedule=None,
                    fleet=terms,
                )
                yield from (replace(base, epsilon=epsilon) for epsilon in grid.epsilons)


STUDIES = {
    "strong": _strong,
    "splits": _splits,
    "small": _small,
    "fashion": _fashion,
    "fleet": _fleet,
}
"""By name; each makes its cells of a grid."""


def _federated(
    grid: Grid, seed: int, image_set: str, split: str, epsilons: Sequence[float | None]
) -> Iterator[Cell]:
    """No protection and the record unit, and the label unit over declared classes."""
    yield from _record(grid, seed, image_set, split, epsilons)
    base = _base(grid, seed, image_set, split)
    for epsilon in epsilons:
        if epsilon is not None:  # without noise it is the row without protection
            yield replace(base, unit="label", alphabet="declared", epsilon=epsilon)


def _record(
    grid: Grid, seed: int, image_set: str, split: str, epsilons: Sequence[float | None]
) -> Iterator[Cell]:
    base = _base(grid, seed, image_set, split)
    if None in epsilons:
        yield base
    for epsilon in epsilons:
        if epsilon is not None:
            yield replace(base, unit="record", epsilon=epsilon)


def _base(grid: Grid, seed: int, image_set: str, split: str) -> Cell:
    steps = schedule(image_set, split)
    rounds = min(_MOST_ROUNDS, IMAGE_SETS[image_set].rounds)
    if grid.quick:
        steps, rounds = replace(steps, warmup_steps=_QUICK_WARMUP), _QUICK_ROUNDS
    return Cell(
        image_set=image_set,
        split=split,
        unit="none",
        alphabet="",
        epsilon=None,
        delta=DELTA,
        clients=_CLIENTS,
        seed=seed,
        rounds=grid.rounds or rounds,
        schedule=steps,
        fleet=None,
    )


def _few(grid: Grid) -> tuple[float | None, ...]:
    return tuple(epsilon for epsilon in grid.epsilons if epsilon in _FEW)


def _listed(epsilons: Sequence[float | None]) -> str:
    return ",".join("inf" if epsilon is None else f"{epsilon:g}" for epsilon in epsilons)


# The command line.


@dataclass(frozen=True, slots=True)
class Settings:
    """Accuracy against epsilon, for every privacy unit: a table, a plot and JSON.

    Sums are made in clear here: masks change no bit of them and only cost time. Every cell is
    saved when it ends, and a rerun does only what is missing.
    """

    study: Literal["strong", "splits", "small", "fashion", "fleet", "all"] = "all"
    """MNIST by units; its other splits; MNIST-5k; Fashion-MNIST; fleets of clients; or all."""
    epsilons: str = "1,2,4,8,inf"
    """Epsilons with commas, each from 0.01 to 50, or inf."""
    seeds: str = "10,11,12"
    """Seeds of data and training, with commas; from 10 on none was looked at before."""
    rounds: int | None = None
    """Rounds of a federation; by default 40, and 30 on MNIST-5k."""
    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds mnist/ and fashion_mnist/ with IDX .gz files."""
    out: Path = Path("runs/dp_utility")
    """Folder of the results, and of the cells that are done."""
    workers: int = 2
    """Processes that share the work."""
    quick: bool = False
    """A minute's look: few rounds, small fleets. Figures are not comparable with a full run."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for; ConfigurationError for a value not allowed."""
    at_least(1, rounds=settings.rounds)
    epsilons = tuple(dict.fromkeys(map(_epsilon, settings.epsilons.split(","))))
    seeds = whole_numbers("seeds", settings.seeds)
    return cells_of(settings.study, Grid(epsilons, seeds, settings.rounds, settings.quick))


def _epsilon(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if value == math.inf:
        return None
    if not LEAST_EPSILON <= value <= MOST_EPSILON:
        allowed = f"use numbers from {LEAST_EPSILON:g} to {MOST_EPSILON:g}, or inf, with commas"
        raise ConfigurationError("epsilons", text, allowed)
    return value


# What a cell runs.


def prepare(
    data_dir: Path | None, cells: Sequence[Cell], progress: Progress
) -> "WarmUp | FleetVotes":
    """What cells of a group share: a warm-up, or the votes of a fleet."""
    from experiments import private_cells

    first = cells[0].group
    make = private_cells.warm_up if first.fleet is None else private_cells.fleet_votes
    return make(data_dir, first, progress)


def measure(data_dir: Path | None, cell: Cell, made: Any, progress: Progress) -> Result:  # noqa: ANN401 - of `prepare`
    """Run and test one cell."""
    from experiments import private_cells

    run = private_cells.run_federation if cell.fleet is None else private_cells.run_fleet
    return run(data_dir, cell, made, progress)


_CELLS = "experiments.private_cells"
_UNITS = {
    "none": ("secure_fd.protection.base:NoProtection",),
    "label": ("secure_fd.protection.label:LabelUnit",),
    "record": ("secure_fd.protection.record:RecordUnit",),
}


def roots(cell: Cell) -> tuple[str, ...]:
    """The definitions that a cell's figures come from."""
    if cell.fleet is not None:
        return f"{_CELLS}:fleet_votes", f"{_CELLS}:run_fleet"
    return f"{_CELLS}:warm_up", f"{_CELLS}:run_federation", *_UNITS[cell.unit]


# Tables and figure.

_FLEET_COLUMNS = {
    "released proxies": ("proxies", "{:,.0f}"),
    KEPT_ONCE: ("kept", "{:.2f}"),
    RIGHT_ONCE: ("right", "{:.3f}"),
    "right labels without noise": ("no noise", "{:.3f}"),
    "noise multiplier": ("z", "{:.2f}"),
    "deviation of the noise, votes": ("noise", "{:.1f}"),
    "units in a vote": ("scale", "{:.0f}"),
    "bits in a lane": ("bits", "{:.0f}"),
}

Epsilon = float | None
_Line = Mapping[Epsilon, list[Result]]
_PANEL = (5.6, 4.4)
"""Width and height of a panel, in inches."""


def lines(results: Results) -> dict[tuple[str, str], dict[Epsilon, list[Result]]]:
    """By place and line, then by epsilon in ascending order, infinite last: one result a seed."""
    found: dict[tuple[str, str], dict[Epsilon, list[Result]]] = {}
    ordered = sorted(results.cells, key=lambda r: _order(r.cell.epsilon))
    for result in sorted(ordered, key=lambda r: _first_place(results, r)):
        line = found.setdefault((result.cell.place, result.cell.line), {})
        line.setdefault(result.cell.epsilon, []).append(result)
    return found


def _first_place(results: Results, result: Result) -> int:
    """Where the line of a result begins in the results: lines keep the order of the studies."""
    key = (result.cell.place, result.cell.line)
    return next(i for i, r in enumerate(results.cells) if (r.cell.place, r.cell.line) == key)


def tables(results: Results) -> list[Table | str]:
    """Accuracy by unit and epsilon; of fleets also what their figures rest on."""
    fleets = any(result.cell.fleet is not None for result in results.cells)
    return [_accuracies(results), *([_fleets(results)] if fleets else [])]


def _accuracies(results: Results) -> Table:
    epsilons = sorted({result.cell.epsilon for result in results.cells}, key=_order)
    table = new_table(
        "Test accuracy after the last round, %: mean ± deviation over seeds",
        ("image set, split", "unit", *(f"ε = {_epsilon_text(e)}" for e in epsilons), "published"),
        left=2,
    )
    for (place, line), by_epsilon in lines(results).items():
        known = _published(next(iter(by_epsilon.values()))[0].cell)
        shown = [percent(by_epsilon.get(epsilon, [])) for epsilon in epsilons]
        last = f"{known:.1f}" if known is not None and line == "no protection" else ""
        table.add_row(place, line, *shown, last)
    return table


def _fleets(results: Results) -> Table:
    first = ("image set, split", "clients", "ε", "accuracy, %")
    headings = (heading for heading, _ in _FLEET_COLUMNS.values())
    title = "Fleets: right labels, and noise in votes; means over seeds"
    table = new_table(title, (*first, *headings, "up, a client"), left=4)
    for (place, line), by_epsilon in lines(results).items():
        for epsilon, found in by_epsilon.items():
            if found[0].cell.fleet is not None:
                figures = [
                    mean_of(found, n, form.format) for n, (_, form) in _FLEET_COLUMNS.items()
                ]
                short = line.removeprefix("client unit, ").replace(" clients", "")
                sent = mean_of(found, BYTES_UP, human_bytes)
                table.add_row(place, short, _epsilon_text(epsilon), percent(found), *figures, sent)
    return table


def _published(cell: Cell) -> float | None:
    """Of Selective-FD with hard labels and without differential privacy, in percent."""
    known = published.accuracy(cell.image_set, cell.split, "selective-fd", "hard")
    return None if known is None or cell.fleet is not None else known[0]


def _epsilon_text(epsilon: Epsilon) -> str:
    return "∞" if epsilon is None else f"{epsilon:g}"


def _order(epsilon: Epsilon) -> float:
    return math.inf if epsilon is None else epsilon


def figure(results: Results) -> "Figure | None":
    """Every panel that has a line of two epsilons or more, side by side."""
    panels: dict[tuple[str, bool], dict[str, _Line]] = {}
    for (place, name), line in lines(results).items():
        fleet = next(iter(line.values()))[0].cell.fleet is not None
        panels.setdefault((place, fleet), {})[name] = line
    shown = {key: panel for key, panel in panels.items() if max(map(len, panel.values())) > 1}
    if not shown:
        return None
    width, height = _PANEL
    made = new_figure(width * len(shown), height)
    for i, ((place, fleet), panel) in enumerate(shown.items()):
        axes = made.add_axes(((i + 0.12) / len(shown), 0.31, 0.82 / len(shown), 0.58))
        _draw(axes, panel)
        titled(axes, f"{place}{', fleets' if fleet else ''}", "epsilon", "" if i else "accuracy")
    return made


def _draw(axes: "Axes", panel: dict[str, _Line]) -> None:
    """Lines over epsilons at even steps, infinite last; references across the whole width."""
    epsilons = sorted({epsilon for line in panel.values() for epsilon in line}, key=_order)
    place = {epsilon: x for x, epsilon in enumerate(epsilons)}
    for i, (name, line) in enumerate(panel.items()):
        colour, marker = line_style(i)
        if name == "no protection":
            level, _ = moments(next(iter(line.values())))
            _reference(axes, level, name, color=colour, linestyle=(0, (5, 3)))
            continue
        x = [place[epsilon] for epsilon in line]
        y, error = zip(*map(moments, line.values()), strict=True)
        style: dict[str, Any] = {"color": colour, "markeredgecolor": PAPER, "markersize": 7}
        axes.errorbar(x, y, error, fmt=f"{marker}-", linewidth=1.6, capsize=3, label=name, **style)
    known = _published(next(iter(next(iter(panel.values())).values()))[0].cell)
    if known is not None:
        name = "published, hard labels, no protection"
        _reference(axes, known / 100, name, color=MUTED, linestyle=":")
    axes.set_xticks(range(len(epsilons)), [_epsilon_text(e) for e in epsilons])
    axes.margins(x=0.06, y=0.08)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    plain(axes)
    below: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.2), "ncols": 2}
    axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK, **below)


def _reference(axes: "Axes", level: float, name: str, **style: Any) -> None:  # noqa: ANN401 - of matplotlib
    axes.axhline(level, linewidth=1.3, label=name, **style)


STUDY = Study(
    name="dp_utility",
    script="dp_utility.py",
    about=str(Settings.__doc__),
    settings=Settings,
    cell=Cell,
    cells=cells,
    group=lambda cell: cell.group,
    prepare=prepare,
    measure=measure,
    roots=roots,
    shown=tables,
    figure=figure,
)

if __name__ == "__main__":
    sys.exit(main("experiments.dp_utility"))
