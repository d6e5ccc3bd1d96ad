"""The pooled record unit: what one masked sum under noise labels, and what networks learn from it.

python experiments/pooled.py --image-sets mnist5k --epsilons 1,4

Heads of all clients together, the noise shared among them inside the sum; networks learn its labels
and see no record. Ranks, cut-off and number of sums follow the noise by a rule that was chosen on
seed 0 of MNIST-5k and digits. Sums are masked, with full-strength keys and noise.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments.grid import HOSPITALS, later
from experiments.measures import ACCURACY, HEAD, NETWORK, RIGHT_OF_ALL
from experiments.study import (
    Progress,
    Result,
    Results,
    Study,
    grouped,
    listed,
    main,
    percent,
    seeds_of,
    whole_numbers,
)
from experiments.tables import NONE, Table, new_table
from secure_fd.errors import ConfigurationError
from secure_fd.recipes import IMAGE_SETS

EPSILONS = ("0.25", "1", "4", "inf")
_SPLITS: Mapping[str, tuple[str, ...]] = {
    "mnist": ("strong",),
    "fashion_mnist": ("strong",),
    "cifar10_features": ("strong",),
    "chest_xray": (HOSPITALS,),
    "mnist5k": ("strong", "iid", "dirichlet:0.3"),
    "digits": ("strong",),
}
SETS = tuple(_SPLITS)
_SEEDS: Mapping[str, tuple[int, ...]] = {"chest_xray": (20, 21, 22, 23, 24)}
_OTHER_SEEDS = (20, 21, 22)
_TAUGHT = ("mnist", "fashion_mnist", "mnist5k")
"""Sets whose networks learn, of the first seed alone."""
_HOME = "experiments.pooled"
KILOBYTES, SUMS, NOISE = "kB up a client", "sums", "noise multiplier of a sum"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. epsilon: as on the command line, inf for none. learns: whether networks do.

    everybody: whether the shares of noise suffice only where all clients keep theirs.
    """

    image_set: str
    split: str
    epsilon: str
    seed: int
    learns: bool = False
    everybody: bool = False

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        parts = [f"epsilon {self.epsilon}", "networks" if self.learns else "head"]
        parts += ["all honest"] if self.everybody else []
        return f"{self.place}: {', '.join(parts)}, seed {self.seed}"

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return f"{IMAGE_SETS[self.image_set].title}, {self.split}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    image_sets: str | None = None
    """Image sets, with commas; by default all."""
    epsilons: str | None = None
    """Of 0.25, 1, 4 and inf, with commas; by default all."""
    seeds: str | None = None
    """Seeds of data and training, with commas; networks take the first alone by default."""
    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds the image sets that are not bundled, each in a folder of its name."""
    out: Path | None = None
    """Folder of the results and finished cells; by default runs/pooled."""
    workers: int = 2
    """Processes that share the work."""
    quick: bool = False
    """A look at the bundled digits: heads alone."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    epsilons = listed("epsilons", settings.epsilons, EPSILONS) or EPSILONS
    if settings.quick:
        return tuple(Cell("digits", "strong", epsilon, 0) for epsilon in epsilons)
    sets = listed("image_sets", settings.image_sets, SETS) or SETS
    seeds = whole_numbers("seeds", settings.seeds) if settings.seeds else None
    if seeds == ():
        raise ConfigurationError("seeds", settings.seeds, "use one or more")
    found = []
    for name in sets:
        own = seeds or _SEEDS.get(name, _OTHER_SEEDS)
        for split in _SPLITS[name]:
            for epsilon in epsilons:
                found += [Cell(name, split, epsilon, seed) for seed in own]
                if split == "strong" and name in _TAUGHT and epsilon != "inf":
                    found += [Cell(name, split, epsilon, seed, everybody=True) for seed in own]
                if name in _TAUGHT:
                    found.append(Cell(name, split, epsilon, own[0], learns=True))
    return tuple(found)


def prepare(data_dir: Path | None, group: Sequence[Cell], progress: Progress) -> object:
    """The data of one place and seed."""
    from secure_fd.data.federated import federate
    from secure_fd.data.partition import parse_split
    from secure_fd.data.sources import load

    cell = group[0]
    progress(0)
    clients = 4 if cell.split == HOSPITALS else 10
    return federate(load(cell.image_set, data_dir), parse_split(cell.split), clients, cell.seed)


def measure(data_dir: Path | None, cell: Cell, made: Any, progress: Progress) -> Result:  # noqa: ANN401, ARG001 - data loads late
    """Sum once or twice under noise, and let networks learn where the cell says so."""
    import time
    from dataclasses import replace

    import numpy as np

    from secure_fd.federation import Federation, participants_of
    from secure_fd.methods.heads import HeadLearner
    from secure_fd.privacy.plans import sums_for
    from secure_fd.protection.pooled import PooledRecordUnit
    from secure_fd.recipes import one_lesson
    from secure_fd.simulation import fresh_networks, pooled_heads, secure_sum

    start, epsilon = time.process_time(), float(cell.epsilon)
    unit = PooledRecordUnit(
        epsilon,
        1e-5,
        records=[len(client.train) for client in made.clients],
        n_proxies=len(made.proxies),
        n_classes=made.n_classes,
        sums=sums_for(epsilon),
        honest=len(made.clients) if cell.everybody else None,
    )
    schedule = one_lesson(len(made.proxies), image_set=cell.image_set).schedule
    run = Federation(
        participants_of(fresh_networks(made, cell.seed), made.clients),
        made.proxies.pixels,
        pooled_heads(epsilon),
        aggregation=secure_sum("masks", made, cell.seed),
        protection=unit,
        schedule=schedule if cell.learns else replace(schedule, proxy_steps=0),
        seed=cell.seed,
        on_steps=lambda _: progress(50),
    )
    run.fit(unit.plan.sums)
    halves = [client.half for client in run.clients if isinstance(client.half, HeadLearner)]
    one, truth = halves[0], made.proxies.labels
    every = [half.accuracies(made.test) for half in (halves if cell.learns else halves[:1])]
    right = float((one.lesson().targets.argmax(dim=1).cpu() == truth).double().mean())
    figures = {
        HEAD: every[0]["head"],
        RIGHT_OF_ALL: right,
        KILOBYTES: float(np.mean(run.transcript.up)) / 1000,
        SUMS: float(unit.plan.sums),
        NOISE: unit.plan.noise,
    }
    if cell.learns:
        figures[NETWORK] = float(np.mean([one["network"] for one in every]))
    figures[ACCURACY] = figures.get(NETWORK, figures[HEAD])
    claim = run.guarantee()
    notes: dict[str, object] = {"privacy": None if claim is None else claim.to_json()}
    return Result(cell, figures, time.process_time() - start, notes=notes)


# Tables.


def tables(results: Results) -> list[Table | str]:
    """Head, labels and networks by place and epsilon; then what the provision costs."""
    table = new_table(
        "Pooled heads at an epsilon for a record, delta 1e-5: 7 honest clients of 10 suffice; %",
        ("place", "epsilon", "sums", "head", "right labels", "networks", "kB up", "seeds"),
    )
    usual = [found for found in results.cells if not found.cell.everybody]
    for (place, epsilon), of in grouped(usual, lambda c: (c.place, c.epsilon)).items():
        heads = [found for found in of if not found.cell.learns]
        taught = [found for found in of if found.cell.learns]
        first = of[0].figures
        table.add_row(
            place,
            epsilon,
            f"{first[SUMS]:.0f}",
            _shown(heads, HEAD),
            _shown(heads, RIGHT_OF_ALL),
            _shown(taught, NETWORK),
            f"{first[KILOBYTES]:.0f}",
            seeds_of(of),
        )
    return [table, _provision(results)]


def _provision(results: Results) -> Table:
    table = new_table(
        "The head, %, where shares suffice with 7 of 10 honest clients, and with all alone",
        ("place", "epsilon", "7 of 10", "all 10"),
    )
    heads = [found for found in results.cells if not found.cell.learns]
    for (place, epsilon), of in grouped(heads, lambda c: (c.place, c.epsilon)).items():
        by = grouped(of, lambda cell: cell.everybody)
        if True in by:
            table.add_row(place, epsilon, _shown(by.get(False, []), HEAD), _shown(by[True], HEAD))
    return table


def _shown(found: Sequence[Result], name: str) -> str:
    return percent(found, _figure(name)) if found else NONE


def _figure(name: str) -> Callable[[Result], float]:
    return lambda result: result.figures[name]


STUDY = Study(
    name="pooled",
    script="pooled.py",
    about=f"Pooled heads under noise, and networks that they teach. {Settings.__doc__}",
    settings=Settings,
    cell=Cell,
    cells=cells,
    group=lambda cell: (cell.image_set, cell.split, cell.seed),
    prepare=later(f"{_HOME}:prepare"),
    measure=later(f"{_HOME}:measure"),
    roots=lambda _: (f"{_HOME}:prepare", f"{_HOME}:measure"),
    shown=lambda found: [*tables(found), f"Seeds of all cells: {seeds_of(found.cells)}."],
    cost=lambda cell: 1000 if cell.learns else 100,
    out=lambda chosen: chosen.out or Path(f"runs/pooled{'-quick' * chosen.quick}"),
)

if __name__ == "__main__":
    sys.exit(main("experiments.pooled"))
