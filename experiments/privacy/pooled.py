"""The record unit: what sums of class sums under noise label, and what networks learn from them.

python experiments/privacy/pooled.py --image-sets mnist5k --epsilons 1,4

Heads of all clients together, the noise shared among them inside the masked sum, or each client's
own in clear; networks learn its labels and see no record. Ranks, cut-off and number of sums follow
the noise by a rule that was chosen on seeds 0 and 1 of MNIST-5k and digits. Noise is seeded here,
so that a figure can be made again; an epsilon is that of the same noise where nobody foresees it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from experiments.core import study
from experiments.core.grid import HOSPITALS, image_study
from experiments.core.measures import ACCURACY, HEAD, NETWORK, RIGHT_ONCE, TAUGHT
from experiments.core.shared_options import StudyOptions
from experiments.report.tables import NONE, Table, new_table
from secure_fd.data.image_sets import IMAGE_SETS

if TYPE_CHECKING:
    from secure_fd.data.federated import FederatedData
    from secure_fd.privacy.record import PooledRecordUnit
    from secure_fd.simulation.federation import Federation
    from secure_fd.training.recipes import Schedule

EPSILONS = ("0.25", "1", "4", "inf")
Trust = Literal["enough", "all", "nobody"]
_TRUSTED: Mapping[Trust, str] = {
    "enough": "masks, 4 of 10 honest",
    "all": "masks, all honest",
    "nobody": "local",
}
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
"""Sets whose networks learn, those of MNIST-5k at epsilon 4 of every seed."""
_LOCAL = ("1", "4")
"""Epsilons of the local unit."""
DELTA = 1e-5
KILOBYTES, SUMS, NOISE = "kB up a client", "sums", "noise multiplier of a sum"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. epsilon: as on the command line, inf for none. learns: whether networks do.

    trust: whose noise must stay secret: of the honest clients of the smallest masked sum, of all
    clients, or of the client itself alone, whose own noise is then enough.
    """

    image_set: str
    split: str
    epsilon: str
    seed: int
    learns: bool = False
    trust: Trust = "enough"

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        parts = [f"epsilon {self.epsilon}", "networks" if self.learns else "head"]
        parts.append(_TRUSTED[self.trust])
        return f"{self.place}: {', '.join(parts)}, seed {self.seed}"

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return f"{IMAGE_SETS[self.image_set].title}, {self.split}"


@dataclass(frozen=True, slots=True)
class Settings(StudyOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    epsilons: str | None = None
    """Of 0.25, 1, 4 and inf, with commas; by default all."""
    trusts: str | None = None
    """Whom a client trusts to add noise: all, enough, nobody, with commas; by default all three."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    epsilons = study.listed("epsilons", settings.epsilons, EPSILONS) or EPSILONS
    if settings.quick:
        quick = [Cell("digits", "strong", epsilon, 0) for epsilon in epsilons]
        return (*quick, Cell("digits", "strong", "4", 0, trust="nobody"))
    sets = study.listed("image_sets", settings.image_sets, SETS) or SETS
    seeds = study.whole_numbers("seeds", settings.seeds) if settings.seeds else None
    found: list[Cell] = []
    for name in sets:
        own = seeds or _SEEDS.get(name, _OTHER_SEEDS)
        found += [cell for split in _SPLITS[name] for cell in _at(name, split, epsilons, own)]
    trusts = study.listed("trusts", settings.trusts, tuple(_TRUSTED)) or _TRUSTED
    return tuple(cell for cell in dict.fromkeys(found) if cell.trust in trusts)


def _at(name: str, split: str, epsilons: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """Heads of every seed; networks of the first, or of every seed where that is quick."""
    for epsilon in epsilons:
        every = (name, epsilon) == ("mnist5k", "4")
        taught = () if name not in _TAUGHT else seeds if every else seeds[:1]
        trusts: tuple[Trust, ...] = ("enough",)
        if epsilon in _LOCAL and name in _TAUGHT:
            trusts = ("enough", "nobody")
        for trust in trusts:
            yield from (Cell(name, split, epsilon, seed, trust=trust) for seed in seeds)
            yield from (Cell(name, split, epsilon, seed, True, trust) for seed in taught)
        if split == "strong" and name in _TAUGHT and epsilon != "inf":
            yield from (Cell(name, split, epsilon, seed, trust="all") for seed in seeds)


@lru_cache(maxsize=2)
def data_at(data_dir: Path | None, image_set: str, at: str, seed: int) -> "FederatedData":
    """The data of one place and seed."""
    from secure_fd.data.federated import federate
    from secure_fd.data.partition import parse_split
    from secure_fd.data.sources import load

    clients = 4 if at == HOSPITALS else 10
    return federate(load(image_set, data_dir), parse_split(at), clients, seed)


def seeded_run(
    made: "FederatedData",
    epsilon: float,
    seed: int,
    schedule: "Schedule",
    *,
    local: bool = False,
    honest: int | None = None,
) -> "tuple[Federation, PooledRecordUnit]":
    """Pooled heads of all clients under noise that a seed foretells, so that a cell repeats.

    local: each client's own noise, in clear. honest: clients whose noise stays secret; by default
    those of the smallest masked sum that are not corrupt. The unit's plan says how many sums the
    run is to have.
    """
    from secure_fd.privacy.record import PooledRecordUnit
    from secure_fd.privacy.samplers import SeededRandom
    from secure_fd.simulation.build import fresh_networks, pooled_heads, secure_sum
    from secure_fd.simulation.federation import Federation

    method = pooled_heads(epsilon, local=local)
    unit = PooledRecordUnit(
        epsilon,
        DELTA,
        records=[len(client.train) for client in made.clients],
        n_proxies=len(made.proxies),
        n_classes=made.n_classes,
        sums=method.rounds,
        honest=honest,
        random=SeededRandom(seed),
    )
    run = Federation(
        fresh_networks(made, seed),
        made.clients,
        made.proxies.pixels,
        method,
        aggregation=secure_sum(None if local else "masks", made, seed),
        protection=unit,
        schedule=schedule,
        seed=seed,
    )
    return run, unit


def measure(data_dir: Path | None, cell: Cell, _: object) -> study.Result:
    """Sum once or twice under noise, and let networks learn where the cell says so."""
    import time
    from dataclasses import replace

    import numpy as np

    from secure_fd.methods.pooled_heads import HeadClient
    from secure_fd.training.recipes import distil_once

    made = data_at(data_dir, cell.image_set, cell.split, cell.seed)
    start, epsilon, local = time.process_time(), float(cell.epsilon), cell.trust == "nobody"
    honest = {"enough": None, "all": len(made.clients), "nobody": 1}[cell.trust]
    schedule = distil_once(len(made.proxies), image_set=cell.image_set).schedule
    run, unit = seeded_run(
        made,
        epsilon,
        cell.seed,
        schedule if cell.learns else replace(schedule, proxy_steps=0),
        local=local,
        honest=honest,
    )
    run.fit(unit.plan.sums)
    halves = [client.role for client in run.clients if isinstance(client.role, HeadClient)]
    every = [half.accuracies(made.test) for half in (halves if cell.learns else halves[:1])]
    _, targets = halves[0].lesson()
    truth = made.proxies.labels[halves[0].known]
    right = float((targets.argmax(dim=1).cpu() == truth).double().mean())
    figures = {
        HEAD: every[0]["head"],
        RIGHT_ONCE: right,
        TAUGHT: len(targets) / len(made.proxies),
        KILOBYTES: float(np.mean(run.transcript.up)) / 1000,
        SUMS: float(unit.plan.sums),
        NOISE: unit.plan.noise,
    }
    if cell.learns:
        figures[NETWORK] = float(np.mean([one["network"] for one in every]))
    figures[ACCURACY] = figures.get(NETWORK, figures[HEAD])
    return study.Result(cell, figures, time.process_time() - start)


# Tables.


def tables(results: study.Results) -> list[Table | str]:
    """Head, labels and networks by place, epsilon and trust."""
    table = new_table(
        "Class sums at an epsilon for a record over the whole run, delta 1e-5; %",
        (
            *("place", "noise", "epsilon", "sums", "head", "taught", "right labels", "networks"),
            *("kB up", "seeds"),
        ),
    )
    kinds = study.grouped(results.cells, lambda c: (c.place, _TRUSTED[c.trust], c.epsilon))
    for (place, trust, epsilon), of in kinds.items():
        heads = [found for found in of if not found.cell.learns]
        networks = [found for found in of if found.cell.learns]
        first = of[0].figures
        table.add_row(
            *(place, trust, epsilon, f"{first[SUMS]:.0f}"),
            *(_shown(heads, name) for name in (HEAD, TAUGHT, RIGHT_ONCE)),
            *(_shown(networks, NETWORK), f"{first[KILOBYTES]:.0f}", study.seeds_of(of)),
        )
    return [table]


def _shown(found: Sequence[study.Result], name: str) -> str:
    return study.percent(found, _figure(name)) if found else NONE


def _figure(name: str) -> Callable[[study.Result], float]:
    return lambda result: result.figures[name]


STUDY = image_study(
    name="pooled",
    folder="privacy",
    about="Pooled heads under noise, and networks that they teach.",
    settings=Settings,
    cell=Cell,
    cells=cells,
    measure=measure,
    tables=tables,
    cost=lambda cell: 1000 if cell.learns else 100,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.privacy.pooled"))
