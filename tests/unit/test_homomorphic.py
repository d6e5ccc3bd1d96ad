"""The homomorphic sum is exact, refuses what does not fit, and goes on when clients drop out."""

from collections.abc import Mapping

import numpy as np
import pytest
import tenseal
import tenseal.sealapi as seal

from secure_fd.aggregation import homomorphic as he
from secure_fd.aggregation.base import PlainSum, SecureSum, Stage
from secure_fd.aggregation.homomorphic import DEGREE, PRIMES, HomomorphicSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import WordArray
from tests.summing import summed


def vectors_of(n: int, length: int, bound: int, seed: int = 0) -> dict[int, WordArray]:
    rng = np.random.default_rng(seed)
    size = (n, length)
    drawn = rng.integers(0, bound, size, np.uint64, endpoint=True)
    drawn[:, 0] = bound  # the largest sum that can occur
    return dict(enumerate(drawn))


def plain_total(vectors: Mapping[int, WordArray], clients: tuple[int, ...]) -> list[int]:
    return [sum(int(vectors[k][at]) for k in clients) for at in range(vectors[0].size)]


# Sums.


@pytest.mark.parametrize(
    ("n", "length", "bound"),
    [
        (3, 1, 1),
        (10, 6_600, 1),
        (3, (DEGREE - 1) * 28, 1),  # one ciphertext, full with its tag
        (3, (DEGREE - 1) * 28 + 1, 1),
        (10, 12_300, 4095),
        (5, DEGREE + 1, 2**56 // 5),  # one lane, of all 56 bits
        (7, 50, 2**40 + 1),
    ],
)
def test_sums_are_exact(n, length, bound):
    vectors = vectors_of(n, length, bound)
    result = summed(HomomorphicSum(n), 0, vectors, bound)
    everyone = tuple(range(n))
    assert result.total.dtype == np.uint64
    assert result.total.tolist() == plain_total(vectors, everyone)
    assert result.survivors == everyone
    assert (result.payloads, result.server.readable) == ({}, False)


@pytest.mark.parametrize("bound", [1, 4095])
def test_plain_masked_and_encrypted_sums_are_one(bound):
    vectors = vectors_of(10, 6_600, bound)
    sums: tuple[SecureSum, ...] = (PlainSum(10), MaskedSum(10), HomomorphicSum(10))
    plain, *others = (summed(one, 0, vectors, bound).total for one in sums)
    assert all(np.array_equal(plain, other) for other in others)


def test_rounds_follow_one_another_and_none_comes_twice():
    sums: SecureSum = HomomorphicSum(3)
    vectors = vectors_of(3, 9, 5)
    for index, bound, subject in ((4, 5, b""), (5, 9, b"x")):
        found = summed(sums, index, vectors, bound, subject=subject)
        assert found.total.tolist() == plain_total(vectors, (0, 1, 2))
    with pytest.raises(LocalError, match="round 5 is spent"):
        summed(sums, 5, vectors, 5)
    assert sums.seed is None


def test_what_does_not_fit_is_refused_before_anything_is_sent():
    sums = HomomorphicSum(4)
    with pytest.raises(ConfigurationError, match=r"bound: 18014398509481984 .* below 2\*\*56"):
        summed(sums, 0, vectors_of(4, 3, 1), 2**54)
    high = vectors_of(4, 3, 1)
    high[2][1] = 2
    with pytest.raises(LocalError, match="exceeds the agreed bound of 1"):
        summed(sums, 1, high, 1)
    with pytest.raises(ConfigurationError, match="length: 0"):
        summed(sums, 2, {k: np.empty(0, np.uint64) for k in range(4)}, 1)
    with pytest.raises(LocalError, match=r"sums 3 values, not \(1,\)"):
        summed(sums, 3, {**high, 3: high[0][:1]}, 2)
    limit = (1024 * DEGREE - 1) * 18  # lanes of three bits
    with pytest.raises(ConfigurationError, match=f"sum up to {limit} values"):
        summed(sums, 4, {0: np.zeros(limit + 1, np.uint64)}, 1)
    vectors = vectors_of(4, 3, 1)
    assert summed(sums, 5, vectors, 1).total.tolist() == plain_total(vectors, (0, 1, 2, 3))


@pytest.mark.parametrize("n", [0, 2, 1025])
def test_cohorts_that_cannot_be_served_are_refused(n):
    with pytest.raises(ConfigurationError, match=f"n_clients: {n} .* use 3 to 1024"):
        HomomorphicSum(n)


# Clients that drop out.


@pytest.mark.parametrize(
    ("dropouts", "survivors"),
    [
        ({5: Stage.PREPARE}, (0, 1, 2, 3, 4)),
        ({1: Stage.INPUT, 5: Stage.INPUT}, (0, 2, 3, 4)),
        ({1: Stage.CONSISTENCY, 2: Stage.UNMASK}, (0, 1, 2, 3, 4, 5)),
    ],
)
def test_the_sum_goes_on_without_clients_that_drop_out(dropouts, survivors):
    vectors = vectors_of(6, 40, 9)
    result = summed(HomomorphicSum(6), 0, vectors, 9, dropouts=dropouts)
    assert result.survivors == survivors
    assert result.total.tolist() == plain_total(vectors, survivors)


@pytest.mark.parametrize(
    ("dropouts", "sentence"),
    [
        (dict.fromkeys((1, 2, 3), Stage.INPUT), "2 inputs arrived and 3 are needed"),
        ({0: Stage.INPUT}, "key holder 0 opened no sum"),
        ({0: Stage.UNMASK}, "key holder 0 opened no sum"),
    ],
)
def test_a_round_with_too_few_clients_is_void_and_the_next_goes_on(dropouts, sentence):
    sums, vectors = HomomorphicSum(5), vectors_of(5, 8, 3)
    void = summed(sums, 0, vectors, 3, dropouts=dropouts)
    assert sentence in void.void
    without = {k: vectors[k] for k in (1, 2, 3, 4)}  # client 0 stays away: it is another's turn
    assert summed(sums, 1, without, 3).total.tolist() == plain_total(vectors, (1, 2, 3, 4))


def test_traffic_counts_every_byte():
    n, length = 9, 6_600
    found = summed(HomomorphicSum(n), 0, vectors_of(n, length, 1), 1, subject=b"told")
    header, listed, cipher = 48, 2, 81_920
    expected = dict.fromkeys(range(n), header + len(b"told") + cipher)
    expected[0] += header + 8 * -(-length // 14)
    assert (found.up, found.down) == (expected, {0: header + listed + cipher})
    assert found.stages == 2


# Ciphertexts.


def test_coefficients_survive_the_wire():
    limits, shape = np.array(PRIMES, np.uint64)[:, np.newaxis], (3, 2, 2, DEGREE)
    drawn = np.random.default_rng(1).integers(0, np.broadcast_to(limits, shape), dtype=np.uint64)
    drawn[0, :, :, :2] = limits - np.uint64(1)
    data = he.encode(drawn)
    assert len(data) == 3 * he.CIPHER_BYTES == 3 * 81_920
    assert np.array_equal(he.decode(data), drawn)


def test_parameters_keep_to_the_guidelines_and_leave_noise_for_the_largest_cohort():
    """106 bits at degree 4096; adding one ciphertext to itself is the worst a sum can do."""
    assert (DEGREE, sum(he.PRIME_BITS)) == (4096, 106)
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(DEGREE, list(he.PRIME_BITS)))
    parameters.set_plain_modulus(he.PLAIN_MODULUS)
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    bits = context.key_context_data().total_coeff_modulus_bit_count()
    assert (bits, context.first_context_data().total_coeff_modulus_bit_count()) == (106, 80)
    generator, public, total = seal.KeyGenerator(context), seal.PublicKey(), seal.Ciphertext()
    generator.create_public_key(public)
    seal.Encryptor(context, public).encrypt(seal.Plaintext("1x^4095 + 1"), total)
    decryptor, evaluator = seal.Decryptor(context, generator.secret_key()), seal.Evaluator(context)
    for _ in range(he.MAX_CLIENTS.bit_length() - 1):
        evaluator.add_inplace(total, total)
    assert decryptor.invariant_noise_budget(total) >= 4


def test_a_tenseal_with_other_ciphertexts_is_refused(monkeypatch):
    make = tenseal.context

    def other(scheme: object, degree: int, modulus: int, _: object, n_threads: int) -> object:
        return make(scheme, degree, modulus, [41, 41, 24], n_threads=n_threads)

    monkeypatch.setattr(tenseal, "context", other)
    with pytest.raises(ConfigurationError, match="whose ciphertexts are known"):
        HomomorphicSum(3)
