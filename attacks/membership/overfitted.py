"""Federations that know their records by heart: where an attack on members must find them.

Four clients hold a few records of each class and train small networks far too long, in clear unless
a test asks for its twin. An attack that finds no member here says nothing where it finds none
elsewhere.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from attacks.core.base import (
    Challenge,
    Labelled,
    draw_challenge,
    match_classes,
    seeded,
    substream,
)
from attacks.core.run import labelled
from attacks.core.view import Public, View, server_view
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import Images, concatenate
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.base import Method
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.privacy.base import PrivacyMechanism
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import SGD, Schedule

CLIENTS: Final = 4
_OF_A_CLASS: Final = 3
"""Records of a client."""
_RECORDS: Final = 12
"""Of a client in all, about, of the records of a run."""
_HIDDEN: Final = 64
STEPS: Final = 20
_FEDAVG: Final = Schedule(local_steps=STEPS, proxy_steps=0, sgd=SGD(0.1, local_batch=16))
ROUNDS: Final = 4
_ALONE: Final = Schedule(
    warmup_steps=300,
    local_steps=10,
    proxy_steps=1,
    sgd=SGD(learning_rate=0.1, local_batch=16, distillation_batch=64),
)
_NO_NETWORK: Final = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)


def posed(
    members: Labelled, held_out: Labelled, seed: int, of_a_class: int = _OF_A_CLASS
) -> dict[int, Challenge]:
    """By client, its records among as many of nobody; MissingCapabilityError of too few.

    of_a_class: records of each class at a client, at most.
    """
    both = match_classes(members, held_out, seed, CLIENTS * of_a_class)
    if len(both[0]) < CLIENTS:
        raise MissingCapabilityError("missing a record and a held-out one of its class a client")
    found = {}
    for k in range(CLIENTS):  # both sides come class by class, equally many: so do every fourth
        own, others = (side.take(torch.arange(k, len(side), CLIENTS)) for side in both)
        found[k] = draw_challenge(own, others, substream(seed, f"client {k}"))
    return found


def drawn_from(data: FederatedData, seed: int) -> dict[int, Challenge]:
    """The same, of the records of a run."""
    members = labelled(concatenate([client.train for client in data.clients]))
    few = max(1, _RECORDS // data.n_classes)
    return posed(members, labelled(data.held_out), seed, few)


def updates(
    public: Public,
    challenges: Mapping[int, Challenge],
    seed: int,
    *,
    masks: bool = False,
    private: PrivateSGD | None = None,
) -> View:
    """The server's view of FedAvg, all rounds kept."""
    method = FedAvg(private=private)
    return _seen(public, _trained(public, challenges, method, _FEDAVG, ROUNDS, seed, masks=masks))


def votes(
    public: Public,
    challenges: Mapping[int, Challenge],
    seed: int,
    *,
    masks: bool = False,
    protection: PrivacyMechanism | None = None,
) -> View:
    """The server's view of FedMD, whose one round asks about every proxy."""
    method = FedMD("soft")
    run = _trained(public, challenges, method, _ALONE, 1, seed, masks=masks, protection=protection)
    return _seen(public, run)


def class_sums(
    public: Public, challenges: Mapping[int, Challenge], seed: int, *, masks: bool = False
) -> View:
    """The server's view of class sums, of every client or of all."""
    method = PooledHeads(residual_rounds=0)
    return _seen(public, _trained(public, challenges, method, _NO_NETWORK, 1, seed, masks=masks))


def networks(public: Public, challenges: Mapping[int, Challenge], seed: int) -> list[nn.Module]:
    """Each client's network, which learnt from its own records alone."""
    return _trained(public, challenges, Independent(), _ALONE, 1, seed).models


def _seen(public: Public, run: Federation) -> View:
    return server_view(run.transcript, _small(public))


def _trained(
    public: Public,
    challenges: Mapping[int, Challenge],
    method: Method,
    schedule: Schedule,
    rounds: int,
    seed: int,
    *,
    masks: bool = False,
    protection: PrivacyMechanism | None = None,
) -> Federation:
    known = _small(public)
    clients = [_client(each, public.n_classes) for each in challenges.values()]
    shared = isinstance(method, FedAvg)
    networks = [
        known.architecture(substream(seed, "network" if shared else f"network {k}"))
        for k in range(len(clients))
    ]
    proxies = as_images(public.proxies)
    run = Federation(
        networks,
        clients,
        proxies,
        method,
        aggregation=MaskedSum(len(clients), public_seed=seed) if masks else None,
        protection=protection,
        schedule=replace(schedule, proxies_per_round=len(proxies)),
        seed=seed,
    )
    run.transcript.keep_uploads = True
    run.fit(rounds)
    return run


def _small(public: Public) -> Public:
    """The same proxies, four clients, and a network of one hidden layer for records of any form."""
    inputs = public.proxies[0].numel()
    architecture = partial(perceptron, inputs, public.n_classes)
    return replace(public, n_clients=CLIENTS, architecture=architecture)


def perceptron(inputs: int, n_classes: int, seed: int) -> nn.Module:
    """One hidden layer of 64.

    >>> len(perceptron(256, 10, seed=0)[1].bias)
    64
    """

    def layers() -> nn.Module:
        first, last = nn.Linear(inputs, _HIDDEN), nn.Linear(_HIDDEN, n_classes)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)

    return seeded(layers, seed)


def _client(challenge: Challenge, n_classes: int) -> ClientData:
    """Its members all train."""
    own = challenge.candidates.take(torch.from_numpy(challenge.is_member))
    return all_training(Labelled(as_images(own.images), own.labels), n_classes)


def all_training(records: Labelled, n_classes: int) -> ClientData:
    """A client that holds nothing back, so that each of its records is a member."""
    train = Images(records.images, records.labels)
    return ClientData(train, train[torch.zeros(0, dtype=torch.int64)], n_classes)


def as_images(records: Tensor) -> Tensor:
    """[N, C, H, W]; vectors [N, D] become feature maps of one pixel."""
    return records if records.ndim == 4 else records[:, :, None, None]
