"""BFV ciphertexts on the wire and in a sum, and the tags that prove whose sum it is."""

import numpy as np
import pytest

from secure_fd.aggregation.bfv import scheme, tags
from secure_fd.crypto.primitives import Keystream
from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import WordArray

TOP = scheme.PLAIN_MODULUS - 1
FULL = tags.DATA_SLOTS


@pytest.fixture(scope="module")
def key() -> scheme.DecryptionKey:
    return scheme.DecryptionKey.generate()


# The scheme.


def test_coefficients_survive_the_wire() -> None:
    rng = np.random.default_rng(1)
    shape = (3, 2, 2, scheme.DEGREE)
    limits = np.array(scheme.PRIMES, np.uint64)[:, np.newaxis]
    ciphertexts = rng.integers(0, np.broadcast_to(limits, shape), dtype=np.uint64)
    ciphertexts[0, :, :, :2] = limits - np.uint64(1)
    data = scheme.encode(ciphertexts)
    assert len(data) == 3 * scheme.CIPHER_BYTES == 3 * 73_728
    assert np.array_equal(scheme.decode(data, 3), ciphertexts)


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 16383])
def test_a_coefficient_that_is_not_below_its_prime_is_refused(at: int) -> None:
    ciphertexts = np.zeros((1, 2, 2, scheme.DEGREE), np.uint64)
    prime = scheme.PRIMES[at // scheme.DEGREE % 2]
    ciphertexts.reshape(-1)[at] = prime - 1
    assert scheme.decode(scheme.encode(ciphertexts), 1).max() == prime - 1
    ciphertexts.reshape(-1)[at] = prime
    with pytest.raises(PeerError, match="not below its prime"):
        scheme.decode(scheme.encode(ciphertexts), 1)


@pytest.mark.parametrize("size", [0, 73_727, 73_729, 147_456])
def test_ciphertexts_of_another_length_are_refused(size: int) -> None:
    with pytest.raises(PeerError, match=f"73728 bytes, not {size}"):
        scheme.decode(bytes(size), 1)


def test_addition_is_tenseals_own_bit_for_bit(key: scheme.DecryptionKey) -> None:
    tenseal = scheme._tenseal()
    rng = np.random.default_rng(2)
    slots = rng.integers(0, TOP, (2, scheme.DEGREE), np.uint64, endpoint=True)
    ours = key.encryptor.encrypt(slots)
    context = key._context
    loaded = [
        tenseal.bfv_vector_from(context, key._preamble + row.astype("<u8").tobytes())
        for row in ours
    ]
    theirs = scheme._coefficients(loaded[0] + loaded[1])
    total = ours[:1].copy()
    scheme.add(total, ours[1:])
    assert np.array_equal(total[0], theirs)
    expected = [sum(map(int, pair)) % scheme.PLAIN_MODULUS for pair in slots.T]
    assert key.decrypt(total)[0].tolist() == expected


def test_noise_has_room_for_more_than_the_largest_cohort(key: scheme.DecryptionKey) -> None:
    """Doubling is the worst case: noises of n fresh ciphertexts add up to less than n times one."""
    slots = np.full((1, scheme.DEGREE), TOP, np.uint64)
    total = key.encryptor.encrypt(slots)
    right = []
    for doublings in range(1, 21):
        scheme.add(total, total.copy())
        expected = TOP * 2**doublings % scheme.PLAIN_MODULUS
        right.append(bool((key.decrypt(total) == expected).all()))
    assert scheme.MAX_CLIENTS == 2**10
    assert all(right[:13])
    assert not right[-1]


def test_two_encryptions_of_one_vector_share_nothing(key: scheme.DecryptionKey) -> None:
    zeros = np.zeros((2, scheme.DEGREE), np.uint64)
    first, second = key.encryptor.encrypt(zeros)
    assert (first == second).sum() <= 1  # 16,384 pairs, each equal once in 2**36


@pytest.mark.parametrize("shape", [(scheme.DEGREE,), (1, 10)])
def test_slots_of_another_shape_are_not_encrypted(
    key: scheme.DecryptionKey, shape: tuple[int, ...]
) -> None:
    with pytest.raises(LocalError, match="slots must be"):
        key.encryptor.encrypt(np.zeros(shape, np.uint64))


def test_slots_beyond_the_modulus_are_not_encrypted(key: scheme.DecryptionKey) -> None:
    with pytest.raises(LocalError, match="slots must be"):
        key.encryptor.encrypt(np.full((1, scheme.DEGREE), TOP + 1, np.uint64))


# Tags.


class Words(Keystream):
    """A keystream whose words the test chose."""

    __slots__ = ("_words",)

    def __init__(self, words: list[int]) -> None:
        self._words = words

    def read(self, size: int) -> bytes:
        taken, self._words = self._words[: size // 8], self._words[size // 8 :]
        return np.array(taken, "<u8").tobytes()


def test_residues_skip_what_is_not_below_the_prime() -> None:
    stream = Words([5, TOP + 1, 2**49 - 1, TOP + 2**60, 2**63, TOP + 2, 7])
    assert tags.residues(stream, 4).tolist() == [5, TOP, 0, 7]


def unevenness(numbers: WordArray) -> float:
    """Chi-squared of sixteen cells of equal size, by the upper and by the lower bits."""
    high = (numbers * np.uint64(16) // np.uint64(TOP + 1)).astype(np.int64)
    low = (numbers & np.uint64(15)).astype(np.int64)
    expected = numbers.size / 16
    counts = (np.bincount(cells, minlength=16) for cells in (high, low))
    return max(float(((count - expected) ** 2 / expected).sum()) for count in counts)


def test_residues_fill_their_range() -> None:
    """Uniform words exceed 60 twice in 4 million keys; one zero in 20 must be seen."""
    found = tags.residues(Keystream(bytes(range(32))), 32_000)
    assert found.size == 32_000
    assert unevenness(found) < 60
    found[::20] = 0
    assert unevenness(found) > 60


def test_weighing_is_the_inner_product_of_the_field() -> None:
    rng = np.random.default_rng(3)
    weight = rng.integers(0, TOP, (tags.TAGS, FULL), np.uint64, endpoint=True)
    data = rng.integers(0, TOP, (4, FULL), np.uint64, endpoint=True)
    weight[0], data[0] = TOP, TOP
    expected = [
        [sum(map(int.__mul__, w, row)) % scheme.PLAIN_MODULUS for w in weight.tolist()]
        for row in data.tolist()
    ]
    assert tags.weigh(weight, data).tolist() == expected


def test_tags_of_a_sum_are_the_sum_of_the_tags() -> None:
    rng = np.random.default_rng(4)
    weight, one, two = tags.weights(bytes(32)), tags.pads(b"1" * 32, 2), tags.pads(b"2" * 32, 2)
    data = rng.integers(0, 2**47, (2, 2, FULL), np.uint64)
    summed = tags.attach(data[0], weight, one) + tags.attach(data[1], weight, two)
    summed %= np.uint64(scheme.PLAIN_MODULUS)
    assert np.array_equal(tags.detach(summed, weight, one + two), data[0] + data[1])
    for at in (0, FULL - 1, FULL, scheme.DEGREE - 1):
        wrong = summed.copy()
        wrong[1, at] ^= np.uint64(1)
        with pytest.raises(PeerError, match="not the sum of the listed"):
            tags.detach(wrong, weight, one + two)
    with pytest.raises(PeerError, match="not the sum of the listed"):
        tags.detach(summed[::-1], weight, one + two)
