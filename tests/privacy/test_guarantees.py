"""A claim is printed whole or not at all, and the masked sum names what it withstands."""

import json
import math

import numpy as np
import pytest

from secure_fd.errors import ConfigurationError, GarbledSumError, LocalError
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.dp_sgd import TrainingPlan
from secure_fd.privacy.guarantee import Guarantee, Part, PrivacyUnit, format_epsilon
from secure_fd.privacy.label import RandomizedResponse
from secure_fd.privacy.record import PooledPlan
from secure_fd.votes.codec import Contribution, KnowledgeCodec, Released
from tests.drivers.cohort import TERMS, Cohort
from tests.refusals import refused

DELTA = 1e-5


def record(epsilon: float = 4.0, *, entries: int = 2000, sums: int = 1) -> Guarantee:
    """Guarantee of class sums on which each client's own noise is enough, one of them released."""
    plan = PooledPlan(clients=10, honest=1, entries=entries, sums=sums)
    plan = plan.with_noise(calibrate(epsilon, DELTA, plan))
    return plan.guarantee(DELTA, (5400,) * 10, released=1)


def label() -> Guarantee:
    return RandomizedResponse(4.0, 11).guarantee(releases=6000, delta=DELTA)


def dp_sgd(epsilon: float = 3.83) -> Guarantee:
    plan = TrainingPlan(5400, batch=64, steps=500, noise=0.72)
    return plan.guarantee(epsilon=epsilon, delta=DELTA)


@pytest.mark.parametrize(
    ("made", "figures"),
    [(dp_sgd, ("3.83",)), (record, ("epsilon 4", "9.09")), (label, ("epsilon 4", "20,511"))],
)
def test_no_epsilon_of_a_claim_whose_assumptions_failed_is_ever_printed(made, figures):
    claim = made()
    assert all(figure in claim.sentence() for figure in figures)
    assert claim.invalidated_by(()) == claim
    refuted = claim.invalidated_by(("a network was released",))
    shown = refuted.sentence() + repr(refuted) + json.dumps(refuted.to_json())
    assert refuted.unmet[0] in refuted.sentence()
    assert math.isinf(refuted.epsilon)
    assert refuted.to_json()["epsilon"] is None
    assert not [f for f in figures if f in shown]


def test_a_claim_that_breaks_its_own_rules_is_refused():
    """A figure beside a failed assumption, and one that no release was accounted for."""

    def claim(epsilon: float, delta: float, **named: object) -> Guarantee:
        return Guarantee(PrivacyUnit.RECORD, "x", epsilon, delta, (), (), (), "s", "a", **named)

    for wrong in ({"unmet": ("why",), "parts": (Part("x", 1, 1.0),)}, {}):
        with pytest.raises(LocalError):
            claim(1.0, 0.0, **wrong)
    for epsilon, delta in ((-1.0, 0.0), (math.nan, 0.0), (1.0, 1.0)):
        with pytest.raises(ConfigurationError):
            claim(epsilon, delta)
    assert record(math.inf).to_json()["holds"] is False


def test_json_is_plain_and_complete():
    plain = json.loads(json.dumps(label().to_json(), allow_nan=False))
    assert (plain["unit"], plain["epsilon"]) == ("label", 4)
    assert [c["unit"] for c in plain["composes_to"]] == ["record", "client"]
    assert {"neighbours", "covers", "not_covered", "sampler", "accountant"} <= set(plain)
    [part] = record().to_json()["parts"]
    assert (part["times"], part["epsilon"]) == (1, pytest.approx(4))
    planned = record(sums=2)
    assert planned.parts[0].epsilon < 3 < planned.epsilon  # one sum of two was released


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [(3.999999999999, "4"), (4.0000000001, "4"), (3.8301, "3.84"), (0.026, "0.03"),
     (20510.567, "20,511"), (100.0, "100"), (math.inf, "infinite")],
)  # fmt: skip
def test_a_printed_epsilon_is_never_below_the_true_one(epsilon, shown):
    assert format_epsilon(epsilon) == shown


def test_a_delta_that_allows_publishing_a_record_is_refused():
    with refused("delta"):
        PooledPlan(10, 1, 1, noise=1.0).guarantee(1e-3, (1000,) * 10, released=1)


def test_what_the_sampler_lacks_is_in_delta_or_there_is_no_epsilon():
    """At epsilon 55 and 20,000 draws of 2^-110 the slack is 1.2e-5, above a hundredth of delta."""
    covered = record(45.0, entries=20_000)
    assert covered.holds
    assert DELTA < covered.delta < 1.001 * DELTA
    assert not record(55.0, entries=20_000).holds
    assert not dp_sgd(35.0).holds  # the end of a floating-point tail costs two deltas there


# The masked sum.


@pytest.mark.parametrize("upward", [True, False])
def test_one_client_moves_a_sum_by_as_much_as_it_says(upward):
    """Against others that all vote least, or most; one step more, and the round is aborted."""
    for beyond in (0, 1):
        cohort = Cohort(4)
        others, bound = 0 if upward else TERMS.bound, TERMS.bound
        values = {k: np.full(TERMS.length, others, np.uint64) for k in cohort.clients}
        current = cohort.open(TERMS, values)
        liar = current.clients[2]
        step = 4 * bound + beyond if upward else -3 * bound - beyond
        liar._held.words[:] = liar._held.words * 0 + np.uint64(step % 2**64)
        if beyond:
            with pytest.raises(GarbledSumError):
                current.finish()
        else:
            assert current.finish()[0] == (4 * bound if upward else 0)


def test_the_codec_refuses_what_passed_no_privacy_mechanism():
    codec, honest = KnowledgeCodec(3, 1), Contribution(np.ones(2), np.eye(3)[:2])
    with pytest.raises(LocalError, match="passed the privacy mechanism"):
        codec.encode(honest)
    assert codec.encode(Released.of(honest)).tolist() == [1, 0, 0, 0, 1, 0]
