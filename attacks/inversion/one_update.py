"""One update that shows most: ten clients, one local step on few records, by a network of choice.

A row's own schedule mixes hundreds of records in an update. What an update can show is measured
where little stands behind it, with the row's own protection: in clear, under masks, by DP-SGD.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from attacks.core.base import Labelled, substream
from attacks.core.view import Public, View, server_view
from attacks.inversion.update_truth import Behind, distinct, references
from attacks.inversion.updates import Recipe, check_explained, newest_draw, readable_updates
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.image_sets import IMAGE_SETS, own_shape
from secure_fd.data.images import Images
from secure_fd.methods.fedavg import FedAvg, parameter_codec
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.protocol.messages import ServerRole, ServerTurn
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.training import models
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.votes.fixed_point import record_shares

Lie = Callable[[bytes], bytes]
"""What clients are told, made of the truth."""
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
    """What trains for one update. model: of `models.build`. batch: records of its one step."""

    model: str = MLP
    batch: int = 1

    @property
    def recipe(self) -> Recipe:
        """One local step, which everybody knows."""
        return Recipe(self.batch)

    def public(self, data: FederatedData, clients: int) -> Public:
        """Return what everybody knows, with the network that trains here."""
        shape = own_shape(data.name)
        model = f"{self.model}@{'x'.join(map(str, shape))}" if shape else self.model
        architecture = partial(models.build, model, data.n_classes)
        known = data.proxies
        return Public(known.pixels, clients, data.n_classes, architecture, known.labels)


@dataclass(frozen=True, slots=True, eq=False)
class OneUpdate:
    """public: with the network that trains here. view: of the server. records: behind it."""

    public: Public
    view: View
    records: Behind = field(repr=False)
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
    the server sees the sum alone. lie: what clients are told in place of the model that the newest
    round should begin from.
    """
    recipe = set_up.recipe
    clients = [_client(c, recipe if private else None) for c in data.clients[:_CLIENTS]]
    codec = parameter_codec(record_shares([len(client.train) for client in clients]))
    recipe = replace(recipe, shares=codec.shares)
    public = set_up.public(data, len(clients))
    spent = None
    if private:
        rates = recipe.learning_rate, recipe.batch
        spent = PrivateSGD(private.epsilon, private.delta, _ROUNDS, *rates)
    noise: Random = SeededRandom(seed) if data.name in IMAGE_SETS else os.urandom
    run = Federation(
        [public.architecture(seed) for _ in clients],
        clients,
        None,
        FedAvg(private=spent, random=noise),
        schedule=Schedule(
            local_steps=recipe.steps,
            proxy_steps=0,
            sgd=SGD(recipe.learning_rate, recipe.batch),
        ),
        aggregation=MaskedSum(len(clients)) if masks else None,
        seed=seed,
    )
    if lie:
        run.server.role = Story(run.server.role, at=_ROUNDS - 2, lie=lie)
    run.fit(_ROUNDS)
    view = server_view(run.transcript, public, told_its_own=lie is not None)
    drawn = newest_records(clients, recipe, _ROUNDS, seed)
    # Noise and a lie hide what was drawn, but a client with one batch has nothing else.
    if not (private or lie):
        check_explained(public, readable_updates(view, recipe), recipe, drawn)
    return OneUpdate(public, view, _behind(drawn, data, seed), (_ONE_BATCH,) if private else ())


def _client(client: ClientData, recipe: Recipe | None) -> ClientData:
    """All training records of a client, or as many as a step takes; none to validate."""
    own = client.train
    kept = own if recipe is None else own[torch.arange(min(recipe.batch, len(own)))]
    return ClientData(kept, own[torch.arange(0)], client.n_classes)


def newest_records(
    clients: Sequence[ClientData], recipe: Recipe, rounds: int, seed: int
) -> dict[int, Labelled]:
    """By client, the records of its newest round in the order of its steps.

    They are drawn again as FedAvg draws them, from a run's seed: for scoring.
    """
    found = {}
    for k, client in enumerate(clients):  # seeded as FedAvg seeds its trainers
        drawn = newest_draw(seed * 1000 + k, len(client.train), recipe, rounds)
        found[k] = _labelled(client.train[drawn])
    return found


def _behind(drawn: Mapping[int, Labelled], data: FederatedData, seed: int) -> Behind:
    """The distinct records, and held-out ones of their classes where there are enough for all."""
    private, pool = {k: distinct(own) for k, own in drawn.items()}, _labelled(data.held_out)
    there = torch.bincount(pool.labels, minlength=data.n_classes)
    asked = [torch.bincount(own.labels, minlength=data.n_classes) for own in private.values()]
    if any((own > there).any() for own in asked):
        return Behind(private, {})
    chance = partial(substream, seed)
    return Behind(
        private,
        {k: references(own, pool, chance(f"references {k}")) for k, own in private.items()},
    )


def _labelled(images: Images) -> Labelled:
    return Labelled(images.pixels, images.labels)
