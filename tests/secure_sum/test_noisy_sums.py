"""Sums with and without signed noise: exact over the survivors of any drop-outs, or aborted.

Every client's values leave [0, bound] by up to its part of the room, in both directions, and all
of them may do so in the same direction at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.errors import LocalError
from secure_fd.secagg.session import NO_NOISE, NoiseTerms, RoundScope, RoundTerms
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.homomorphic import HomomorphicSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Stage
from tests.drivers.cohort import Cohort
from tests.drivers.summing import Summed, summed, total_of
from tests.refusals import refused

Vectors = dict[int, UnitArray]


@dataclass(frozen=True)
class Case:
    """One noisy round."""

    vectors: Vectors
    bound: int
    noise: NoiseTerms
    dropouts: Mapping[int, Stage]

    def run(self, method: SecureSum, index: int = 0) -> Summed:
        silent, noise = self.dropouts, self.noise
        return summed(method, index, self.vectors, self.bound, dropouts=silent, noise=noise)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n, bound = draw(st.integers(3, 12)), draw(st.sampled_from([1, 7, 4095, 2**40]))
    share = draw(st.sampled_from([0, 0, 0, 1, 5, 1000, 2**45]))
    if not share:
        bounds = st.sampled_from([1, 2, 15, 4095, 2**28 - 1, 2**32, 2**56])
        bound = draw(bounds | st.integers(1, 2**56))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (n, draw(st.integers(1, 200)))
    edge = draw(st.sampled_from(["random", "lowest", "highest"]))
    values = {
        "random": rng.integers(-share, bound + share, shape, endpoint=True),
        "lowest": np.full(shape, -share),
        "highest": np.full(shape, bound + share),
    }[edge]
    silent = st.dictionaries(st.integers(0, n - 1), st.sampled_from(list(Stage)), max_size=n // 3)
    noise = NoiseTerms(n * share, draw(st.integers(0, n)))
    kind = np.int64 if share else np.uint64
    return Case(dict(enumerate(values.astype(kind))), bound, noise, draw(silent))


@given(cases())
@example(Case({k: np.full(7, 2**56, np.uint64) for k in range(4)}, 2**56, NO_NOISE, {}))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_signed_sums_are_exact_or_aborted(case):
    n = len(case.vectors)
    early = (Stage.PREPARE, Stage.INPUT)
    arrived = tuple(k for k in case.vectors if case.dropouts.get(k) not in early)
    left = n - len(case.dropouts)
    enough = len(arrived) >= case.noise.survivors
    for method, works in (
        (MaskedSum(n, random=insecure_bytes(1), hybrid=False), enough and left >= 2 * n // 3 + 1),
        (PlainSum(n), enough and bool(arrived)),
    ):
        result = case.run(method)
        assert bool(result.aborted) is not works
        if not works:
            continue
        assert result.survivors == arrived
        assert result.total.dtype == (np.int64 if case.noise.room else np.uint64)
        assert set(result.payloads) == set(arrived)
        assert result.total.tolist() == total_of(case.vectors, arrived)


CASE = Case({k: np.full(6, k - 2) for k in range(4)}, 1, NoiseTerms(8, 3), {})


@pytest.mark.parametrize("method", [PlainSum(4), MaskedSum(4)], ids=lambda method: method.name)
def test_values_beyond_their_room_are_refused_and_too_few_inputs_abort(method):
    for value in (-9, 10):
        with pytest.raises(LocalError, match="room of 8"):
            replace(CASE, vectors={**CASE.vectors, 1: np.full(6, value)}).run(method, 100 + value)
    with pytest.raises(LocalError, match=r"\(5,\)"):
        replace(CASE, vectors={**CASE.vectors, 1: np.full(5, 1)}).run(method, 210)
    with pytest.raises(LocalError, match="must be uint64"):
        replace(CASE, noise=NoiseTerms(0, 3)).run(method, 220)
    lost = replace(CASE, noise=NoiseTerms(8, 4), dropouts={2: Stage.INPUT})
    assert lost.run(method, 300).aborted
    assert CASE.run(method, 301).total.tolist() == [-2] * 6
    late = replace(lost, dropouts={2: Stage.UNMASK})
    assert late.run(method, 400).survivors == (0, 1, 2, 3)


def test_impossible_terms_are_refused():
    for field, room, survivors in (
        *(("room", -1, 0), ("room", 2**63, 0)),
        *(("survivors", 0, -1), ("survivors", 0, 2**32)),
    ):
        with refused(field):
            NoiseTerms(room, survivors)
    with refused("survivors"):
        replace(CASE, noise=NoiseTerms(8, 5)).run(MaskedSum(4))
    session = Cohort(3, enrolled=False).session
    assert RoundScope(session, RoundTerms(0, 2**28, 2**60)).words == 2**28
    with refused("length"):  # beyond 2 GiB a message
        RoundScope(session, RoundTerms(0, 2**28 + 1, 2**60))
    with refused("noise"):  # an encrypted sum carries none
        CASE.run(HomomorphicSum(4))
    assert [kind.hides for kind in (MaskedSum, HomomorphicSum, PlainSum)] == [True, True, False]
