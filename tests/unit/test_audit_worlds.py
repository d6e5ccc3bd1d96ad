"""How an attack is chosen and what it proves, on worlds whose truth is known."""

import numpy as np
import pytest

from attacks.audit import audits
from attacks.audit import bounds as worlds
from attacks.audit.bounds import (
    Attack,
    Finding,
    Kind,
    Verdict,
    Worlds,
    any_shape,
    bold,
    gaussian_epsilon,
    gaussian_shape,
    guess,
    one_run_bound,
    printed,
    prove,
    prove_one_run,
)
from attacks.audit.setting import Setting, masked_unit, replaced
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.plans import ClientPlan
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.privacy.units import PrivacyUnit


def shifted(mu: float, count: int, seed: int, statistics: int = 1) -> Worlds:
    """Normal statistics; the last one moves by mu, the others tell nothing."""
    rng = np.random.default_rng(seed)
    without, present = rng.normal(size=(2, count, statistics))
    present[:, -1] += mu
    return Worlds(tuple(f"s{i}" for i in range(statistics)), without, present)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_telling_statistic_and_its_direction_are_found(sign: float) -> None:
    proof = prove(shifted(sign * 2.0, 4000, 5, statistics=4), gaussian_shape(1e-5), 1e-5)
    assert proof.attack.startswith("s3 >" if sign > 0 else "s3 <")
    exact = gaussian_epsilon(2.0, 1e-5)
    assert 0.7 * exact < proof.bound <= exact


def test_worlds_that_are_one_prove_nothing() -> None:
    """20 statistics of noise, seed 6: a bound above 0 has probability at most 0.05."""
    assert prove(shifted(0.0, 400, 6, statistics=20), any_shape(0.0), 0.05).bound == 0.0


def test_an_attack_chosen_on_the_proof_itself_would_find_what_is_not_there() -> None:
    """The twin: with the rest as practice, the best of thousands of attacks beats chance."""
    data = shifted(0.0, 400, 6, statistics=20)
    candidates = worlds._candidates(data)
    best = max(any_shape(0.0)(*attack.errors(data).at_most(0.05)) for attack in candidates)
    assert best > 0.0


def test_an_attack_counts_its_threshold_as_absent() -> None:
    column = np.array([[0.0], [1.0], [2.0]])
    errors = Attack(0, 1.0, 1.0).errors(Worlds(("x",), column, column))
    assert (errors.false_alarms, errors.misses) == (1, 2)


def test_worlds_need_a_name_for_each_column() -> None:
    with pytest.raises(LocalError, match="2 statistics"):
        Worlds(("a", "b"), np.zeros((3, 1)), np.zeros((3, 2)))


def test_guesses_go_to_both_ends() -> None:
    scores = np.array([5.0, 4.0, 0.0, -4.0, -5.0, 0.1])
    included = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    assert guess(scores, included, 2) == 2
    assert guess(scores, included, 4) == 2


def test_more_guesses_than_canaries_are_refused() -> None:
    with pytest.raises(LocalError):
        guess(np.zeros(3), np.zeros(3), 6)


def test_one_run_of_gaussian_noise_stays_below_and_a_leak_above() -> None:
    rng = np.random.default_rng(7)
    included = rng.integers(0, 2, 5000).astype(np.float64)
    mu, delta = 0.864, 1e-9
    claimed = gaussian_epsilon(mu, delta)
    guesses = bold(5000, mu, delta, 1e-5, claimed)
    noisy = included * mu + rng.normal(size=5000)
    quiet = included * 8 * mu + rng.normal(size=5000)
    assert 0.5 < prove_one_run(noisy, included, guesses, delta, 1e-5).bound < claimed
    found = prove_one_run(quiet, included, guesses, delta, 1e-5)
    assert found.bound == found.ceiling > claimed


def test_bold_guesses_follow_the_claim() -> None:
    """The rarer half of N(0, 1) and N(mu, 1): boldness pays for weak signals among many."""
    assert bold(1000, 0.864, 1e-9, 1e-5, 0.0) < bold(1000, 6.0, 1e-9, 1e-5, 0.0)


def test_guesses_are_enough_to_refute_the_claim_or_the_best_there_are() -> None:
    few, enough = (bold(3000, 0.864, 1e-9, 1e-5, claimed) for claimed in (0.0, 5.26))
    assert one_run_bound(3000, few, few, 1e-9, 1e-5) < 5.26
    assert one_run_bound(3000, enough, enough, 1e-9, 1e-5) > 5.26
    assert bold(3000, 0.864, 1e-9, 1e-5, 50.0) == few


@pytest.mark.parametrize(
    ("bound", "ceiling", "verdict"),
    [
        (4.1, 9.0, Verdict.REFUTED),
        (4.0, 9.0, Verdict.HOLDS),
        (1.0, 4.0, Verdict.CANNOT_TELL),
        (1.0, 3.9, Verdict.CANNOT_TELL),
    ],
)
def test_a_verdict_needs_that_the_claim_could_have_been_refuted(
    bound: float, ceiling: float, verdict: Verdict
) -> None:
    found = Finding(
        Kind.MECHANISM, PrivacyUnit.RECORD, "x", 4.0, 1e-5, bound, ceiling, 1e-5, "attack", 10
    )  # fmt: skip
    assert found.verdict is verdict


@pytest.mark.parametrize("claimed", [np.inf, np.nan])
def test_a_claim_that_is_no_number_is_not_audited(claimed: float) -> None:
    with pytest.raises(LocalError, match="cannot be audited"):
        Finding(Kind.MECHANISM, PrivacyUnit.RECORD, "x", claimed, 0.0, 1.0, 9.0, 1e-5, "attack", 10)


def test_a_missing_or_void_guarantee_is_a_failure() -> None:
    plan = ClientPlan(clients=10, proxies=2, rounds=1, classes=2)
    seeded = masked_unit(Setting(4.0), plan, SeededRandom(1))
    with pytest.raises(LocalError, match="no guarantee was made"):
        printed(seeded.guarantee())
    seeded.client(0).perturb(np.zeros(4, dtype=np.uint64))
    with pytest.raises(LocalError, match="there is no epsilon to audit"):
        printed(seeded.guarantee())


def test_stacked_shares_are_those_of_the_unit() -> None:
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


def test_a_twin_ends_with_its_block_whatever_happens() -> None:
    before = vars(Owner)["double"]
    with pytest.raises(KeyError), replaced(Owner, "double", staticmethod(lambda x: x)):
        assert Owner.double(3) == 3
        raise KeyError
    assert vars(Owner)["double"] is before


def test_a_seeded_setting_repeats() -> None:
    first, second = (Setting(4.0, random=SeededRandom(9)).coins(50) for _ in range(2))
    assert (first == second).all()


@pytest.mark.parametrize("field", ["epsilon", "delta", "miss", "size"])
def test_a_setting_refuses_what_is_not_above_zero(field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Setting(**{"epsilon": 4.0, field: 0.0})
