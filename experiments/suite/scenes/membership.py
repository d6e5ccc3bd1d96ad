"""Whole federations of every protocol row on the membership game's records."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from attacks.core import base
from attacks.core.fit import label_function
from attacks.core.run import labelled, public_of
from attacks.core.scoring import score_scores
from attacks.core.statistics import auc_bound
from attacks.core.view import (
    Capability,
    LabelOracle,
    Oracle,
    Public,
    View,
    outsider_view,
    server_view,
)
from attacks.membership import label_shadows
from attacks.membership import shadows as membership
from attacks.membership.budgets import LeakageGame
from attacks.membership.label_only import LabelOnlyGap
from attacks.membership.label_shadows import ProbeSettings, ShadowedLabels
from attacks.membership.overfitted import all_training
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import federated, noted
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import Images, concatenate
from secure_fd.methods.base import Labels
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.base import NoProtection
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.label import LabelUnit
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import predict


@dataclass(frozen=True, slots=True)
class Row:
    """A row of Selective-FD; of FedAvg if it has no labels. noise: in steps, or of a unit."""

    label: str
    labels: Labels | None = None
    masks: bool = False
    noise: Literal["", "steps", "label"] = ""


_ROWS: Mapping[str, Row] = {
    "fedavg": Row("FedAvg"),
    "fedavg-dp-sgd": Row("FedAvg + DP-SGD", noise="steps"),
    "selective-fd-soft": Row("Selective-FD soft", "soft"),
    "selective-fd-hard": Row("Selective-FD hard", "hard"),
    "selective-fd-hard-masks": Row("Selective-FD hard + masks", "hard", masks=True),
    "selective-fd-hard-dp-label": Row("Selective-FD hard + DP label unit", "hard", noise="label"),
}


_FEDAVG_STEPS = 10
"""Local steps of a round."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of the game.

    runs: whole federations. candidates: a client's of each class, half of them in each run.
    proxies: of each class. rounds: of distillation, all of which ask about all proxies. Clients of
    both kinds of protocol take `private_steps` on their records, and distilling ones further steps
    on proxies.
    """

    runs: int
    clients: int
    candidates: int
    proxies: int
    rounds: int
    schedule: Schedule

    @property
    def private_steps(self) -> int:
        """Steps on private records that a client takes in the whole run."""
        return self.schedule.warmup_steps + self.rounds * self.schedule.local_steps


FULL = Scale(16, 5, 22, 50, 8, Schedule(100, 5, 6, 500, sgd=SGD(0.1, 32, 32)))
QUICK = Scale(6, 3, 10, 20, 2, Schedule(10, 5, 4, 200, sgd=SGD(0.1, 16, 16)))
"""For a look: the last digits of every figure are noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The game of one seed, which all its rows play. test: for accuracy alone."""

    scale: Scale
    game: membership.Game = field(repr=False)
    public: Public = field(repr=False)
    test: Images = field(repr=False)

    @property
    def candidates(self) -> list[tuple[int, base.Labelled]]:
        """Every client with its candidates."""
        return [(k, self.game.candidates_of(k)) for k in range(self.scale.clients)]


def play(made: Prepared, row: Row, cell: Cell, run: int) -> Federation:
    """Train one whole run of a row, on the records that the game gives its clients.

    Nothing is held back for validation: members are all that trains. Every row of a run begins
    with the same networks, one a client, of one architecture.
    """
    scale, public, own = made.scale, made.public, base.substream(cell.seed, f"run {run}")
    each = range(scale.clients)
    networks = [public.architecture(base.substream(own, f"network {k}")) for k in each]
    clients = [all_training(made.game.records(run, k), public.n_classes) for k in each]
    if row.labels is not None:
        runner = Federation(
            networks,
            clients,
            public.proxies,
            SelectiveFD(row.labels),
            aggregation=MaskedSum(len(clients), public_seed=own) if row.masks else None,
            protection=LabelUnit(cell.epsilon, cell.delta) if row.noise else NoProtection(),
            schedule=scale.schedule,
            seed=own,
        )
        runner.fit(scale.rounds)
        return runner
    private, sgd, count = None, scale.schedule.sgd, scale.private_steps
    if row.noise:
        private = PrivateSGD(cell.epsilon, cell.delta, count, batch=sgd.local_batch)
    steps = Schedule(local_steps=_FEDAVG_STEPS, proxy_steps=0, sgd=sgd)
    method = FedAvg(private=private)
    runner = Federation(networks, clients, None, method, schedule=steps, seed=own)
    runner.transcript.keep_uploads = True  # six megabytes a run: the attacker reads them
    runner.fit(count // _FEDAVG_STEPS)
    return runner


_DIRECT = (membership.LiRA, membership.RMIA, membership.LossThreshold)
_TARGETS = [0, 1]
"""Runs that the gap attack is aimed at: one pair, so each candidate is inside one of them."""
_UNCAPPED = 1_000_000
_BY_SERVER = (membership.UploadLiRA.name, membership.IndirectMembership.name)
_DEPLOYED = (
    "asks the networks that clients deploy, each trained on its client's few records: the protocol "
    "needs no such query and protects against none"
)
_ONE_ANSWER = "the label unit's ε is of one answer of hundreds: it bounds no membership"


@dataclass(frozen=True, slots=True, eq=False)
class Arena:
    """All runs of a row, and the views of its attackers. facts: details of all results."""

    made: Prepared
    row: Row
    seed: int
    runs: tuple[Federation, ...]
    facts: Mapping[str, float]

    @classmethod
    def of(cls, made: Prepared, row: Row, cell: Cell) -> "Arena":
        """Play all runs of a row."""
        played = tuple(play(made, row, cell, run) for run in made.game.runs)
        reached = float(np.mean([run.accuracies(made.test) for run in played]))
        return cls(made, row, cell.seed, played, {"accuracy": reached, **_bound(row, cell)})

    def outside(self, run: int, client: int) -> View:
        """An outsider who receives probabilities of the network that is deployed at a client."""
        oracle = Oracle(partial(_probabilities, self.runs[run].models[client]), _UNCAPPED)
        asked = {Capability.QUERY_SCORES: oracle}
        return outsider_view(self.runs[run].transcript, self.made.public, asked)

    def labels(self, run: int, client: int) -> View:
        """An outsider who receives only labels of the network that is deployed at a client."""
        oracle = LabelOracle(label_function(self.runs[run].models[client]), _UNCAPPED)
        asked = {Capability.QUERY_FINAL_MODEL: oracle}
        return outsider_view(self.runs[run].transcript, self.made.public, asked)

    def server(self, run: int, _: int) -> View:
        """The server, honest but curious."""
        return server_view(self.runs[run].transcript, self.made.public)

    def shadowed(
        self, attacks: Sequence[membership.ShadowAttack], view: Callable[[int, int], View]
    ) -> base.AttackResult:
        """One attack, in a part a client, on every run with the others as shadows."""
        game = self.made.game
        parts = [(one, [view(run, k) for run in game.runs]) for k, one in enumerate(attacks)]
        return self._noted(attacks[0].name, LeakageGame(game, self.seed).attacked(parts))

    def gaps(self, attacks: Sequence[LabelOnlyGap]) -> base.AttackResult:
        """Score the gap attack, in a part a client, on the first pair of runs."""
        runs = [
            base.pooled([a.estimate(self.labels(run, k), self.seed) for k, a in enumerate(attacks)])
            for run in _TARGETS
        ]
        values = np.stack([run.values for run in runs])
        estimate = base.Scores(values, queries=sum(run.queries for run in runs))
        inside = self.made.game.inside[_TARGETS]
        return self._noted(attacks[0].name, score_scores(attacks[0], estimate, inside, self.seed))

    def _noted(self, name: str, found: base.AttackResult) -> base.AttackResult:
        deployed = self.row.labels is not None and name not in _BY_SERVER
        notes = (_DEPLOYED,) * deployed + (_ONE_ANSWER,) * (self.row.noise == "label")
        return noted(found, self.facts, notes)


def _probabilities(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """[N, C] float64 of images [N, 1, H, W]."""
    return torch.from_numpy(predict(network, images))


def _bound(row: Row, cell: Cell) -> dict[str, float]:
    """Largest AUC that DP-SGD's guarantee allows any attack.

    Two runs of a pair exchange records, so it counts in its replace-one form: two steps of it.
    """
    if row.noise != "steps":
        return {}
    epsilon, delta = 2 * cell.epsilon, min(1.0, (1 + math.exp(cell.epsilon)) * cell.delta)
    return {"most_auc": auc_bound(epsilon, delta)}


def _rows(cell: Cell) -> Mapping[str, str]:
    """One architecture for all."""
    epsilon = f", ε = {cell.epsilon:g}"
    return {key: row.label + epsilon * bool(row.noise) for key, row in _ROWS.items()}


def _prepare(cell: Cell, data_dir: Path | None) -> Prepared:
    """Draw candidates, proxies and test images, disjoint, and the members of each run."""
    scale, seed = QUICK if cell.quick else FULL, cell.seed
    sizes = Sizes(scale.proxies, 60, 0, local=scale.candidates * scale.clients)
    data = federated(cell, data_dir, scale.clients, sizes, "iid")
    owned = [labelled(concatenate([c.train, c.validation])) for c in data.clients]
    game, public = membership.Game.of(owned, scale.runs, seed), public_of(data)
    base.require_disjoint(game.candidates, base.Labelled(public.proxies, public.require_labels()))
    return Prepared(scale, game, public, data.test)


def _attempts(cell: Cell, made: Prepared) -> Mapping[str, Attempt]:
    """Play all runs of a row, and attack them by every route."""
    arena, candidates, public = Arena.of(made, _ROWS[cell.row], cell), made.candidates, made.public
    probes = label_shadows.QUICK if cell.quick else ProbeSettings()
    asked = [ShadowedLabels.prepare(public, own, k, probes) for k, own in candidates]
    near = [membership.IndirectMembership.prepare(public, own, k) for k, own in candidates]
    uploads = [membership.UploadLiRA(own, k) for k, own in candidates]
    direct = {kind.name: [kind(own, k) for k, own in candidates] for kind in _DIRECT}
    shadowed = arena.shadowed
    return {
        **{name: partial(shadowed, attacks, arena.outside) for name, attacks in direct.items()},
        LabelOnlyGap.name: partial(arena.gaps, [LabelOnlyGap(own) for _, own in candidates]),
        ShadowedLabels.name: partial(shadowed, asked, arena.labels),
        membership.UploadLiRA.name: partial(shadowed, uploads, arena.server),
        membership.IndirectMembership.name: partial(shadowed, near, arena.server),
    }


SCENE = Scene(
    title="Membership, against shadow federations",
    about="Five clients hold about a hundred records each, of all classes; sixteen whole "
    "federations of every row differ in which half of the candidates took part, and each is "
    "attacked with the others as shadows. Small mixed sets are where membership "
    "shows: a client of one class trains a constant predictor.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
