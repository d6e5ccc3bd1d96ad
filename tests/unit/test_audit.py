"""Audits: bounds against published values, verdicts, the page that names all audits."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from attacks.audit import bounds
from attacks.audit.bounds import Finding, Setting, Verdict, printed
from attacks.audit.catalogue import AUDITS
from attacks.audit.shares import masked_unit
from secure_fd.errors import LocalError
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.samplers import SeededRandom


@pytest.mark.parametrize(("hits", "low", "high"), [(0, 0.0, 0.3085), (5, 0.1871, 0.8129)])
def test_clopper_pearson_at_ten_trials(hits, low, high):
    assert bounds.clopper_pearson(hits, 10, 0.025) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("hits", "trials", "miss"), [(3, 2, 0.1), (-1, 2, 0.1), (1, 2, 0.0)])
def test_impossible_counts_are_refused(hits, trials, miss):
    with pytest.raises(LocalError):
        bounds.clopper_pearson(hits, trials, miss)


def test_symbol_bound_is_the_largest_ratio_that_counts_prove():
    first, second = np.array([100, 100, 800]), np.array([100, 500, 400])
    assert 0 < bounds.symbol_bound(first, second, 1e-3) < math.log(5)
    assert bounds.symbol_bound(first, first, 0.05) == 0.0


def test_confidence_is_kept_over_many_binomials():
    """2,000 draws at miss 0.05: with seed 3, more than 130 wrong has probability below 2 in 1,000.

    Power: bounds at miss 0.10 under the name of 0.05 would be wrong about 180 times or more.
    """
    hits = np.random.default_rng(3).binomial(400, 0.3, 2000)
    wrong = sum(bounds.clopper_pearson(int(h), 400, 0.05)[1] < 0.3 for h in hits)
    loose = sum(bounds.clopper_pearson(int(h), 400, 0.10)[1] < 0.3 for h in hits)
    assert wrong <= 130 < loose


@pytest.mark.parametrize(
    ("bound", "ceiling", "verdict"),
    [
        (4.1, 9.0, Verdict.REFUTED),
        (4.0, 9.0, Verdict.HOLDS),
        (1.0, 4.0, Verdict.CANNOT_TELL),
        (1.0, 3.9, Verdict.CANNOT_TELL),
    ],
)
def test_a_verdict_needs_that_the_claim_could_have_been_refuted(bound, ceiling, verdict):
    assert Finding(4.0, 1e-5, bound, ceiling, "attack", 10).verdict is verdict


@pytest.mark.parametrize("claimed", [np.inf, np.nan])
def test_a_claim_that_is_no_number_is_not_audited(claimed):
    with pytest.raises(LocalError, match="cannot be audited"):
        Finding(claimed, 0.0, 1.0, 9.0, "attack", 10)


def test_a_missing_or_void_guarantee_is_a_failure():
    plan = ClientPlan(clients=10, proxies=2, rounds=1, classes=2)
    seeded = masked_unit(Setting(4.0), plan, SeededRandom(1))
    with pytest.raises(LocalError, match="no guarantee was made"):
        printed(seeded.guarantee())
    seeded.client(0).perturb(np.zeros(4, dtype=np.uint64))
    with pytest.raises(LocalError, match="there is no epsilon to audit"):
        printed(seeded.guarantee())


def test_every_audit_has_a_row():
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    first = re.findall(r"^\| ([^|]+) \|", page, flags=re.MULTILINE)
    assert set(AUDITS) <= set(first)
