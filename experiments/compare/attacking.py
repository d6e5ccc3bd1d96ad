"""The attacks on a trained row: what each attacker sees, and the truth that scores it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from attacks import fit, prior
from attacks import inversion as gmi
from attacks.base import AttackResult, Challenge, Labelled, draw_challenge, match_classes
from attacks.inversion import InversionTruth, ModelInversion, inversion_truth
from attacks.label_distribution import LabelDistribution
from attacks.label_only import LabelOnly, LabelOnlySettings, pooled
from attacks.updates_attack import UpdateInversion
from attacks.view import Capability, LabelOracle, Public, outsider_view, server_view
from attacks.votes import undoing
from experiments.compare.one_update import one_update
from experiments.compare.run import RowRun, data_of, network
from experiments.compare.settings import Plan
from secure_fd import models
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images, concatenate
from secure_fd.errors import MissingCapabilityError

_QUICK_CANDIDATES = 10


@dataclass(frozen=True, slots=True, eq=False)
class Arsenal:
    """What the attacks need before they see any transcript; made once for all rows.

    challenges: by client; one that shares no class with the held-out records has none.
    """

    public: Public
    histograms: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = field(repr=False)
    inversion: ModelInversion | None = None
    truth: InversionTruth | None = None
    label_only: LabelOnly | None = None
    challenges: Mapping[int, Challenge] = field(default_factory=dict, repr=False)


def prepare(plan: Plan, seed: int, progress: Callable[[int], None]) -> Arsenal:
    """Train the public prior, shadows and controls; progress hears percent."""
    data = data_of(plan, seed)
    quick = plan.settings.quick
    public = Public(
        data.proxies.pixels,
        len(data.clients),
        data.n_classes,
        partial(models.build, models.SHARED, data.n_classes),
        data.proxies.labels,
    )
    arsenal = Arsenal(public, _histograms(data))
    lesson = fit.QUICK if quick else fit.Fit()
    if "inversion" in plan.attacks:
        trained = prior.train_prior(
            public.proxies,
            prior.QUICK if quick else prior.PriorSettings(),
            seed,
            lambda share: progress(int(60 * share)),
        )
        search = gmi.QUICK if quick else gmi.InversionSettings()
        attack = ModelInversion.prepare(public, trained, seed, search, lesson)
        members = labelled(concatenate([c.train for c in data.clients]))
        truth = inversion_truth(members, labelled(data.held_out), public, lesson, seed)
        arsenal = replace(arsenal, inversion=attack, truth=truth)
    progress(80)
    if "label-only" in plan.attacks:
        challenges = _challenges(data, seed, _QUICK_CANDIDATES if quick else None)
        some = next(iter(challenges.values())).candidates
        ready = LabelOnly.prepare(public, some, seed, LabelOnlySettings(training=lesson))
        arsenal = replace(arsenal, label_only=ready, challenges=challenges)
    return arsenal


def attack_row(
    plan: Plan, arsenal: Arsenal, run: RowRun, progress: Callable[[int], None]
) -> dict[str, AttackResult | str]:
    """Every attack's result, or the sentence that says which capability is missing."""
    known: dict[str, Callable[[Arsenal, RowRun], AttackResult]] = {
        "label-distribution": _label_distribution,
        "inversion": _inversion,
        "label-only": _label_only,
        "update-inversion": partial(_update_inversion, plan),
    }
    found: dict[str, AttackResult | str] = {}
    for done, name in enumerate(plan.attacks, start=1):
        try:
            found[name] = known[name](arsenal, run)
        except MissingCapabilityError as missing:
            found[name] = f"not applicable: {missing}"
        progress(done)
    return found


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


def _update_inversion(plan: Plan, arsenal: Arsenal, run: RowRun) -> AttackResult:
    """One step on one record a client, where the row's own rounds show updates at all."""
    if not run.transcript.parameters:
        raise MissingCapabilityError("missing an update: no parameters cross the boundary (server)")
    server_view(run.transcript, arsenal.public).require_any(*UpdateInversion.needs)
    made = one_update(plan, data_of(plan, run.seed), run.spec, run.seed)
    attack = UpdateInversion(made.public)
    result = attack.score(attack.run(made.view, run.seed), made.records, run.seed)
    return replace(result, caveats=(*result.caveats, *made.caveats))


def _histograms(data: FederatedData) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    rows = [np.bincount(c.train.labels.numpy(), minlength=data.n_classes) for c in data.clients]
    return np.stack(rows).astype(np.float64)


def _challenges(data: FederatedData, seed: int, most: int | None) -> dict[int, Challenge]:
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
