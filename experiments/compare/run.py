"""One row, trained: from its specification to what the table and the attacks need."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments.compare.diagnostics import diagnose
from experiments.compare.rows import RowSpec
from experiments.compare.settings import Plan
from experiments.compare.units import protection_for
from secure_fd import models
from secure_fd.aggregation.base import Dropouts, PlainSum, SecureSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.crypto.public import proxy_commitment
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import Images
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError
from secure_fd.federation import Federation, Participant, participants_of
from secure_fd.messages import proxy_pixels
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.independent import Independent
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.response import RandomizedResponse
from secure_fd.privacy.units import Guarantee
from secure_fd.private_training import PrivateSGD
from secure_fd.protection.base import Protection
from secure_fd.protection.label import LabelUnit
from secure_fd.selection.client import KulsifSelector, ProxyRatioSelector
from secure_fd.training import Trainer, default_device
from secure_fd.transcript import Float32Array, Transcript

Progress = Callable[[int], None]
_CURVE_POINTS = 6


@dataclass(frozen=True, slots=True, eq=False)
class WarmUp:
    """Every client's parameters after the warm-up, which all rows but FedAvg share."""

    parameters: tuple[Float32Array, ...] = field(repr=False)
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class RowRun:
    """A trained row. curve: (round, mean accuracy, bytes). seconds: of CPU, warm-up included.

    aggregation: name of the secure sum, None where nothing is summed. aggregation_seconds: of CPU,
    inside the sums of all rounds.
    networks: (architecture, parameters) of every client, of which an outsider gets answers where
    `queryable`. response: the mechanism of the label unit, whose parameters everybody knows.
    declared_classes: by client, the classes that its protection makes it name in public.
    """

    spec: RowSpec
    seed: int
    accuracies: tuple[float, ...]
    curve: tuple[tuple[int, float, float], ...]
    transcript: Transcript
    seconds: float
    aggregation: str | None
    aggregation_seconds: float
    guarantee: str
    privacy: Guarantee | None
    insecure: tuple[str, ...]
    diagnostics: dict[str, float]
    networks: tuple[tuple[str, Float32Array], ...] = field(repr=False)
    queryable: bool
    response: RandomizedResponse | None
    declared_classes: Mapping[int, tuple[int, ...]]


@lru_cache(maxsize=2)
def federated_data(
    name: str, data_dir: Path | None, split: Split, clients: int, seed: int
) -> FederatedData:
    """The data of one seed, read once a process."""
    return federate(load(name, data_dir), split, clients, seed)


def data_of(plan: Plan, seed: int) -> FederatedData:
    """The data of a plan."""
    chosen = plan.settings
    return federated_data(chosen.dataset, plan.data_dir, plan.split, chosen.clients, seed)


def check_data(plan: Plan) -> None:
    """Load the first seed's data and check what only the data can tell.

    Raises ConfigurationError where delta allows to publish a record of somebody outright.
    """
    largest = max(len(c.train) + len(c.validation) for c in data_of(plan, plan.seeds[0]).clients)
    if plan.epsilon is not None and plan.settings.dp_delta * largest >= 1:
        raise ConfigurationError(
            "dp_delta", plan.settings.dp_delta, f"use less than 1 / {largest}, one over the records"
        )


def warm_up(plan: Plan, seed: int, progress: Progress) -> WarmUp:
    """Train every client alone for the schedule's warm-up steps."""
    start = time.process_time()
    data, device = data_of(plan, seed), default_device()
    made = []
    for k, client in enumerate(data.clients):
        network = models.build(models.heterogeneous(k), data.n_classes, 100 * seed + k)
        Trainer(network, client.train, plan.schedule.sgd, 1000 * seed + k, device).local_steps(
            plan.schedule.warmup_steps
        )
        made.append(models.flatten(network).cpu().numpy())
        progress(k + 1)
    return WarmUp(tuple(made), time.process_time() - start)


def run_row(
    plan: Plan,
    spec: RowSpec,
    seed: int,
    warm: WarmUp | None,
    progress: Progress,
    chosen: Protection | None = None,
) -> RowRun:
    """Train one row. warm is needed by every kind but FedAvg.

    chosen: the protection of a distilling row, where it is not what the plan gives the row.
    """
    start = time.process_time()
    data = data_of(plan, seed)
    if spec.kind == "fedavg" or warm is None:
        return _run_fedavg(plan, spec, seed, data, start, progress)
    names = [models.heterogeneous(k) for k in range(len(data.clients))]
    participants = [
        Participant(network(name, data.n_classes, flat), client)
        for name, flat, client in zip(names, warm.parameters, data.clients, strict=True)
    ]
    steps = replace(plan.schedule, warmup_steps=0)
    alone = spec.kind == "independent"
    if alone:
        runner = Federation(participants, None, Independent(), schedule=steps, seed=seed)
        protection, guarantee = None, "Nothing of a client crosses the boundary."
    else:
        aggregation = _aggregation(plan, spec, data, seed)
        runner = Federation(
            participants,
            data.proxies.pixels,
            method_of(plan, spec),
            aggregation=aggregation,
            protection=chosen or protection_for(plan, spec),
            schedule=steps,
            dropouts=Dropouts(plan.settings.drop, seed),
            releases_per_pair=plan.settings.releases,
            seed=seed,
        )
    curve = _curve(runner, runner.rounds(plan.rounds), plan.rounds, data.test, progress)
    if not alone:
        protection = runner.guarantee()
        guarantee = _sentence(aggregation, protection)
    return RowRun(
        spec=spec,
        seed=seed,
        accuracies=tuple(runner.accuracies(data.test)),
        curve=curve,
        transcript=runner.transcript,
        seconds=time.process_time() - start + warm.seconds,
        aggregation=None if alone else aggregation.name,
        aggregation_seconds=0.0 if alone else runner.aggregation_time.seconds,
        guarantee=guarantee,
        privacy=protection,
        insecure=() if alone else tuple(aggregation.caveats),
        diagnostics={} if alone else diagnose(runner, data),
        networks=tuple(
            (n, models.flatten(m).cpu().numpy()) for n, m in zip(names, runner.models, strict=True)
        ),
        queryable=spec.unit != "record" or plan.epsilon is None,
        response=_response(runner),
        declared_classes=_declared(runner),
    )


def _run_fedavg(
    plan: Plan, spec: RowSpec, seed: int, data: FederatedData, start: float, progress: Progress
) -> RowRun:
    shared = [models.build(models.SHARED, data.n_classes, seed) for _ in data.clients]
    steps = plan.schedule.fedavg_steps
    optimiser: PrivateSGD | None = None
    if spec.unit is not None and plan.epsilon is not None:
        optimiser = PrivateSGD(plan.epsilon, plan.settings.dp_delta, plan.rounds * steps)
    runner = Federation(
        participants_of(shared, data.clients),
        None,
        FedAvg(optimiser),
        schedule=plan.schedule,
        dropouts=Dropouts(plan.settings.drop, seed),
        seed=seed,
    )
    curve = _curve(runner, runner.rounds(plan.rounds), plan.rounds, data.test, progress)
    final = np.asarray(runner.global_parameters)
    return RowRun(
        spec=spec,
        seed=seed,
        accuracies=tuple(runner.accuracies(data.test)),
        curve=curve,
        transcript=runner.transcript,
        seconds=time.process_time() - start,
        aggregation=PlainSum.name,
        aggregation_seconds=runner.aggregation_time.seconds,
        guarantee=_sentence(PlainSum(len(data.clients)), runner.guarantee()),
        privacy=runner.guarantee(),
        insecure=(),
        diagnostics={},
        networks=tuple((models.SHARED, final) for _ in data.clients),
        queryable=True,
        response=None,
        declared_classes={},
    )


def network(name: str, n_classes: int, flat: Float32Array) -> nn.Module:
    """A network with these parameters."""
    made = models.build(name, n_classes, 0)
    models.load_flat(made, torch.from_numpy(flat.copy()))
    return made


def method_of(plan: Plan, spec: RowSpec) -> FedMD | SelectiveFD:
    """What the clients of a distilling row share, and what its server does."""
    if spec.kind == "fedmd":
        return FedMD(spec.labels)
    selector = KulsifSelector() if plan.settings.selector == "kulsif" else ProxyRatioSelector()
    # The label unit makes one symbol noisy, and the client unit's noise drowns all but whole votes.
    noisy = spec.unit in ("label", "client") and plan.epsilon is not None
    if noisy or plan.settings.selector == "kulsif":
        return SelectiveFD(spec.labels, selector, server_threshold=1.0, votes="counted")
    return SelectiveFD(spec.labels, selector)


def _aggregation(plan: Plan, spec: RowSpec, data: FederatedData, seed: int) -> SecureSum:
    clients = len(data.clients)
    if spec.secure is None:
        return PlainSum(clients)
    chosen = plan.settings
    privacy = (spec.unit, plan.epsilon, chosen.dp_delta, chosen.label_alphabet)
    rounds = (plan.schedule, plan.rounds, chosen.releases)
    agreed = repr((data.n_classes, spec.labels, chosen.selector, rounds, privacy)).encode()
    proxies = proxy_commitment(proxy_pixels(data.proxies.pixels))
    if spec.secure == "he":
        from secure_fd.aggregation.homomorphic import HomomorphicSum  # TenSEAL is slow to import

        return HomomorphicSum(clients, configuration=agreed, proxies=proxies)
    # Rows with and without masks are about the same proxies, so that masks alone differ. The client
    # unit counts on a graph that nobody can foresee.
    public = None if spec.unit == "client" else seed
    return MaskedSum(clients, public_seed=public, configuration=agreed, proxies=proxies)


def _response(runner: Federation) -> RandomizedResponse | None:
    unit = runner.protection
    return unit.mechanism if isinstance(unit, LabelUnit) else None


def _declared(runner: Federation) -> Mapping[int, tuple[int, ...]]:
    return runner.protection.declared_classes if isinstance(runner, Federation) else {}


def _sentence(aggregation: SecureSum, privacy: Guarantee | None) -> str:
    promised = privacy.sentence() if privacy else "No differential privacy: no noise is added."
    return f"{aggregation.guarantee} {promised}"


def _curve(
    runner: Federation,
    rounds: Iterable[object],
    count: int,
    test: Images,
    progress: Progress,
) -> tuple[tuple[int, float, float], ...]:
    """Run all rounds; mean accuracy and bytes both ways a client at a few of them."""
    every = max(1, count // _CURVE_POINTS)
    points = []
    for done, _ in enumerate(rounds, start=1):
        if done % every == 0 or done == count:
            moved = float((runner.transcript.up + runner.transcript.down).mean())
            points.append((done, float(np.mean(runner.accuracies(test))), moved))
        progress(done)
    return tuple(points)
