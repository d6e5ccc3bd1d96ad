"""The masked sum in full size: blocks of masks, bytes of a round, epochs and sparse graphs.

That sums are exact for any cohort, bound and input is in test_noisy_sums.py, and every schedule of
a few clients in tests/model.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.errors import LocalError
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.server import MaskingServer
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


def test_the_callers_randomness_is_a_caveat_and_no_constant():
    assert not MaskedSum(3, public_seed=7).caveats
    vectors = {k: np.full(6, k, np.uint64) for k in range(3)}
    one, other = (summed(MaskedSum(3), 0, vectors, 2).payloads[0].tolist() for _ in range(2))
    assert one != other
    assert MaskedSum(3, random=insecure_bytes(7)).caveats
    with refused("roster"):
        MaskedSum(3, random=bytes)
    with pytest.raises(LocalError, match="gave 1 bytes"):
        MaskedSum(3, random=lambda _: b"a")
    with refused("n_clients"):
        MaskedSum(2)
    with refused("epoch"):
        MaskedSum(3, epoch=0)


def random_vectors(n: int, seed: int) -> dict[int, WordArray]:
    drawn = np.random.default_rng(seed).integers(0, 6, (n, 7), np.uint64)
    return dict(enumerate(drawn))


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


@pytest.mark.parametrize("hybrid", [False, True])
def test_six_rounds_of_epochs_of_two_sum_exactly_with_a_client_away(hybrid):
    """Client 4 misses the set-up of the second epoch: it is back in the third."""
    method, views = MaskedSum(5, epoch=2, hybrid=hybrid), list[bytes]()
    for index in range(6):
        vectors = random_vectors(5, index)
        if index == 2:
            vectors.pop(4)
        result = summed(method, index, vectors, 5)
        there = [0, 1, 2, 3] if index in (2, 3) else [0, 1, 2, 3, 4]
        assert result.survivors == tuple(there)
        assert result.total.tolist() == total_of(vectors, there)
        assert not result.missing
        views.append(method._server.group.view)
    assert [views[at] == views[at + 1] for at in range(5)] == [True, False, True, False, True]
