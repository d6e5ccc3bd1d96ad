"""FedAvg with one step on one record a client: what its newest updates are made of is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from attacks.updates import Recipe
from attacks.view import Public, View, server_view
from experiments.compare.rows import RowSpec
from experiments.compare.settings import Plan
from secure_fd import models
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.federation import Federation, participants_of
from secure_fd.methods.fedavg import FedAvg
from secure_fd.private_training import PrivateSGD
from secure_fd.recipes import SGD

_MODEL = "mlp-1024-512-256"
_CLIENTS = 10
_ROUNDS = 2
"""An update is read against the global parameters of the round before."""
_ONE_RECORD = "clients hold one record: not sampled, it takes more noise for ε than a larger set"


@dataclass(frozen=True, slots=True, eq=False)
class OneUpdate:
    """public: with the network that trains here. records: by client, [1, 1, H, W]."""

    public: Public
    view: View
    records: Mapping[int, Tensor] = field(repr=False)
    caveats: tuple[str, ...] = ()


def one_update(plan: Plan, data: FederatedData, spec: RowSpec, seed: int) -> OneUpdate:
    """Train on the first record of each of the first ten clients, as the row's unit asks."""
    recipe, kept = Recipe(batch=1), torch.arange(1)
    clients = [
        ClientData(client.train[kept], client.train[kept[:0]], data.n_classes)
        for client in data.clients[:_CLIENTS]
    ]
    optimiser: SGD | PrivateSGD = SGD(recipe.learning_rate, recipe.batch)
    if private := spec.unit is not None and plan.epsilon is not None:
        delta = plan.settings.dp_delta
        optimiser = PrivateSGD(plan.epsilon, delta, _ROUNDS, recipe.learning_rate, recipe.batch)
    architecture = partial(models.build, _MODEL, data.n_classes)
    networks = [architecture(seed) for _ in clients]
    run = Federation(
        participants_of(networks, clients), None, FedAvg(optimiser, recipe.steps), seed=seed
    )
    run.fit(_ROUNDS)
    public = Public(data.proxies.pixels, len(clients), data.n_classes, architecture)
    records = {k: client.train.pixels for k, client in enumerate(clients)}
    caveats = (_ONE_RECORD,) if private else ()
    return OneUpdate(public, server_view(run.transcript, public), records, caveats)
