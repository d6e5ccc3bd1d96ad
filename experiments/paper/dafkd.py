"""DaFKD beside FedDF on the same generated samples, FedAvg and Selective-FD, at equal steps.

python experiments/paper/dafkd.py --quick

All rows use the public patch features of `secure_fd.data.patches`, so that DaFKD's
generator makes features (Fig. 7 of its supplement), and train networks of one architecture. A
client takes the same steps in every row. Rates come from one grid, .01, .02 and .05, where the
clients' validation records of MNIST, beta .1, seed 0, chose the rate of each row here.
"""

from collections.abc import Mapping
from dataclasses import replace

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, percents, points, table, with_seeds
from experiments.core.grid import ImageStudy
from experiments.core.run_config import RunConfig
from experiments.core.shared_options import TableOptions
from experiments.report.plots import Lines
from experiments.report.tables import Table
from secure_fd.data.partition import parse_split
from secure_fd.training.recipes import SGD, Schedule

SETS = ("mnist_patches", "fashion_mnist_patches")
SPLITS = ("dirichlet:0.1", "dirichlet:0.05")
_SMALL = "mnist5k_patches"
"""The image set of a quick look."""
_SEEDS, _QUICK_SEED = (20, 21, 22), 0
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


def cell_of(
    method: str, image_set: str, split: str, seed: int, rounds: int = _ROUNDS, steps: int = _STEPS
) -> RunConfig:
    """Return one run. steps: of a client in a round, on its own records, or on the proxies."""
    sgd = SGD(ROWS[method][1], distillation_batch=_BATCH, momentum=0.9)
    schedule = Schedule(warmup_steps=0, local_steps=steps, proxy_steps=0, sgd=sgd)
    ours = method == "selective-fd"
    if ours:
        beta = parse_split(split).beta
        own = round(_BATCH * (1 + 9 * beta / (1 + beta)) / 10)
        schedule = replace(
            schedule,
            local_steps=0,
            proxy_steps=steps,
            proxies_per_round=_PROXIES,
            anneal_over=rounds,
            sgd=replace(sgd, own_batch=own),
        )
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
    sets = study.listed("image_sets", options.image_sets, (*SETS, _SMALL), SETS)
    splits = study.listed("splits", options.splits, SPLITS)
    seeds = study.whole_numbers("seeds", options.seeds, _SEEDS)
    if options.quick:
        found = [cell_of(row, _SMALL, SPLITS[0], _QUICK_SEED, rounds=1, steps=20) for row in rows]
        return tuple(replace(cell, clients=4) for cell in found)
    return tuple(
        cell_of(row, image_set, split, seed)
        for image_set in sets
        for split in splits
        for seed in seeds
        for row in rows
    )


def _runs(results: study.Results) -> Frame:
    return frame(results, row=lambda cell: ROWS[cell.method][0])


def tables(results: study.Results) -> list[Table | str]:
    """Accuracy by row and place, time and bytes."""
    runs = _runs(results)
    texts = percents(runs, ["row"], "place")[runs.place.unique()]
    by_row = runs.assign(up=[result.curve[-1].up / 1000 for result in runs.result]).groupby("row")
    texts["CPU s"] = by_row.seconds.mean().map("{:.0f}".format)
    texts["kB up a client"] = by_row.up.mean().map("{:,.0f}".format)
    return [table("Equal steps a client: test accuracy, %, last round", texts)]


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
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.dafkd"))
