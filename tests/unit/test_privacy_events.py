"""Events count what happened, and each accountant prices what it knows and refuses the rest."""

import math
import pickle

import numpy as np
import pytest
from scipy.special import ndtr

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.accountants import (
    ACCOUNTANTS,
    ANALYTIC_GAUSSIAN,
    NEARLY_GAUSSIAN,
    PRIVACY_LOSS,
    RENYI,
    Accountant,
    accountant_for,
    rho,
    zcdp_epsilon,
)
from secure_fd.privacy.events import (
    Composed,
    DistributedGaussian,
    Event,
    Gaussian,
    Repeated,
    Response,
    SampledGaussian,
    primitives,
)
from secure_fd.votes.codec import FloatArray

DELTA = 1e-5
MIXED = Composed((SampledGaussian(1.0, 0.1), DistributedGaussian(4.0, 1, 1.0, 1)))

# (an event, the accountants that know it besides Renyi's, tightest first)
WIDE = DistributedGaussian(variance=1e10, shares=7, l2=2.6e5, dimension=1000)
"""Of a pooled sum: a unit is next to nothing against the noise."""
KNOWN: list[tuple[Event, list[Accountant]]] = [
    (Response(2.0, 11), []),
    (Repeated(Response(2.0, 11), 5), []),
    (Gaussian(2.0), [ANALYTIC_GAUSSIAN, PRIVACY_LOSS]),
    (
        Composed((Gaussian(2.0), Gaussian(3.0))),
        [ANALYTIC_GAUSSIAN, PRIVACY_LOSS],
    ),
    (DistributedGaussian(4.0, 50, 10.0, 40), [NEARLY_GAUSSIAN]),
    (WIDE, [NEARLY_GAUSSIAN]),
    (Repeated(WIDE, 3), [NEARLY_GAUSSIAN]),
    (Composed((WIDE, Gaussian(3.0))), []),
    (Composed((WIDE, Response(1.0, 3))), []),
    (Repeated(SampledGaussian(1.0, 0.1), 20), [PRIVACY_LOSS]),
    (Composed((SampledGaussian(1.0, 0.1), Gaussian(2.0))), [PRIVACY_LOSS]),
    (Composed((SampledGaussian(1.0, 0.1), Response(1.0, 3))), []),
    (MIXED, []),
]


def test_nesting_is_undone_and_equal_releases_are_counted_together():
    inner = Composed((Gaussian(1.0), Repeated(Response(1.0, 3), 4), Gaussian(1.0)))
    event = Composed((Repeated(inner, 3), Response(1.0, 3), Repeated(Gaussian(9.0), 0)))
    assert primitives(event) == {Gaussian(1.0): 6, Response(1.0, 3): 13}


def test_events_are_values():
    event = Repeated(MIXED, 3)
    assert pickle.loads(pickle.dumps(event)) == event  # noqa: S301 - our own bytes
    assert hash(event) == hash(Repeated(MIXED, 3))


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.name)
@pytest.mark.parametrize(("event", "known"), KNOWN)
def test_each_accountant_prices_what_it_knows_and_refuses_the_rest(accountant, event, known):
    if accountant in [*known, RENYI]:
        assert accountant.supports(event)
        assert 0 < accountant.epsilon(event, DELTA) < math.inf
    else:
        assert not accountant.supports(event)
        with pytest.raises(LocalError, match="no bound is known"):
            accountant.epsilon(event, DELTA)


@pytest.mark.parametrize(("event", "known"), KNOWN)
def test_the_tightest_accountant_is_taken(event, known):
    taken = accountant_for(event)
    assert taken is [*known, RENYI][0]
    spent = taken.epsilon(event, DELTA)
    for other in ACCOUNTANTS:
        if other.supports(event):
            assert spent <= other.epsilon(event, DELTA) * (1 + 1e-9)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.name)
def test_nothing_released_costs_nothing(accountant):
    for nothing in (Composed(()), Repeated(Gaussian(1.0), 0)):
        assert accountant.epsilon(nothing, DELTA) == 0


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(0.0),
        SampledGaussian(0.0, 0.1),
        Response(math.inf, 11),
        DistributedGaussian(0.0, 5, 1.0, 1),
    ],
)
def test_no_noise_is_no_privacy(event):
    for spoilt in (event, Repeated(event, 3), Composed((event, Gaussian(100.0)))):
        for accountant in ACCOUNTANTS:
            if accountant.supports(spoilt):
                assert accountant.epsilon(spoilt, DELTA) == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_only_a_single_answer_has_no_delta(delta):
    assert RENYI.epsilon(Response(2.0, 11), delta) == 2.0
    for accountant in ACCOUNTANTS:
        known = (event for event in (Gaussian(2.0), WIDE) if accountant.supports(event))
        event = next(known, MIXED)
        with pytest.raises(ConfigurationError, match=r"^delta: "):
            accountant.epsilon(event, delta)


def test_a_delta_beyond_floating_point_is_refused_for_dp_sgd():
    with pytest.raises(ConfigurationError, match=r"^delta: 1e-12.*1e-11 or more"):
        PRIVACY_LOSS.epsilon(Repeated(SampledGaussian(1.0, 0.1), 20), 1e-12)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("noise_multiplier", lambda: Gaussian(-1.0)),
        ("noise_multiplier", lambda: SampledGaussian(math.nan, 0.5)),
        ("sample_rate", lambda: SampledGaussian(1.0, 0.0)),
        ("sample_rate", lambda: SampledGaussian(1.0, 1.0)),
        ("sample_rate", lambda: SampledGaussian(1.0, math.nan)),
        ("epsilon", lambda: Response(-0.1, 3)),
        ("alphabet_size", lambda: Response(1.0, 1)),
        ("variance", lambda: DistributedGaussian(-1.0, 5, 1.0, 1)),
        ("variance", lambda: DistributedGaussian(0.2, 5, 1.0, 1)),
        ("shares", lambda: DistributedGaussian(4.0, 0, 1.0, 1)),
        ("dimension", lambda: DistributedGaussian(4.0, 5, 1.0, 0)),
        ("l2", lambda: DistributedGaussian(4.0, 5, -1.0, 1)),
        ("times", lambda: Repeated(Gaussian(1.0), -1)),
    ],
)
def test_impossible_events_are_refused(field, make):
    with pytest.raises(ConfigurationError, match=f"^{field}: ") as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize("deviation", [2.0, 3.0, 10.0])
def test_a_discrete_gaussian_is_nearly_a_rounded_one(deviation):
    """What `NEARLY_GAUSSIAN` rests on, value by value; the twin of equal variance is no bound."""
    reach = np.arange(-round(7 * deviation), round(7 * deviation) + 1)
    discrete = -(reach**2) / (2 * deviation**2)

    def rounded(variance: float) -> FloatArray:
        """Log-weights beside those of the discrete Gaussian, where both are equal at zero."""
        spread = math.sqrt(variance)
        mass = ndtr((0.5 - abs(reach)) / spread) - ndtr((-0.5 - abs(reach)) / spread)
        weights = np.log(mass) - discrete
        return np.asarray(weights - weights[reach == 0])

    v = (6 * deviation**2 + math.sqrt(36 * deviation**4 - 12 * deviation**2)) / 12
    assert v == pytest.approx(deviation**2 - 1 / 12, rel=0.001)
    apart = rounded(v)
    far = reach**2 / (320 * v**3) + reach**4 / (1152 * v**4)
    assert (apart <= 1e-9).all()
    assert (apart >= -far - 1e-9).all()
    assert apart.min() < -1e-4 or deviation > 3
    assert rounded(deviation**2).max() > 1e-3


@pytest.mark.parametrize("times", [1, 4])
def test_shares_in_wide_units_cost_what_one_gaussian_does(times):
    event, like = Repeated(WIDE, times), Gaussian(math.sqrt(7e10 / times) / 2.6e5)
    found = NEARLY_GAUSSIAN.epsilon(event, DELTA)
    exact = ANALYTIC_GAUSSIAN.epsilon(like, DELTA)
    assert exact < found < exact + 0.002
    assert found < 0.95 * zcdp_epsilon(times * rho(WIDE), DELTA)
