"""Secrets restored by the batch are those that one at a time gives, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.crypto import shamir_batch
from secure_fd.crypto.primitives import insecure_bytes
from secure_fd.crypto.shamir import PRIME, combine, draw_element, encode, split, weights_at_zero
from secure_fd.crypto.shamir_batch import Bytes, combine_many
from secure_fd.errors import LocalError, PeerError

EDGES = [0, 1, 2**16 - 1, 2**240, PRIME - 2**16, PRIME - 1]


def encoded(shares: list[list[int]]) -> Bytes:
    raw = b"".join(encode(share) for row in shares for share in row)
    return np.frombuffer(raw, np.uint8).reshape(len(shares), -1, 32)


@pytest.fixture(params=[0, 2**60], ids=["limbs", "integers"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to add, whatever the size."""
    monkeypatch.setattr(shamir_batch, "_WORTH_LIMBS", request.param)


@given(
    owners=st.integers(1, 12),
    t=st.integers(1, 40),
    seed=st.integers(0, 2**20),
    common=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.parametrize("worth", [0, 2**60], ids=["limbs", "integers"])
def test_the_batch_is_the_inner_product(
    worth: int, owners: int, t: int, seed: int, common: bool
) -> None:
    random = insecure_bytes(seed)
    rows = 1 if common else owners
    weights = [tuple(draw_element(random) for _ in range(t)) for _ in range(rows)]
    shares = [[draw_element(random) for _ in range(t)] for _ in range(owners)]
    expected = [combine(weights[0 if common else o], shares[o]) for o in range(owners)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shamir_batch, "_WORTH_LIMBS", worth)
        assert combine_many(weights, encoded(shares)) == expected


@pytest.mark.usefixtures("path")
def test_the_largest_elements_add_exactly() -> None:
    t = 2**12
    largest = PRIME - 1
    shares = encoded([[largest] * t, EDGES * (t // len(EDGES)) + [largest] * (t % len(EDGES))])
    weights = [(largest,) * t]
    first, second = combine_many(weights, shares)
    assert first == t * largest * largest % PRIME
    assert second == -(sum(EDGES) * (t // len(EDGES)) + largest * (t % len(EDGES))) % PRIME


@pytest.mark.usefixtures("path")
def test_shares_of_a_split_restore_it() -> None:
    random = insecure_bytes(3)
    points, secrets = list(range(1, 11)), [*EDGES, draw_element(random)]
    shares = [split(secret, points, 7, random)[:7] for secret in secrets]
    assert combine_many([weights_at_zero(points[:7])], encoded(shares)) == secrets


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("value", [PRIME, PRIME + 1, PRIME + 18, 2**255, 2**256 - 1])
def test_a_share_outside_the_field_is_refused(value: int) -> None:
    shares = encoded([[1, 2, 3], [4, 5, 6]]).copy()
    shares[1, 2] = np.frombuffer(value.to_bytes(32, "big"), np.uint8)
    with pytest.raises(PeerError, match="not below the prime"):
        combine_many([(1, 1, 1)], shares)


def test_more_shares_than_add_exactly_are_refused() -> None:
    with pytest.raises(LocalError, match="at most 4096"):
        combine_many([(1,) * 4097], np.zeros((1, 4097, 32), np.uint8))
