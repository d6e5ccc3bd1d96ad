"""Attacks on printed epsilons that see the output of a mechanism alone.

An audit builds trials of the real code with and without one unit's data, lets an attacker guess
which is which, and proves a bound on epsilon from the guesses (`attacks.audit.bounds`).
"""

import math
import os
from dataclasses import replace

import numpy as np

from attacks.audit.bounds import Finding, Proof, gaussian_shape, printed, prove, symbol_bound
from attacks.audit.setting import Setting, label_claim, masked_unit
from secure_fd.errors import LocalError
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.label import BoolArray, NoisyLabels, RandomizedResponse
from secure_fd.votes.codec import FloatArray, IntArray

# The label unit: answers with either of two truths.


_CLASSES = 10
_ANSWERS = 200_000
_PRACTICE = 0.2
_CASES = {"a class or abstain": (3, _CLASSES), "two classes": (3, 7)}
"""By name, two truths of one answer."""
_VIEWS = {"two rounds": (0, 2), "beside a known client": (0, 1)}
"""By name, columns of `_answers`."""


def answers(setting: Setting) -> Finding:
    """Audit one answer that is requested in two rounds, and beside a client whose truth is known.

    The bound is the largest of all cases and views, each with its part of `miss`.
    """
    proofs, part = [], setting.miss / (len(_CASES) * len(_VIEWS))
    trials = 2 * len(_CASES) * setting.trials(_ANSWERS)
    for name, truths in _CASES.items():
        worlds = [_answers(truth, truths[0], setting) for truth in truths]
        for view, (first, second) in _VIEWS.items():
            pairs = [world[:, first] << _CLASSES | world[:, second] for world in worlds]
            counts = _counts(*pairs)
            perfect = counts.sum(axis=1)[0] * np.eye(2, counts.shape[1], dtype=np.int64)
            bound, ceiling = (symbol_bound(a, b, part)[0] for a, b in (counts, perfect))
            proofs.append(Proof(bound, ceiling, f"{name}, {view}", trials))
    best = max(proofs, key=lambda proof: proof.bound)
    return Finding(best, label_claim(setting), 0.0, setting.miss)


def _answers(truth: int, other: int, setting: Setting) -> IntArray:
    """Return [N, 3] codes: of the client, of a client whose truth is known, of the client again."""
    count = setting.trials(_ANSWERS)
    mechanism = RandomizedResponse(setting.epsilon, _CLASSES + 1)
    audited, accomplice = (
        NoisyLabels(mechanism, count, setting.delta, setting.random) for _ in range(2)
    )
    asked = ((audited, truth), (accomplice, other), (audited, truth))
    seen = [_codes(one.named(np.arange(count), np.full(count, symbol))) for one, symbol in asked]
    return np.stack(seen, axis=1)


def _codes(named: BoolArray) -> IntArray:
    """Return [N] one integer for each set of named classes [N, C]."""
    return np.asarray(named @ (1 << np.arange(named.shape[1], dtype=np.int64)))


def _counts(*worlds: IntArray) -> IntArray:
    """Return [2, A] counts of the codes of two worlds.

    The alphabet is what appeared in practice, and one symbol for the rest: it must not follow
    from the counts of the proof.
    """
    cut = round(_PRACTICE * len(worlds[0]))
    known = np.unique(np.concatenate([world[:cut] for world in worlds]))
    counts = []
    for world in worlds:
        place = np.minimum(np.searchsorted(known, world[cut:]), len(known) - 1)
        symbol = np.where(known[place] == world[cut:], place, len(known))
        counts.append(np.bincount(symbol, minlength=len(known) + 1))
    return np.stack(counts).astype(np.int64)


# The client unit: sums of ten clients, of whom three are absent and one reveals its share.


PLAN = ClientPlan(clients=10, proxies=2, rounds=2, classes=2, absent=3, corrupt=1)
_SUMS = 40_000


def sum_of_shares(setting: Setting) -> Finding:
    """Audit one client that votes throughout or abstains throughout; the others abstain."""
    without, present = (_sums(setting, votes=votes) for votes in (False, True))
    proof = prove(without, present, gaussian_shape(setting.delta), setting.miss)
    unit = masked_unit(setting, PLAN, os.urandom)
    part = unit.client(0)
    for _ in range(PLAN.rounds):
        part.perturb(np.zeros(PLAN.proxies * PLAN.classes, dtype=np.uint64))
    return Finding(proof, printed(unit.guarantee()), setting.delta, setting.miss)


def _sums(setting: Setting, *, votes: bool) -> FloatArray:
    """Return [N, 2] statistics of N independent sums a round: noise is drawn entry by entry.

    The audited client votes for class r in round r, so that noise which two rounds share cancels
    in their difference while the votes stay. The server subtracts the share that it knows.
    """
    count = setting.trials(_SUMS)
    plan = masked_unit(setting, PLAN, setting.random).plan
    wide, rounds = stacked(plan, count), []
    for index in range(plan.rounds):
        sent = np.zeros((plan.honest, count, plan.proxies, plan.classes), dtype=np.uint64)
        sent[0, :, :, index] = plan.scale * votes
        shares = [wide.perturb(units.ravel(), setting.random) for units in sent]
        rounds.append(np.sum(shares, axis=0).reshape(count, plan.proxies, plan.classes))
    said = sum(made[:, :, index].sum(axis=1) for index, made in enumerate(rounds))
    apart = (rounds[0] - rounds[1])[:, :, 0].sum(axis=1)
    return np.stack([said, apart], axis=1).astype(np.float64)


def stacked(plan: ClientPlan, count: int) -> ClientPlan:
    """Return the plan of many independent sums side by side, in shares of the same variance.

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
