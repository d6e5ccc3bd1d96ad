"""Behaviour of every sum, cost of a masked one, and readers of the messages.

That sums are exact for any cohort, bound and input is in test_noisy_sums.py.
"""

import os
from dataclasses import dataclass

import numpy as np
import pytest

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.errors import LocalError
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.server import MaskingServer
from secure_fd.secagg.session import NO_NOISE, NoiseTerms
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.votes.codec import WordArray
from secure_fd.wire import Stage
from tests.drivers.cohort import Cohort
from tests.drivers.summing import summed, total_of
from tests.refusals import refused


@pytest.mark.parametrize("words", [32_767, 32_768, 32_769, 70_000])
def test_masks_cancel_across_blocks(words):
    vectors = {k: np.full(words, k, np.uint64) for k in range(3)}
    total = summed(MaskedSum(3, random=insecure_bytes(2), hybrid=False), 0, vectors, 2**55).total
    assert (total == 3).all()


@pytest.mark.parametrize("method", [PlainSum(4), MaskedSum(4)], ids=lambda method: method.name)
class TestEverySecureSum:
    """Check the guarantees of the interface for each kind of sum."""

    VECTORS = {k: np.full(6, k, np.uint64) for k in range(4)}  # noqa: RUF012 - read only

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

    def test_another_length_is_refused(self, method: SecureSum) -> None:
        with pytest.raises(LocalError, match=r"\(5,\)"):
            summed(method, 401, {**self.VECTORS, 1: np.zeros(5, np.uint64)}, 3)


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


@pytest.mark.parametrize(("value", "noise"), [(np.uint64(1), NO_NOISE), (-1, NoiseTerms(12))])
def test_payloads_are_readable_only_where_stated(value, noise):
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


def test_the_callers_randomness_is_a_caveat_and_no_constant():
    assert not MaskedSum(3, public_seed=7).caveats
    assert MaskedSum(3, random=insecure_bytes(7)).caveats
    with refused("roster"):
        MaskedSum(3, random=bytes)
    with pytest.raises(LocalError, match="gave 1 bytes"):
        MaskedSum(3, random=lambda _: b"a")
    with refused("n_clients"):
        MaskedSum(2)
    with refused("epoch"):
        MaskedSum(3, epoch=0)


def test_a_seed_repeats_the_bytes_and_the_default_does_not():
    vectors = {k: np.full(6, k, np.uint64) for k in range(3)}
    seeded = (insecure_bytes(1), insecure_bytes(1), insecure_bytes(2))
    one, same, other, free, free_again = (
        summed(MaskedSum(3, random=source, hybrid=False), 0, vectors, 2).payloads[0].tolist()
        for source in (*seeded, os.urandom, os.urandom)
    )
    assert one == same
    assert len({tuple(words) for words in (one, other, free, free_again)}) == 4


# Clients that fall silent; tests/model explores every schedule of a few clients.


def random_vectors(n: int, seed: int) -> dict[int, WordArray]:
    drawn = np.random.default_rng(seed).integers(0, 6, (n, 7), np.uint64)
    return dict(enumerate(drawn))


def test_a_client_is_missing_from_its_stage_on_and_is_back_in_the_next_round():
    """An input brings what the next round begins with: who sent none has a stage more then."""
    method, stages = MaskedSum(7, random=insecure_bytes(7), hybrid=False), []
    plans = [{}, {1: Stage.INPUT, 2: Stage.CONSISTENCY}, {}, {3: Stage.UNMASK}, {4: Stage.INPUT}]
    for index, plan in enumerate(plans):
        vectors = random_vectors(7, index)
        result = summed(method, index, vectors, 5, dropouts=plan)
        left = [k for k in range(7) if plan.get(k) is not Stage.INPUT]
        assert result.missing == plan
        assert result.survivors == tuple(left)
        assert result.total.tolist() == total_of(vectors, left)
        stages.append(result.stages)
    assert stages == [3, 3, 3, 2, 3]


@dataclass(frozen=True)
class Sparse:
    """The halves of a sum whose clients accept fewer neighbours than they should."""

    cohort: Cohort
    n_clients: int = 40

    def client(self, number: int) -> MaskingClient:
        return self.cohort.clients[number]

    def server(self) -> MaskingServer:
        return self.cohort.server


def test_a_sparse_graph_recovers_every_client_in_every_stage():
    """Forty clients that do not all mask with each other: four fall silent in every round."""
    n = 40
    method = Sparse(Cohort(n, seed=3, degree=20))
    assert method.cohort.group.degree == 20
    for index, stage in enumerate(Stage):
        vectors = random_vectors(n, index)
        drop = dict.fromkeys(range(4 * index, 4 * index + 4), stage)
        result = summed(method, 2 * index, vectors, 5, dropouts=drop)
        kept = [k for k in range(n) if stage in (Stage.CONSISTENCY, Stage.UNMASK) or k not in drop]
        assert result.survivors == tuple(kept)
        assert result.total.tolist() == total_of(vectors, kept)
        assert set(result.missing) == set(drop)
