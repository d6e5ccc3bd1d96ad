"""The attacks on a trained row: what each attacker sees, and the truth that scores it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks import fit
from attacks import inversion as gmi
from attacks.base import (
    AttackResult,
    Challenge,
    pooled,
)
from attacks.inversion import InversionTruth, ModelInversion, inversion_truth
from attacks.label_distribution import LabelDistribution
from attacks.label_only import LabelOnly, LabelOnlySettings
from attacks.on_run import Truth, challenges_of, histograms, labelled, public_of
from attacks.registry import COMPARED, load
from attacks.updates import Recipe
from attacks.updates_attack import UpdateInversion
from attacks.view import Capability, LabelOracle, Public, View, outsider_view, server_view
from attacks.votes import undoing
from experiments.results import NOT_APPLICABLE
from experiments.rows import Attacks, RowSpec, Terms
from experiments.runs import RowRun, data_of, network
from secure_fd import models
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import concatenate
from secure_fd.errors import MissingCapabilityError
from secure_fd.federation import Federation, participants_of
from secure_fd.methods.fedavg import FedAvg
from secure_fd.private_training import PrivateSGD
from secure_fd.recipes import SGD

_QUICK_CANDIDATES = 10
_ONE_RECORD = "clients hold one record: not sampled, it takes more noise for ε than a larger set"


@dataclass(frozen=True, slots=True, eq=False)
class Arsenal:
    """What the attacks need before they see any transcript; made once for all rows.

    challenges: by client; one that shares no class with the held-out records has none. own: the
    user's attacks, by name.
    """

    public: Public
    histograms: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = field(repr=False)
    inversion: ModelInversion | None = None
    truth: InversionTruth | None = None
    label_only: LabelOnly | None = None
    challenges: Mapping[int, Challenge] = field(default_factory=dict, repr=False)
    own: Mapping[str, Any] = field(default_factory=dict)


def prepare(terms: Terms, seed: int, chosen: Attacks, progress: Callable[[int], None]) -> Arsenal:
    """Train the public prior, shadows and controls. progress(n): n percent done."""
    data, quick = data_of(terms, seed), chosen.quick
    public = public_of(data)
    own = {name: load(name).prepare(public) for name in chosen.names if name not in COMPARED}
    arsenal = Arsenal(public, histograms(data), own=own)
    lesson = fit.QUICK if quick else fit.Fit()
    if "inversion" in chosen.names:
        trained = gmi.train_prior(
            public.proxies,
            gmi.QUICK_PRIOR if quick else gmi.PriorSettings(),
            seed,
            lambda share: progress(int(60 * share)),
        )
        search = gmi.QUICK if quick else gmi.InversionSettings()
        attack = ModelInversion.prepare(public, trained, seed, search, lesson)
        members = labelled(concatenate([c.train for c in data.clients]))
        truth = inversion_truth(members, labelled(data.held_out), public, lesson, seed)
        arsenal = replace(arsenal, inversion=attack, truth=truth)
    progress(80)
    if "label-only" in chosen.names:
        challenges = challenges_of(data, seed, _QUICK_CANDIDATES if quick else None)
        some = next(iter(challenges.values())).candidates
        ready = LabelOnly.prepare(public, some, seed, LabelOnlySettings(training=lesson))
        arsenal = replace(arsenal, label_only=ready, challenges=challenges)
    return arsenal


def attack_row(
    terms: Terms,
    chosen: Attacks,
    arsenal: Arsenal,
    run: RowRun,
    progress: Callable[[int], None],
) -> dict[str, AttackResult | str]:
    """Every attack's result, or the sentence that says which capability is missing."""
    known: dict[str, Callable[[Arsenal, RowRun], AttackResult]] = {
        "label-distribution": _label_distribution,
        "inversion": _inversion,
        "label-only": _label_only,
        "update-inversion": partial(_update_inversion, terms),
    }
    found: dict[str, AttackResult | str] = {}
    for done, name in enumerate(chosen.names, start=1):
        attack = known.get(name) or partial(_own, terms, name)
        found[name] = unless_missing(partial(attack, arsenal, run))
        progress(done)
    return found


def unless_missing(attack: Callable[[], AttackResult], also: str = "") -> AttackResult | str:
    """An attack's result, or which capability it lacks; `also` ends that sentence."""
    try:
        return attack()
    except MissingCapabilityError as missing:
        return f"{NOT_APPLICABLE}{missing}{also}"


def _label_distribution(arsenal: Arsenal, run: RowRun) -> AttackResult:
    attack = LabelDistribution(undoing(run.response) if run.response else None)
    known = replace(arsenal.public, declared_classes=run.declared_classes)
    estimate = attack.run(server_view(run.transcript, known), run.seed)
    return attack.score(estimate, arsenal.histograms, run.seed)


def _inversion(arsenal: Arsenal, run: RowRun) -> AttackResult:
    if arsenal.inversion is None or arsenal.truth is None:
        raise MissingCapabilityError("missing a prepared prior")
    view = server_view(run.transcript, arsenal.public)
    estimate = arsenal.inversion.run(view, run.seed)
    return arsenal.inversion.score(estimate, arsenal.truth, run.seed)


def _label_only(arsenal: Arsenal, run: RowRun) -> AttackResult:
    """An outsider asks each client's deployed network about that client's records."""
    if arsenal.label_only is None:
        raise MissingCapabilityError("missing a prepared shadow")
    estimates = []
    for client, challenge in arsenal.challenges.items():
        name, flat = run.networks[client]
        attack = replace(arsenal.label_only, candidates=challenge.candidates)
        target = network(name, arsenal.public.n_classes, flat)
        oracle = LabelOracle(fit.label_function(target), attack.queries_needed)
        oracles = {Capability.QUERY_FINAL_MODEL: oracle} if run.queryable else {}
        view = outsider_view(run.transcript, arsenal.public, oracles)
        estimates.append(attack.run(view, run.seed))
    is_member = np.concatenate([c.is_member for c in arsenal.challenges.values()])
    return arsenal.label_only.score(pooled(estimates), is_member, run.seed)


def _own(terms: Terms, name: str, arsenal: Arsenal, run: RowRun) -> AttackResult:
    """Run an attack of the user's on what the server sees."""
    attack, data = arsenal.own[name], data_of(terms, run.seed)
    view = server_view(run.transcript, arsenal.public)
    view.require_any(*attack.needs)
    truth = Truth(
        tuple(labelled(client.train) for client in data.clients),
        labelled(data.held_out),
        arsenal.histograms,
    )
    found: AttackResult = attack.score(attack.run(view, run.seed), truth, run.seed)
    return found


def _update_inversion(terms: Terms, arsenal: Arsenal, run: RowRun) -> AttackResult:
    """One step on one record a client, where the row's own rounds show updates at all."""
    if not run.transcript.parameters:
        raise MissingCapabilityError("missing an update: no parameters cross the boundary (server)")
    server_view(run.transcript, arsenal.public).require_any(*UpdateInversion.needs)
    made = one_update(terms, data_of(terms, run.seed), run.spec, run.seed)
    attack = UpdateInversion(made.public)
    result = attack.score(attack.run(made.view, run.seed), made.records, run.seed)
    return replace(result, caveats=(*result.caveats, *made.caveats))


_MODEL = "mlp-1024-512-256"
_CLIENTS = 10
_ROUNDS = 2
"""An update is read against the global parameters of the round before."""


@dataclass(frozen=True, slots=True, eq=False)
class OneUpdate:
    """public: with the network that trains here. records: by client, [1, 1, H, W]."""

    public: Public
    view: View
    records: Mapping[int, Tensor] = field(repr=False)
    caveats: tuple[str, ...] = ()


def one_update(terms: Terms, data: FederatedData, spec: RowSpec, seed: int) -> OneUpdate:
    """Train on the first record of each of the first ten clients, as the row's unit asks."""
    recipe, kept = Recipe(batch=1), torch.arange(1)
    clients = [
        ClientData(client.train[kept], client.train[kept[:0]], data.n_classes)
        for client in data.clients[:_CLIENTS]
    ]
    optimiser: SGD | PrivateSGD = SGD(recipe.learning_rate, recipe.batch)
    if private := spec.unit is not None and terms.epsilon is not None:
        delta = terms.delta
        optimiser = PrivateSGD(terms.epsilon, delta, _ROUNDS, recipe.learning_rate, recipe.batch)
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
