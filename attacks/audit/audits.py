"""Attacks on printed epsilons, by unit: what a mechanism gives away is all that they see.

An audit builds trials of the real code with and without one unit's data, lets an attacker guess
which is which, and proves a bound on epsilon from the guesses (`attacks.audit.bounds`).
"""

import math
import os
from dataclasses import dataclass, replace

import numpy as np
import torch

from attacks.audit.bounds import (
    Proof,
    Shape,
    Worlds,
    by_inclusion,
    gaussian_shape,
    printed,
    prove_shaped,
    sampled_shape,
    symbol_bound,
)
from attacks.audit.setting import (
    BRIGHT,
    SHARE,
    STEPS,
    Setting,
    Shown,
    gradients_of_ones,
    label_claim,
    linear_trainer,
    masked_unit,
)
from secure_fd.errors import LocalError
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.label import BoolArray, NoisyLabels, RandomizedResponse
from secure_fd.privacy.samplers import Random
from secure_fd.votes.codec import FloatArray, IntArray, KnowledgeCodec, Released, one_hot


def _shaped(
    title: str, worlds: Worlds, claimed: float, setting: Setting, shape: Shape | None = None
) -> Shown:
    """By the claimed shape of the noise, Gaussian by default; without a shape beside it."""
    delta = setting.delta
    proof, also = prove_shaped(worlds, shape or gaussian_shape(delta), delta, setting.miss)
    return Shown(title, proof, claimed, delta, also)


_TRAINED, _RUNS = 1000, 20


def canary_gradients(setting: Setting) -> Shown:
    """Records with a pixel of their own, each there by a coin, in runs of the real trainer."""
    runs = max(4, round(_RUNS * setting.size))
    scored = [_canary_run(setting) for _ in range(runs)]
    scores, included = (np.concatenate(part) for part in zip(*scored, strict=True))
    worlds = by_inclusion("likelihood", scores, included)
    nobody = torch.zeros(_TRAINED, 1, 1, 1), torch.zeros(_TRAINED)
    claimed = printed(linear_trainer(*nobody, setting, os.urandom).budget.guarantee()).epsilon
    shape = sampled_shape(1 / SHARE, STEPS, setting.delta)
    return _shaped("DP-SGD, canary gradients", worlds, claimed, setting, shape)


def _canary_run(setting: Setting) -> tuple[FloatArray, FloatArray]:
    """Scores and inclusion [m]: the likelihood ratio of every step's noisy gradient, added up."""
    included = setting.coins(_TRAINED)
    pixels = torch.from_numpy(np.diag(included) * BRIGHT).float().reshape(-1, 1, 1, _TRAINED)
    trainer = linear_trainer(pixels, torch.ones(_TRAINED), setting, setting.random)
    q, seen = 1 / SHARE, gradients_of_ones(trainer)
    likelihoods = np.log1p(q * np.expm1((2 * seen - 1) / (2 * trainer.budget.noise**2)))
    return likelihoods.sum(axis=0), included


_CLASSES = 10
_ANSWERS = 200_000
_PRACTICE = 0.2


_CASES = {"a class or abstain": (3, _CLASSES), "two classes": (3, 7)}
"""By name, two truths of one answer."""
_VIEWS = {"two rounds": (0, 1), "beside a known client": (0, 2)}


def answers(setting: Setting) -> Shown:
    """One answer with either of two truths, asked for in two rounds, and beside a known client.

    The bound is the largest of all cases and views, each with its part of `miss`.
    """
    bounds, part = [], setting.miss / (len(_CASES) * len(_VIEWS))
    for name, truths in _CASES.items():
        worlds = [_answers(truth, truths[0], setting) for truth in truths]
        for view, columns in _VIEWS.items():
            codes = [_joined(world[:, list(columns)]) for world in worlds]
            bounds.append((*_symbols(codes, part), f"{name}, {view}"))
    trials = 2 * len(_CASES) * setting.trials(_ANSWERS)
    return Shown("answers", Proof(*max(bounds), trials), label_claim(setting), 0.0)


def _answers(truth: int, other: int, setting: Setting) -> IntArray:
    """[N, 3] codes: the client's answers in two rounds, and those of one whose truth is known."""
    count = setting.trials(_ANSWERS)
    indices = np.arange(count)
    own, known = (np.full(count, symbol) for symbol in (truth, other))
    mechanism = RandomizedResponse(setting.epsilon, _CLASSES + 1)
    audited, accomplice = (
        NoisyLabels(mechanism, count, setting.delta, setting.random) for _ in range(2)
    )
    seen = [
        asked.named(indices, symbols)
        for asked, symbols in ((audited, own), (accomplice, known), (audited, own))
    ]
    return np.stack([_codes(seen[i]) for i in (0, 2, 1)], axis=1)


def _codes(named: BoolArray) -> IntArray:
    """[N] one integer for each set of named classes [N, C]."""
    return np.asarray(named @ (1 << np.arange(named.shape[1], dtype=np.int64)))


def _joined(codes: IntArray) -> IntArray:
    """[N] one integer a row [N, 2]."""
    return np.asarray(codes[:, 0] << _CLASSES | codes[:, 1])


def _symbols(worlds: list[IntArray], miss: float) -> tuple[float, float]:
    """The bound of two worlds' codes, and the one had they shared none.

    The alphabet is what appeared in practice, and one symbol for the rest: it must not follow
    from the counts of the proof.
    """
    cut = round(_PRACTICE * len(worlds[0]))
    known = np.unique(np.concatenate([world[:cut] for world in worlds]))
    first, second = (_counted(world[cut:], known) for world in worlds)
    apart, beside = (len(worlds[0]) - cut) * np.eye(2, len(known) + 1, dtype=np.int64)
    return symbol_bound(first, second, miss)[0], symbol_bound(apart, beside, miss)[0]


def _counted(codes: IntArray, known: IntArray) -> IntArray:
    place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    symbol = np.where(known[place] == codes, place, len(known))
    return np.bincount(symbol, minlength=len(known) + 1).astype(np.int64)


_ROUNDS, _FLEET_PROXIES, _FLEET_CLASSES = 2, 2, 2
_SUMS = 40_000


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
            proxies=_FLEET_PROXIES,
            rounds=_ROUNDS,
            classes=_FLEET_CLASSES,
            absent=self.absent,
            corrupt=self.corrupt,
        )


def sum_of_shares(setting: Setting) -> Shown:
    """One client votes throughout or abstains throughout; the colluder's share is subtracted."""
    fleet = Fleet()
    worlds = Worlds(
        ("votes", "difference of two rounds"),
        _sums(fleet, setting, votes=False),
        _sums(fleet, setting, votes=True),
    )
    return _shaped("sum of shares", worlds, _client_claim(fleet.plan(), setting), setting)


def _client_claim(plan: ClientPlan, setting: Setting) -> float:
    """What a client unit prints after all rounds, with noise of the operating system."""
    unit = masked_unit(setting, plan, os.urandom)
    part = unit.client(0)
    for _ in range(plan.rounds):
        part.perturb(np.zeros(plan.proxies * plan.classes, dtype=np.uint64))
    return printed(unit.guarantee()).epsilon


def _sums(fleet: Fleet, setting: Setting, *, votes: bool) -> FloatArray:
    """[N, 2] statistics of N independent sums a round: noise is drawn entry by entry.

    The audited client votes for class r in round r, so that noise which two rounds share would
    cancel in their difference while the votes stay.
    """
    count = setting.trials(_SUMS)
    unit = masked_unit(setting, fleet.plan(), setting.random)
    rounds = []
    for index in range(_ROUNDS):
        named = one_hot(np.full(_FLEET_PROXIES, index % _FLEET_CLASSES), _FLEET_CLASSES)
        spoken = _units(unit, np.full(_FLEET_PROXIES, float(votes)), named)
        wide = _stacked(unit.plan, count)
        total = _colluders_sum(wide, fleet, np.tile(spoken, count), setting.random)
        rounds.append(total.reshape(count, _FLEET_PROXIES, _FLEET_CLASSES))
    said = sum(made[:, :, r % _FLEET_CLASSES].sum(axis=1) for r, made in enumerate(rounds))
    apart = (rounds[0] - rounds[1])[:, :, 0].sum(axis=1)
    return np.stack([said, apart], axis=1).astype(np.float64)


def _units(unit: ClientUnit, weights: FloatArray, named: FloatArray) -> IntArray:
    codec = KnowledgeCodec(named.shape[1], unit.levels(1))
    return codec.encode(Released(weights, named)).astype(np.int64)


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


def _colluders_sum(plan: ClientPlan, fleet: Fleet, spoken: IntArray, random: Random) -> IntArray:
    """A round's sum of the clients that are there, less the colluders' own inputs.

    Client 0 is audited; the last `corrupt` of those present collude; all others abstain.
    """
    total = np.zeros(len(spoken), dtype=np.int64)
    for client in range(fleet.present):
        units = spoken if client == 0 else np.zeros_like(spoken)
        share = plan.perturb(units.astype(np.uint64), random)
        total += share
        if client >= fleet.present - fleet.corrupt:
            total -= share
    return total
