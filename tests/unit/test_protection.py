"""What stands before the wire: released once, within the alphabet, unbiased, and never undone."""

import math

import numpy as np
import pytest

from secure_fd.errors import BudgetError, ConfigurationError
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.methods.selective_fd import SelectiveFD, WeighedVotes
from secure_fd.privacy.base import NoProtection
from secure_fd.privacy.guarantee import PrivacyUnit
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.simulation.federation import Federation
from secure_fd.votes.codec import Contribution, IntArray
from secure_fd.wire import Stage
from tests.small_federation import (
    all_proxies,
    faults,
    federation,
    run,
)


def uploads(made: Federation) -> IntArray:
    """[K, m, C] what every client released in the first round."""
    seen = made.transcript.distillation[0]
    return np.stack([seen.uploads[k].reshape(-1, 10) for k in range(4)]).astype(np.int64)


def test_an_infinite_epsilon_is_refused():
    with pytest.raises(ConfigurationError, match="use a finite number"):
        LabelUnit(math.inf, 1e-5)


# The label unit.


def test_a_protection_serves_one_federation(digits):
    """A second federation would get a second release, at a cost that nobody counts."""
    unit = LabelUnit(1.0, 1e-5)
    run(federation(digits, protection=unit), rounds=1)
    with pytest.raises(BudgetError, match="serves one federation"):
        run(federation(digits, protection=unit), rounds=1)


def test_released_symbols_are_in_the_alphabet(digits):
    unit = LabelUnit(0.1, 1e-5, SeededRandom(5))
    seen = uploads(run(federation(digits, protection=unit, schedule=all_proxies(digits)), rounds=1))
    assert set(np.unique(seen)) == {0, 1}
    assert seen.sum(axis=2).max() == 1
    named = [set(np.flatnonzero(rows.any(axis=0))) for rows in seen]
    # At epsilon 0.1 every symbol has a chance of 9 % and more: 200 answers miss one with 1e-8.
    assert named == [set(range(10))] * 4


def test_symbols_of_a_protection_s_votes_carry_no_fraction(digits):
    """A soft answer becomes a whole symbol: fractions would carry what the noise does not cover."""
    unit = LabelUnit(4.0, 1e-5, random=SeededRandom(6))
    made = run(federation(digits, SelectiveFD("soft"), protection=unit), rounds=1)
    assert made.transcript.distillation[0].levels == 1
    assert set(np.unique(uploads(made))) == {0, 1}


def test_a_client_has_one_part_and_the_weakest_speaks_for_all(digits):
    unit = LabelUnit(4.0, 1e-5)
    made = federation(digits, protection=unit, dropouts=faults({1: {2: Stage.PREPARE}}))
    run(made, rounds=2)
    counts = [part.released for part in unit.parts.values()]
    assert counts[2] < counts[0] == counts[1] == counts[3]
    claim = made.guarantee()
    assert claim == unit.guarantee() == unit.parts[0].guarantee() != unit.parts[2].guarantee()
    with pytest.raises(BudgetError, match="client 2 has its part"):
        unit.client(2)


@pytest.mark.parametrize("method", [FKD(), Independent()])
def test_a_protection_that_nothing_would_use_is_refused(digits, method):
    with pytest.raises(ConfigurationError, match="'label unit' is not allowed"):
        federation(digits, method, protection=LabelUnit(4.0, 1e-5))


def test_the_guarantee_counts_every_answer(digits):
    unit = LabelUnit(4.0, 1e-5)
    assert unit.guarantee() is None
    made = run(federation(digits, protection=unit), rounds=2)
    asked = np.concatenate([seen.result.indices for seen in made.transcript.distillation])
    claim = made.protection.guarantee()
    assert (claim.unit, claim.epsilon, claim.delta) == (PrivacyUnit.LABEL, 4.0, 0.0)
    assert f"over {len(np.unique(asked))} answers" in claim.accountant
    assert len(np.unique(asked)) < len(asked)
    assert {c.unit for c in claim.composes_to} == {PrivacyUnit.RECORD, PrivacyUnit.CLIENT}
    assert all(4.0 < c.epsilon <= 4.0 * len(asked) and c.delta == 1e-5 for c in claim.composes_to)
    assert "epsilon 4 at delta 0" in claim.sentence()


def test_seeded_noise_voids_the_guarantee(digits):
    unit = LabelUnit(4.0, 1e-5, random=SeededRandom(1))
    claim = run(federation(digits, protection=unit), rounds=1).protection.guarantee()
    assert not claim.holds
    assert "seeded generator" in claim.sentence()


@pytest.mark.parametrize("apart", [True, False])
def test_under_the_label_unit_no_answer_steers_a_later_one(digits, monkeypatch, apart):
    """Trust comes from earlier answers: one changed answer would reach every later weight."""
    trusted: list[float] = []
    said = WeighedVotes.contribution

    def spied(self: WeighedVotes, *given: object) -> Contribution:
        trusted.append(given[-1])
        return said(self, *given)

    monkeypatch.setattr(WeighedVotes, "contribution", spied)
    unit = LabelUnit(4.0, 1e-5) if apart else NoProtection()
    every = all_proxies(digits)
    run(federation(digits, SelectiveFD("hard"), protection=unit, schedule=every), rounds=3)
    assert len(trusted) == 12
    assert (max(trusted) == 0.0) is apart
