"""Mistakes that privacy software really makes: the real code with one thing replaced.

Each twin still prints the claim of the right code. An audit that does not refute it has no
power against that mistake.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from attacks.audit.setting import replaced
from secure_fd import private_training
from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy import release, response
from secure_fd.privacy.plans import RecordPlan
from secure_fd.privacy.release import Features, NoisyClassMeans
from secure_fd.privacy.response import Alphabet, BoolArray, RandomizedResponse
from secure_fd.privacy.samplers import FloatGaussian, Random, discrete_gaussian, words
from secure_fd.protection import record as record_unit
from secure_fd.protection.label import LabelLedger

Twin = Callable[[], AbstractContextManager[None]]
Sampler = Callable[[float, int, Random], IntArray]


def _scaled(sampler: Sampler, factor: float) -> Sampler:
    """The same noise with its first argument, deviation or variance, times a factor."""

    def sample(spread: float, size: int, random: Random) -> IntArray:
        return sampler(factor * spread, size, random)

    return sample


def half_release_noise() -> AbstractContextManager[None]:
    """Half the deviation in the record release, and in every client's share."""
    return _shares(0.5)


def _shares(factor: float) -> AbstractContextManager[None]:
    """Releases and shares at `factor` times their deviation."""
    return replaced(release, "discrete_gaussian", _scaled(discrete_gaussian, factor))


def _nothing(_spread: float, size: int, _random: Random) -> IntArray:
    return np.zeros(size, dtype=np.int64)


def no_release_noise() -> AbstractContextManager[None]:
    """The record release and shares without noise."""
    return replaced(release, "discrete_gaussian", _nothing)


def no_label_noise() -> AbstractContextManager[None]:
    """Answers that tell the truth but for one word in 2^64 or so."""
    return replaced(response, "_wrong_weight", lambda *_: 1)


def half_label_noise() -> AbstractContextManager[None]:
    """Half the chance of each answer that is not the truth."""
    weigh = response._wrong_weight

    def half(epsilon: float, others: int) -> int:
        return max(1, weigh(epsilon, others) // 2)

    return replaced(response, "_wrong_weight", half)


class _HalfNormal(FloatGaussian):
    def normal(self, count: int) -> FloatArray:
        return super().normal(count) / 2


def half_training_noise() -> AbstractContextManager[None]:
    """Half the deviation on every gradient."""
    return replaced(private_training, "FloatGaussian", _HalfNormal)


class _NoNormal(FloatGaussian):
    def normal(self, count: int) -> FloatArray:
        return np.zeros(count)


def no_training_noise() -> AbstractContextManager[None]:
    """Gradients without noise."""
    return replaced(private_training, "FloatGaussian", _NoNormal)


def abstention_unprotected() -> AbstractContextManager[None]:
    """Classes are answered at random, an abstention always as it is."""
    respond = RandomizedResponse.respond_within

    def leaky(
        self: RandomizedResponse, symbols: IntArray, alphabet: Alphabet, random: Random
    ) -> BoolArray:
        named: BoolArray = respond(self, symbols, alphabet, random)
        named[symbols == alphabet.abstain] = False
        return named

    return replaced(RandomizedResponse, "respond_within", leaky)


def fresh_noise_every_round() -> AbstractContextManager[None]:
    """The ledger counts a pair as released and forgets what it answered."""
    answer = LabelLedger.release

    def forgetful(
        self: LabelLedger, indices: IntArray, symbols: IntArray, random: Random
    ) -> BoolArray:
        self._released[indices] = False
        return answer(self, indices, symbols, random)

    return replaced(LabelLedger, "release", forgetful)


def replace_one_as_add_one() -> AbstractContextManager[None]:
    """What replacing a record costs is taken to be what adding one costs."""
    return replaced(RecordPlan, "replaced", RecordPlan.event)


def noise_per_client() -> AbstractContextManager[None]:
    """Each of n clients adds deviation sigma / n instead of sigma / sqrt n."""
    share = release.ClientShares.draw

    def short(self: release.ClientShares, size: int) -> IntArray:
        with _shares(1 / math.sqrt(self.plan.honest)):
            return share(self, size)

    return replaced(release.ClientShares, "draw", short)


def dropouts_ignored() -> AbstractContextManager[None]:
    """Shares are sized as if all clients were there and honest."""
    share = release.ClientShares.draw

    def short(self: release.ClientShares, size: int) -> IntArray:
        with _shares(math.sqrt(self.plan.honest / self.plan.clients)):
            return share(self, size)

    return replaced(release.ClientShares, "draw", short)


def noise_after_argmax() -> AbstractContextManager[None]:
    """Labels are read off the exact means; the noisy ones only carry the claim."""
    publish = release.release_class_means

    def exact(
        features: Features,
        labels: IntArray,
        n_classes: int,
        *,
        epsilon: float,
        delta: float,
        random: Random,
        declared_classes: tuple[int, ...] | None = None,
    ) -> NoisyClassMeans:
        noisy, sharp = (
            publish(
                features,
                labels,
                n_classes,
                epsilon=e,
                delta=delta,
                random=random,
                declared_classes=declared_classes,
            )
            for e in (epsilon, math.inf)
        )
        return replace(noisy, means=sharp.means)

    return replaced(record_unit, "release_class_means", exact)


def true_contributors_divide() -> AbstractContextManager[None]:
    """The divisor is the number of records that are not zero, instead of the public one."""
    publish = release.release_class_means

    def divided(features: Features, labels: IntArray, n_classes: int, **terms: object) -> object:
        made = publish(features, labels, n_classes, **terms)  # type: ignore[arg-type]
        true = max(1, int(features.any(axis=1).sum()))
        return replace(made, means=made.means * len(features) / true)

    return replaced(release, "release_class_means", divided)


def _repeating(sampler: Sampler, period: int) -> Sampler:
    """The same samples again: a call gives what the call `period` before it gave, one time."""
    calls: list[IntArray] = []

    def sample(spread: float, size: int, random: Random) -> IntArray:
        if len(calls) == 2 * period:
            calls.clear()
        fresh = len(calls) < period
        calls.append(sampler(spread, size, random) if fresh else calls[len(calls) - period])
        return calls[-1]

    return sample


def seed_shared_between_clients() -> AbstractContextManager[None]:
    """Two clients' releases carry the same noise."""
    sampler = _repeating(discrete_gaussian, 1)
    return replaced(release, "discrete_gaussian", sampler)


def seed_shared_between_answers() -> AbstractContextManager[None]:
    """Two clients' answers are drawn from the same words."""
    kept: list[np.ndarray[tuple[int, ...], np.dtype[np.uint64]]] = []

    def same(random: Random, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        if kept and len(kept[0]) == count:
            return kept.pop()
        kept[:] = [words(random, count)]
        return kept[0]

    return replaced(response, "words", same)


def seed_shared_between_rounds(clients: int) -> AbstractContextManager[None]:
    """The second round of so many clients carries the noise of the first."""
    sampler = _repeating(discrete_gaussian, clients)
    return replaced(release, "discrete_gaussian", sampler)


class _Shuffled(FloatGaussian):
    """Every epoch each record once, in batches of one: what loaders usually do."""

    __slots__ = ("_left",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._left: list[int] = []

    def uniform(self, count: int) -> FloatArray:
        if count < 2:  # the noise on a gradient of two entries
            return super().uniform(count)
        self._left = self._left or np.argsort(super().uniform(count)).tolist()
        drawn = np.ones(count)
        drawn[self._left.pop()] = 0.0
        return drawn


def shuffled_batches() -> AbstractContextManager[None]:
    """Batches of one are shuffled, and accounted as Poisson samples."""
    return replaced(private_training, "FloatGaussian", _Shuffled)


SILENT: dict[Twin, Twin] = {
    half_release_noise: no_release_noise,
    half_label_noise: no_label_noise,
    half_training_noise: no_training_noise,
}
"""For the twin with half the noise, the one without any."""
