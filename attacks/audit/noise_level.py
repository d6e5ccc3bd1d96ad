"""Audits of the noise level: the deviation that the code really draws, where the data is known.

An attack from outside needs half of the noise to be gone before it sees that anything is. Whoever
holds the code can do better: give it records whose contribution is known, subtract that, and look
at what is left. N Gaussian values of deviation s have a sum of squares of s^2 chi^2_N, so s is at
most sqrt(sum of squares / the chi-square's quantile of `miss`), but for that probability. What the
claim's own accountant charges for so much noise is the bound: above the claim, the claim is
refuted. Unlike an attack's bound it is as tight as that accountant is, and no tighter.

Noise of the right size may still be the same noise twice. So the deviation is bounded in the
weakest direction too: the least singular value of an R x d matrix of standard normal entries is at
least sqrt R - sqrt d - t but for exp(-t^2 / 2) (Davidson and Szarek, "Local operator theory, random
matrices and Banach spaces", 2001, theorem II.13).
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binom, chi2, norm

from attacks.audit.bounds import LARGEST, Finding, Proof, clopper_pearson, printed
from attacks.audit.setting import (
    BRIGHT,
    STEPS,
    Setting,
    gradient_sums,
    label_claim,
    linear_trainer,
    masked_unit,
    pooled_unit,
    sums_along_ones,
)
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.calibration import Plan, epsilon, least_noise
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.dp_sgd import TrainingPlan
from secure_fd.privacy.events import Gaussian, Repeated, SampledGaussian
from secure_fd.privacy.label import NoisyLabels, RandomizedResponse
from secure_fd.privacy.record import UNITS
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.votes.codec import FloatArray

UNSEEN = 1e-3
"""Probability that a loss which an audit states to find is not found."""
_STRIDE = 0.0025
_NOTHING = 1e-3
"""Share of the claimed noise that costs more than any bound, whatever the accountant."""


def most_deviation(noise: FloatArray, miss: float) -> float:
    """Return an upper bound on the deviation of Gaussian noise around 0.

    >>> 1.0 < most_deviation(np.random.default_rng(0).normal(size=10_000), 1e-3) < 1.03
    True
    """
    return math.sqrt(float((noise**2).sum()) / float(chi2.ppf(miss, noise.size)))


def share_found(count: int, miss: float) -> float:
    """Return the most noise, over the claimed, whose bound is below the claim but for `UNSEEN`.

    >>> round(share_found(100_000, 1e-5), 3)
    0.984
    """
    return math.sqrt(float(chi2.ppf(miss, count) / chi2.isf(UNSEEN, count)))


def most_in_one_direction(rows: FloatArray, miss: float) -> float:
    """Return an upper bound on the deviation in the weakest direction.

    rows: [R, d] independent; infinite where they are too few to say anything.
    """
    count, columns = rows.shape
    surely = math.sqrt(count) - math.sqrt(columns) - math.sqrt(-2 * math.log(miss))
    if surely <= 0:
        return math.inf
    return float(np.linalg.svd(rows, compute_uv=False)[-1]) / surely


@dataclass(frozen=True, slots=True)
class Claim:
    """A printed epsilon, its noise over the sensitivity, and the price of any other noise."""

    epsilon: float
    delta: float
    noise: float
    price: Callable[[float], float]

    @classmethod
    def of(cls, claimed: float, delta: float, plan: Plan) -> "Claim":
        """Return the claim of a plan with its noise."""
        return cls(claimed, delta, plan.noise, lambda noise: epsilon(plan.with_noise(noise), delta))

    def charged(self, noise: float) -> float:
        """Return epsilon of so much noise, at most the largest bound."""
        return min(LARGEST, self.price(noise))

    def found(self, share: float) -> float:
        """Return the most noise, over the claimed, whose bound is charged more than the claim.

        A claim may be a little above the price of its own noise, if its accountant is coarse.

        Args:
            share: of the claimed noise, whose bound is the claimed noise.
        """
        least = share
        while least > 0 and self.charged(self.noise * least / share) <= self.epsilon:
            least -= _STRIDE
        return max(0.0, least)

    def finding(self, proof: Proof, found: float, setting: Setting) -> Finding:
        """Return the outcome; `found` is rounded down, for a little less noise is found as well."""
        finds = f"noise x{math.floor(1000 * found) / 1000:.3f}"
        return Finding(proof, self.epsilon, self.delta, setting.miss, finds)


def _judge(
    noise: FloatArray, claim: Claim, setting: Setting, beside: tuple[FloatArray, ...] = ()
) -> Finding:
    """Bound the deviation of all noise, and of its weakest direction, and price the smaller one.

    Args:
        noise: [N, d] over the sensitivity: one row a draw.
        claim: of the noise.
        setting: terms of the audit.
        beside: further matrices [R, d] of independent rows with independent columns.
    """
    few = noise[: len(noise) // 2 * 2, :_FEW]
    apart = (noise, few.reshape(len(few) // 2, -1), *beside)  # a draw shares with the next one
    part = setting.miss / (1 + len(apart))
    level = most_deviation(noise, part)
    weakest = min(most_in_one_direction(matrix, part) for matrix in apart)
    least = min(level, weakest)
    proof = Proof(
        bound=claim.charged(least) if least > _NOTHING * claim.noise else LARGEST,
        ceiling=LARGEST,
        attack=f"deviation of at most {level / claim.noise:.3f} of the claimed, "
        f"{weakest / claim.noise:.3f} in the weakest direction",
        trials=noise.size,
    )
    return claim.finding(proof, claim.found(share_found(noise.size, part)), setting)


_FEW = 20


# The units that hide in a sum: the honest clients' shares, as few as the plan counts on.


_POOLED_ENTRIES, _POOLED_UNITS, _CLASSES = 100, 400, 2
_CLIENT_UNITS = 1000
_FLEET = ClientPlan(clients=10, proxies=20, rounds=2, classes=4, absent=3, corrupt=1)
_SHARES_SEEN = 5


def pooled_noise(setting: Setting) -> Finding:
    """Audit pooled sums of records that no head is wrong about: clients send their noise alone."""
    shape = _POOLED_ENTRIES, _CLASSES
    nothing = [(np.eye(_POOLED_ENTRIES), np.zeros(shape))]
    unit = pooled_unit(setting, *shape, os.urandom)
    unit.client(0).release_sums(nothing, shape)
    plan, shares = unit.plan, []
    claim = Claim.of(printed(unit.guarantee()), setting.delta, plan)
    for _ in range(setting.trials(_POOLED_UNITS)):
        drawn = pooled_unit(setting, *shape, setting.random)
        parts = [drawn.client(k) for k in range(plan.honest)]
        shares += [[p.release_sums(nothing, shape) for p in parts] for _ in range(plan.sums)]
    return _judge_shares(np.array(shares) / UNITS, claim, setting)


def client_noise(setting: Setting) -> Finding:
    """Audit rounds in which all clients abstain."""
    votes = np.zeros(_FLEET.proxies * _FLEET.classes, dtype=np.uint64)
    unit = masked_unit(setting, _FLEET, os.urandom)
    unit.client(0).perturb(votes)
    plan, shares = unit.plan, []
    claim = Claim.of(printed(unit.guarantee()), setting.delta, plan)
    for _ in range(setting.trials(_CLIENT_UNITS)):
        drawn = masked_unit(setting, _FLEET, setting.random)
        parts = [drawn.client(k) for k in range(plan.honest)]
        shares += [[p.perturb(votes) for p in parts] for _ in range(plan.rounds)]
    return _judge_shares(np.array(shares) / plan.l2, claim, setting)


def _judge_shares(shares: FloatArray, claim: Claim, setting: Setting) -> Finding:
    """Judge sums of shares [N, honest, d], and a few entries of each share beside the others'.

    Two clients with one noise add more of it to the sum, and one of them can subtract both.
    """
    scaled = shares[:, :, :_SHARES_SEEN] * math.sqrt(shares.shape[1])
    return _judge(shares.sum(axis=1), claim, setting, (scaled.reshape(len(shares), -1),))


# DP-SGD: records without a gradient, and records that are all alike.


_PIXELS, _RECORDS, _CROWD = 50, 10, 4000
_RUNS = 100


def training_noise(setting: Setting) -> Finding:
    """Audit steps on black images, which move no weight: all that moves is noise."""
    pixels, labels = torch.zeros(_RECORDS, 1, 1, _PIXELS), torch.zeros(_RECORDS)
    trainer, sums = _train(pixels, labels, setting)
    plan = _plan_of(trainer)
    claim = Claim.of(printed(trainer.budget.guarantee()), setting.delta, plan)
    return _judge(sums.reshape(len(sums), -1), claim, setting)


def training_batches(setting: Setting) -> Finding:
    """Audit steps on records that are all alike: each sum of clipped gradients is the batch's size.

    A Poisson sample of n records at rate q has a mean of n q and a variance of n q (1 - q). If it
    varies by less, records are not drawn apart from each other, and what sampling saves is not
    granted; if the mean is higher, more of them are drawn, or clipped too late.
    """
    pixels, labels = torch.full((_CROWD, 1, 1, 1), BRIGHT), torch.ones(_CROWD)
    trainer, sums = _train(pixels, labels, setting)
    plan, sizes = _plan_of(trainer), sums_along_ones(sums)[:, 0]
    rate, noise, count, part = plan.sample_rate, plan.noise, len(sizes), setting.miss / 2
    expected = plan.n_records * rate * (1 - rate)
    variance = expected + noise**2

    def price(q: float) -> float:
        event = Repeated(Gaussian(noise) if q == 1 else SampledGaussian(noise, q), plan.steps)
        return min(LARGEST, accountant_for(event).epsilon(event, setting.delta))

    most = float(((sizes - sizes.mean()) ** 2).sum() / chi2.ppf(part, count - 1))
    drawn = sizes.mean() - float(norm.isf(part)) * math.sqrt(variance / count)
    seen = float(chi2.ppf(part, count - 1) / chi2.isf(UNSEEN, count - 1)) * variance - noise**2
    share = math.sqrt(max(0.0, seen / expected))
    least_rate = float(np.clip(drawn / plan.n_records, 1e-9, 1.0))
    proof = Proof(
        bound=price(1.0) if most < variance else price(least_rate),
        ceiling=price(1.0) if share > 0 else 0.0,
        attack=f"a rate of at least {least_rate:.4f}, sizes with at most "
        f"{math.sqrt(most / variance):.3f} of the deviation of Poisson samples",
        trials=count,
    )
    claimed = printed(trainer.budget.guarantee())
    finds = f"sizes x{math.floor(1000 * share) / 1000:.3f}"
    return Finding(proof, claimed, setting.delta, setting.miss, finds)


def _train(
    pixels: torch.Tensor, labels: torch.Tensor, setting: Setting
) -> tuple[PrivateTrainer, FloatArray]:
    """Return a trainer with noise of the operating system, and [N, 2, pixels] sums of all runs."""
    runs = range(setting.trials(_RUNS))
    sums = [gradient_sums(linear_trainer(pixels, labels, setting, setting.random)) for _ in runs]
    return linear_trainer(pixels, labels, setting, os.urandom), np.concatenate(sums)


def _plan_of(trainer: PrivateTrainer) -> TrainingPlan:
    budget = trainer.budget
    n_records = round(budget.expected_batch / budget.rate)
    return TrainingPlan(n_records, budget.settings.batch, STEPS, noise=budget.noise)


# The label unit: answers that are not the truth, counted.


_SYMBOLS, _ANSWERS = 11, 400_000
_BLIND = 1 - 1 / _SYMBOLS
"""Probability that a symbol drawn at random is not the truth."""


def _odds(wrong: float) -> float:
    """Return epsilon of one answer that is not the truth with this probability."""
    return math.inf if wrong == 0 else max(0.0, math.log((_SYMBOLS - 1) * (1 - wrong) / wrong))


def answer_noise(setting: Setting) -> Finding:
    """Audit answers of one known truth: the share of wrong ones is bounded (Clopper, Pearson)."""
    mechanism, count = RandomizedResponse(setting.epsilon, _SYMBOLS), setting.trials(_ANSWERS)
    answers = NoisyLabels(mechanism, count, setting.delta, setting.random)
    named = answers.named(np.arange(count), np.full(count, 3))
    wrong = int(np.count_nonzero(~named[:, 3] | (named.sum(axis=1) != 1)))
    noise = least_noise(_odds, setting.epsilon, _BLIND / 2, slack=1e-9, most=_BLIND)
    claim = Claim(label_claim(setting), 0.0, noise, _odds)
    most, none = (
        float(each) for each in clopper_pearson(np.array([wrong, 0]), count, setting.miss)[1]
    )
    proof = Proof(
        bound=claim.charged(min(most, _BLIND)),
        ceiling=claim.charged(min(none, _BLIND)),
        attack=f"at most {most / noise:.3f} of the claimed answers are not the truth",
        trials=count,
    )
    return claim.finding(proof, claim.found(_answers_found(count, noise, setting.miss)), setting)


def _answers_found(count: int, wrong: float, miss: float) -> float:
    """Return the largest share of the wrong answers whose bound is below all but for `UNSEEN`."""
    shares = np.arange(1.0, 0.0, -_STRIDE)
    seen = np.minimum(binom.isf(UNSEEN, count, shares * wrong), count).astype(np.int64)
    below = clopper_pearson(seen, count, miss)[1] < wrong
    return float(shares[below.argmax()]) if below.any() else 0.0
