"""Randomised response: its frequencies, its debiasing, and twins with the protection broken.

Every test here has a fixed seed and a false-alarm rate of at most 1e-6 over seeds.
"""

import numpy as np
import pytest
from scipy.stats import chisquare

from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.alphabet import Alphabet, declaring
from secure_fd.privacy.entropy import Random, SeededRandom
from secure_fd.privacy.ledger import LabelLedger
from secure_fd.privacy.randomized_response import RandomizedResponse, sample_symbols

FALSE_ALARM = 1e-6
SIX_SIGMA = 6.0  # 2e-9 for one normal value


def fit(answers: IntArray, truth: int, mechanism: RandomizedResponse) -> float:
    """p-value that answers to one truth have the frequencies p and q."""
    expected = np.full(mechanism.alphabet_size, mechanism.q)
    expected[truth] = mechanism.p
    observed = np.bincount(answers, minlength=mechanism.alphabet_size)
    return float(chisquare(observed, expected / expected.sum() * len(answers)).pvalue)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("truth", [0, 4, 10])
def test_frequencies_are_p_and_q(epsilon: float, truth: int) -> None:
    mechanism, truths = RandomizedResponse(epsilon, 11), np.full(40_000, truth)
    answers = mechanism.respond(truths, SeededRandom(1))
    assert fit(answers, truth, mechanism) > FALSE_ALARM
    louder = RandomizedResponse(epsilon * 1.2, 11).respond(truths, SeededRandom(2))
    assert fit(louder, truth, mechanism) < FALSE_ALARM


def abstain_unprotected(
    mechanism: RandomizedResponse, symbols: IntArray, random: Random
) -> IntArray:
    """The twin that noises the class and tells the truth about abstaining."""
    classes = RandomizedResponse(mechanism.epsilon, mechanism.alphabet_size - 1)
    abstain = mechanism.alphabet_size - 1
    noisy = classes.respond(np.minimum(symbols, abstain - 1), random)
    return np.where(symbols == abstain, abstain, noisy)


def test_an_unprotected_abstention_is_caught() -> None:
    mechanism = RandomizedResponse(2.0, 11)
    for truth in (4, 10):
        answers = abstain_unprotected(mechanism, np.full(2000, truth), SeededRandom(3))
        assert fit(answers, truth, mechanism) < FALSE_ALARM


def votes(answers: IntArray, n_classes: int) -> FloatArray:
    """[m, C] sums of clients' answers [K, m]."""
    classes = np.arange(n_classes)
    counts: IntArray = np.count_nonzero(answers[:, :, None] == classes, axis=0)
    return counts.astype(np.float64)


def test_debiased_counts_are_unbiased_where_clients_declare() -> None:
    """Ten clients, three alphabets: the mean over 20,000 proxies is within six standard errors."""
    kinds = [Alphabet(4, (0,)), Alphabet(4, (0, 2)), Alphabet(4, (1, 2, 3))]
    alphabets = [kinds[k % 3] for k in range(10)]
    truths = [(0, 4, 3)[k % 3] for k in range(10)]
    mechanism, random, m = RandomizedResponse.over(1.0, alphabets), SeededRandom(4), 20_000
    answers = np.array([
        mechanism.respond_within(np.full(m, truth), alphabet, random)
        for truth, alphabet in zip(truths, alphabets, strict=True)
    ])  # fmt: skip
    sums = votes(answers, 4)
    estimates = mechanism.debias(sums, declaring(alphabets))
    error = estimates.mean(axis=0) - np.array([4.0, 0.0, 0.0, 3.0])
    limit = SIX_SIGMA * estimates.std(axis=0) / np.sqrt(m)
    assert (np.abs(error) < limit).all()
    wrong = mechanism.debias(sums, 10).mean(axis=0) - np.array([4.0, 0.0, 0.0, 3.0])
    assert (np.abs(wrong) > limit).all()


def test_soft_labels_survive_sampling_and_noise_without_bias() -> None:
    weight, row = 0.7, np.array([0.5, 0.3, 0.2, 0.0])
    m, random, mechanism = 60_000, SeededRandom(5), RandomizedResponse(2.0, 5)
    symbols = sample_symbols(np.full(m, weight), np.tile(row, (m, 1)), random)
    answers = mechanism.respond(symbols, random)
    estimates = mechanism.debias(votes(answers[None, :], 4), 1)
    limit = SIX_SIGMA * estimates.std(axis=0) / np.sqrt(m)
    assert (np.abs(estimates.mean(axis=0) - weight * row) < limit).all()
    assert (limit < 0.04).all()


class ForgetfulLedger:
    """The twin that draws fresh noise for a pair each time it is asked."""

    def __init__(self, mechanism: RandomizedResponse) -> None:
        self._mechanism = mechanism

    def release(self, indices: IntArray, symbols: IntArray, random: Random) -> IntArray:
        return self._mechanism.respond(symbols[np.arange(len(indices))], random)


def recovered(ledger: LabelLedger | ForgetfulLedger, truths: IntArray, rounds: int) -> float:
    """Share of truths that an observer of all rounds gets by the most frequent answer."""
    random, indices = SeededRandom(6), np.arange(len(truths))
    seen = np.array([ledger.release(indices, truths, random) for _ in range(rounds)])
    counts = (seen[:, :, None] == np.arange(11)).sum(axis=0)
    return float((counts.argmax(axis=1) == truths).mean())


def test_asking_again_teaches_nothing_and_a_forgetful_ledger_gives_all() -> None:
    mechanism, truths = RandomizedResponse(1.0, 11), np.arange(2000) % 11
    ours = recovered(LabelLedger(mechanism, Alphabet.full(10), 2000), truths, 200)
    deviation = np.sqrt(mechanism.p * (1 - mechanism.p) / 2000)
    assert abs(ours - mechanism.p) < SIX_SIGMA * deviation
    assert recovered(ForgetfulLedger(mechanism), truths, 200) > 0.95
