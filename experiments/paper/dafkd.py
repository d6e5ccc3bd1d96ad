"""DaFKD beside FedDF on the same generated samples, FedAvg and Selective-FD, at equal steps.

python experiments/paper/dafkd.py --quick

All rows use the public patch features of `secure_fd.data.patches`, so that DaFKD's
generator makes features (Fig. 7 of its supplement), and train networks of one architecture. A
client takes the same steps in every row. Rates come from one grid, .01, .02 and .05, where the
clients' validation records of MNIST, beta .1, seed 0, chose the rate of each row here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, percents, points, table, with_seeds
from experiments.core.grid import SEEDS, ImageStudy
from experiments.core.measures import ACCURACY, BYTES_UP
from experiments.core.run_config import RunConfig
from experiments.core.shared_options import TableOptions
from experiments.paper.statements import Statement, beside
from experiments.report.plots import Lines
from experiments.report.tables import Table
from secure_fd.data.partition import parse_split
from secure_fd.training.recipes import SGD, Schedule

_MNIST, _FASHION = "mnist_patches", "fashion_mnist_patches"
_BROAD, _NARROW = "dirichlet:0.1", "dirichlet:0.05"
PLACES = ((_MNIST, _BROAD), (_MNIST, _NARROW), (_FASHION, _NARROW))
"""Image sets and splits. A place takes six minutes of CPU time."""
_QUICK_PLACE = ("mnist5k_patches", _BROAD)
_ROUNDS, _STEPS = 5, 200
_BATCH, _PROXIES = 128, 1000


ROWS: Mapping[str, tuple[str, float]] = {
    "independent": ("Independent", 0.02),
    "fedavg": ("FedAvg", 0.05),
    "feddf": ("FedDF: uniform weights", 0.02),
    "dafkd": ("DaFKD: weights f", 0.02),
    "selective-fd": ("Selective-FD", 0.05),
}
"""Title and rate by method: chosen by validation, with Nesterov momentum of .9."""

_PAPER = "Wang et al. (CVPR 2023): up to 6.02 points above the best baseline (abstract)"
_RIVALS = {
    "feddf": "discriminators take few steps",
    "fedavg": "clients share an architecture and features, so that averaging works too",
}
"""Rivals of DaFKD, and why it may be behind them."""


def cell_of(
    method: str, image_set: str, split: str, seed: int, rounds: int = _ROUNDS, steps: int = _STEPS
) -> RunConfig:
    """Return one run. steps: of a client in a round, on its own records, or on the proxies."""
    sgd = SGD(ROWS[method][1], distillation_batch=_BATCH, momentum=0.9)
    schedule, ours = Schedule(0, steps, 0, anneal_over=rounds, sgd=sgd), method == "selective-fd"
    if ours:
        beta = parse_split(split).beta
        own = replace(sgd, own_batch=round(_BATCH * (1 + 9 * beta / (1 + beta)) / 10))
        schedule = Schedule(0, 0, steps, _PROXIES, anneal_over=rounds, sgd=own)
    return RunConfig(
        image_set=image_set,
        split=split,
        method=method,
        labels="soft" if ours else "",
        selector="ratio" if ours else "",
        seed=seed,
        rounds=rounds,
        schedule=schedule,
    )


def cells(options: TableOptions) -> tuple[RunConfig, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    rows = study.listed("rows", options.rows, tuple(ROWS))
    sets = study.listed("image_sets", options.image_sets, (_MNIST, _FASHION))
    splits = study.listed("splits", options.splits, (_BROAD, _NARROW))
    seeds = study.whole_numbers("seeds", options.seeds, SEEDS)
    places = [place for place in PLACES if place[0] in sets and place[1] in splits]
    if options.quick:
        return tuple(cell_of(row, *_QUICK_PLACE, 0, rounds=1, steps=20) for row in rows)
    return tuple(cell_of(row, *place, seed) for place in places for seed in seeds for row in rows)


def _runs(results: study.Results) -> Frame:
    return frame(results, row=lambda cell: ROWS[cell.method][0])


def tables(results: study.Results) -> list[Table | str]:
    """Accuracy by row and place, time and bytes, and where DaFKD is behind."""
    runs = _runs(results)
    texts = percents(runs, ["row"], "place")[runs.place.unique()]
    by_row = runs.groupby("row")
    texts["CPU s"] = by_row.seconds.mean().map("{:.0f}".format)
    texts["kB up a client"] = (by_row[BYTES_UP].mean() / 1000).map("{:,.0f}".format)
    return [
        table("Equal steps a client: test accuracy, %, last round", texts),
        *beside(_PAPER, _stated(runs)),
    ]


def _stated(runs: Frame) -> Iterator[Statement]:
    means = 100 * runs.pivot_table(ACCURACY, "method", "place", sort=False)
    for rival, why in _RIVALS.items():
        gaps = means.loc["dafkd"] - means.loc[rival]
        here = f"{gaps.min():+.1f} to {gaps.max():+.1f} points in {len(gaps)} places"
        yield Statement(f"DaFKD beats {ROWS[rival][0]}", here, round(gaps.min(), 1) > 0, why)


def panels(results: study.Results) -> list[Lines]:
    """Accuracy by round, a panel a place."""
    return [
        Lines(place, "round", "test accuracy", lines(runs, "row", "round"))
        for place, runs in points(_runs(results)).groupby("place", sort=False)
    ]


STUDY = ImageStudy(
    name="dafkd",
    about="DaFKD beside FedDF, FedAvg and Selective-FD at equal steps.",
    settings=TableOptions,
    cells=cells,
    shown=with_seeds(tables),
    panels=panels,
    reads=("curve",),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.dafkd"))
