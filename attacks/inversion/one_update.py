"""One update that shows most: ten clients, one local step on few records, by a network of choice.

A row's own schedule mixes hundreds of records in an update. What an update can show is measured
where little stands behind it, with the row's own protection: in clear, under masks, by DP-SGD.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from attacks.core.base import Labelled, joined
from attacks.core.run import labelled, public_of
from attacks.core.view import Public, View, server_view
from attacks.inversion.updates import EVERYONE, LEARNING_RATE, distinct, newest_draw
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.image_sets import IMAGE_SETS, image_set
from secure_fd.methods.fedavg import FedAvg
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.protocol.messages import ServerRole, ServerTurn
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.training import models
from secure_fd.training.recipes import SGD, Schedule

Lie = Callable[[bytes], bytes]
"""Honest message of the server -> the message that clients receive in its place."""
MLP = "mlp-1024-512-256"
_CLIENTS = 10
_ROUNDS = 2
"""An update is read against the global parameters of the round before."""
_ONE_BATCH = "clients hold one batch: not sampled, it takes more noise for ε than a larger set"


@dataclass(slots=True)
class Story(ServerRole):
    """A server role that lies to all clients alike in one round, so that no digest differs.

    at: the round. lie: of its last message. truth: the message in place of which it was sent.
    """

    role: ServerRole
    at: int
    lie: Lie
    truth: bytes | None = None

    def unopened(self, index: int) -> None:
        """As the method's."""
        self.role.unopened(index)

    def round(self, index: int) -> ServerTurn:
        """As the method's, but for the last message of one round."""
        message = yield from self.role.round(index)
        if index != self.at or message is None:
            return message
        self.truth = message
        return self.lie(message)


@dataclass(frozen=True, slots=True)
class SetUp:
    """Training for one update. model: of `models.build`. batch: records of its one step."""

    model: str = MLP
    batch: int = 1

    def public(self, data: FederatedData, clients: int) -> Public:
        """Return what is public, with the network that trains here."""
        _, at, form = image_set(data.name).architectures[0].partition("@")
        architecture = partial(models.build, f"{self.model}{at}{form}", data.n_classes)
        return replace(public_of(data), n_clients=clients, architecture=architecture)


def behind(private: Mapping[int, Labelled]) -> dict[int, Labelled]:
    """Return the truth about updates: by client and for EVERYONE, the records it may show."""
    return {**private, EVERYONE: joined(private.values())}


@dataclass(frozen=True, slots=True, eq=False)
class OneUpdate:
    """public: with the network that trains here. batch: of a client. view: of the server.

    records: the distinct ones behind the newest updates, as `behind`.
    """

    public: Public
    batch: int
    view: View
    records: Mapping[int, Labelled] = field(repr=False)
    caveats: tuple[str, ...] = ()


def one_update(
    set_up: SetUp,
    data: FederatedData,
    seed: int,
    *,
    private: PrivateSGD | None = None,
    masks: bool = False,
    lie: Lie | None = None,
) -> OneUpdate:
    """Train two rounds of one step; the newest is what the server inverts.

    private: the run's own DP-SGD, whose ε and δ these rounds keep: every client then holds one
    batch, so that every record is in every batch; its noise is seeded on public image sets. masks:
    the server reads the sum alone. lie: makes the model that clients receive in place of the one
    that the newest round should begin from.
    """
    batch = set_up.batch
    clients = [_client(c, batch if private else None) for c in data.clients[:_CLIENTS]]
    public = set_up.public(data, len(clients))
    spent = private and PrivateSGD(private.epsilon, private.delta, _ROUNDS, LEARNING_RATE, batch)
    noise: Random = SeededRandom(seed) if data.name in IMAGE_SETS else os.urandom
    run = Federation(
        [public.architecture(seed) for _ in clients],
        clients,
        None,
        FedAvg(private=spent, random=noise),
        schedule=Schedule(local_steps=1, proxy_steps=0, sgd=SGD(LEARNING_RATE, batch)),
        aggregation=MaskedSum(len(clients)) if masks else None,
        seed=seed,
    )
    if lie:
        run.server.role = Story(run.server.role, at=_ROUNDS - 2, lie=lie)
    run.fit(_ROUNDS)
    view = server_view(run.transcript, public, sent_its_own=lie is not None)
    drawn = newest_records(clients, batch, seed)
    shown = behind({k: own.take(distinct(own.images)) for k, own in drawn.items()})
    return OneUpdate(public, batch, view, shown, (_ONE_BATCH,) if private else ())


def _client(client: ClientData, batch: int | None) -> ClientData:
    """All training records of a client, or as many as a step takes; none to validate."""
    own = client.train
    kept = own if batch is None else own[torch.arange(min(batch, len(own)))]
    return ClientData(kept, own[torch.arange(0)], client.n_classes)


def newest_records(clients: Sequence[ClientData], batch: int, seed: int) -> dict[int, Labelled]:
    """Return the records of each client's newest step.

    They are drawn again as FedAvg draws them, from a run's seed: for scoring.
    """
    draws = [  # seeded as FedAvg seeds its trainers
        newest_draw(seed * 1000 + k, len(client.train), batch, _ROUNDS)
        for k, client in enumerate(clients)
    ]
    return {k: labelled(clients[k].train[drawn]) for k, drawn in enumerate(draws)}
