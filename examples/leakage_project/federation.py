"""The team's federation, as a factory for the leakage game of secure-fd."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

import secure_fd as fd
from attacks.core.base import Labelled
from attacks.core.view import View
from attacks.membership.budgets import bundled_digits, server_sees

ROUNDS, CLASSES, PIXELS = 2, 10, 256
PROXIES = bundled_digits().proxies  # public images, none of which is a candidate
STEPS = fd.Schedule(warmup_steps=40, local_steps=1, proxy_steps=10, proxies_per_round=200)


def train(
    records: Sequence[Labelled], seed: int, labels: Literal["soft", "hard"] = "hard", *, masks: bool
) -> View:
    """Train on exactly these records, one entry for each client; return the server's view."""
    torch.manual_seed(seed)
    images = [fd.Images(own.images, own.labels) for own in records]
    clients = fd.clients_of(images, n_classes=CLASSES, seed=seed)
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, CLASSES)) for _ in clients]
    run = fd.Federation(
        networks,
        clients,
        PROXIES.images,
        fd.SelectiveFD(labels),
        aggregation=(fd.MaskedSum if masks else fd.PlainSum)(n_clients=len(clients)),
        schedule=STEPS,
        seed=seed,
    )
    run.fit(ROUNDS)
    return server_sees(run, PROXIES)


def protected(records: Sequence[Labelled], seed: int) -> View:
    """Return the view of the server in the federation that runs in production."""
    return train(records, seed, masks=True)


def unprotected(records: Sequence[Labelled], seed: int) -> View:
    """Return the view of the same federation with its protection removed."""
    return train(records, seed, "soft", masks=False)
