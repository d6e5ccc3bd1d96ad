"""Overfitted federations, used as a positive control for attacks on members.

Four clients hold a few records of each class and train small networks far too long. An attack that
finds no member here shows nothing where it finds none elsewhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from attacks.core.base import (
    BoolArray,
    Challenge,
    Labelled,
    draw_challenge,
    match_classes,
    seeded,
    substream,
)
from attacks.core.run import Attack, attack_view, labelled, public_of
from attacks.core.view import Public, View, server_view
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import Images, concatenate
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.base import Method
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.privacy.base import PrivacyMechanism
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import SGD, Schedule

CLIENTS: Final = 4
_OF_A_CLASS: Final = 3
"""Records of a client."""
_RECORDS: Final = 12
"""Records of a client in all, about, of the records of a run."""
_HIDDEN: Final = 64
STEPS: Final = 20
_FEDAVG: Final = Schedule(local_steps=STEPS, proxy_steps=0, sgd=SGD(0.1, local_batch=16))
ROUNDS: Final = 4
"""Rounds of FedAvg; other methods have one round, which asks about every proxy."""
_ALONE: Final = Schedule(
    warmup_steps=300,
    local_steps=10,
    proxy_steps=1,
    sgd=SGD(learning_rate=0.1, local_batch=16, distillation_batch=64),
)
_NO_NETWORK: Final = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)
_SCHEDULES: Final[Mapping[type[Method], Schedule]] = {FedAvg: _FEDAVG, PooledHeads: _NO_NETWORK}


def overfitted_challenges(
    members: Labelled, held_out: Labelled, seed: int, of_a_class: int = _OF_A_CLASS
) -> dict[int, Challenge]:
    """For each client, its records among as many that no client holds.

    of_a_class: records of each class at a client, at most. Raises MissingCapabilityError for too
    few records.
    """
    both = match_classes(members, held_out, seed, CLIENTS * of_a_class)
    if len(both[0]) < CLIENTS:
        raise MissingCapabilityError("missing a record and a held-out one of its class a client")
    found = {}
    for k in range(CLIENTS):  # both sides come class by class, equally many: so do every fourth
        own, others = (side.take(torch.arange(k, len(side), CLIENTS)) for side in both)
        found[k] = draw_challenge(own, others, substream(seed, f"client {k}"))
    return found


def trained(
    public: Public,
    challenges: Mapping[int, Challenge],
    method: Method,
    seed: int,
    *,
    masks: bool = False,
    protection: PrivacyMechanism | None = None,
) -> tuple[View, list[nn.Module]]:
    """Train a federation on the members of each client.

    Returns:
        The server's view, with all uploads in clear unless masked, and the clients' networks.
    """
    inputs = public.proxies[0].numel()
    architecture = partial(perceptron, inputs, public.n_classes)
    shared = isinstance(method, FedAvg)
    proxies = as_images(public.proxies)
    run = Federation(
        [
            architecture(substream(seed, "network" if shared else f"network {k}"))
            for k in challenges
        ],
        [_client(each, public.n_classes) for each in challenges.values()],
        proxies,
        method,
        aggregation=MaskedSum(len(challenges), public_seed=seed) if masks else None,
        protection=protection,
        schedule=replace(_SCHEDULES.get(type(method), _ALONE), proxies_per_round=len(proxies)),
        seed=seed,
    )
    run.transcript.keep_uploads = True
    run.fit(ROUNDS if shared else 1)
    known = replace(public, n_clients=len(challenges), architecture=architecture)
    return server_view(run.transcript, known), run.models


def area(
    data: FederatedData,
    method: Method,
    prepare: Callable[[Public, Mapping[int, Challenge], list[nn.Module]], Attack[Any, Any]],
    seed: int,
) -> float:
    """Return the AUC of an attack on an overfitted federation of a run's records, all in clear.

    prepare: the attack on the candidates of each client, with the truth that scores it.
    """
    members = labelled(concatenate([client.train for client in data.clients]))
    few = max(1, _RECORDS // data.n_classes)
    public, held_out = public_of(data), labelled(data.held_out)
    challenges = overfitted_challenges(members, held_out, seed, few)
    view, networks = trained(public, challenges, method, seed)
    made = prepare(public, challenges, networks)
    return attack_view(made, made.view or view, seed).figure


def truth_of(challenges: Mapping[int, Challenge]) -> BoolArray:
    """[N] members among the candidates of all clients, in their order."""
    return np.concatenate([each.is_member for each in challenges.values()])


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
