"""IDEAL steals a student from trained clients, by what a server may read or inject.

Answers pass through all that a round's would: the client's selector and network, and the codec.

    clients = Clients.of(trained)
    oracle = Oracle(clients.injected, budget=1000)     # images [N, 1, H, W] -> votes [N, K, C]
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
from torch import Tensor, nn

from attacks.core.run import attack_view, public_of
from attacks.core.view import Capability, Oracle, server_view
from attacks.inversion.ideal import DEFAULT, QUICK, Ideal
from experiments.compare.leakage import Attempt
from experiments.core.run_config import RowSpec, RunConfig, row_config
from experiments.core.runs import Trained, data_of, needs, parts_of, prepare, run
from experiments.privacy_compare import Settings, plan
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import as_sent
from secure_fd.errors import ConfigurationError
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.selection.selectors import FittedSelector
from secure_fd.training.trainer import predict
from secure_fd.votes.codec import Released


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    """Trained clients of Selective-FD, which answer a server that picks the images."""

    method: SelectiveFD
    n_classes: int
    networks: tuple[nn.Module, ...] = field(repr=False)
    selectors: tuple[FittedSelector, ...] = field(repr=False)

    @classmethod
    def of(cls, trained: Trained) -> Self:
        """Rebuild the clients of a row. Raises ConfigurationError if they send no votes."""
        data = trained.data
        method = parts_of(trained.config, data).method
        if not isinstance(method, SelectiveFD):
            raise ConfigurationError("row", trained.config.row.key, "use Selective-FD")
        networks = tuple(trained.federation.models)
        fitted = tuple(method.selector.fit(c, data.proxies.pixels) for c in data.clients)
        return cls(method, data.n_classes, networks, fitted)

    def injected(self, images: Tensor) -> Tensor:
        """Votes [N, K, C] of each client about any images [N, 1, H, W]."""
        sent = [self._answer(k, images) for k in range(len(self.networks))]
        return as_sent(sent, self.n_classes, self.method.levels)

    def _answer(self, client: int, images: Tensor) -> Released:
        """Return what a client's selector and network answer about images [N, 1, H, W]."""
        opinion = self.method.policy_of(self.selectors[client].predict(images), self.n_classes)
        predictions, every = predict(self.networks[client], images), np.arange(len(images))
        labels = self.method.labels
        return Released.of(opinion.contribution(every, predictions, labels, trust=1.0))


ROUNDS, QUICK_ROUNDS = 10, 2
"""Fewer than a comparison's: at 256 proxies a round nearly every proxy has been answered."""
_SPECS = {spec.key: spec for spec in (RowSpec("selective-fd", "soft"), RowSpec("selective-fd"))}


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The warm-up and the attack, with its truth, that all rows of a seed share."""

    base: RunConfig
    data_dir: Path | None
    attack: Ideal
    ready: Mapping[RunConfig, object] = field(repr=False)


def _rows(_: Cell) -> Mapping[str, str]:
    """Selective-FD with soft and hard labels; masks change nothing, as IDEAL reads the sum."""
    return {key: spec.label for key, spec in _SPECS.items()}


def _prepare(cell: Cell, data_dir: Path | None) -> Prepared:
    """The warm-up, and IDEAL with the comparison's prior, controls and truth."""
    chosen = Settings(
        dataset=cell.dataset,
        data_dir=data_dir,
        rounds=QUICK_ROUNDS if cell.quick else ROUNDS,
        attacks="none",
        quick=cell.quick,
    )
    base = replace(plan(chosen, None).base, seed=cell.seed)
    data = data_of(base, data_dir)
    attack = Ideal.for_data(data, cell.seed, "quick" if cell.quick else "full")
    attack = replace(attack, theft=QUICK if cell.quick else DEFAULT)
    ready = {start: prepare(data_dir, start) for start in needs(base)}
    return Prepared(base, data_dir, attack, ready)


def _attempts(cell: Cell, made: Prepared) -> Mapping[str, Attempt]:
    """Train the row and attack it as a server that reads, and as one that injects."""
    trained = run(row_config(made.base, _SPECS[cell.row]), made.data_dir, made.ready, attacked=True)
    known, seen = public_of(trained.data), trained.federation.transcript
    oracle = Oracle(Clients.of(trained).injected, made.attack.theft.queries)
    views = {
        "ideal-reads": server_view(seen, known),
        "ideal-injects": server_view(seen, known, {Capability.INJECT_PROXIES: oracle}),
    }
    return {n: partial(attack_view, made.attack, view, cell.seed) for n, view in views.items()}


SCENE = Scene(
    title="Model extraction, then reconstruction",
    about="IDEAL steals a student from clients of one class each, by reading their ensembles or "
    "by injecting images; the student is inverted with GMI's public "
    f"prior. {ROUNDS} rounds of training, one class a client: where each answer is one "
    "client's, and a selector has most to refuse.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
