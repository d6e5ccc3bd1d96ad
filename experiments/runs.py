"""The one way to a run: from a row's specification to what tables and attacks need.

data = data_of(terms, seed)
warm = warm_up(terms, seed, progress)
made = run_row(terms, RowSpec("selective-fd", "hard", "masks"), seed, warm, progress)
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments.results import SINGLE
from experiments.rows import RowSpec, Terms, method_class
from secure_fd import models
from secure_fd.aggregation.base import Dropouts, PlainSum, SecureSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.crypto.public import proxy_commitment
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import Images
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.federation import AnyMethod, Federation, participants_of
from secure_fd.messages import proxy_pixels
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.registry import METHODS
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.plans import ClientPlan
from secure_fd.privacy.response import RandomizedResponse
from secure_fd.privacy.units import Guarantee
from secure_fd.private_training import PrivateSGD
from secure_fd.protection.base import NoProtection, Protection
from secure_fd.protection.client import ClientUnit
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordUnit
from secure_fd.recipes import image_set
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


def data_of(terms: Terms, seed: int) -> FederatedData:
    """The data of one seed."""
    return federated_data(terms.dataset, terms.data_dir, terms.split, terms.clients, seed)


def check_data(terms: Terms, seed: int) -> None:
    """Load the data of a seed and check what only the data can tell.

    Raises ConfigurationError where delta exceeds one over a client's records: it would allow to
    publish one of them outright.
    """
    largest = max(len(c.train) + len(c.validation) for c in data_of(terms, seed).clients)
    if terms.epsilon is not None and terms.delta * largest >= 1:
        raise ConfigurationError(
            "dp_delta", terms.delta, f"use less than 1 / {largest}, one over the records"
        )


def warm_up(terms: Terms, seed: int, progress: Progress) -> WarmUp:
    """Train every client alone for the schedule's warm-up steps."""
    start = time.process_time()
    data, device = data_of(terms, seed), default_device()
    made = []
    for k, client in enumerate(data.clients):
        network = models.build(models.heterogeneous(k), data.n_classes, 100 * seed + k)
        Trainer(network, client.train, terms.schedule.sgd, 1000 * seed + k, device).local_steps(
            terms.schedule.warmup_steps
        )
        made.append(models.flatten(network).cpu().numpy())
        progress(k + 1)
    return WarmUp(tuple(made), time.process_time() - start)


def run_row(
    terms: Terms,
    spec: RowSpec,
    seed: int,
    warm: WarmUp | None,
    progress: Progress,
    chosen: Protection | None = None,
) -> RowRun:
    """Train one row.

    warm: the networks that it goes on from; without it, and for FedAvg, one fresh network for all.
    chosen: the protection, where it is not what the terms give the row.
    """
    start = time.process_time()
    data = data_of(terms, seed)
    if spec.kind == "fedavg":
        warm = None
    names, networks = _networks(data, seed, warm)
    aggregation = None if spec.kind == "independent" else _aggregation(terms, spec, data, seed)
    runner = _federation(terms, spec, seed, data, networks, aggregation, chosen)
    curve = _curve(runner, terms.rounds, data.test, progress)
    claim = None if aggregation is None else runner.guarantee()
    final = _final(runner, spec)
    return RowRun(
        spec=spec,
        seed=seed,
        accuracies=tuple(runner.accuracies(data.test)),
        curve=curve,
        transcript=runner.transcript,
        seconds=time.process_time() - start + (0.0 if warm is None else warm.seconds),
        aggregation=None if aggregation is None else aggregation.name,
        aggregation_seconds=0.0 if aggregation is None else runner.aggregation_time.seconds,
        guarantee=_sentence(aggregation, claim),
        privacy=claim,
        insecure=() if aggregation is None else tuple(aggregation.caveats),
        diagnostics=diagnose(runner, data),
        networks=tuple(zip(names, final, strict=True)),
        queryable=spec.kind == "fedavg" or spec.unit != "record" or terms.epsilon is None,
        response=_response(runner),
        declared_classes=runner.protection.declared_classes,
    )


def _networks(
    data: FederatedData, seed: int, warm: WarmUp | None
) -> tuple[list[str], list[nn.Module]]:
    """Architectures and networks by client: after the warm-up, or one start for all."""
    clients = range(len(data.clients))
    if warm is None:
        fresh = [models.build(models.SHARED, data.n_classes, seed) for _ in clients]
        return [models.SHARED for _ in clients], fresh
    names = [models.heterogeneous(k) for k in clients]
    pairs = zip(names, warm.parameters, strict=True)
    return names, [network(name, data.n_classes, flat) for name, flat in pairs]


def _federation(
    terms: Terms,
    spec: RowSpec,
    seed: int,
    data: FederatedData,
    networks: list[nn.Module],
    aggregation: SecureSum | None,
    chosen: Protection | None,
) -> Federation:
    participants = participants_of(networks, data.clients)
    method, warmed = method_of(terms, spec), replace(terms.schedule, warmup_steps=0)
    if aggregation is None:
        return Federation(participants, None, method, schedule=warmed, seed=seed)
    dropouts = Dropouts(terms.drop, seed)
    if spec.kind == "fedavg":
        return Federation(
            participants, None, method, schedule=terms.schedule, dropouts=dropouts, seed=seed
        )
    return Federation(
        participants,
        data.proxies.pixels,
        method,
        aggregation=aggregation,
        protection=chosen or protection_for(terms, spec),
        schedule=warmed,
        dropouts=dropouts,
        releases_per_pair=terms.releases,
        seed=seed,
    )


def _final(runner: Federation, spec: RowSpec) -> list[Float32Array]:
    """The parameters that clients deploy after the last round."""
    if spec.kind == "fedavg":
        return [np.asarray(runner.global_parameters) for _ in runner.models]
    return [models.flatten(model).cpu().numpy() for model in runner.models]


def network(name: str, n_classes: int, flat: Float32Array) -> nn.Module:
    """A network with these parameters."""
    made = models.build(name, n_classes, 0)
    models.load_flat(made, torch.from_numpy(flat.copy()))
    return made


def method_of(terms: Terms, spec: RowSpec) -> AnyMethod:
    """The method of a row: what clients share, and what the server does."""
    if spec.kind == "fedavg":
        private = spec.unit is not None and terms.epsilon is not None
        return FedAvg(_private_sgd(terms) if private else None)
    if spec.kind == "selective-fd":
        return _selective_fd(terms, spec)
    made: AnyMethod = method_class(spec.kind)(
        *([spec.labels] if spec.kind in METHODS and METHODS[spec.kind].labels else [])
    )
    return made


def _private_sgd(terms: Terms) -> PrivateSGD:
    if terms.epsilon is None:
        raise LocalError("DP-SGD needs an epsilon")
    return PrivateSGD(terms.epsilon, terms.delta, terms.rounds * terms.schedule.fedavg_steps)


def _selective_fd(terms: Terms, spec: RowSpec) -> SelectiveFD:
    selector = KulsifSelector() if terms.selector == "kulsif" else ProxyRatioSelector()
    # The label unit makes one symbol noisy, and the client unit's noise drowns all but whole votes.
    noisy = spec.unit in ("label", "client") and terms.epsilon is not None
    if noisy or terms.selector == "kulsif":
        return SelectiveFD(spec.labels, selector, server_threshold=1.0, votes="counted")
    return SelectiveFD(spec.labels, selector)


def protection_for(terms: Terms, spec: RowSpec) -> Protection:
    """The protection of a row; none where no epsilon was asked for, or an infinite one."""
    if spec.unit is None or terms.epsilon is None:
        return NoProtection()
    if spec.unit == "label":
        return LabelUnit(terms.epsilon, terms.delta, terms.label_alphabet)
    if spec.unit == "client":
        return _client_unit(terms, terms.epsilon)
    return RecordUnit(terms.epsilon, terms.delta)


def _client_unit(terms: Terms, epsilon: float) -> ClientUnit:
    """Provisioned for as many absent clients as masks open a sum without, and a tenth corrupt."""
    clients = terms.clients
    votes = ClientPlan(
        clients=clients,
        proxies=terms.schedule.proxies_per_round,
        rounds=terms.rounds,
        classes=image_set(terms.dataset).n_classes,
        absent=clients // 3,
        corrupt=clients // 10,
    )
    delta, small = terms.delta, terms.small_fleet
    return ClientUnit(epsilon, delta, votes, small_fleet=small)


def _aggregation(terms: Terms, spec: RowSpec, data: FederatedData, seed: int) -> SecureSum:
    clients = len(data.clients)
    if spec.secure is None:
        return PlainSum(clients)
    privacy = (spec.unit, terms.epsilon, terms.delta, terms.label_alphabet)
    rounds = (terms.schedule, terms.rounds, terms.releases)
    agreed = repr((data.n_classes, spec.labels, terms.selector, rounds, privacy)).encode()
    proxies = proxy_commitment(proxy_pixels(data.proxies.pixels))
    if spec.secure == "he":
        from secure_fd.aggregation.homomorphic import HomomorphicSum  # TenSEAL is slow to import

        return HomomorphicSum(clients, configuration=agreed, proxies=proxies)
    # Rows with and without masks are about the same proxies, so that masks alone differ. The client
    # unit counts on a graph that cannot be foreseen.
    public = None if spec.unit == "client" else seed
    return MaskedSum(clients, public_seed=public, configuration=agreed, proxies=proxies)


def _response(runner: Federation) -> RandomizedResponse | None:
    unit = runner.protection
    return unit.mechanism if isinstance(unit, LabelUnit) else None


def _sentence(aggregation: SecureSum | None, privacy: Guarantee | None) -> str:
    if aggregation is None:
        return "Nothing of a client crosses the boundary."
    promised = privacy.sentence() if privacy else "No differential privacy: no noise is added."
    return f"{aggregation.guarantee} {promised}"


def _curve(
    runner: Federation, count: int, test: Images, progress: Progress
) -> tuple[tuple[int, float, float], ...]:
    """Run all rounds; mean accuracy and bytes both ways a client at a few of them."""
    every = max(1, count // _CURVE_POINTS)
    points = []
    for done, _ in enumerate(runner.rounds(count), start=1):
        if done % every == 0 or done == count:
            moved = float((runner.transcript.up + runner.transcript.down).mean())
            points.append((done, float(np.mean(runner.accuracies(test))), moved))
        progress(done)
    return tuple(points)


def diagnose(runner: Federation, data: FederatedData) -> dict[str, float]:
    """Figures of the last round's ensemble, and the selectors' mean AUROC where there are any.

    Nothing where no round gave an ensemble.
    """
    if not runner.transcript.distillation:
        return {}
    from sklearn.metrics import roc_auc_score  # slow to import, and only workers come here

    truth = data.proxies.labels.numpy()
    last = runner.transcript.distillation[-1].ensemble
    kept = last.kept
    found = {"kept proxies": float(kept.mean())}
    if kept.any():
        right = last.predictions[kept].argmax(axis=1) == truth[last.indices[kept]]
        found["right labels among kept"] = float(right.mean())
    found[SINGLE] = runner.single_contributors
    found["most releases of a proxy"] = float(runner.most_released)
    aurocs = [
        roc_auc_score(inside, scores)
        for k, client in enumerate(data.clients)
        if (scores := runner.selector_scores(k)) is not None
        and 0 < (inside := np.isin(truth, client.classes)).sum() < len(inside)
    ]
    if aurocs:
        found["selector AUROC"] = float(np.mean(aurocs))
    return found
