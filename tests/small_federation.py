"""Federations of tiny networks, which learn in milliseconds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.methods.base import Labels, Method
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.methods.votes import VotePolicy, VotingMethod
from secure_fd.privacy.base import PrivacyMechanism
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.secure_sum.base import SecureSum
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.selection.selectors import ProxyRatioSelector, Selection
from secure_fd.simulation.federation import Dropouts, Federation
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.votes.codec import Ensemble, FloatArray, IntArray, Sums
from secure_fd.wire import Stage

CPU = torch.device("cpu")
BRIEF = Schedule(
    warmup_steps=6,
    local_steps=1,
    proxy_steps=2,
    proxies_per_round=32,
    sgd=SGD(local_batch=16, distillation_batch=16),
)
STILL = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)
SMALL = ReferenceSettings(rank=20, n_features=200)


def record_unit(
    data: FederatedData,
    epsilon: float = 4.0,
    kind: type[PooledRecordUnit] = PooledRecordUnit,
    **options: Any,
) -> PooledRecordUnit:
    """A unit for the records of these clients, with a small public map."""
    return kind(
        epsilon,
        1e-5,
        records=[len(client.train) for client in data.clients],
        n_proxies=len(data.proxies),
        n_classes=data.n_classes,
        **{"features": SMALL, **options},
    )


def networks(count: int, seed: int = 0, n_classes: int = 10) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [nn.Sequential(nn.Flatten(), nn.Linear(784, n_classes)) for _ in range(count)]


def participants(
    data: FederatedData, seed: int = 0
) -> tuple[list[nn.Module], tuple[ClientData, ...]]:
    """Networks and records."""
    return networks(len(data.clients), seed, data.n_classes), data.clients


def federation(
    data: FederatedData,
    method: Method | None = None,
    *,
    aggregation: SecureSum | None = None,
    protection: PrivacyMechanism | None = None,
    schedule: Schedule = BRIEF,
    dropouts: Dropouts | None = None,
    releases_per_pair: int | None = None,
    seed: int = 0,
    networks_seed: int = 0,
) -> Federation:
    return Federation(
        *participants(data, networks_seed),
        data.proxies.pixels,
        method or SelectiveFD("hard", votes="counted"),  # whole votes are easy to follow
        aggregation=aggregation,
        protection=protection,
        schedule=schedule,
        dropouts=dropouts,
        releases_per_pair=releases_per_pair,
        seed=seed,
        device=torch.device("cpu"),
    )


@cache
def alike(clients: int, proxies: int = 40, local: int = 100) -> FederatedData:
    """Bundled digits over clients that hold every class."""
    sizes = Sizes(proxies=proxies, test=10, held_out=4, local=local)
    return federate(load("digits"), parse_split("iid"), clients, seed=0, sizes=sizes)


def all_proxies(data: FederatedData) -> Schedule:
    """A brief schedule whose every round asks about every proxy."""
    return replace(BRIEF, proxies_per_round=len(data.proxies))


def run(made: Federation, rounds: int = 2) -> Federation:
    for _ in made.rounds(rounds):
        pass
    return made


def parameters(made: Federation) -> FloatArray:
    return np.stack([flatten(model).numpy() for model in made.models])


def ensembles(made: Federation) -> list[Ensemble]:
    return [seen.result for seen in made.transcript.distillation]


class Unsurveyed(SelectiveFD):
    """Mutant without a survey: every proxy may be a target."""

    survey_first = False


@dataclass(frozen=True, slots=True, eq=False)
class Scripted(VotingMethod):
    """A method whose clients vote by a script; it stores the sums of the server.

    opinions: one a client, handed out in the order in which clients are first asked.
    """

    opinions: Iterator[VotePolicy]
    labels: Labels = "hard"
    sums: list[Sums] = field(default_factory=list)

    title: ClassVar[str] = "Scripted"

    def policy(self, client: object, proxies: object) -> VotePolicy:  # noqa: ARG002 - the script decides
        return next(self.opinions)

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        self.sums.append(sums)
        return Ensemble(indices, sums.total, np.zeros(len(indices), dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class Faults(Dropouts):
    """A plan of dropouts that is written down, by round and client."""

    script: Mapping[int, Mapping[int, Stage]] = field(default_factory=dict)

    def plan(self, round_index: int, n_clients: int) -> dict[int, Stage]:  # noqa: ARG002 - the script decides
        return dict(self.script.get(round_index, {}))


def faults(script: Mapping[int, Mapping[int, Stage]]) -> Faults:
    return Faults(0.0, 0, script)


def verdict(data: FederatedData, client: int) -> Selection:
    return ProxyRatioSelector().select(data.clients[client], data.proxies.pixels)
