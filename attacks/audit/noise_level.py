"""How much noise there is, drawn by the code that ships while what it hides is known.

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
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.stats import binom, chi2, norm

from attacks.audit.bounds import LARGEST, Proof, clopper_pearson, printed
from attacks.audit.setting import (
    BRIGHT,
    STEPS,
    Setting,
    Shown,
    gradients_of_ones,
    label_claim,
    linear_trainer,
    masked_unit,
    moves,
    pooled_unit,
    training_plan,
)
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.calibration import Plan, epsilon, least_noise
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.dp_sgd import TrainingPlan
from secure_fd.privacy.events import Gaussian, Repeated, SampledGaussian
from secure_fd.privacy.label import NoisyLabels, RandomizedResponse
from secure_fd.privacy.record import UNITS
from secure_fd.votes.codec import FloatArray

UNSEEN = 1e-3
"""The chance that a loss which an audit says it finds is not found."""
_STRIDE = 0.0025
_NOTHING = 1e-3
"""Of the claimed noise: so little costs more than any bound says, and no accountant knows less."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Noise over the sensitivity. level: of what the audited party sees, of any shape.

    apart: matrices [R, d] of independent rows, whose columns must be independent as well.
    """

    level: FloatArray = field(repr=False)
    apart: tuple[FloatArray, ...] = field(repr=False)

    def deviations(self, miss: float) -> tuple[float, float]:
        """The most that the deviation is, of all and in the weakest direction.

        Both hold together but for probability `miss`.
        """
        part = miss / (1 + len(self.apart))
        weakest = min(most_in_one_direction(matrix, part) for matrix in self.apart)
        return most_deviation(self.level, part), weakest

    def finds(self, miss: float) -> tuple[float, float]:
        """Shares of the claimed deviation, of all and in one direction, that come out below it."""
        part = miss / (1 + len(self.apart))
        return share_found(self.level.size, part), min(
            direction_found(matrix.shape, part) for matrix in self.apart
        )


def most_deviation(noise: FloatArray, miss: float) -> float:
    """The deviation of Gaussian noise around 0 is at most this, but for probability `miss`.

    >>> 1.0 < most_deviation(np.random.default_rng(0).normal(size=10_000), 1e-3) < 1.03
    True
    """
    return math.sqrt(float((noise**2).sum()) / float(chi2.ppf(miss, noise.size)))


def share_found(count: int, miss: float) -> float:
    """The most noise, over the claimed, whose bound is below the claim but for `UNSEEN`.

    >>> round(share_found(100_000, 1e-5), 3)
    0.984
    """
    return math.sqrt(float(chi2.ppf(miss, count) / chi2.isf(UNSEEN, count)))


def most_in_one_direction(rows: FloatArray, miss: float) -> float:
    """In the weakest direction the deviation is at most this, but for probability `miss`.

    rows: [R, d] independent; infinite where they are too few to say anything.
    """
    surely = _least_singular(rows.shape, miss)
    if surely <= 0:
        return math.inf
    return float(np.linalg.svd(rows, compute_uv=False)[-1]) / surely


def direction_found(shape: tuple[int, ...], miss: float) -> float:
    """The most noise in one direction, over the claimed, that is found but for `UNSEEN`."""
    return max(0.0, _least_singular(shape, miss)) / math.sqrt(float(chi2.isf(UNSEEN, shape[0])))


def _least_singular(shape: tuple[int, ...], miss: float) -> float:
    rows, columns = shape
    return math.sqrt(rows) - math.sqrt(columns) - math.sqrt(-2 * math.log(miss))


@dataclass(frozen=True, slots=True)
class Claim:
    """What is promised. noise: over the sensitivity. price: what the accountant charges for any."""

    epsilon: float
    delta: float
    noise: float
    price: Callable[[float], float]

    @classmethod
    def of(cls, claimed: float, delta: float, plan: Plan) -> "Claim":
        """Of a plan, whose noise is the claimed one."""
        return cls(claimed, delta, plan.noise, lambda noise: epsilon(plan.with_noise(noise), delta))

    def charged(self, noise: float) -> float:
        """Epsilon of so much noise; no more than any bound can be."""
        return min(LARGEST, self.price(noise))

    def found(self, share: float) -> float:
        """The most noise, over the claimed, that is charged more than the claim once it is bounded.

        share: that whose bound is the claimed noise. A claim may be a little above the price of its
        own noise, where the accountant took its time.
        """
        least = share
        while least > 0 and self.charged(self.noise * least / share) <= self.epsilon:
            least -= _STRIDE
        return max(0.0, least)


def _judged(title: str, drawn: Drawn, claim: Claim, setting: Setting) -> Shown:
    level, weakest = drawn.deviations(setting.miss)
    shares = drawn.finds(setting.miss)
    found, one_way = claim.found(shares[0]), shares[1]
    least = min(level, weakest)
    proof = Proof(
        bound=claim.charged(least) if least > _NOTHING * claim.noise else LARGEST,
        ceiling=LARGEST,
        attack=f"deviation of at most {level / claim.noise:.3f} of the claimed, "
        f"{weakest / claim.noise:.3f} in the weakest direction",
        trials=drawn.level.size,
    )
    also = (
        ("most deviation, of the claimed", level / claim.noise),
        ("most deviation in the weakest direction, of the claimed", weakest / claim.noise),
        ("noise found", found),
        ("noise in one direction found", one_way),
    )
    return Shown(title, proof, claim.epsilon, claim.delta, also, _said(found))


def _said(share: float) -> str:
    """Rounded down: a little less noise is found all the more."""
    return f"noise x{math.floor(1000 * share) / 1000:.3f}"


_FEW = 20


def _apart(noise: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Draws [N, d] as rows; and two by two [N / 2, 40]: what one shares with the next shows."""
    few = noise[: len(noise) // 2 * 2, :_FEW]
    return noise, few.reshape(len(few) // 2, -1)


# The units that hide in a sum: the honest clients' shares, as few as the plan counts on.


_POOLED_ENTRIES, _POOLED_UNITS, _CLASSES = 100, 400, 2
_CLIENT_UNITS = 1000


def pooled_noise(setting: Setting) -> Shown:
    """Pooled sums of records that no head is wrong about: what clients send is their noise."""
    shape = _POOLED_ENTRIES, _CLASSES
    nothing = [(np.eye(_POOLED_ENTRIES), np.zeros(shape))]
    unit = pooled_unit(setting, *shape, os.urandom)
    unit.client(0).release_sums(nothing, shape)
    plan, claimed, shares = unit.plan, printed(unit.guarantee()).epsilon, []
    for _ in range(setting.trials(_POOLED_UNITS)):
        drawn = pooled_unit(setting, *shape, setting.random)
        parts = [drawn.client(k) for k in range(plan.honest)]
        shares += [[p.release_sums(nothing, shape) for p in parts] for _ in range(plan.sums)]
    noise = _summed(np.array(shares) / UNITS)
    return _judged("pooled sums", noise, Claim.of(claimed, setting.delta, plan), setting)


def client_noise(setting: Setting) -> Shown:
    """Rounds in which all clients abstain."""
    unit = masked_unit(setting, _FLEET, os.urandom)
    plan, votes = unit.plan, np.zeros(_FLEET.proxies * _FLEET.classes, dtype=np.uint64)
    unit.client(0).perturb(votes)
    claimed, shares = printed(unit.guarantee()).epsilon, []
    for _ in range(setting.trials(_CLIENT_UNITS)):
        drawn = masked_unit(setting, _FLEET, setting.random)
        parts = [drawn.client(k) for k in range(plan.honest)]
        shares += [[p.perturb(votes) for p in parts] for _ in range(plan.rounds)]
    noise = _summed(np.array(shares) / plan.l2)
    return _judged("sums of rounds", noise, Claim.of(claimed, setting.delta, plan), setting)


_FLEET = ClientPlan(clients=10, proxies=20, rounds=2, classes=4, absent=3, corrupt=1)
_SHARES_SEEN = 5


def _summed(shares: FloatArray) -> Drawn:
    """Of shares [N, honest, d]: their sums, and a few entries of each share beside the others'.

    Two clients with one noise add more of it to the sum, and one of them can subtract both.
    """
    total = shares.sum(axis=1)
    beside = shares[:, :, :_SHARES_SEEN].reshape(len(shares), -1) * math.sqrt(shares.shape[1])
    return Drawn(total, (*_apart(total), beside))


# DP-SGD: records without a gradient, and records that are all alike.


_PIXELS, _RECORDS = 50, 10
_RUNS = 100


def training_noise(setting: Setting) -> Shown:
    """Steps on black images, which move no weight: all that moves is noise."""
    pixels, labels = torch.zeros(_RECORDS, 1, 1, _PIXELS), torch.zeros(_RECORDS)
    trainer = linear_trainer(pixels, labels, setting, os.urandom)
    claimed = printed(trainer.budget.guarantee()).epsilon
    moved = [
        moves(linear_trainer(pixels, labels, setting, setting.random))
        for _ in range(setting.trials(_RUNS))
    ]
    noise = np.concatenate(moved).reshape(len(moved) * STEPS, -1)
    claim = Claim.of(claimed, setting.delta, training_plan(_RECORDS, setting))
    return _judged("noise of steps", Drawn(noise, _apart(noise)), claim, setting)


_CROWD = 4000


def training_batches(setting: Setting) -> Shown:
    """Steps on records that are all alike: each sum of clipped gradients is the batch's size.

    Of a Poisson sample of n records at rate q it has a mean of n q and a variance of n q (1 - q).
    Where it varies by less, records are not drawn apart from each other, and what sampling saves is
    not granted; where the mean is higher, more of them are drawn.
    """
    pixels, labels = torch.full((_CROWD, 1, 1, 1), BRIGHT), torch.ones(_CROWD)
    trainer = linear_trainer(pixels, labels, setting, os.urandom)
    claimed = printed(trainer.budget.guarantee()).epsilon
    runs = range(setting.trials(_RUNS))
    sizes = np.concatenate([
        gradients_of_ones(linear_trainer(pixels, labels, setting, setting.random))[:, 0]
        for _ in runs
    ])  # fmt: skip
    return _batches_judged(sizes, training_plan(_CROWD, setting), claimed, setting)


def _batches_judged(
    sizes: FloatArray, plan: TrainingPlan, claimed: float, setting: Setting
) -> Shown:
    rate, noise, count, part = plan.sample_rate, plan.noise, len(sizes), setting.miss / 2
    expected = plan.n_records * rate * (1 - rate)
    variance = expected + noise**2

    def price(q: float) -> float:
        step = Gaussian(noise) if q == 1 else SampledGaussian(noise, q)
        event = Repeated(step, plan.steps)
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
    said = f"sizes x{math.floor(1000 * share) / 1000:.3f}"
    return Shown("batches", proof, claimed, setting.delta, (("sizes found", share),), said)


# The label unit: answers that are not the truth, counted.


_SYMBOLS, _ANSWERS = 11, 400_000
_BLIND = 1 - 1 / _SYMBOLS
"""How often a symbol drawn at random is not the truth."""


def _odds(wrong: float) -> float:
    """Epsilon of one answer that is not the truth with this probability."""
    return math.inf if wrong == 0 else max(0.0, math.log((_SYMBOLS - 1) * (1 - wrong) / wrong))


def answer_noise(setting: Setting) -> Shown:
    """Answers of one known truth: the share of wrong ones is at most so much (Clopper, Pearson)."""
    mechanism, count = RandomizedResponse(setting.epsilon, _SYMBOLS), setting.trials(_ANSWERS)
    answers = NoisyLabels(mechanism, count, setting.delta, setting.random)
    indices, truth = np.arange(count), np.full(count, 3)
    named = answers.named(indices, truth)
    wrong = int(np.count_nonzero(~named[:, 3] | (named.sum(axis=1) != 1)))
    noise = least_noise(_odds, setting.epsilon, _BLIND / 2, slack=1e-9, most=_BLIND)
    claim = Claim(label_claim(setting), 0.0, noise, _odds)
    most, none = (clopper_pearson(seen, count, setting.miss)[1] for seen in (wrong, 0))
    found = claim.found(_answers_found(count, noise, setting.miss))
    proof = Proof(
        bound=claim.charged(min(most, _BLIND)),
        ceiling=claim.charged(min(none, _BLIND)),
        attack=f"at most {most / noise:.3f} of the claimed answers are not the truth",
        trials=count,
    )
    also = (("noise found", found),)
    return Shown("answers not the truth", proof, claim.epsilon, 0.0, also, _said(found))


def _answers_found(count: int, wrong: float, miss: float) -> float:
    """The largest share of the wrong answers whose bound is below all of them but for `UNSEEN`."""
    for share in np.arange(1.0, 0.0, -_STRIDE):
        seen = int(binom.isf(UNSEEN, count, share * wrong))
        if clopper_pearson(min(seen, count), count, miss)[1] < wrong:
            return float(share)
    return 0.0
