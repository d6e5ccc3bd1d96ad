"""Attacks on a finished run, by name: what each attacker sees of it, and the truth that scores.

    result = attack("label-only", run)

A run has `data`, `federation`, `transcript`, `architectures` and `seed`, as
`secure_fd.simulation.Simulation` has. Attacks of one's own are named package.module:Name, see the
server's view, and are scored with a `Truth`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch

from attacks import fit
from attacks import inversion as gmi
from attacks.base import (
    AttackResult,
    Challenge,
    Labelled,
    draw_challenge,
    match_classes,
    pooled,
)
from attacks.inversion import ModelInversion, inversion_truth
from attacks.label_distribution import LabelDistribution
from attacks.label_only import LabelOnly, LabelOnlySettings
from attacks.registry import load
from attacks.view import Capability, LabelOracle, Public, outsider_view, server_view
from attacks.votes import undoing
from secure_fd import models
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images, concatenate
from secure_fd.federation import Federation
from secure_fd.protection.base import NetworkFree
from secure_fd.protection.label import LabelUnit
from secure_fd.transcript import Transcript


class Run(Protocol):
    """What an attack needs of a run."""

    @property
    def data(self) -> FederatedData:
        """Who holds what: for the truth, and for what is public of it."""

    @property
    def federation(self) -> Federation:
        """Whose networks an outsider may ask for labels."""

    @property
    def transcript(self) -> Transcript:
        """What crossed the boundary."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """By client, the name of its architecture."""

    @property
    def seed(self) -> int:
        """Of everything that an attack draws."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What scores an attack of one's own: clients' records, and held-out ones.

    histograms: [clients, classes], training records.
    """

    clients: tuple[Labelled, ...] = field(repr=False)
    held_out: Labelled = field(repr=False)
    histograms: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = field(repr=False)


def attack(name: str, run: Run) -> AttackResult:
    """The result of one attack.

    Raises ConfigurationError for an unknown name, MissingCapabilityError where the attacker sees
    too little of this run.
    """
    known: Mapping[str, Callable[[Run], AttackResult]] = {
        "label-distribution": _label_distribution,
        "inversion": _inversion,
        "label-only": _label_only,
    }
    return known[name](run) if name in known else _by_view(name, run)


def _label_distribution(run: Run) -> AttackResult:
    unit = run.federation.protection
    noise = undoing(unit.mechanism) if isinstance(unit, LabelUnit) else None
    public = replace(public_of(run.data), declared_classes=unit.declared_classes)
    made = LabelDistribution(noise)
    return made.score(
        made.run(server_view(run.transcript, public), run.seed), histograms(run.data), run.seed
    )


def _inversion(run: Run) -> AttackResult:
    public, seed = public_of(run.data), run.seed
    prior = gmi.train_prior(public.proxies, gmi.PriorSettings(), seed, lambda _: None)
    made = ModelInversion.prepare(public, prior, seed, gmi.InversionSettings(), fit.Fit())
    members = labelled(concatenate([client.train for client in run.data.clients]))
    truth = inversion_truth(members, labelled(run.data.held_out), public, fit.Fit(), seed)
    return made.score(made.run(server_view(run.transcript, public), seed), truth, seed)


def _label_only(run: Run) -> AttackResult:
    """An outsider asks each client's deployed network about that client's records."""
    public, challenges = public_of(run.data), challenges_of(run.data, run.seed, None)
    some = next(iter(challenges.values())).candidates
    ready = LabelOnly.prepare(public, some, run.seed, LabelOnlySettings(training=fit.Fit()))
    at_home = isinstance(run.federation.protection, NetworkFree)
    estimates = []
    for client, challenge in challenges.items():
        made = replace(ready, candidates=challenge.candidates)
        network = run.federation.models[client]
        oracle = LabelOracle(fit.label_function(network), made.queries_needed)
        oracles = {} if at_home else {Capability.QUERY_FINAL_MODEL: oracle}
        estimates.append(made.run(outsider_view(run.transcript, public, oracles), run.seed))
    is_member = np.concatenate([c.is_member for c in challenges.values()])
    return ready.score(pooled(estimates), is_member, run.seed)


def _by_view(name: str, run: Run) -> AttackResult:
    """An attack that needs the server's view alone, and a `Truth`."""
    public = public_of(run.data)
    made = load(name).prepare(public)
    view = server_view(run.transcript, public)
    view.require_any(*made.needs)
    truth = Truth(
        tuple(labelled(client.train) for client in run.data.clients),
        labelled(run.data.held_out),
        histograms(run.data),
    )
    found: AttackResult = made.score(made.run(view, run.seed), truth, run.seed)
    return found


def public_of(data: FederatedData) -> Public:
    """What every attacker knows: proxies, numbers of clients and classes, the shared network."""
    return Public(
        data.proxies.pixels,
        len(data.clients),
        data.n_classes,
        partial(models.build, models.SHARED, data.n_classes),
        data.proxies.labels,
    )


def histograms(data: FederatedData) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[clients, classes] training records of each class."""
    rows = [np.bincount(c.train.labels.numpy(), minlength=data.n_classes) for c in data.clients]
    return np.stack(rows).astype(np.float64)


def challenges_of(data: FederatedData, seed: int, most: int | None) -> dict[int, Challenge]:
    """For each client its own records and, class by class, its share of the held-out ones."""
    made = {}
    for k, (client, share) in enumerate(zip(data.clients, _deal(data), strict=True)):
        if len(share):
            members, outside = match_classes(
                labelled(client.train), labelled(data.held_out[share]), seed + k, most
            )
            made[k] = draw_challenge(members, outside, seed + k)
    return made


def _deal(data: FederatedData) -> list[torch.Tensor]:
    """Held-out indices by client: each class is dealt in turn to the clients that hold it."""
    dealt: list[list[int]] = [[] for _ in data.clients]
    for c in range(data.n_classes):
        holders = [k for k, client in enumerate(data.clients) if c in client.classes]
        found = (data.held_out.labels == c).nonzero()[:, 0].tolist()
        for position, index in enumerate(found):
            if holders:
                dealt[holders[position % len(holders)]].append(index)
    return [torch.tensor(part, dtype=torch.int64) for part in dealt]


def labelled(images: Images) -> Labelled:
    """A run's images as attacks take them."""
    return Labelled(images.pixels, images.labels)
