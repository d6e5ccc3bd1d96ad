"""DaFKD beside FedDF on the same generated samples, FedAvg and Selective-FD, at equal steps.

python experiments/paper/dafkd.py --quick

All rows use the public patch features of `secure_fd.data.patches`, so that DaFKD's
generator makes features (Fig. 7 of its supplement), and train networks of one architecture. A
client's classifier takes the same steps in every row, of 128 images. Of the rates .01, .02, .05 and
.1, the clients' validation records of MNIST, beta .1, seed 0, chose .1 in every row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, percents, points, table, with_seeds
from experiments.core.grid import SEEDS, ImageStudy, later
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


ROWS: Mapping[str, str] = {
    "independent": "Independent",
    "fedavg": "FedAvg",
    "feddf": "FedDF: uniform weights",
    "dafkd": "DaFKD: weights f",
    "selective-fd": "Selective-FD",
}
"""Title by method."""
_RATE = 0.1
"""Of every row, with Nesterov momentum of .9: see above."""

_PAPER = "Wang et al. (CVPR 2023): up to 6.02 points above the best baseline (abstract)"
_RIVALS = {
    "feddf": "generators learn public features in place of images",
    "fedavg": "clients share public features, and differ less than on images",
}
"""Rivals of DaFKD, and what differs from the paper."""
_BESIDE = (
    "Beside these steps, a client of DaFKD and FedDF takes 400 a round for generator and "
    "discriminator, and their server 500 to distil. CPU s are of all parties, without making the "
    "patch features of all rows. Curves are of 2,000 test images, but for the last point."
)


def cell_of(
    method: str, image_set: str, split: str, seed: int, rounds: int = _ROUNDS, steps: int = _STEPS
) -> RunConfig:
    """Return one run. steps: of a client in a round, on its own records, or on the proxies."""
    sgd = SGD(_RATE, local_batch=_BATCH, distillation_batch=_BATCH, momentum=0.9)
    schedule, ours = Schedule(0, steps, 0, anneal_over=rounds, sgd=sgd), method == "selective-fd"
    if ours:
        beta = parse_split(split).beta
        own = round(_BATCH * (1 + 9 * beta / (1 + beta)) / 10)
        shared = replace(sgd, own_batch=own, distillation_batch=_BATCH - own)
        schedule = Schedule(0, 0, steps, _PROXIES, anneal_over=rounds, sgd=shared)
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


def measure(data_dir: Path | None, cell: RunConfig, made: Mapping[Any, Any]) -> study.Result:
    """Train and test; the seconds of a cell are without those of making public features."""
    later("experiments.core.runs:data_of")(cell, data_dir)
    found: study.Result = later("experiments.core.runs:run_cell")(data_dir, cell, made)
    return found


def _runs(results: study.Results) -> Frame:
    return frame(results, row=lambda cell: ROWS[cell.method])


def tables(results: study.Results) -> list[Table | str]:
    """Accuracy by row and place, time and bytes, and where DaFKD is behind."""
    runs = _runs(results)
    texts = percents(runs, ["row"], "place")[runs.place.unique()]
    by_row = runs.groupby("row")
    texts["CPU s"] = by_row.seconds.mean().map("{:.0f}".format)
    texts["kB up a client"] = (by_row[BYTES_UP].mean() / 1000).map("{:,.0f}".format)
    steps = runs.cell.iloc[0].schedule.fedavg_steps
    last = f"test accuracy, %, after {runs.rounds.max()} rounds of {steps} steps"
    title = f"Equal steps of {_BATCH} images a client: {last}"
    return [table(title, texts), _BESIDE, *beside(_PAPER, _stated(runs))]


def _stated(runs: Frame) -> Iterator[Statement]:
    means = 100 * runs.pivot_table(ACCURACY, "method", "place", sort=False)
    for rival, why in _RIVALS.items():
        gaps = means.loc["dafkd"] - means.loc[rival]
        here = f"{gaps.min():+.1f} to {gaps.max():+.1f} points in {len(gaps)} places"
        yield Statement(f"DaFKD beats {ROWS[rival]}", here, round(gaps.min(), 1) > 0, why)


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
    measure=measure,
    shown=with_seeds(tables),
    panels=panels,
    reads=("curve",),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.dafkd"))
