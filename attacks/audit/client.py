"""Audits of the client unit: the sum of all shares, as colluders see it, with the absent gone."""

import math
import os
from dataclasses import dataclass, replace

import numpy as np

from attacks.audit.bounds import (
    Finding,
    Kind,
    Worlds,
    by_inclusion,
    gaussian_shape,
    printed,
    prove,
    prove_shaped,
)
from attacks.audit.record import GAUSSIAN
from attacks.audit.setting import Setting, masked_unit
from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray, IntArray, KnowledgeCodec, Released, one_hot
from secure_fd.privacy.plans import ClientPlan
from secure_fd.privacy.release import ClientShares
from secure_fd.privacy.units import Guarantee, PrivacyUnit
from secure_fd.protection.client import ClientUnit

_UNIT = PrivacyUnit.CLIENT
_ROUNDS, _PROXIES, _CLASSES = 2, 2, 2
_TRIALS = 40_000
_CANARIES, _CANARY_PROXIES, _CANARY_CLASSES = 3000, 40, 100


@dataclass(frozen=True, slots=True)
class Fleet:
    """Ten clients, of whom three are gone from every sum and one tells the server its share."""

    clients: int = 10
    absent: int = 3
    corrupt: int = 1

    @property
    def present(self) -> int:
        """Clients in every sum."""
        return self.clients - self.absent

    def plan(self) -> ClientPlan:
        """A few proxies and two rounds, so that a mistake between rounds shows."""
        return ClientPlan(
            clients=self.clients,
            proxies=_PROXIES,
            rounds=_ROUNDS,
            classes=_CLASSES,
            absent=self.absent,
            corrupt=self.corrupt,
        )


def mechanism(setting: Setting) -> Finding:
    """One client votes throughout or abstains throughout; the colluder's share is subtracted."""
    fleet = Fleet()
    plan = fleet.plan()
    worlds = Worlds(
        ("votes", "difference of two rounds"),
        _observed(fleet, setting, votes=False),
        _observed(fleet, setting, votes=True),
    )
    delta, miss = setting.delta, setting.miss
    proof, also = prove_shaped(worlds, gaussian_shape(delta), delta, miss)
    claimed = _claim(plan, setting).epsilon
    name = "sum of shares"
    return Finding.of(proof, Kind.MECHANISM, _UNIT, name, claimed, delta, miss, GAUSSIAN, also)


def _claim(plan: ClientPlan, setting: Setting) -> Guarantee:
    """What a client unit prints after all rounds, with noise of the operating system."""
    unit = masked_unit(setting, plan, os.urandom)
    for _ in range(plan.rounds):
        unit.perturb(0, np.zeros(plan.proxies * plan.classes, dtype=np.uint64))
    return printed(unit.guarantee())


def one_run_gaussian(setting: Setting) -> Finding:
    """A fleet of canaries, each included by a coin, with votes of its own, each a trial."""
    scores, included, plan = _canaries(setting)
    delta, miss = setting.delta, setting.miss
    proof = prove(by_inclusion("score", scores, included), gaussian_shape(delta), miss)
    claimed = _claim(plan, setting).epsilon
    name = "canary clients, each a trial"
    return Finding.of(proof, Kind.ONE_RUN, _UNIT, name, claimed, delta, miss, GAUSSIAN)


def _observed(fleet: Fleet, setting: Setting, *, votes: bool) -> FloatArray:
    """[N, 2] statistics of N independent sums a round: noise is drawn entry by entry.

    The audited client votes for class r in round r, so that noise which two rounds share would
    cancel in their difference while the votes stay.
    """
    count = setting.trials(_TRIALS)
    unit = masked_unit(setting, fleet.plan(), setting.random)
    rounds = []
    for index in range(_ROUNDS):
        answers = one_hot(np.full(_PROXIES, index % _CLASSES), _CLASSES)
        spoken = _units(unit, np.full(_PROXIES, float(votes)), answers)
        shares = ClientShares(_stacked(unit.plan, count), setting.random)
        total = _colluders_sum(shares, fleet, np.tile(spoken, count))
        rounds.append(total.reshape(count, _PROXIES, _CLASSES))
    said = sum(made[:, :, r % _CLASSES].sum(axis=1) for r, made in enumerate(rounds))
    apart = (rounds[0] - rounds[1])[:, :, 0].sum(axis=1)
    return np.stack([said, apart], axis=1).astype(np.float64)


def _units(unit: ClientUnit, weights: FloatArray, answers: FloatArray) -> IntArray:
    codec = KnowledgeCodec(answers.shape[1], unit.levels(1))
    return codec.encode(Released(weights, answers)).astype(np.int64)


def _stacked(plan: ClientPlan, count: int) -> ClientPlan:
    """Many independent sums side by side, in shares of the same scale and variance.

    Raises LocalError where the shares of the plan would not be those that the unit itself draws.
    """
    wide = replace(plan, proxies=count * plan.proxies, noise=plan.noise / math.sqrt(count))
    alike = math.isclose(wide.share_variance, plan.share_variance, rel_tol=1e-9)
    if wide.scale != plan.scale or not alike:
        raise LocalError(
            f"stacked shares have scale {wide.scale} and variance {wide.share_variance}, "
            f"the unit's {plan.scale} and {plan.share_variance}"
        )
    return wide


def _colluders_sum(shares: ClientShares, fleet: Fleet, spoken: IntArray) -> IntArray:
    """A round's sum of the clients that are there, less the colluders' own inputs.

    Client 0 is audited; the last `corrupt` of those present collude; all others abstain.
    """
    total = np.zeros(len(spoken), dtype=np.int64)
    for client in range(fleet.present):
        units = spoken if client == 0 else np.zeros_like(spoken)
        share = shares.perturb(units.astype(np.uint64))
        total += share
        if client >= fleet.present - fleet.corrupt:
            total -= share
    return total


def _canaries(setting: Setting) -> tuple[FloatArray, FloatArray, ClientPlan]:
    """Scores and inclusion [m] of canary clients with random votes in one sum, and the plan."""
    count = max(100, round(_CANARIES * min(1.0, setting.size)))
    plan = ClientPlan(
        clients=count, proxies=_CANARY_PROXIES, rounds=1, classes=_CANARY_CLASSES
    )  # fmt: skip
    unit = masked_unit(setting, plan, setting.random)
    included = setting.coins(count)
    votes = setting.generator().integers(0, _CANARY_CLASSES, (count, _CANARY_PROXIES))
    total = _sum(unit, votes, included)
    scores = np.array([total[np.arange(_CANARY_PROXIES), row].sum() for row in votes])
    return scores / unit.levels(1), included, unit.plan


def _sum(unit: ClientUnit, votes: IntArray, included: FloatArray) -> FloatArray:
    """[proxies, classes] what the server sees, centred: each class's total is about the same."""
    total = np.zeros(votes.shape[1] * _CANARY_CLASSES, dtype=np.int64)
    for client, row in enumerate(votes):
        weights = np.full(len(row), included[client])
        units = _units(unit, weights, one_hot(row, _CANARY_CLASSES))
        total += unit.perturb(client, units.astype(np.uint64)).astype(np.int64)
    sums = total.reshape(-1, _CANARY_CLASSES).astype(np.float64)
    return np.asarray(sums - sums.mean(axis=1, keepdims=True))
