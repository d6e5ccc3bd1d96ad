"""What every sum does, what a masked one costs, and who can read what is sent.

That sums are exact for any cohort, bound and input is in test_noisy_sums.py; what happens when
clients fall silent is in test_masked_dropouts.py.
"""

import os

import numpy as np
import pytest

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.secagg.session import NO_NOISE, NoiseTerms
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.votes.codec import KnowledgeCodec, Released, WordArray, one_hot
from secure_fd.wire import Stage
from tests.drivers.summing import summed

CODEC = KnowledgeCodec(n_classes=10, levels=4095)
Vectors = dict[int, WordArray]


@pytest.mark.parametrize("words", [32_767, 32_768, 32_769, 70_000])
def test_masks_cancel_across_blocks(words):
    vectors = {k: np.full(words, k, np.uint64) for k in range(3)}
    total = summed(MaskedSum(3, random=insecure_bytes(2), hybrid=False), 0, vectors, 2**55).total
    assert (total == 3).all()


def votes(seed: int, n: int = 5, m: int = 40) -> dict[int, Released]:
    rng = np.random.default_rng(seed)
    return {
        k: Released(
            weights=rng.integers(0, 2, m).astype(np.float64),
            predictions=one_hot(rng.integers(0, 10, m), 10)
            if k % 2
            else rng.dirichlet(np.ones(10), m),
        )
        for k in range(n)
    }


def test_count_and_class_sums_come_from_one_total():
    cast = votes(3)
    vectors = {k: CODEC.encode(vote) for k, vote in cast.items()}
    sums = [
        CODEC.decode(summed(method, 0, vectors, CODEC.levels).total, 5)
        for method in (MaskedSum(5, random=insecure_bytes(3), hybrid=False), PlainSum(5))
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
            summed(method, 100, self.VECTORS, 2)

    def test_a_missing_client_is_noticed_and_the_next_round_works(self, method: SecureSum) -> None:
        some = {k: v for k, v in self.VECTORS.items() if k != 2}
        without = summed(method, 200, some, 3)
        assert without.total.tolist() == [4] * 6
        assert without.survivors == (0, 1, 3)
        after = summed(method, 201, self.VECTORS, 3)
        assert after.total.tolist() == [6] * 6
        assert after.survivors == (0, 1, 2, 3)
        assert after.missing == {}

    def test_nobody_answers(self, method: SecureSum) -> None:
        ended = summed(method, 300, {}, 3)
        assert ended.aborted
        assert ended.up == ended.down == {}

    def test_another_length_is_refused(self, method: SecureSum) -> None:
        with pytest.raises(LocalError, match=r"\(5,\)"):
            summed(method, 401, {**self.VECTORS, 1: np.zeros(5, np.uint64)}, 3)

    def test_a_bound_beyond_a_word_is_refused(self, method: SecureSum) -> None:
        with pytest.raises((ConfigurationError, LocalError), match="bound: 4611686018427387904"):
            summed(method, 500, self.VECTORS, 2**62)


HEADER, SIGNATURE, TAG = 48, 64, 16


def prepared(neighbours: int) -> int:
    """Bytes of a PREPARE: key, commitment, vault, and sealed shares for every neighbour."""
    return 32 + 32 + (32 * neighbours + 16) + 80 * neighbours


def test_a_steady_round_of_hard_labels_is_small_and_counted_to_the_byte():
    """Ten clients, 512 proxies of ten classes: four bits a class, so 2,560 bytes of lanes."""
    vectors = {k: np.ones(512 * 10, np.uint64) for k in range(10)}
    method = MaskedSum(10)
    summed(method, 0, vectors, 1)
    steady = summed(method, 1, vectors, 1)
    masked = HEADER + 2560 + 2 + 2 * SIGNATURE + prepared(9) + TAG
    unmask = HEADER + 10 * 32
    assert set(steady.up.values()) == {masked + unmask}
    assert masked + unmask <= 4500
    cohort = HEADER + 2 + 9 * (32 + 80)
    survivors = HEADER + 2 + 2 + 10 * SIGNATURE  # two sets, then a signature a member
    assert set(steady.down.values()) == {cohort + survivors}
    assert steady.stages == 2
    plain = summed(PlainSum(10), 1, vectors, 1)
    assert set(plain.up.values()) == {HEADER + 2560}
    assert plain.stages == 1


def test_a_dropout_costs_one_stage_and_a_signature():
    vectors = {k: np.ones(512 * 10, np.uint64) for k in range(10)}
    method = MaskedSum(10)
    steady = [summed(method, r, vectors, 1) for r in range(2)][-1]
    lost = summed(method, 2, vectors, 1, dropouts={4: Stage.INPUT})
    assert set(lost.up) == set(range(10)) - {4}
    assert {lost.up[k] - steady.up[k] for k in lost.up} == {HEADER + SIGNATURE}
    assert lost.stages == 3
    assert max(lost.up.values()) <= 4500
    # Client 4 has prepared nothing for this round, so it alone sends a PREPARE again.
    after = summed(method, 3, vectors, 1)
    assert after.up[4] - steady.up[4] == HEADER + prepared(9)
    assert {after.up[k] for k in after.up if k != 4} == set(steady.up.values())
    assert after.stages == 3


def test_a_set_up_and_a_first_round_are_counted_to_the_byte():
    method = MaskedSum(4, hybrid=False)
    agreed = method.setup_traffic
    first = summed(method, 0, {k: np.ones(16, np.uint64) for k in range(4)}, 1)
    join, reveal = HEADER + 32 + 32 + SIGNATURE, HEADER + 32 + SIGNATURE
    assert set(agreed.up.values()) == {join + reveal}
    start, masked = HEADER + prepared(3), HEADER + 8 + 1 + 2 * SIGNATURE + prepared(3) + TAG
    assert set(first.up.values()) == {start + masked + HEADER + 4 * 32}
    assert first.stages == 3


@pytest.mark.parametrize(("value", "noise"), [(np.uint64(1), NO_NOISE), (-1, NoiseTerms(12))])
def test_payloads_are_readable_only_where_that_is_said(value, noise):
    vectors = {k: np.full(6, k * value) for k in range(4)}
    plain, masked = (summed(s, 0, vectors, 3, noise=noise) for s in (PlainSum(4), MaskedSum(4)))
    assert set(plain.seen.uploads) == set(vectors)
    assert masked.seen.uploads is None
    for k in range(4):
        assert masked.payloads[k].shape == plain.payloads[k].shape
        assert (masked.payloads[k] != plain.payloads[k]).all()
    # Before the unmasking the pair masks have cancelled and the self masks have not.
    wrapped = sum(int(words[0]) for words in masked.payloads.values()) % 2**64
    assert wrapped != sum(int(words[0]) for words in plain.payloads.values())


def test_insecure_settings_are_caveats_and_defaults_are_none():
    assert MaskedSum(3).caveats == ()
    assert PlainSum(3).caveats == ()
    assert "caller's randomness" in MaskedSum(3, random=insecure_bytes(7)).caveats[0]
    assert MaskedSum(3, public_seed=7).caveats == ()
    assert "public seed 7" in MaskedSum(3, public_seed=7).guarantee


def test_small_cohorts_and_bad_randomness_are_refused():
    with pytest.raises(ConfigurationError, match="every client needs its own identity"):
        MaskedSum(3, random=bytes)
    with pytest.raises(LocalError, match="gave 1 bytes where 32"):
        MaskedSum(3, random=lambda _: b"a")
    for n in (2, 1, 0):
        with pytest.raises(ConfigurationError, match="n_clients"):
            MaskedSum(n)


def test_a_seed_repeats_the_bytes_and_the_default_does_not():
    vectors = {k: np.full(6, k, np.uint64) for k in range(3)}
    seeded = (insecure_bytes(1), insecure_bytes(1), insecure_bytes(2))
    one, same, other, free, free_again = (
        summed(MaskedSum(3, random=source, hybrid=False), 0, vectors, 2).payloads[0].tolist()
        for source in (*seeded, os.urandom, os.urandom)
    )
    assert one == same
    assert len({tuple(words) for words in (one, other, free, free_again)}) == 4
