"""GMI's split of the digits as a federation, and the sizes of the scene that uses it."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from attacks import fit
from attacks import inversion as gmi
from attacks.ideal import IdealSettings
from secure_fd.data.federated import ClientData, federate
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.recipes import Sizes

FIRST_PRIVATE = 5
"""GMI's split of MNIST: digits below are public, from here on private."""
SIZES = {
    "mnist5k": Sizes(proxies=100, test=100, held_out=100, local=200),
    "mnist": Sizes(proxies=600, test=0, held_out=200),
}
"""Sets of digits, with more held-out records than elsewhere: a class is compared with as many."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Sizes of everything that takes time.

    search: of every target alike. literal: of GMI on FedAvg as the figure has it. rounds: of
    Selective-FD, at most what the set needs; fedavg_rounds: more, because averaging one-digit
    clients swings from round to round before it settles.
    """

    prior: gmi.PriorSettings
    search: gmi.InversionSettings
    literal: gmi.InversionSettings
    theft: IdealSettings
    lesson: fit.Fit
    warmup_steps: int
    rounds: int
    fedavg_rounds: int


FULL = Effort(
    prior=replace(gmi.PUBLISHED_PRIOR, channels=16, epochs=None, steps=780),
    search=gmi.InversionSettings(steps=300, restarts=3, per_class=4),
    literal=gmi.PUBLISHED,
    theft=IdealSettings(epochs=30, batch=50, warm=False),
    lesson=fit.Fit(),
    warmup_steps=200,
    rounds=100,
    fedavg_rounds=100,
)
QUICK = Effort(
    prior=replace(gmi.QUICK_PRIOR, steps=100),
    search=replace(gmi.QUICK, steps=60),
    literal=replace(gmi.PUBLISHED, steps=60, restarts=2),
    theft=IdealSettings(epochs=3, batch=50, generator_steps=10, channels=6, warm=False),
    lesson=fit.QUICK,
    warmup_steps=25,
    rounds=4,
    fedavg_rounds=4,
)


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """outside: everything of digits 0-4, all of it public. The rest is of digits 5-9 alone.

    proxies: public too, which distillation cannot do without; GMI's prior never sees them.
    """

    clients: tuple[ClientData, ...]
    proxies: Images
    held_out: Images
    test: Images
    outside: Images
    n_classes: int


@lru_cache(maxsize=1)
def digits(dataset: str, data_dir: Path | None, seed: int) -> Digits:
    """A ten-client federation, of which the first five clients are made public."""
    whole = federate(load(dataset, data_dir), Split("strong"), 10, seed, SIZES[dataset])
    public = [part for c in whole.clients[:FIRST_PRIVATE] for part in (c.train, c.validation)]
    parts = [whole.proxies, whole.held_out, whole.test]
    public += [part[part.labels < FIRST_PRIVATE] for part in parts]
    proxies, held_out, test = (part[part.labels >= FIRST_PRIVATE] for part in parts)
    clients = whole.clients[FIRST_PRIVATE:]
    return Digits(clients, proxies, held_out, test, concatenate(public), whole.n_classes)


def some(images: Images, count: int, seed: int) -> Images:
    """At most `count` of the images, drawn by `seed`."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order[:count]]


def sizes_of(effort: Effort, data: Digits) -> dict[str, float]:
    """What a report must say of the prior and the data besides the figures."""
    return {
        "private_images": sum(len(client.train) for client in data.clients),
        "public_images_of_prior": len(data.outside),
        "public_proxies": len(data.proxies),
        "prior_channels": effort.prior.channels,
        "prior_critic_steps": effort.prior.critic_batches(len(data.outside)),
    }


def search_of(settings: gmi.InversionSettings) -> dict[str, float]:
    """What a report must say of a search; restarts are the candidates of an image."""
    return {
        "search_steps": settings.steps,
        "candidates_per_image": settings.restarts,
        "images_per_class": settings.per_class,
    }
