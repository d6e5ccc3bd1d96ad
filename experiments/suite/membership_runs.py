"""Whole runs of every protocol row on the membership game's records."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from attacks.base import Labelled, require_disjoint, substream
from attacks.membership import Game, draw_game, gather
from attacks.view import Public
from experiments.suite.scene import Job
from secure_fd import models
from secure_fd.aggregation.base import PlainSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import ClientData, federate
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.federation import Federation, Participant, participants_of
from secure_fd.methods.base import Labels
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.private_training import PrivateSGD
from secure_fd.protection.base import NoProtection, Protection
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordUnit
from secure_fd.recipes import SGD, Schedule, Sizes
from secure_fd.training import accuracy
from secure_fd.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Distilled:
    """A row of Selective-FD."""

    labels: Labels
    masks: bool = False
    label_unit: bool = False


FEDAVG: Mapping[str, bool] = {"fedavg": False, "fedavg-dp-sgd": True}
"""Row -> whether every step is DP-SGD."""
DISTILLED: Mapping[str, Distilled] = {
    "selective-fd-soft": Distilled("soft"),
    "selective-fd-hard": Distilled("hard"),
    "selective-fd-hard-masks": Distilled("hard", masks=True),
    "selective-fd-hard-dp-label": Distilled("hard", label_unit=True),
}
RECORD_ROW = "selective-fd-hard-dp-record"


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the game is.

    runs: whole federations. candidates: a client's of each class, half of them in each run.
    canaries: of these, mislabelled; half of these too. proxies: of each class. rounds: of
    distillation, all of which ask about all proxies. fedavg_steps: local, a round. Clients of both
    kinds of protocol take `private_steps` on their records, and distilling ones further steps on
    proxies.
    """

    runs: int
    clients: int
    candidates: int
    canaries: int
    proxies: int
    rounds: int
    fedavg_steps: int
    schedule: Schedule

    @property
    def private_steps(self) -> int:
        """Steps on private records that a client takes in the whole run."""
        return self.schedule.warmup_steps + self.rounds * self.schedule.local_steps


FULL = Scale(
    runs=16,
    clients=5,
    candidates=22,
    canaries=2,
    proxies=50,
    rounds=8,
    fedavg_steps=10,
    schedule=Schedule(100, 5, 6, 500, sgd=SGD(local_batch=32, distillation_batch=32)),
)
QUICK = Scale(
    runs=6,
    clients=3,
    candidates=10,
    canaries=2,
    proxies=20,
    rounds=2,
    fedavg_steps=10,
    schedule=Schedule(10, 5, 4, 200, sgd=SGD(local_batch=16, distillation_batch=16)),
)
"""For a look: the last digits of every figure are noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """What all rows of a seed share. test: for accuracy alone."""

    scale: Scale
    game: Game = field(repr=False)
    public: Public = field(repr=False)
    test: Images = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A run. networks: by client, the one that is deployed there; none where nobody may ask it.

    accuracy: mean over clients on the test images; None where no network was trained.
    """

    transcript: Transcript
    networks: tuple[nn.Module, ...] = field(default=(), repr=False)
    accuracy: float | None = None


def set_up(job: Job, seed: int, scale: Scale) -> Setup:
    """Draw candidates, proxies and test images, disjoint, and who takes part in which run."""
    source = load(job.dataset, job.data_dir)
    sizes = Sizes(scale.proxies, 60, 0, local=scale.candidates * scale.clients)
    data = federate(source, Split("iid"), scale.clients, seed, sizes)
    owned = [concatenate([client.train, client.validation]) for client in data.clients]
    pool = gather(
        [Labelled(own.pixels, own.labels) for own in owned], scale.canaries, data.n_classes, seed
    )
    public = Public(
        data.proxies.pixels,
        scale.clients,
        data.n_classes,
        partial(models.build, models.SHARED, data.n_classes),
        data.proxies.labels,
    )
    require_disjoint(pool.candidates, Labelled(public.proxies, public.require_labels()))
    return Setup(scale, draw_game(pool, scale.runs, seed), public, data.test)


def play(setup: Setup, row: str, run: int, job: Job, seed: int) -> Played:
    """One whole run of a row, on the records that the game gives it."""
    own = substream(seed, f"run {run}")
    if row in FEDAVG:
        return _fedavg(setup, row, run, job, own)
    if row == RECORD_ROW:
        return _record_unit(setup, run, job, own)
    kind = DISTILLED[row]
    protection = LabelUnit(job.epsilon, job.delta) if kind.label_unit else NoProtection()
    made = _federation(setup, run, own, kind, protection, setup.scale.schedule)
    for _ in made.rounds(setup.scale.rounds):
        pass
    reached = float(np.mean(made.accuracies(setup.test)))
    return Played(made.transcript, tuple(made.models), reached)


def _fedavg(setup: Setup, row: str, run: int, job: Job, own: int) -> Played:
    scale = setup.scale
    batch, steps = scale.schedule.sgd.local_batch, scale.fedavg_steps
    optimiser: SGD | PrivateSGD = scale.schedule.sgd
    if FEDAVG[row]:
        optimiser = PrivateSGD(job.epsilon, job.delta, scale.private_steps, batch=batch)
    made = Federation(
        participants_of(_fresh(setup, own), _clients(setup, run)),
        None,
        FedAvg(optimiser, steps),
        seed=own,
    )
    made.fit(scale.private_steps // steps)
    final = made.models[0]
    return Played(made.transcript, (final,) * scale.clients, accuracy(final, setup.test))


def _record_unit(setup: Setup, run: int, job: Job, own: int) -> Played:
    """All that leaves a client follows from one release: one round shows it, no network takes part.

    A network that learns from raw records may not be asked there, so none is trained.
    """
    still = replace(setup.scale.schedule, warmup_steps=0, local_steps=0, proxy_steps=0)
    unit = RecordUnit(job.epsilon, job.delta)
    made = _federation(setup, run, own, Distilled("hard"), unit, still)
    for _ in made.rounds(1):
        pass
    return Played(made.transcript)


def _federation(
    setup: Setup, run: int, own: int, kind: Distilled, protection: Protection, schedule: Schedule
) -> Federation:
    clients = _clients(setup, run)
    members = [Participant(m, c) for m, c in zip(_fresh(setup, own), clients, strict=True)]
    masks = MaskedSum(len(clients), public_seed=own) if kind.masks else PlainSum(len(clients))
    return Federation(
        members,
        setup.public.proxies,
        SelectiveFD(kind.labels),
        aggregation=masks,
        protection=protection,
        schedule=schedule,
        seed=own,
    )


def _fresh(setup: Setup, own: int) -> list[nn.Module]:
    """A network a client, of the one architecture; the same for every row of a run."""
    clients = range(setup.scale.clients)
    return [setup.public.architecture(substream(own, f"network {k}")) for k in clients]


def _clients(setup: Setup, run: int) -> list[ClientData]:
    """All records train: none is held back, so that every member is one."""
    made = []
    for k in range(setup.scale.clients):
        records = setup.game.records(run, k)
        train = Images(records.images, records.labels)
        none = train[torch.zeros(0, dtype=torch.int64)]
        made.append(ClientData(train, none, setup.public.n_classes))
    return made
