"""Sums with and without signed noise: exact over the survivors, whoever falls silent, or void.

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
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.samplers import SeededRandom, discrete_gaussian
from secure_fd.secagg.session import NO_NOISE, NoiseTerms
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.homomorphic import HomomorphicSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Stage
from tests.drivers.summing import Summed, summed, total_of

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
def test_signed_sums_are_exact_or_void(case):
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


def test_real_noise_of_many_clients_is_in_the_sum_and_the_votes_are_too():
    """Shares of variance 4 from twelve clients; each share is known here, so nothing is left."""
    random = SeededRandom(5)
    shares = {k: discrete_gaussian(2.0, 200, random) for k in range(12)}
    votes = {k: np.eye(10, dtype=np.int64)[np.arange(20) % 10].ravel() for k in range(12)}
    case = Case({k: votes[k] + shares[k] for k in shares}, 1, NoiseTerms(100, 11), {3: Stage.INPUT})
    result = case.run(MaskedSum(12))
    noise = result.total - sum(votes[k] for k in result.survivors)
    assert (noise == sum(shares[k] for k in result.survivors)).all()
    assert 0.6 < noise.var() / (11 * 4) < 1.6  # 200 values: 5 deviations of a tenth


@pytest.mark.parametrize("method", [PlainSum(4), MaskedSum(4)], ids=lambda method: method.name)
class TestEveryNoisySum:
    """What the interface promises, whichever way the sum is made."""

    CASE = Case({k: np.full(6, k - 2) for k in range(4)}, 1, NoiseTerms(8, 3), {})

    def test_a_value_beyond_bound_and_room_is_ours(self, method: SecureSum) -> None:
        for value in (-9, 10):
            vectors = {**self.CASE.vectors, 1: np.full(6, value)}
            with pytest.raises(LocalError, match="room of 8"):
                replace(self.CASE, vectors=vectors).run(method, 100 + value)

    def test_signed_values_without_room_are_ours(self, method: SecureSum) -> None:
        with pytest.raises(LocalError, match="must be uint64"):
            replace(self.CASE, noise=NoiseTerms(0, 3)).run(method, 200)

    def test_too_few_inputs_for_the_noise_void_the_round_and_the_next_one_works(
        self, method: SecureSum
    ) -> None:
        lost = replace(self.CASE, noise=NoiseTerms(8, 4), dropouts={2: Stage.INPUT})
        assert "4" in lost.run(method, 300).aborted
        assert self.CASE.run(method, 301).total.tolist() == [-2] * 6

    def test_a_client_that_falls_silent_after_its_input_is_in_the_sum(
        self, method: SecureSum
    ) -> None:
        late = replace(self.CASE, noise=NoiseTerms(8, 4), dropouts={2: Stage.UNMASK})
        assert late.run(method, 400).survivors == (0, 1, 2, 3)


def test_more_survivors_than_clients_are_refused():
    case = Case({k: np.zeros(2, np.int64) for k in range(4)}, 1, NoiseTerms(8, 5), {})
    with pytest.raises(ConfigurationError, match=r"survivors: 5 .* use up to 4"):
        case.run(MaskedSum(4))


def test_an_encrypted_sum_carries_no_noise():
    case = Case({k: np.zeros(2, np.int64) for k in range(4)}, 1, NoiseTerms(8), {})
    with pytest.raises(ConfigurationError, match=r"noise: .* use the masked sum"):
        case.run(HomomorphicSum(4))


def test_who_sees_sums_only_says_so():
    assert [kind.hides for kind in (MaskedSum, HomomorphicSum, PlainSum)] == [True, True, False]


@pytest.mark.parametrize(
    ("room", "survivors", "field"),
    [(-1, 0, "room"), (2**63, 0, "room"), (0, -1, "survivors"), (0, 2**32, "survivors")],
)
def test_impossible_terms_are_refused(room, survivors, field):
    with pytest.raises(ConfigurationError, match=field):
        NoiseTerms(room, survivors)
