"""Whole federations of every protocol row on the membership game's records."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from attacks.core.base import AttackResult, Labelled, require_disjoint, substream
from attacks.core.run import labelled, public_of
from attacks.core.view import Public, server_view
from attacks.membership import label_shadows
from attacks.membership.budgets import LeakageGame
from attacks.membership.label_shadows import ProbeSettings, ShadowedLabels
from attacks.membership.overfitted import all_training
from attacks.membership.shadows import (
    RMIA,
    IndirectMembership,
    LiRA,
    LossThreshold,
    ShadowAttack,
    UploadLiRA,
)
from experiments.compare.leakage import Attempt
from experiments.core.run_config import RowSpec
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import federated, noted
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import concatenate
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.label import LabelUnit
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import SGD, Schedule

_SPECS = (
    RowSpec("fedavg"),
    RowSpec("fedavg", unit="record"),
    RowSpec("selective-fd", "soft"),
    RowSpec("selective-fd"),
    RowSpec("selective-fd", secure="masks"),
    RowSpec("selective-fd", unit="label"),
)
_ROWS = {spec.key: spec for spec in _SPECS}
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
    """The game of one seed, which all its rows play."""

    scale: Scale
    game: LeakageGame = field(repr=False)
    public: Public = field(repr=False)


def play(made: Prepared, spec: RowSpec, cell: Cell, run: int) -> Federation:
    """Train one whole run of a row, on the records that the game gives its clients.

    Nothing is held back for validation: members are all that trains. Every row of a run begins
    with the same networks, one a client, of one architecture.
    """
    scale, public, own = made.scale, made.public, substream(cell.seed, f"run {run}")
    each = range(scale.clients)
    networks = [public.architecture(substream(own, f"network {k}")) for k in each]
    clients = [all_training(made.game.game.records(run, k), public.n_classes) for k in each]
    schedule, rounds = scale.schedule, scale.rounds
    method: FedAvg | SelectiveFD = SelectiveFD(spec.labels)
    if spec.kind == "fedavg":
        sgd, count, private = schedule.sgd, scale.private_steps, None
        if spec.unit:
            private = PrivateSGD(cell.epsilon, cell.delta, count, batch=sgd.local_batch)
        method, rounds = FedAvg(private=private), count // _FEDAVG_STEPS
        schedule = Schedule(local_steps=_FEDAVG_STEPS, proxy_steps=0, sgd=sgd)
    runner = Federation(
        networks,
        clients,
        public.proxies,
        method,
        aggregation=MaskedSum(len(clients), public_seed=own) if spec.secure else None,
        protection=LabelUnit(cell.epsilon, cell.delta) if spec.unit == "label" else None,
        schedule=schedule,
        seed=own,
    )
    runner.transcript.keep_uploads = True  # six megabytes a run of FedAvg: the attacker reads them
    runner.fit(rounds)
    return runner


_DEPLOYED = (
    "asks the networks that clients deploy, each trained on its client's few records: the protocol "
    "needs no such query and protects against none"
)
_ONE_ANSWER = "the label unit's ε is of one answer of hundreds: it bounds no membership"


def _rows(cell: Cell) -> Mapping[str, str]:
    """One architecture for all."""
    epsilon = f", ε = {cell.epsilon:g}"
    return {key: spec.label + epsilon * bool(spec.unit) for key, spec in _ROWS.items()}


def _prepare(cell: Cell, data_dir: Path | None) -> Prepared:
    """Draw candidates and proxies, disjoint, and the members of each run."""
    scale, seed = QUICK if cell.quick else FULL, cell.seed
    sizes = Sizes(scale.proxies, 60, 0, local=scale.candidates * scale.clients)
    data = federated(cell, data_dir, scale.clients, sizes, "iid")
    owned = [labelled(concatenate([c.train, c.validation])) for c in data.clients]
    made, public = LeakageGame.of(owned, scale.runs, seed), public_of(data)
    require_disjoint(made.game.candidates, Labelled(public.proxies, public.require_labels()))
    return Prepared(scale, made, public)


def _attempts(cell: Cell, made: Prepared) -> Mapping[str, Attempt]:
    """Play all runs of a row; attack the networks that clients deploy, and what the server read."""
    spec, game, public = _ROWS[cell.row], made.game, made.public
    played = [play(made, spec, cell, run) for run in game.game.runs]
    networks = [run.models for run in played]
    distils = spec.kind != "fedavg"
    notes = (_ONE_ANSWER,) * (spec.unit == "label")

    def outside(name: str) -> AttackResult:
        found = game.outside(asked[name], networks, public.proxies, public.labels)
        return noted(found, caveats=(_DEPLOYED,) * distils + notes)

    def server() -> AttackResult:
        views = [server_view(run.transcript, public) for run in played]
        return noted(game.read(views), caveats=notes)

    probes = label_shadows.QUICK if cell.quick else ProbeSettings()
    asked: Mapping[str, Callable[..., ShadowAttack]] = {
        **{kind.name: lambda _, own, k, kind=kind: kind(own, k) for kind in _BY_PROBABILITIES},
        ShadowedLabels.name: partial(ShadowedLabels.prepare, settings=probes),
    }
    read = IndirectMembership if distils else UploadLiRA
    return {**{name: partial(outside, name) for name in asked}, read.name: server}


_BY_PROBABILITIES = (LiRA, RMIA, LossThreshold)

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
