"""BFV ciphertexts on the wire and in a sum."""

import numpy as np
import pytest

from secure_fd.aggregation import bfv
from secure_fd.errors import LocalError, PeerError

TOP = bfv.PLAIN_MODULUS - 1


@pytest.fixture(scope="module")
def key() -> bfv.DecryptionKey:
    return bfv.DecryptionKey.generate()


def test_coefficients_survive_the_wire() -> None:
    rng = np.random.default_rng(1)
    shape = (3, 2, 2, bfv.DEGREE)
    limits = np.array(bfv.PRIMES, np.uint64)[:, np.newaxis]
    ciphertexts = rng.integers(0, np.broadcast_to(limits, shape), dtype=np.uint64)
    ciphertexts[0, :, :, :2] = limits - np.uint64(1)
    data = bfv.encode(ciphertexts)
    assert len(data) == 3 * bfv.CIPHER_BYTES == 3 * 73_728
    assert np.array_equal(bfv.decode(data, 3), ciphertexts)


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 16383])
def test_a_coefficient_that_is_not_below_its_prime_is_refused(at: int) -> None:
    ciphertexts = np.zeros((1, 2, 2, bfv.DEGREE), np.uint64)
    prime = bfv.PRIMES[at // bfv.DEGREE % 2]
    ciphertexts.reshape(-1)[at] = prime - 1
    assert bfv.decode(bfv.encode(ciphertexts), 1).max() == prime - 1
    ciphertexts.reshape(-1)[at] = prime
    with pytest.raises(PeerError, match="not below its prime"):
        bfv.decode(bfv.encode(ciphertexts), 1)


@pytest.mark.parametrize("size", [0, 73_727, 73_729, 147_456])
def test_ciphertexts_of_another_length_are_refused(size: int) -> None:
    with pytest.raises(PeerError, match=f"73728 bytes, not {size}"):
        bfv.decode(bytes(size), 1)


def test_addition_is_tenseals_own_bit_for_bit(key: bfv.DecryptionKey) -> None:
    tenseal = bfv._tenseal()
    rng = np.random.default_rng(2)
    slots = rng.integers(0, TOP, (2, bfv.DEGREE), np.uint64, endpoint=True)
    ours = key.encryptor.encrypt(slots)
    context = key._context
    loaded = [
        tenseal.bfv_vector_from(context, key._preamble + row.astype("<u8").tobytes())
        for row in ours
    ]
    theirs = bfv._coefficients(loaded[0] + loaded[1])
    total = ours[:1].copy()
    bfv.add(total, ours[1:])
    assert np.array_equal(total[0], theirs)
    expected = [sum(map(int, pair)) % bfv.PLAIN_MODULUS for pair in slots.T]
    assert key.decrypt(total)[0].tolist() == expected


def test_noise_has_room_for_more_than_the_largest_cohort(key: bfv.DecryptionKey) -> None:
    """Doubling is the worst case: noises of n fresh ciphertexts add up to less than n times one."""
    slots = np.full((1, bfv.DEGREE), TOP, np.uint64)
    total = key.encryptor.encrypt(slots)
    right = []
    for doublings in range(1, 21):
        bfv.add(total, total.copy())
        expected = TOP * 2**doublings % bfv.PLAIN_MODULUS
        right.append(bool((key.decrypt(total) == expected).all()))
    assert bfv.MAX_CLIENTS == 2**10
    assert all(right[:13])
    assert not right[-1]


def test_two_encryptions_of_one_vector_share_nothing(key: bfv.DecryptionKey) -> None:
    zeros = np.zeros((2, bfv.DEGREE), np.uint64)
    first, second = key.encryptor.encrypt(zeros)
    assert (first == second).sum() <= 1  # 16,384 pairs, each equal once in 2**36


@pytest.mark.parametrize("shape", [(bfv.DEGREE,), (1, 10)])
def test_slots_of_another_shape_are_not_encrypted(
    key: bfv.DecryptionKey, shape: tuple[int, ...]
) -> None:
    with pytest.raises(LocalError, match="slots must be"):
        key.encryptor.encrypt(np.zeros(shape, np.uint64))


def test_slots_beyond_the_modulus_are_not_encrypted(key: bfv.DecryptionKey) -> None:
    with pytest.raises(LocalError, match="slots must be"):
        key.encryptor.encrypt(np.full((1, bfv.DEGREE), TOP + 1, np.uint64))
