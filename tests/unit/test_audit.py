"""Audits: bounds against published values, how attacks are chosen, the page that names them."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm

from attacks.audit import audits, bounds
from attacks.audit.bounds import (
    Attack,
    Errors,
    Finding,
    Kind,
    Verdict,
    Worlds,
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
from secure_fd.privacy.guarantee import PrivacyUnit
from secure_fd.privacy.samplers import SeededRandom


@pytest.mark.parametrize(("hits", "low", "high"), [(0, 0.0, 0.3085), (5, 0.1871, 0.8129)])
def test_clopper_pearson_at_ten_trials(hits, low, high):
    assert bounds.clopper_pearson(hits, 10, 0.025) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("trials", "most"), [(100, 3.28), (1000, 5.60), (10_000, 7.90)])
def test_the_most_a_perfect_attack_can_show(trials, most):
    perfect = Errors(0, 0, trials, trials)
    assert bounds.any_shape(0.0)(*perfect.at_most(0.05)) == pytest.approx(most, abs=0.01)


@pytest.mark.parametrize(("hits", "trials", "miss"), [(3, 2, 0.1), (-1, 2, 0.1), (1, 2, 0.0)])
def test_impossible_counts_are_refused(hits, trials, miss):
    with pytest.raises(LocalError):
        bounds.clopper_pearson(hits, trials, miss)
    with pytest.raises(LocalError):
        Errors(3, 0, 2, 2)


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


def test_a_sampled_loss_without_sampling_is_gaussian():
    """Never above the exact value, and below it by the rounding of four steps and a cell."""
    loss = bounds.SampledLoss.of(1.0, 4, 2.0)  # mu 1
    exact = bounds.gaussian_epsilon(1.0, 1e-5)
    assert exact - 5 * 2.0**-8 <= loss.epsilon(1e-5) <= exact
    power = norm.cdf(1.0 + norm.ppf(0.1))
    assert power <= loss.power(0.1) <= power + 0.005


PRV = [(0.85205078125, 4.0), (1.5, 1.2983)]
"""Noise, and Opacus' PRV epsilon at delta 1e-5, of ten steps at a rate of a tenth."""


@pytest.mark.parametrize(("noise", "exact"), PRV)
def test_sampled_epsilon_is_just_below_the_prv_accountant(noise, exact):
    found = bounds.SampledLoss.of(0.1, 10, noise).epsilon(1e-5)
    assert exact - 11 * 2.0**-8 <= found <= exact


def sum_test(noise: float, threshold: float) -> tuple[float, float]:
    """Exact error rates of the test that adds up ten sampled steps at a rate of a tenth."""
    times = np.arange(11)
    spread = noise * math.sqrt(10)
    caught = binom.pmf(times, 10, 0.1) @ norm.sf((threshold - times) / spread)
    return float(norm.sf(threshold / spread)), float(1 - caught)


@pytest.mark.parametrize(("noise", "exact"), PRV)
@pytest.mark.parametrize("threshold", [1.0, 3.0])
def test_sampled_shape_proves_no_more_than_is_true(noise, exact, threshold):
    """Exact rates of a test that exists prove some of the true epsilon, and never more."""
    found = bounds.sampled_shape(0.1, 10, 1e-5)(*sum_test(noise, threshold))
    assert 0.4 * exact < found <= exact


@pytest.mark.parametrize("alarm", [0.01, 0.5, 0.9])
def test_a_coin_proves_nothing_of_sampled_steps(alarm):
    assert bounds.sampled_shape(0.1, 10, 1e-5)(alarm, 1 - alarm) == 0.0


@pytest.mark.parametrize("noise", [0.0625, 0.3, 1.0, 8.0])
def test_a_sampled_loss_is_a_pair_of_distributions(noise):
    """Sums that leave the grid must not come back at its other end, where exp(64) awaits them."""
    loss = bounds.SampledLoss.of(0.1, 10, noise)
    assert loss.present.sum() == pytest.approx(1, abs=1e-8)
    assert loss.without.sum() <= 1 + 1e-8
    assert loss.power(0.0) <= 1


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


def shifted(mu: float, count: int, seed: int, statistics: int = 1) -> Worlds:
    """Normal statistics; the last one moves by mu, the others tell nothing."""
    rng = np.random.default_rng(seed)
    without, present = rng.normal(size=(2, count, statistics))
    present[:, -1] += mu
    return Worlds(tuple(f"s{i}" for i in range(statistics)), without, present)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_telling_statistic_and_its_direction_are_found(sign):
    proof = prove(shifted(sign * 2.0, 4000, 5, statistics=4), gaussian_shape(1e-5), 1e-5)
    assert proof.attack.startswith("s3 >" if sign > 0 else "s3 <")
    exact = gaussian_epsilon(2.0, 1e-5)
    assert 0.7 * exact < proof.bound <= exact


def test_worlds_that_are_one_prove_nothing():
    """20 statistics of noise, seed 6: a bound above 0 has probability at most 0.05."""
    assert prove(shifted(0.0, 400, 6, statistics=20), any_shape(0.0), 0.05).bound == 0.0


def test_an_attack_chosen_on_the_proof_itself_would_find_what_is_not_there():
    """The twin: with the rest as practice, the best of thousands of attacks beats chance."""
    data = shifted(0.0, 400, 6, statistics=20)
    candidates = bounds._candidates(data)
    best = max(any_shape(0.0)(*attack.errors(data).at_most(0.05)) for attack in candidates)
    assert best > 0.0


def test_an_attack_counts_its_threshold_as_absent():
    column = np.array([[0.0], [1.0], [2.0]])
    errors = Attack(0, 1.0, 1.0).errors(Worlds(("x",), column, column))
    assert (errors.false_alarms, errors.misses) == (1, 2)


def test_worlds_need_a_name_for_each_column():
    with pytest.raises(LocalError, match="2 statistics"):
        Worlds(("a", "b"), np.zeros((3, 1)), np.zeros((3, 2)))


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
    found = Finding(
        Kind.MECHANISM, PrivacyUnit.RECORD, "x", 4.0, 1e-5, bound, ceiling, 1e-5, "attack", 10
    )  # fmt: skip
    assert found.verdict is verdict


@pytest.mark.parametrize("claimed", [np.inf, np.nan])
def test_a_claim_that_is_no_number_is_not_audited(claimed):
    with pytest.raises(LocalError, match="cannot be audited"):
        Finding(Kind.MECHANISM, PrivacyUnit.RECORD, "x", claimed, 0.0, 1.0, 9.0, 1e-5, "attack", 10)


def test_a_missing_or_void_guarantee_is_a_failure():
    plan = ClientPlan(clients=10, proxies=2, rounds=1, classes=2)
    seeded = masked_unit(Setting(4.0), plan, SeededRandom(1))
    with pytest.raises(LocalError, match="no guarantee was made"):
        printed(seeded.guarantee())
    seeded.client(0).perturb(np.zeros(4, dtype=np.uint64))
    with pytest.raises(LocalError, match="there is no epsilon to audit"):
        printed(seeded.guarantee())


def test_stacked_shares_are_those_of_the_unit():
    """The twin's scale follows the number of proxies, which stacking multiplies."""
    plan = audits.Fleet().plan().with_noise(1.0)
    assert audits._stacked(plan, 7).proxies == 7 * plan.proxies
    growing = property(lambda self: self.proxies)
    with replaced(ClientPlan, "scale", growing), pytest.raises(LocalError, match="stacked shares"):
        audits._stacked(plan, 7)


class Owner:
    @staticmethod
    def double(x: int) -> int:
        return 2 * x


def test_a_twin_ends_with_its_block_whatever_happens():
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
    shown = re.findall(r"^\| ([^|]+) \|", tables, flags=re.MULTILINE)
    assert {mutation.name for mutation in MUTATIONS} <= set(shown)
