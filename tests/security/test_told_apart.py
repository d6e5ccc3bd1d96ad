"""A lying server against real federations of masked sums: refused as shipped, and its twin is read.

Both end in a void round: the others' signatures are not about what the target was told, so it does
not help to unmask; its masks do not cancel; what opens is no sum.
"""

from collections.abc import Callable

import pytest

from experiments.scenes.told_apart import (
    SIZES,
    TARGET,
    Lied,
    binding_cost,
    dead_model,
    split_ensemble,
)
from secure_fd.broadcasts import BROADCAST_BYTES, Teller
from secure_fd.crypto.primitives import IdentityKey, insecure_bytes
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.exchange import Kind

LIES = pytest.mark.parametrize("lie", [split_ensemble, dead_model])


@pytest.fixture(scope="module")
def ten() -> FederatedData:
    return federate(load("digits"), parse_split("iid"), 10, seed=20, sizes=SIZES)


@LIES
def test_nothing_of_the_target_is_read_and_the_round_is_void(
    ten: FederatedData, lie: Callable[..., Lied]
) -> None:
    found = lie(ten, 20, bound=True)
    assert [report.void for report in found.reports] == [False, True]
    [(refused, why)] = found.reports[1].refused
    assert refused == TARGET
    assert "of the committee signed" in why
    result = found.result
    assert result.figure == pytest.approx(result.control)
    assert result.details["read_where_the_control_fails"] == 0.0
    assert result.details["void_rounds"] == 1.0


@LIES
def test_without_the_hash_the_target_s_vector_is_read(
    ten: FederatedData, lie: Callable[..., Lied]
) -> None:
    """The twin."""
    found = lie(ten, 20, bound=False)
    assert not any(report.void or report.refused for report in found.reports)
    result = found.result
    assert result.figure > 0.99
    assert result.figure > result.control + 0.1
    assert result.details["read_where_the_control_fails"] > 0.99
    assert result.details["entries"] > 100
    if lie is dead_model:
        assert result.details["largest_error"] < 1e-6


def test_binding_costs_a_signature_a_broadcast() -> None:
    key = IdentityKey.generate(insecure_bytes(1))
    assert len(Teller(bytes(32), key).write(Kind.TELL, 0, b"x")) == BROADCAST_BYTES + 1
    cost = binding_cost(1000, repeats=3)
    assert cost["binding_bytes_a_broadcast"] == 64
    assert all(value > 0 for value in cost.values())
