"""The homomorphic sum is exact, refuses what does not fit, and goes on when clients drop out."""

import numpy as np
import pytest
import tenseal
import tenseal.sealapi as seal

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.secure_sum import homomorphic as he
from secure_fd.secure_sum.homomorphic import DEGREE, HomomorphicSum
from secure_fd.votes.codec import WordArray
from secure_fd.wire import Stage
from tests.drivers.summing import Summed, summed


def values_of(n: int, length: int, bound: int) -> WordArray:
    drawn = np.random.default_rng(0).integers(0, bound, (n, length), np.uint64, endpoint=True)
    drawn[:, 0] = bound  # the largest sum that can occur
    return drawn


def is_sum_of(result: Summed, values: WordArray, clients: list[int]) -> bool:
    same = np.array_equal(result.total, values[clients].sum(axis=0))
    return same and result.total.dtype == np.uint64 and result.survivors == tuple(clients)


@pytest.mark.parametrize(
    ("n", "length", "bound", "silent"),
    [
        (3, 1, 1, {}),
        (10, 6_600, 1, {}),
        (3, (DEGREE - 1) * 28, 1, {}),  # one ciphertext, full with its tag
        (3, (DEGREE - 1) * 28 + 1, 1, {}),
        (10, 12_300, 4095, {}),
        (5, DEGREE + 1, 2**56 // 5, {}),  # one lane, of all 56 bits
        (7, 50, 2**40 + 1, {}),
        (6, 40, 9, {5: Stage.PREPARE}),
        (6, 40, 9, {1: Stage.INPUT, 5: Stage.INPUT}),
        (6, 40, 9, {1: Stage.CONSISTENCY, 2: Stage.UNMASK}),
    ],
)
def test_the_sum_is_that_of_the_clients_whose_input_came(n, length, bound, silent):
    values = values_of(n, length, bound)
    result = summed(HomomorphicSum(n), 0, dict(enumerate(values)), bound, dropouts=silent)
    came = [k for k in range(n) if silent.get(k) not in (Stage.PREPARE, Stage.INPUT)]
    assert is_sum_of(result, values, came)
    assert (result.payloads, result.seen.uploads) == ({}, None)


@pytest.mark.parametrize(
    ("dropouts", "sentence"),
    [
        (dict.fromkeys((1, 2, 3), Stage.INPUT), "2 inputs arrived and 3 are needed"),
        ({0: Stage.INPUT}, "key holder 0 opened no sum"),
        ({0: Stage.UNMASK}, "key holder 0 opened no sum"),
    ],
)
def test_a_round_with_too_few_clients_is_void_and_no_round_comes_twice(dropouts, sentence):
    sums, values = HomomorphicSum(5), values_of(5, 8, 3)
    assert sentence in summed(sums, 0, dict(enumerate(values)), 3, dropouts=dropouts).aborted
    others = [1, 2, 3, 4]  # client 0 stays away: it is another's turn
    without = {k: values[k] for k in others}
    assert is_sum_of(summed(sums, 1, without, 9, subject=b"x"), values, others)
    with pytest.raises(LocalError, match="round 1 is spent"):
        summed(sums, 1, without, 3)


def test_what_does_not_fit_is_refused_before_anything_is_sent():
    sums, fits = HomomorphicSum(4), dict(enumerate(values_of(4, 3, 1)))
    limit = (1024 * DEGREE - 1) * 18  # lanes of three bits
    empty, long = np.empty(0, np.uint64), np.zeros(limit + 1, np.uint64)
    for index, (vectors, bound, kind, sentence) in enumerate(
        [
            (fits, 2**54, ConfigurationError, r"bound: 18014398509481984 .* below 2\*\*56"),
            (dict.fromkeys(range(4), empty), 1, ConfigurationError, "length: 0"),
            ({0: long}, 1, ConfigurationError, f"sum up to {limit} values"),
            (fits | {2: fits[2] + np.uint64(1)}, 1, LocalError, "exceeds the agreed bound of 1"),
            (fits | {3: fits[3][:1]}, 2, LocalError, r"sums 3 values, not \(1,\)"),
        ]
    ):
        with pytest.raises(kind, match=sentence):
            summed(sums, index, vectors, bound)
    assert summed(sums, 5, fits, 1).total.tolist() == sum(fits.values()).tolist()
    for n in (0, 2, 1025):
        with pytest.raises(ConfigurationError, match=f"n_clients: {n} .* use 3 to 1024"):
            HomomorphicSum(n)


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
