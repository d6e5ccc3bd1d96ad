"""Set-ups and steps that several scenes share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from attacks.core.base import AttackResult
from experiments.core import runs
from experiments.core.run_config import HEADS_ALONE, Privacy, RunConfig, averages
from experiments.privacy_compare import Settings, plan
from experiments.suite.scenes import Cell
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.simulation.federation import Federation


def federated(
    cell: Cell,
    data_dir: Path | None,
    clients: int,
    sizes: Sizes | None = None,
    split: Literal["strong", "iid"] = "strong",
) -> FederatedData:
    """Divide a cell's image set; by default each client holds one class."""
    return federate(load(cell.dataset, data_dir), Split(split), clients, cell.seed, sizes)


def base(cell: Cell, split: str, clients: int) -> RunConfig:
    """Return the settings that rows with their own rounds and steps share in a scene."""
    return RunConfig(
        image_set=cell.dataset,
        split=split,
        method="independent",
        selector="ratio",
        seed=cell.seed,
        rounds=1,
        schedule=HEADS_ALONE,
        clients=clients,
    )


def trained(config: RunConfig, data: FederatedData) -> Federation:
    """Train a run on a scene's own data, to its end."""
    alone = averages(config.method)
    warm = () if alone else runs.warmed_up(data, config.start)
    run = runs.federation(config, runs.Prepared(data, warm))
    run.fit(config.rounds)
    return run


def noise(cell: Cell) -> Privacy:
    """The budget of the rows under differential privacy."""
    return Privacy("record", cell.epsilon, cell.delta)


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Common settings of rows that train as a comparison's do. ready: the warm-up."""

    base: RunConfig
    data_dir: Path | None
    ready: Mapping[RunConfig, object] = field(repr=False)

    @classmethod
    def of(cls, cell: Cell, data_dir: Path | None, settings: Settings) -> Self:
        """Warm up on the cell's data, under a comparison's settings."""
        asked = replace(settings, dataset=cell.dataset, data_dir=data_dir, attacks="none")
        made = plan(replace(asked, quick=cell.quick), None)
        base = replace(made.base, seed=cell.seed)
        ready = {start: runs.prepare(data_dir, start) for start in runs.needs(base)}
        return cls(base, data_dir, ready)

    def run(
        self, config: RunConfig, on_round: Callable[[Federation], None] = lambda _: None
    ) -> runs.Trained:
        """Train a row; the models that attacks read are kept."""
        return runs.run(config, self.data_dir, self.ready, attacked=True, on_round=on_round)


def noted(result: AttackResult, details: Mapping[str, float]) -> AttackResult:
    """Return a result with further figures."""
    return replace(result, details={**result.details, **details})
