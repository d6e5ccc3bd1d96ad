"""Masked and plain sums are the same number, for any cohort, bound and input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.aggregation.base import SecureSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.aggregation.plain import PlainSum
from secure_fd.crypto.randomness import insecure_bytes
from secure_fd.errors import ConfigurationError, LocalError, MissingClientError
from secure_fd.knowledge import Contribution, KnowledgeCodec, WordArray, one_hot

CODEC = KnowledgeCodec(n_classes=10, levels=4095)
Vectors = dict[int, WordArray]


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Vectors, int]:
    """Vectors of 3 to 12 clients, 1 to 200 values, any bound that a word can hold."""
    n = draw(st.integers(3, 12))
    most = (2**64 - 1) // n
    bound = draw(st.sampled_from([1, 2, 15, 4095, 2**28 - 1, 2**32, most]) | st.integers(1, most))
    length = draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    edge = draw(st.sampled_from(["random", "all bound", "all zero"]))
    high = {"random": None, "all bound": bound, "all zero": 0}[edge]
    shape = (n, length)
    values = (
        rng.integers(0, bound, shape, dtype=np.uint64, endpoint=True)
        if high is None
        else np.full(shape, high, np.uint64)
    )
    return dict(enumerate(values)), bound


@given(inputs())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_masks_cancel_exactly(case: tuple[Vectors, int]) -> None:
    vectors, bound = case
    masked = MaskedSum(len(vectors), insecure_seed=1).sum(0, vectors, bound)
    plain = PlainSum(len(vectors)).sum(0, vectors, bound)
    expected = [sum(column) for column in zip(*(v.tolist() for v in vectors.values()), strict=True)]
    assert masked.total.tolist() == plain.total.tolist() == expected


@pytest.mark.parametrize("words", [32_767, 32_768, 32_769, 70_000])
def test_masks_cancel_across_blocks(words: int) -> None:
    vectors = {k: np.full(words, k, np.uint64) for k in range(3)}
    total = MaskedSum(3, insecure_seed=2).sum(0, vectors, bound=2**61).total
    assert (total == 3).all()


def votes(seed: int, n: int = 5, m: int = 40) -> dict[int, Contribution]:
    rng = np.random.default_rng(seed)
    return {
        k: Contribution(
            weights=rng.integers(0, 2, m).astype(np.float64),
            predictions=one_hot(rng.integers(0, 10, m), 10)
            if k % 2
            else rng.dirichlet(np.ones(10), m),
        )
        for k in range(n)
    }


def test_count_and_class_sums_come_from_one_total() -> None:
    cast = votes(3)
    vectors = {k: CODEC.encode(vote) for k, vote in cast.items()}
    sums = [
        CODEC.decode(method.sum(0, vectors, CODEC.levels).total)
        for method in (MaskedSum(5, insecure_seed=3), PlainSum(5))
    ]
    for result in sums:
        assert np.allclose(result.count, sum(vote.weights for vote in cast.values()))
        assert np.allclose(result.total.sum(axis=1), result.count)
        weighted = sum(vote.weights[:, None] * vote.predictions for vote in cast.values())
        assert np.abs(result.total - weighted).max() <= 5 / CODEC.levels
    assert (sums[0].total == sums[1].total).all()


@pytest.mark.parametrize("method", [PlainSum(4), MaskedSum(4)], ids=lambda method: method.name)
class TestEverySecureSum:
    """What the interface promises, whichever way the sum is made."""

    VECTORS: Vectors = {k: np.full(6, k, np.uint64) for k in range(4)}  # noqa: RUF012 - read only

    def test_a_value_above_the_bound_is_ours(self, method: SecureSum) -> None:
        with pytest.raises(LocalError, match="bound of 2"):
            method.sum(100, self.VECTORS, bound=2)

    def test_a_missing_client_is_named_and_the_next_round_works(self, method: SecureSum) -> None:
        some = {k: v for k, v in self.VECTORS.items() if k != 2}
        with pytest.raises(MissingClientError, match=r"clients \[2\] did not answer in round 200"):
            method.sum(200, some, bound=3)
        assert method.sum(201, self.VECTORS, bound=3).total.tolist() == [6] * 6

    def test_nobody_answers(self, method: SecureSum) -> None:
        with pytest.raises(MissingClientError):
            method.sum(300, {}, bound=3)

    def test_strangers_and_unequal_lengths_are_refused(self, method: SecureSum) -> None:
        with pytest.raises(LocalError, match=r"\[9\] are not of the cohort"):
            method.sum(400, {**self.VECTORS, 9: np.zeros(6, np.uint64)}, bound=3)
        with pytest.raises(LocalError, match="one length"):
            method.sum(401, {**self.VECTORS, 1: np.zeros(5, np.uint64)}, bound=3)

    def test_a_bound_beyond_a_word_is_refused(self, method: SecureSum) -> None:
        with pytest.raises(ConfigurationError, match="bound"):
            method.sum(500, self.VECTORS, bound=2**62)


def test_traffic_is_every_byte_of_both_stages() -> None:
    vectors = {k: np.ones(512 * 10, np.uint64) for k in range(10)}
    masked = MaskedSum(10).sum(0, vectors, bound=1)
    plain = PlainSum(10).sum(0, vectors, bound=1)
    assert set(plain.traffic.up.values()) == {2560}
    assert set(masked.traffic.up.values()) == {(48 + 96) + (48 + 2560)}
    assert set(masked.traffic.down.values()) == {48 + 10 * 100}
    assert (masked.traffic.stages, plain.traffic.stages) == (2, 1)


def test_payloads_are_readable_only_where_that_is_said() -> None:
    vectors = {k: np.full(6, k, np.uint64) for k in range(4)}
    plain, masked = (s.sum(0, vectors, bound=3) for s in (PlainSum(4), MaskedSum(4)))
    assert plain.readable
    assert not masked.readable
    for k in range(4):
        assert masked.payloads[k].shape == plain.payloads[k].shape
        assert (masked.payloads[k] != plain.payloads[k]).all()
    wrapped = sum(int(words[0]) for words in masked.payloads.values()) % 2**64
    assert wrapped == sum(int(words[0]) for words in plain.payloads.values())


def test_insecure_settings_are_caveats_and_defaults_are_none() -> None:
    assert MaskedSum(3).caveats == ()
    assert PlainSum(3).caveats == ()
    assert "seed 7" in MaskedSum(3, insecure_seed=7).caveats[0]
    assert "two clients" in MaskedSum(2, insecure_pair=True).caveats[0]
    assert "caller's randomness" in MaskedSum(3, random=insecure_bytes(7)).caveats[0]


def test_small_cohorts_and_bad_randomness_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="every client needs its own identity"):
        MaskedSum(3, random=bytes)
    for n, pair in ((2, False), (1, False), (1, True), (0, True)):
        with pytest.raises(ConfigurationError, match="n_clients"):
            MaskedSum(n, insecure_pair=pair)
    with pytest.raises(ConfigurationError, match="not both"):
        MaskedSum(3, insecure_seed=1, random=bytes)


def test_a_pair_sums_when_the_flag_says_so() -> None:
    vectors = {k: np.full(6, k, np.uint64) for k in range(2)}
    assert MaskedSum(2, insecure_pair=True).sum(0, vectors, bound=1).total.tolist() == [1] * 6


def test_a_seed_repeats_the_bytes_and_the_default_does_not() -> None:
    vectors = {k: np.full(6, k, np.uint64) for k in range(3)}
    one, same, other, free, free_again = (
        MaskedSum(3, insecure_seed=seed).sum(0, vectors, bound=2).payloads[0].tolist()
        for seed in (1, 1, 2, None, None)
    )
    assert one == same
    assert len({tuple(words) for words in (one, other, free, free_again)}) == 4
