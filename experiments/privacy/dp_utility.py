"""What does each privacy unit cost in accuracy? Cells that resume, one table, one plot.

python experiments/privacy/dp_utility.py --study small
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments.core import published
from experiments.core.grid import later, paper_recipe
from experiments.core.measures import BYTES_UP, KEPT_ONCE, RIGHT_ONCE
from experiments.core.rows import FLEET, Cell, Privacy
from experiments.core.shared_options import SharedOptions
from experiments.core.study import (
    Result,
    Results,
    Study,
    at_least,
    grouped,
    main,
    moments,
    over,
    percent,
    whole_numbers,
)
from experiments.core.study import (
    measure as mean_of,
)
from experiments.report.plots import Line, Lines, drawn
from experiments.report.tables import Table, human_bytes, new_table
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.guarantee import LEAST_EPSILON, MOST_EPSILON
from secure_fd.training.recipes import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Epsilon = float | None
_MOST_ROUNDS, _QUICK_ROUNDS, _QUICK_WARMUP = 40, 4, 25
_FLEETS, _QUICK_FLEETS = (100, 1_000, 10_000), (100, 300)
_SETS = {"strong": "mnist", "small": "mnist5k"}
"""Image sets by study, in the strong split."""
STUDIES = (*_SETS, FLEET)


@dataclass(frozen=True, slots=True)
class Settings(SharedOptions):
    """Accuracy against epsilon, for the label and the client unit: a table, a plot and JSON.

    Sums are made in clear here: masks change no bit of them and only cost time. Every cell is
    saved when it ends, and a rerun does only what is missing.
    """

    study: Literal["strong", "small", "fleet", "all"] = "all"
    """MNIST by units; MNIST-5k; fleets of clients; or all."""
    epsilons: str = "1,2,4,8,inf"
    """Epsilons with commas, each from 0.01 to 50, or inf."""
    seeds: str = "10,11,12"
    """Seeds of data and training, with commas; from 10 on none was looked at before."""
    rounds: int | None = None
    """Rounds of a federation; by default 40, and 30 on MNIST-5k."""
    quick: bool = False
    """A minute's look: few rounds, small fleets. Figures are not comparable with a full run."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for; what two studies share is there once.

    Raises ConfigurationError for a value that is not allowed.
    """
    at_least(1, rounds=settings.rounds)
    epsilons = tuple(dict.fromkeys(map(_epsilon, settings.epsilons.split(","))))
    seeds = whole_numbers("seeds", settings.seeds)
    if settings.study not in (*STUDIES, "all"):
        allowed = f"use one of {', '.join(STUDIES)}, all"
        raise ConfigurationError("study", settings.study, allowed)
    made: dict[Cell, None] = {}
    for study in STUDIES if settings.study == "all" else (settings.study,):
        if study == FLEET:
            made |= dict.fromkeys(_fleets_of(settings, seeds, epsilons))
        else:
            for seed in seeds:
                base = _base(settings, _SETS[study], seed)
                made |= dict.fromkeys(_federations(base, epsilons))
    return tuple(made)


def _epsilon(text: str) -> Epsilon:
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


def _base(settings: Settings, image_set: str, seed: int) -> Cell:
    """Hard labels without protection, which every unit changes."""
    recipe = paper_recipe(image_set, "strong")
    steps, rounds = recipe.schedule, min(_MOST_ROUNDS, recipe.rounds)
    if settings.quick:
        steps, rounds = replace(steps, warmup_steps=_QUICK_WARMUP), _QUICK_ROUNDS
    return Cell(
        image_set=image_set,
        split="strong",
        method="selective-fd",
        labels="hard",
        selector="ratio",
        seed=seed,
        rounds=settings.rounds or rounds,
        schedule=steps,
    )


def _federations(base: Cell, epsilons: Sequence[Epsilon]) -> Iterator[Cell]:
    """No protection, which is what the label unit is without noise, and the label unit."""
    if None in epsilons:
        yield base
    for epsilon in epsilons:
        if epsilon is not None:
            yield replace(base, privacy=Privacy("label", epsilon))


def _fleets_of(
    settings: Settings, seeds: Sequence[int], epsilons: Sequence[Epsilon]
) -> Iterator[Cell]:
    """Fleets of every size, the largest under every seed; a tenth of the clients is away."""
    sizes = _QUICK_FLEETS if settings.quick else _FLEETS
    steps, asked = (100, 256) if settings.quick else (1500, 2048)
    for split in ("strong", "iid"):
        for seed in seeds:
            for clients in sizes if seed == seeds[0] else sizes[-1:]:
                base = Cell(
                    image_set="mnist5k" if settings.quick else "mnist",
                    split=split,
                    method=FLEET,
                    labels="hard",
                    seed=seed,
                    rounds=1,
                    schedule=Schedule(0, 0, steps, asked),
                    clients=clients,
                    drop=0.1,
                )
                for epsilon in epsilons:
                    yield replace(base, privacy=Privacy("client", epsilon, small_fleet=True))


# What a cell runs.


def needs(cell: Cell) -> tuple[Hashable, ...]:
    """The warm-up, or the votes of a fleet."""
    if cell.method == FLEET:
        return (replace(cell, privacy=Privacy("client", None)),)
    return (replace(cell.group, one_by_one=True),)


def prepare(data_dir: Path | None, part: Any) -> Any:  # noqa: ANN401 - a warm-up, or a fleet's votes
    """What cells share: a warm-up, or the votes of a fleet."""
    votes, warm = "experiments.rivals.fleets:fleet_votes", "experiments.core.runs:prepare"
    return later(votes if isinstance(part, Cell) else warm)(data_dir, part)


def measure(data_dir: Path | None, cell: Cell, made: Mapping[Any, Any]) -> Result:
    """Run and test one cell."""
    fleet, run = "experiments.rivals.fleets:run_fleet", "experiments.core.runs:run_private"
    found: Result = later(fleet if cell.method == FLEET else run)(data_dir, cell, made)
    return found


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
_Line = Mapping[Epsilon, list[Result]]
_PLAIN = "no protection"


def line(cell: Cell) -> str:
    """What stays the same while epsilon and the seed change."""
    if cell.privacy is None:
        return _PLAIN
    if cell.method == FLEET:
        return f"client unit, {cell.clients:,} clients{', ' * bool(cell.variant)}{cell.variant}"
    return f"{cell.privacy.unit} unit"


def epsilon_of(cell: Cell) -> Epsilon:
    """Infinite is None."""
    return None if cell.privacy is None else cell.privacy.epsilon


def lines(results: Results) -> dict[tuple[str, str], dict[Epsilon, list[Result]]]:
    """By place and line, then by epsilon in ascending order, infinite last: one result a seed."""
    found = grouped(results.cells, lambda cell: (cell.place, line(cell)))
    return {
        key: dict(sorted(grouped(of, epsilon_of).items(), key=lambda item: _order(item[0])))
        for key, of in found.items()
    }


def tables(results: Results) -> list[Table | str]:
    """Accuracy by unit and epsilon; of fleets also what their figures rest on."""
    fleets = any(result.cell.method == FLEET for result in results.cells)
    return [_accuracies(results), *([_fleets(results)] if fleets else [])]


def _accuracies(results: Results) -> Table:
    epsilons = sorted({epsilon_of(result.cell) for result in results.cells}, key=_order)
    table = new_table(
        "Test accuracy after the last round, %: mean ± deviation over seeds",
        ("image set, split", "unit", *(f"ε = {_epsilon_text(e)}" for e in epsilons), "published"),
        left=2,
    )
    for (place, name), by_epsilon in lines(results).items():
        known = _published(next(iter(by_epsilon.values()))[0].cell)
        shown = [percent(by_epsilon.get(epsilon, [])) for epsilon in epsilons]
        last = f"{known:.1f}" if known is not None and name == _PLAIN else ""
        table.add_row(place, name, *shown, last)
    return table


def _fleets(results: Results) -> Table:
    first = ("image set, split", "clients", "ε", "accuracy, %")
    headings = (heading for heading, _ in _FLEET_COLUMNS.values())
    title = "Fleets: right labels, and noise in votes; means over seeds"
    table = new_table(title, (*first, *headings, "up, a client"), left=4)
    for (place, name), by_epsilon in lines(results).items():
        short = name.removeprefix("client unit, ").replace(" clients", "")
        for epsilon, found in by_epsilon.items() if short != name else ():
            figures = [mean_of(found, n, form.format) for n, (_, form) in _FLEET_COLUMNS.items()]
            sent = mean_of(found, BYTES_UP, human_bytes)
            table.add_row(place, short, _epsilon_text(epsilon), percent(found), *figures, sent)
    return table


def _published(cell: Cell) -> float | None:
    """Of Selective-FD with hard labels and without differential privacy, in percent."""
    known = published.accuracy(cell.image_set, cell.split, "selective-fd", "hard")
    return None if known is None or cell.method == FLEET else known[0]


def _epsilon_text(epsilon: Epsilon) -> str:
    return "∞" if epsilon is None else f"{epsilon:g}"


def _order(epsilon: Epsilon) -> float:
    return math.inf if epsilon is None else epsilon


def figure(results: Results) -> "Figure | None":
    """A panel a place, over epsilons at even steps, where a line has two of them or more."""
    places: dict[str, dict[str, _Line]] = {}
    for (place, name), of in lines(results).items():
        fleet = next(iter(of.values()))[0].cell.method == FLEET
        places.setdefault(f"{place}{', fleets' * fleet}", {})[name] = of
    panels = [_panel(*each) for each in places.items() if max(map(len, each[1].values())) > 1]
    return drawn(panels) if panels else None


def _panel(title: str, by_name: Mapping[str, _Line]) -> Lines:
    epsilons = sorted({epsilon for of in by_name.values() for epsilon in of}, key=_order)
    at = {epsilon: float(x) for x, epsilon in enumerate(epsilons)}
    known = _published(next(iter(next(iter(by_name.values())).values()))[0].cell)
    shown = {
        name: _across(moments(of[None])[0], at) if name == _PLAIN
        else over({at[epsilon]: found for epsilon, found in of.items()})
        for name, of in by_name.items()
    }  # fmt: skip
    if known is not None:
        shown["published, hard labels, no protection"] = _across(known / 100, at)
    ticks = {x: _epsilon_text(epsilon) for epsilon, x in at.items()}
    return Lines(title, "epsilon", "test accuracy", shown, ticks=ticks)


def _across(level: float, at: Mapping[Epsilon, float]) -> Line:
    """The same at every epsilon."""
    return Line(tuple(at.values()), (level,) * len(at), (0.0,) * len(at))


STUDY = Study(
    name="dp_utility",
    folder="privacy",
    about=str(Settings.__doc__),
    settings=Settings,
    out=lambda settings: settings.out or Path("runs/dp_utility"),
    cell=Cell,
    cells=cells,
    needs=needs,
    prepare=prepare,
    measure=measure,
    shown=tables,
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.privacy.dp_utility"))
