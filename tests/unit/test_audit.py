"""Audits: bounds against published values, how attacks are chosen, the page that names them."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from attacks.audit import bounds, mechanisms
from attacks.audit.bounds import (
    Finding,
    Proof,
    Verdict,
    any_shape,
    gaussian_epsilon,
    gaussian_shape,
    printed,
    prove,
)
from attacks.audit.catalogue import AUDITS, MUTATIONS
from attacks.audit.setting import Setting, masked_unit, replaced
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.samplers import SeededRandom


@pytest.mark.parametrize(("hits", "low", "high"), [(0, 0.0, 0.3085), (5, 0.1871, 0.8129)])
def test_clopper_pearson_at_ten_trials(hits, low, high):
    assert bounds.clopper_pearson(hits, 10, 0.025) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("trials", "most"), [(100, 3.28), (1000, 5.60), (10_000, 7.90)])
def test_the_most_a_perfect_attack_can_show(trials, most):
    rate = float(bounds.clopper_pearson(0, trials, 0.025)[1])
    assert bounds.any_shape(0.0)(rate, rate) == pytest.approx(most, abs=0.01)


@pytest.mark.parametrize(("hits", "trials", "miss"), [(3, 2, 0.1), (-1, 2, 0.1), (1, 2, 0.0)])
def test_impossible_counts_are_refused(hits, trials, miss):
    with pytest.raises(LocalError):
        bounds.clopper_pearson(hits, trials, miss)


@pytest.mark.parametrize("mu", [0.5, 0.864, 2.0])
def test_gaussian_epsilon_solves_its_equation(mu):
    epsilon = bounds.gaussian_epsilon(mu, 1e-5)
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)


def test_gaussian_shape_returns_the_epsilon_of_exact_rates():
    mu, threshold = 1.3, 0.4
    rates = norm.sf(threshold), norm.cdf(threshold - mu)
    found = bounds.gaussian_shape(1e-5)(*map(float, rates))
    assert found == pytest.approx(bounds.gaussian_epsilon(mu, 1e-5), rel=1e-9)
    assert bounds.any_shape(1e-5)(*map(float, rates)) < found


def test_symbol_bound_finds_the_symbol_and_its_direction():
    first, second = np.array([100, 100, 800]), np.array([100, 500, 400])
    bound, where = bounds.symbol_bound(first, second, 1e-3)
    assert where == (1, False)
    assert 0 < bound < math.log(5)
    assert bounds.symbol_bound(first, first, 0.05) == (0.0, None)


def test_confidence_is_kept_over_many_binomials():
    """2,000 draws at miss 0.05: with seed 3, more than 130 wrong has probability below 2 in 1,000.

    Power: bounds at miss 0.10 under the name of 0.05 would be wrong about 180 times or more.
    """
    hits = np.random.default_rng(3).binomial(400, 0.3, 2000)
    wrong = sum(bounds.clopper_pearson(int(h), 400, 0.05)[1] < 0.3 for h in hits)
    loose = sum(bounds.clopper_pearson(int(h), 400, 0.10)[1] < 0.3 for h in hits)
    assert wrong <= 130 < loose


def shifted(mu: float, count: int, seed: int, statistics: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Normal statistics without and with the data; the last one moves by mu, no other does."""
    rng = np.random.default_rng(seed)
    without, present = rng.normal(size=(2, count, statistics))
    present[:, -1] += mu
    return without, present


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_statistic_that_moves_and_its_direction_are_found(sign):
    proof = prove(*shifted(sign * 2.0, 4000, 5, statistics=4), gaussian_shape(1e-5), 1e-5)
    assert proof.attack.startswith("statistic 3 >" if sign > 0 else "statistic 3 <")
    exact = gaussian_epsilon(2.0, 1e-5)
    assert 0.7 * exact < proof.bound <= exact


def test_equal_worlds_prove_nothing_unless_the_proof_chooses_the_attack():
    """20 statistics of noise, seed 6: a bound above 0 has probability at most 0.05.

    Power: the best of thousands of attacks, chosen on the trials of the proof, beats chance.
    """
    data = shifted(0.0, 400, 6, statistics=20)
    assert prove(*data, any_shape(0.0), 0.05).bound == 0.0
    levels = np.quantile(np.concatenate(data), np.linspace(0, 1, 64), axis=0)
    chosen = [
        bounds._bound(bounds.errors_of(k, sign, level, *data), data, any_shape(0.0), 0.05)
        for k in range(20)
        for level in levels[:, k]
        for sign in (1.0, -1.0)
    ]
    assert max(chosen) > 0.0


def test_an_attack_counts_its_threshold_as_absent():
    column = np.array([[0.0], [1.0], [2.0]])
    assert bounds.errors_of(0, 1.0, 1.0, column, column) == (1, 2)


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
    assert Finding(Proof(bound, ceiling, "attack", 10), 4.0, 1e-5, 1e-5).verdict is verdict


@pytest.mark.parametrize("claimed", [np.inf, np.nan])
def test_a_claim_that_is_no_number_is_not_audited(claimed):
    with pytest.raises(LocalError, match="cannot be audited"):
        Finding(Proof(1.0, 9.0, "attack", 10), claimed, 0.0, 1e-5)


def test_a_missing_or_void_guarantee_is_a_failure():
    plan = ClientPlan(clients=10, proxies=2, rounds=1, classes=2)
    seeded = masked_unit(Setting(4.0), plan, SeededRandom(1))
    with pytest.raises(LocalError, match="no guarantee was made"):
        printed(seeded.guarantee())
    seeded.client(0).perturb(np.zeros(4, dtype=np.uint64))
    with pytest.raises(LocalError, match="there is no epsilon to audit"):
        printed(seeded.guarantee())


def test_stacked_shares_are_those_of_the_unit():
    """The mutant's scale follows the number of proxies, which stacking multiplies."""
    plan = mechanisms.PLAN.with_noise(1.0)
    assert mechanisms.stacked(plan, 7).proxies == 7 * plan.proxies
    growing = property(lambda self: self.proxies)
    with replaced(ClientPlan, "scale", growing), pytest.raises(LocalError, match="stacked shares"):
        mechanisms.stacked(plan, 7)


class Owner:
    @staticmethod
    def double(x: int) -> int:
        return 2 * x


def test_a_mutant_ends_with_its_block_whatever_happens():
    before = vars(Owner)["double"]
    with pytest.raises(KeyError), replaced(Owner, "double", staticmethod(lambda x: x)):
        assert Owner.double(3) == 3
        raise KeyError
    assert vars(Owner)["double"] is before


@pytest.mark.parametrize("field", ["epsilon", "delta", "miss", "size"])
def test_a_setting_refuses_what_is_not_above_zero(field):
    with pytest.raises(ConfigurationError, match=field):
        Setting(**{"epsilon": 4.0, field: 0.0})


PAGE_FILE = Path(__file__).parents[2] / "docs" / "audit.md"
PAGE = PAGE_FILE.read_text(encoding="utf-8")


def test_the_example_proves_most_of_its_claim(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "docs/audit.md", "exec"), {})  # noqa: S102 - our own page
    (found,) = re.findall(r"at least epsilon ([\d.]+)", capsys.readouterr().out)
    assert 2.4 <= float(found) <= 4.0


def test_every_audit_and_every_mutation_has_a_row():
    first = re.findall(r"^\| ([^|]+) \|", PAGE, flags=re.MULTILINE)
    assert set(AUDITS) <= set(first)
    tables = (PAGE_FILE.parent / "results" / "privacy_audit.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| [^|]+ \| ([^|]+) \|", tables, flags=re.MULTILINE)
    assert {mutation.name for mutation in MUTATIONS} <= set(shown)
