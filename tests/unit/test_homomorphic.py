"""The homomorphic sum is exact, refuses what does not fit, and goes on when clients drop out."""

import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType

import numpy as np
import pytest

from secure_fd.aggregation import bfv
from secure_fd.aggregation.base import SecureSum, Stage
from secure_fd.aggregation.homomorphic import HomomorphicSum, SlotLayout
from secure_fd.crypto.primitives import insecure_bytes
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError
from secure_fd.knowledge import WordArray
from tests.summing import summed

FULL = bfv.DEGREE


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
        (3, FULL * 24, 1),  # one ciphertext, full
        (3, FULL * 24 + 1, 1),
        (10, 12_300, 4095),
        (5, FULL + 1, 2**48 // 5),  # one lane, of all 48 bits
        (7, 50, 2**40 + 1),
    ],
)
def test_sums_are_exact(n: int, length: int, bound: int) -> None:
    vectors = vectors_of(n, length, bound)
    result = summed(HomomorphicSum(n), 0, vectors, bound)
    everyone = tuple(range(n))
    assert result.total.dtype == np.uint64
    assert result.total.tolist() == plain_total(vectors, everyone)
    assert result.survivors == everyone
    assert (result.payloads, result.server.readable) == ({}, False)


def test_rounds_follow_one_another_and_none_comes_twice() -> None:
    sums: SecureSum = HomomorphicSum(3)
    vectors = vectors_of(3, 9, 5)
    for index, bound, subject in ((4, 5, b""), (5, 9, b"x")):
        found = summed(sums, index, vectors, bound, subject=subject)
        assert found.total.tolist() == plain_total(vectors, (0, 1, 2))
    with pytest.raises(LocalError, match="round 5 is spent"):
        summed(sums, 5, vectors, 5)
    assert sums.seed is None


@pytest.mark.parametrize(
    ("n", "bound", "bits", "lanes"),
    [(10, 1, 4, 12), (10, 4095, 16, 3), (3, 1, 2, 24), (3, 2**46, 48, 1), (100, 1, 7, 6)],
)
def test_lanes_of_a_slot(n: int, bound: int, bits: int, lanes: int) -> None:
    layout = SlotLayout(n, bound)
    assert (layout.bits, layout.lanes) == (bits, lanes)
    top = layout.pack(np.full(lanes, bound, np.uint64)) * np.uint64(n)
    assert top.size == 1
    assert int(top[0]) < 2**bfv.SLOT_BITS < bfv.PLAIN_MODULUS
    assert layout.unpack(top, lanes).tolist() == [n * bound] * lanes


def test_what_does_not_fit_is_refused_before_anything_is_sent() -> None:
    sums = HomomorphicSum(4)
    with pytest.raises(ConfigurationError, match=r"bound: 70368744177664 .* below 2\*\*48"):
        summed(sums, 0, vectors_of(4, 3, 1), 2**46)
    high = vectors_of(4, 3, 1)
    high[2][1] = 2
    with pytest.raises(LocalError, match="exceeds the agreed bound of 1"):
        summed(sums, 1, high, 1)
    with pytest.raises(ConfigurationError, match="length: 0"):
        summed(sums, 2, {k: np.empty(0, np.uint64) for k in range(4)}, 1)
    with pytest.raises(LocalError, match=r"sums 3 values, not \(1,\)"):
        summed(sums, 3, {**high, 3: high[0][:1]}, 2)
    limit = 1024 * FULL * 24
    with pytest.raises(ConfigurationError, match=f"sum up to {limit} values"):
        summed(HomomorphicSum(3), 0, {0: np.zeros(limit + 1, np.uint64)}, 1)
    vectors = vectors_of(4, 3, 1)
    assert summed(sums, 5, vectors, 1).total.tolist() == plain_total(vectors, (0, 1, 2, 3))


@pytest.mark.parametrize("n", [0, 2, 1025])
def test_cohorts_that_cannot_be_served_are_refused(n: int) -> None:
    with pytest.raises(ConfigurationError, match=f"n_clients: {n} .* use 3 to 1024"):
        HomomorphicSum(n)


def test_only_a_callers_randomness_is_a_caveat() -> None:
    assert HomomorphicSum(3).caveats == ()
    assert "randomness" in HomomorphicSum(3, random=insecure_bytes(1)).caveats[0]


# Clients that drop out.


@pytest.mark.parametrize(
    ("dropouts", "survivors"),
    [
        ({5: Stage.PREPARE}, (0, 1, 2, 3, 4)),
        ({0: Stage.INPUT, 5: Stage.INPUT}, (1, 2, 3, 4)),
        ({0: Stage.CONSISTENCY, 4: Stage.CONSISTENCY}, (0, 1, 2, 3, 4, 5)),
        ({0: Stage.UNMASK, 1: Stage.UNMASK}, (0, 1, 2, 3, 4, 5)),
        ({0: Stage.PREPARE, 1: Stage.UNMASK}, (1, 2, 3, 4, 5)),
    ],
)
def test_the_sum_goes_on_without_clients_that_drop_out(
    dropouts: dict[int, Stage], survivors: tuple[int, ...]
) -> None:
    vectors = vectors_of(6, 40, 9)
    result = summed(HomomorphicSum(6), 0, vectors, 9, dropouts=dropouts)
    assert result.survivors == survivors
    assert result.total.tolist() == plain_total(vectors, survivors)


@pytest.mark.parametrize(
    ("dropouts", "sentence"),
    [
        (dict.fromkeys((1, 2, 3), Stage.INPUT), "2 inputs arrived and 3 are needed"),
        (dict.fromkeys((0, 1, 2), Stage.UNMASK), "no key holder is left"),
    ],
)
def test_a_round_with_too_few_clients_is_void_and_the_next_goes_on(
    dropouts: dict[int, Stage], sentence: str
) -> None:
    sums, vectors = HomomorphicSum(5), vectors_of(5, 8, 3)
    void = summed(sums, 0, vectors, 3, dropouts=dropouts)
    assert sentence in void.void
    assert set(void.up) == {k for k in range(5) if dropouts.get(k) is not Stage.INPUT}
    assert summed(sums, 1, vectors, 3).total.tolist() == plain_total(vectors, (0, 1, 2, 3, 4))


def test_a_majority_of_the_cohort_is_needed() -> None:
    vectors = vectors_of(8, 8, 1)
    found = summed(HomomorphicSum(8), 0, {k: vectors[k] for k in range(4)}, 1)
    assert "4 inputs arrived and 5 are needed" in found.void


def test_traffic_counts_every_byte() -> None:
    n, length = 9, 5_120
    late = {0: Stage.UNMASK, 3: Stage.PREPARE, 4: Stage.CONSISTENCY}
    given = vectors_of(n, length, 1)
    found = summed(HomomorphicSum(n), 0, given, 1, subject=b"told", dropouts=late)
    header, listed, cipher = 48, 2, 73_728
    slots = -(-length // 12)
    expected_up = dict.fromkeys({*range(n)} - {3}, header + len(b"told") + cipher)
    expected_up[1] += header + 8 * slots
    asked = header + listed + cipher
    assert (found.up, found.down) == (expected_up, {0: asked, 1: asked})  # client 0 in vain
    assert found.stages == 2


# TenSEAL.


def test_tenseal_is_loaded_when_a_key_is_made_and_not_before() -> None:
    program = (
        "import sys, secure_fd.aggregation.homomorphic as he\n"
        "before = 'tenseal' in sys.modules\n"
        "he.HomomorphicSum(3)\n"
        "print(before, 'tenseal' in sys.modules)"
    )
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_without_tenseal_there_is_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(MissingCapabilityError, match="tenseal, which is not installed"):
        HomomorphicSum(3)


def test_a_tenseal_with_other_ciphertexts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import tenseal

    class Other(ModuleType):
        """One whose default primes changed: of degree 4096 still, but not the ones we add by."""

        def __getattr__(self, name: str) -> object:
            return getattr(tenseal, name)

        def context(self, *args: object, **settings: object) -> object:
            return tenseal.context(*args, coeff_mod_bit_sizes=[35, 35, 36], **settings)

    monkeypatch.setattr(bfv, "_tenseal", lambda: Other("tenseal"))
    with pytest.raises(MissingCapabilityError, match="another format"):
        HomomorphicSum(3)
