"""Noisy answers: their frequencies, their debiasing, and twins with the protection broken.

Every test here has a fixed seed and a false-alarm rate of at most 1e-6 over seeds.
"""

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.privacy.label import BoolArray, NoisyLabels, RandomizedResponse, sample_symbols
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.votes.codec import Contribution, FloatArray, IntArray, KnowledgeCodec, Released
from secure_fd.wire import Stage
from tests.drivers.summing import Summed, summed

FALSE_ALARM = 1e-6
SIX_SIGMA = 6.0  # 2e-9 for one normal value


def fit(answers: IntArray, truth: int, mechanism: RandomizedResponse) -> float:
    """p-value that answers to one truth have the frequencies of an ideal mechanism."""
    expected = np.ones(mechanism.alphabet_size)
    expected[truth] = math.exp(mechanism.epsilon)
    observed = np.bincount(answers, minlength=len(expected))
    return float(chisquare(observed, expected / expected.sum() * len(answers)).pvalue)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("truth", [0, 4, 10])
def test_frequencies_are_those_of_the_ideal(epsilon, truth):
    mechanism, truths = RandomizedResponse(epsilon, 11), np.full(60_000, truth)
    answers = mechanism.respond(truths, SeededRandom(1))
    assert fit(answers, truth, mechanism) > FALSE_ALARM
    louder = RandomizedResponse(epsilon * 1.3, 11).respond(truths, SeededRandom(2))
    assert fit(louder, truth, mechanism) < FALSE_ALARM


def abstain_unprotected(
    mechanism: RandomizedResponse, symbols: IntArray, random: Random
) -> IntArray:
    """The twin that noises the class and tells the truth about abstaining."""
    classes = RandomizedResponse(mechanism.epsilon, mechanism.alphabet_size - 1)
    abstain = mechanism.alphabet_size - 1
    noisy = classes.respond(np.minimum(symbols, abstain - 1), random)
    return np.where(symbols == abstain, abstain, noisy)


def test_an_unprotected_abstention_is_caught():
    mechanism = RandomizedResponse(2.0, 11)
    for truth in (4, 10):
        answers = abstain_unprotected(mechanism, np.full(2000, truth), SeededRandom(3))
        assert fit(answers, truth, mechanism) < FALSE_ALARM


def within_six_errors(estimates: FloatArray, truth: FloatArray) -> BoolArray:
    """[C] whether the mean of estimates [m, C] is six standard errors or less from the truth."""
    limit = SIX_SIGMA * estimates.std(axis=0) / np.sqrt(len(estimates))
    return np.asarray(np.abs(estimates.mean(axis=0) - truth) <= limit)


def test_soft_labels_survive_sampling_and_noise_without_bias():
    """Power: an error of 0.06 in any class is seen, and so is a weight of one instead of 0.7."""
    weight, row = 0.7, np.array([0.5, 0.3, 0.2, 0.0])
    m, random, mechanism = 60_000, SeededRandom(5), RandomizedResponse(2.0, 5)
    symbols = sample_symbols(Contribution(np.full(m, weight), np.tile(row, (m, 1))), random)
    named = mechanism.respond_rows(symbols, random)
    estimates = mechanism.debias(named.astype(np.float64), 1)
    assert within_six_errors(estimates, weight * row).all()
    assert (SIX_SIGMA * estimates.std(axis=0) / np.sqrt(m) < 0.06).all()
    assert not within_six_errors(estimates, row)[:3].any()


M, LOST = 8_000, {1: Stage.PREPARE, 4: Stage.INPUT, 5: Stage.UNMASK}
"""Of ten clients, 1 and 4 are not in the sum; 5 fell silent too late to be out of it."""


def masked_sums(mechanism: RandomizedResponse) -> tuple[FloatArray, FloatArray, Summed]:
    """[M, C] answers that hold a class, of who survived; and [C] what the survivors meant.

    Each client has a weight and a soft label of its own, all go through the guard, the codec and
    the real masks.
    """
    random, rng = SeededRandom(7), np.random.default_rng(8)
    codec, meant, vectors = KnowledgeCodec(4, 1), [], {}
    for k in range(10):
        weight, row = rng.uniform(0.3, 1.0), rng.dirichlet(np.ones(4))
        meant.append(weight * row)
        guard = NoisyLabels(mechanism, M, 1e-5, random)
        symbols = sample_symbols(Contribution(np.full(M, weight), np.tile(row, (M, 1))), random)
        named = guard.named(np.arange(M), symbols)
        rows = named.astype(np.float64)
        vectors[k] = codec.encode(Released(rows.sum(axis=1), rows))
        assert np.array_equal(vectors[k].reshape(M, 4), named)
    absent = vectors.pop(1)
    assert absent.any()
    result = summed(
        MaskedSum(10, random=insecure_bytes(9), hybrid=False),
        0,
        vectors,
        codec.levels,
        dropouts=LOST,
    )
    named_in_all = codec.decode(result.total, len(result.survivors)).total * codec.levels
    return np.rint(named_in_all), np.sum([meant[k] for k in result.survivors], axis=0), result


def test_under_masks_and_dropouts_debiasing_is_unbiased():
    """The twin that takes off the noise of all ten clients, not of the eight in the sum, fails."""
    mechanism = RandomizedResponse(2.0, 5)
    sums, meant, result = masked_sums(mechanism)
    assert result.survivors == (0, 2, 3, 5, 6, 7, 8, 9)
    assert result.seen.uploads is None
    assert within_six_errors(mechanism.debias(sums, 8), meant).all()
    assert not within_six_errors(mechanism.debias(sums, 10), meant).any()


class ForgetfulGuard(NoisyLabels):
    """The twin that draws fresh noise for a pair each time it is asked."""

    def named(self, indices: IntArray, symbols: IntArray) -> BoolArray:
        self._answered[:] = False
        return super().named(indices, symbols)


def recovered(
    kind: type[NoisyLabels], mechanism: RandomizedResponse, truths: IntArray, rounds: int
) -> float:
    """Share of classes that an observer of all rounds gets as one of those named most often."""
    indices = np.arange(len(truths))
    guard = kind(mechanism, len(truths), 1e-5, SeededRandom(6))
    counts = np.sum([guard.named(indices, truths) for _ in range(rounds)], axis=0)
    best = counts.max(axis=1)
    winners = np.count_nonzero(counts == best[:, None], axis=1)
    hit = counts[indices, truths] == best
    return float((hit / winners).mean())


def guessed_from_one(mechanism: RandomizedResponse) -> float:
    """Chance to guess class 0 right from one answer; symbol 10, the last, abstains."""
    return mechanism.p + mechanism.q / 10


def test_asking_again_teaches_nothing_and_a_forgetful_guard_gives_all():
    """The observer of one answer guesses takes the class that it names, or any of ten."""
    mechanism, truths = RandomizedResponse(1.0, 11), np.arange(2000) % 10
    once, often = (recovered(NoisyLabels, mechanism, truths, rounds) for rounds in (1, 200))
    assert once == often
    assert abs(often - guessed_from_one(mechanism)) < SIX_SIGMA * np.sqrt(0.25 / 2000) < 0.07
    assert recovered(ForgetfulGuard, mechanism, truths, 200) > 0.95
