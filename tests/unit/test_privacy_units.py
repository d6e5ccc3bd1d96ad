"""A claim is printed whole or not at all."""

import json
import math
import pkgutil
import subprocess
import sys

import pytest

from secure_fd import privacy
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.dp_sgd import TrainingPlan
from secure_fd.privacy.guarantee import Guarantee, PrivacyUnit, format_epsilon
from secure_fd.privacy.label import RandomizedResponse
from secure_fd.privacy.record import PooledPlan

DELTA = 1e-5


def record(epsilon: float = 4.0, *, entries: int = 2000) -> Guarantee:
    """Of class sums on which each client's own noise is enough."""
    plan = PooledPlan(clients=10, honest=1, entries=entries)
    plan = plan.with_noise(calibrate(epsilon, DELTA, plan))
    return plan.guarantee(DELTA, (5400,) * 10, released=1)


def label(epsilon: float = 4.0) -> Guarantee:
    mechanism = RandomizedResponse(epsilon, 11)
    return mechanism.guarantee(releases=6000, delta=DELTA)


def dp_sgd() -> Guarantee:
    plan = TrainingPlan(5400, batch=64, steps=500, noise=0.72)
    return plan.guarantee(epsilon=3.83, delta=DELTA)


def test_the_label_unit_says_what_it_adds_up_to():
    sentence = label().sentence()
    assert "label unit has epsilon 4 at delta 0" in sentence
    assert "record level this is epsilon 20,511" in sentence
    assert "client level this is epsilon 20,511" in sentence
    assert "deniability of a single answer and nothing more" in sentence


def test_the_record_unit_prints_replace_one_and_the_client_level():
    sentence = record().sentence()
    assert "record unit has epsilon 4 at delta 1e-05" in sentence
    assert "for replace-one neighbours the same noise is epsilon 9.09" in sentence
    assert "at the client level this is not bounded" in sentence
    assert "the numbers of records" in sentence


def test_floating_point_noise_is_called_what_it_is():
    sentence = dp_sgd().sentence()
    assert "epsilon 3.83" in sentence
    assert "floating-point Gaussian" in sentence
    assert "voids the claim against an attacker who reads low bits" in sentence
    assert "at the client level this is not bounded" in sentence


@pytest.mark.parametrize(
    ("claim", "figures"),
    [
        (dp_sgd().invalidated_by(("why",)), ("3.83",)),
        (record().invalidated_by(["a network was released"]), ("epsilon 4", "9.09")),
        (label().invalidated_by(["a pair was released twice"]), ("epsilon 4", "20,511")),
    ],
)
def test_no_epsilon_of_a_claim_whose_assumptions_failed_is_ever_printed(claim, figures):
    shown = claim.sentence() + repr(claim) + json.dumps(claim.to_json())
    assert claim.sentence().startswith("No differential privacy")
    assert claim.unmet[0] in claim.sentence()
    assert math.isinf(claim.epsilon)
    assert claim.to_json()["epsilon"] is None
    assert not [f for f in figures if f in shown]


def test_a_claim_is_kept_where_nothing_speaks_against_it():
    assert record().invalidated_by(()) == record()
    with pytest.raises(LocalError, match="unmet"):
        Guarantee(PrivacyUnit.RECORD, "x", 1.0, 0.0, (), (), (), "s", "a", unmet=("why",))


def test_an_epsilon_that_was_not_accounted_for_is_refused():
    with pytest.raises(LocalError, match="no release was accounted for"):
        Guarantee(PrivacyUnit.RECORD, "x", 1.0, 0.0, (), (), (), "s", "a")


def test_the_sentence_says_what_the_budget_was_spent_on():
    assert "spent on noisy class sums (once, epsilon 4 alone)" in record().sentence()
    assert "answers, each about another proxy (6,000 times, epsilon 4 alone)" in label().sentence()
    assert record().to_json()["parts"] == [
        {"name": "noisy class sums", "times": 1, "epsilon": pytest.approx(4)}
    ]


def test_no_noise_is_no_privacy():
    for claim in [record(math.inf)]:
        assert claim.sentence().endswith("no noise is added.")
        assert claim.to_json()["holds"] is False


def test_json_is_plain_and_complete():
    plain = json.loads(json.dumps(label().to_json(), allow_nan=False))
    assert plain["unit"] == "label"
    assert plain["epsilon"] == 4
    assert [c["unit"] for c in plain["composes_to"]] == ["record", "client"]
    assert {"neighbours", "covers", "not_covered", "sampler", "accountant"} <= set(plain)


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [(3.999999999999, "4"), (4.0000000001, "4"), (3.8301, "3.84"), (0.026, "0.03"),
     (20510.567, "20,511"), (100.0, "100"), (math.inf, "infinite")],
)  # fmt: skip
def test_a_printed_epsilon_is_never_below_the_true_one(epsilon, shown):
    assert format_epsilon(epsilon) == shown


@pytest.mark.parametrize(("epsilon", "delta"), [(-1.0, 0.0), (math.nan, 0.0), (1.0, 1.0)])
def test_impossible_claims_are_refused(epsilon, delta):
    with pytest.raises(ConfigurationError):
        Guarantee(PrivacyUnit.LABEL, "x", epsilon, delta, (), (), (), "s", "a")


def test_a_delta_that_allows_publishing_a_record_is_refused():
    plan = PooledPlan(clients=10, honest=1, entries=1, noise=1.0)
    with pytest.raises(ConfigurationError, match="one over the number of records"):
        plan.guarantee(1e-3, (1000,) * 10, released=1)


def test_what_the_sampler_lacks_is_in_delta_or_there_is_no_epsilon():
    """At epsilon 55 and 20,000 draws of 2^-110 the slack is 1.2e-5, above a hundredth of delta."""

    def claim(epsilon: float) -> Guarantee:
        return record(epsilon, entries=20_000)

    assert claim(45.0).holds
    assert DELTA < claim(45.0).delta < 1.001 * DELTA
    assert not claim(55.0).holds
    assert "within 2^-110 of exact" in claim(55.0).sentence()


def test_no_module_of_privacy_loads_torch():
    names = ", ".join(
        f"{privacy.__name__}.{each.name}" for each in pkgutil.iter_modules(privacy.__path__)
    )
    shown = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", f"import sys, {names}; print('torch' in sys.modules)"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert shown.stdout == "False\n"
