"""DaFKD beside FedDF on the same generated samples, FedAvg and Selective-FD, at equal steps.

python experiments/paper/dafkd.py --quick

All rows see images through the public patch features of `secure_fd.data.patches`, so that DaFKD's
generator makes features (Fig. 7 of its supplement), and train networks of one architecture. A
client takes the same steps in every row. Rates come from one grid, .01, .02 and .05, where the
clients' validation records of MNIST, beta .1, seed 0, chose the rate of each row here; variants of
a row have its rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from experiments.core import study
from experiments.core.grid import image_study
from experiments.core.measures import ACCURACY
from experiments.core.provenance import mean_and_deviation
from experiments.core.rows import (
    Cell,
    Privacy,
)
from experiments.core.shared_options import TableOptions
from experiments.report.plots import Lines, drawn
from experiments.report.tables import NONE, Table, new_table
from secure_fd.data.partition import parse_split
from secure_fd.training.recipes import SGD, Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = ("mnist_patches", "fashion_mnist_patches")
SPLITS = ("dirichlet:0.1", "dirichlet:0.05")
_SMALL = "mnist5k_patches"
"""Where the three ways to sum are compared, and for a quick look."""
_SEEDS, _QUICK_SEED = (20, 21, 22), 0
_ROUNDS, _STEPS = 5, 200
_LONG = 50
"""Rounds of FedAvg that take about as much CPU time as DaFKD's."""
_EPSILON = 4.0
_BATCH, _PROXIES = 128, 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. rate: by validation, with Nesterov momentum of .9."""

    title: str
    method: str
    variant: str = ""
    rate: float = 0.02
    rounds: int = _ROUNDS
    private: bool = False
    secure: str = ""


ROWS: Mapping[str, Row] = {
    "independent": Row("Independent", "independent"),
    "fedavg": Row("FedAvg", "fedavg", rate=0.05),
    "fedavg-long": Row(f"FedAvg, {_LONG} rounds", "fedavg", rate=0.05, rounds=_LONG),
    "feddf": Row("FedDF: uniform weights", "feddf"),
    "dafkd": Row("DaFKD: weights f", "dafkd"),
    "selective-fd": Row("Selective-FD", "selective-fd", rate=0.05),
    "fedavg-dp": Row(f"FedAvg, record epsilon {_EPSILON:g}", "fedavg", private=True),
    "dafkd-dp": Row(f"DaFKD, record epsilon {_EPSILON:g}", "dafkd", private=True),
}
ON_REQUEST = ("fedavg-long", "fedavg-dp", "dafkd-dp")
"""Rows that take as long as all others together."""
SUMS: Mapping[str, Row] = {
    name: Row(title, "dafkd", rounds=2, secure=secure)
    for name, title, secure in (
        ("clear", "in clear", ""),
        ("masks", "under masks", "masks"),
        ("he", "encrypted", "he"),
    )
}
"""The same run of DaFKD by three sums."""


def cell_of(row: Row, image_set: str, split: str, seed: int, clients: int = 10) -> Cell:
    """One run: 200 steps a client and round, on its own records, or on the proxies."""
    sgd = SGD(row.rate, distillation_batch=_BATCH, momentum=0.9)
    steps = Schedule(warmup_steps=0, local_steps=_STEPS, proxy_steps=0, sgd=sgd)
    ours = row.method == "selective-fd"
    if ours:
        beta = parse_split(split).beta
        own = round(_BATCH * (1 + 9 * beta / (1 + beta)) / 10)
        steps = replace(
            steps,
            local_steps=0,
            proxy_steps=_STEPS,
            proxies_per_round=_PROXIES,
            anneal_over=row.rounds,
            sgd=replace(sgd, own_batch=own),
        )
    return Cell(
        image_set=image_set,
        split=split,
        method=row.method,
        labels="soft" if ours else "",
        selector="ratio" if ours else "",
        variant=row.variant,
        seed=seed,
        rounds=row.rounds,
        schedule=steps,
        clients=clients,
        secure=row.secure,
        privacy=Privacy("record", _EPSILON) if row.private else None,
    )


def cells(settings: TableOptions) -> tuple[Cell, ...]:
    """The cells that a command line asks for; by default without the rows `ON_REQUEST`.

    Raises ConfigurationError for an unknown name."""
    every = (*ROWS, *SUMS)
    chosen = study.listed("rows", settings.rows, every, [n for n in every if n not in ON_REQUEST])
    seeds = study.whole_numbers("seeds", settings.seeds, _SEEDS)
    if settings.quick:
        rows = [replace(row, rounds=1) for name, row in {**ROWS, **SUMS}.items() if name in chosen]
        found = [cell_of(row, _SMALL, SPLITS[0], _QUICK_SEED, clients=4) for row in rows]
        return tuple(dict.fromkeys(map(_shortened, found)))
    sets = study.listed("image_sets", settings.image_sets, (*SETS, _SMALL), SETS)
    splits = study.listed("splits", settings.splits, SPLITS)
    places = [(image_set, split) for image_set in sets for split in splits]
    rows = [row for name, row in ROWS.items() if name in chosen]
    made = [
        cell_of(row, *place, seed)
        for place in places
        for seed in seeds
        for row in rows
        if _shown_at(row, place, first=seed == seeds[0])
    ]
    sums = [row for name, row in SUMS.items() if name in chosen]
    made += [cell_of(row, _SMALL, SPLITS[0], seeds[0]) for row in sums]
    return tuple(dict.fromkeys(made))


def _shown_at(row: Row, place: tuple[str, str], *, first: bool) -> bool:
    """Private rows at one place and seed: they take minutes each."""
    return not row.private or (place == (SETS[0], SPLITS[0]) and first)


def _shortened(cell: Cell) -> Cell:
    schedule = cell.schedule
    fewer = replace(
        schedule,
        local_steps=min(20, schedule.local_steps),
        proxy_steps=min(20, schedule.proxy_steps),
    )
    return replace(cell, schedule=fewer)


def row_of(cell: Cell) -> Row:
    """The row that made a cell, whatever its rate."""
    seen = (cell.method, cell.variant, cell.privacy is not None, cell.rounds == _LONG)
    return next(
        row
        for row in ROWS.values()
        if (row.method, row.variant, row.private, row.rounds == _LONG) == seen
    )


def tables(results: study.Results) -> list[Table | str]:
    """Accuracy by row and place, how far the weights lead, and one run by three sums."""
    made: list[Table | str] = []
    sums = [found for found in results.cells if _of_sums(found.cell)]
    plain = [found for found in results.cells if not _of_sums(found.cell)]
    if plain:
        made += [_accuracies(plain), *_leads(plain)]
    return [*made, _sums(sums)] if sums else made


def _accuracies(plain: Sequence[study.Result]) -> Table:
    places = list(study.grouped(plain, lambda cell: cell.place))
    title = "Equal steps a client: test accuracy, %, last round"
    table = new_table(title, ("row", *places, "CPU s", "kB up a client"))
    for row, found in study.grouped(plain, row_of).items():
        of = study.grouped(found, lambda cell: cell.place)
        seconds = sum(result.seconds for result in found) / len(found)
        up = sum(result.curve[-1].up for result in found) / (1000 * len(found))
        shown = [study.percent(of.get(place, [])) for place in places]
        table.add_row(row.title, *shown, f"{seconds:.0f}", f"{up:,.0f}")
    return table


def _leads(plain: Sequence[study.Result]) -> list[Table | str]:
    """Lead of weights over uniform ones at the same seed, in points."""
    by_place = study.grouped(plain, lambda cell: cell.place)
    uniform = {(r.cell.place, r.cell.seed): r.accuracy for r in plain if row_of(r.cell) == _RIVAL}
    weighted = [r for r in plain if row_of(r.cell) == ROWS["dafkd"]]
    leads = [
        [100 * (r.accuracy - uniform[place, r.cell.seed]) for r in of]
        if all((place, r.cell.seed) in uniform for r in of)
        else []
        for place in by_place
        for of in ([r for r in weighted if r.cell.place == place],)
    ]
    title = "Ahead of FedDF on generated samples, points, mean and deviation of seeds"
    table = new_table(title, ("row", *by_place))
    if any(leads):
        table.add_row(ROWS["dafkd"].title, *(_spread(lead) for lead in leads))
    return [table] if table.rows else []


_RIVAL = ROWS["feddf"]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return NONE
    mean, deviation = mean_and_deviation(values)
    return f"{mean:+.1f} ± {deviation:.1f}" if len(values) > 1 else f"{mean:+.1f}"


def _of_sums(cell: Cell) -> bool:
    return bool(cell.secure) or cell.rounds == SUMS["clear"].rounds


def _sums(found: Sequence[study.Result]) -> Table:
    table = new_table(
        f"The same {SUMS['clear'].rounds} rounds of DaFKD by three sums, {found[0].cell.place}",
        ("sums", "test accuracy, %", "kB up a client", "kB down a client", "CPU s"),
    )
    for title, of in study.grouped(found, lambda cell: cell.secure).items():
        name = next(row.title for row in SUMS.values() if row.secure == title)
        last = of[0].curve[-1]
        table.add_row(
            name,
            study.percent(of),
            f"{last.up / 1000:,.0f}",
            f"{last.down / 1000:,.0f}",
            f"{of[0].seconds:.0f}",
        )
    return table


_DRAWN = ("fedavg", "feddf", "dafkd", "selective-fd")


def figure(results: study.Results) -> "Figure | None":
    """Accuracy by round, a panel a place."""
    panels = []
    plain = [found for found in results.cells if not _of_sums(found.cell)]
    for place, found in study.grouped(plain, lambda cell: cell.place).items():
        by_row = study.grouped(found, row_of)
        rows = [ROWS[name] for name in _DRAWN if ROWS[name] in by_row]
        lines = {row.title: study.over(_by_round(by_row[row])) for row in rows}
        panels.append(Lines(place, "round", "test accuracy", lines))
    return drawn(panels, columns=2) if panels else None


def _by_round(found: Sequence[study.Result]) -> dict[float, list[study.Result]]:
    """Each point of the curves as if it were the last."""
    return {
        point.round: [
            replace(r, figures={ACCURACY: r.curve[i].accuracy}, per_client=()) for r in found
        ]
        for i, point in enumerate(found[0].curve)
    }


STUDY = image_study(
    name="dafkd",
    about="DaFKD beside FedDF, FedAvg and Selective-FD at equal steps.",
    settings=TableOptions,
    cells=cells,
    tables=tables,
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.dafkd"))
