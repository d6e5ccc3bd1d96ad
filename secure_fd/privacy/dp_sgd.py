"""The record unit by training: DP-SGD (Abadi et al., 2016); `private_training` has the steps.

Noise and batches come from a keystream of our own: torch keeps 32 bits of a seed, which a patient
reader of the updates can search, and batches that follow a public seed undo the amplification that
the accountant grants. The noise is floating point, which the guarantee states.
"""

import math
import os
from dataclasses import dataclass
from functools import cache
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto.keys import draw
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.privacy.accountants import RENYI, accountant_for, cost
from secure_fd.privacy.calibration import Plan, calibrate
from secure_fd.privacy.events import Event, Gaussian, Repeated, SampledGaussian, check_delta
from secure_fd.privacy.guarantee import (
    GROUP_SIZES,
    NEVER_COVERED,
    AtUnit,
    Groups,
    Guarantee,
    Part,
    PrivacyUnit,
    check_delta_of,
)
from secure_fd.privacy.ledger import Ledger
from secure_fd.privacy.samplers import FLOAT_CUT, FloatGaussian, Random
from secure_fd.votes.codec import FloatArray

# The plan.


_NORMALS = 2.0**40
"""Pairs of normal values in a run of DP-SGD, at most."""
_TAIL = "delta is too small for noise whose tail ends"


@final
@dataclass(frozen=True, slots=True)
class TrainingPlan(Plan):
    """A network trained by DP-SGD on Poisson batches of one client's records.

    n_records: public. batch: the expected batch; from n_records up there is no sampling.
    steps: of the whole run. noise: on the sum of clipped gradients, over the clip.

    >>> TrainingPlan(n_records=300, batch=30, steps=10, noise=2.0).event()
    Repeated(event=SampledGaussian(noise_multiplier=2.0, sample_rate=0.1), times=10)
    """

    n_records: int
    batch: int
    steps: int

    def __post_init__(self) -> None:
        self.check_counts("n_records", "batch", "steps")
        Plan.__post_init__(self)

    @property
    def sample_rate(self) -> float:
        """Probability of each record to be in a batch."""
        return min(1.0, self.batch / self.n_records)

    def event(self) -> Event:
        """Return all steps."""
        if self.sample_rate == 1:
            return Repeated(Gaussian(self.noise), self.steps)
        return Repeated(SampledGaussian(self.noise, self.sample_rate), self.steps)

    def guarantee(self, *, epsilon: float, delta: float) -> Guarantee:
        """Return the claim of a network trained under this plan, calibrated to `epsilon`."""
        check_delta_of(delta, self.n_records, "records")
        cut = _NORMALS * FLOAT_CUT * (1 + math.exp(min(epsilon, 200.0)))
        groups = group_epsilons(self, delta)
        made = Guarantee(
            unit=PrivacyUnit.RECORD,
            neighbours="one record of one client, present or zeroed out, "
            "its number of records public",
            epsilon=epsilon,
            delta=delta + cut,
            covers=("everything computed from the trained network alone",),
            not_covered=(
                "the number of records",
                "a client selector or threshold fitted on the same records",
                "which classes a client holds",
                *NEVER_COVERED,
            ),
            composes_to=(AtUnit(PrivacyUnit.CLIENT, math.inf, delta),),
            sampler=(
                f"floating-point Gaussian, noise multiplier {self.noise:.4g}, "
                "and Poisson batches, from AES-256-CTR under a key of the operating system"
            ),
            accountant=f"{accountant_for(self.event()).name}, {self.steps:,} steps "
            f"at sampling rate {self.sample_rate:.4g}",
            parts=(Part("all gradient steps", 1, epsilon),),
            assumptions=(
                "batches are Poisson samples that no other party can predict",
                "every gradient is clipped by record, one that is not finite to nothing",
                "a record's gradient depends on that record and the weights alone",
            ),
            caveats=("an attacker who reads low bits of the floating-point noise is not covered",),
            epsilon_replace_one=dict(groups)[2],
            groups=groups,
        )
        ended = (_TAIL,) if cut > delta / 100 else ()
        return made.invalidated_by(ended)


# What a person with several records pays.


_MOST = 200.0
"""Epsilon beyond which nothing is stated."""


@cache
def group_epsilons(plan: TrainingPlan, delta: float) -> Groups:
    """Return (records, epsilon) for each number of records in which one client's data differ.

    Without sampling, k records move a step's sum k times as far. Samples have no such curve here;
    the general bound does: (e, d) for one is (k e, d (exp(k e) - 1) / (exp(e) - 1)) for k (Vadhan,
    "The Complexity of Differential Privacy", 2017, lemma 2.2), at the d that serves best. Infinite
    beyond 200.

    >>> found = dict(group_epsilons(TrainingPlan(300, 30, 10, noise=2.0), 1e-5))
    >>> found[1] < found[2] < found[3]
    True
    """
    if plan.sample_rate == 1:
        found = [cost(plan.with_noise(plan.noise / k).event(), delta) for k in GROUP_SIZES]
    else:
        event = plan.event()
        single = [(drop, RENYI.epsilon(event, delta * math.exp(-drop))) for drop in _DROPS]

        def bound(size: int) -> float:
            """Return the least k e, which grows from drop to drop."""
            for drop, one in single:
                several = size * one
                if several > _MOST or one == 0:
                    return several
                if math.log(math.expm1(several) / math.expm1(one)) <= drop:
                    return several
            return math.inf

        found = [cost(event, delta), *map(bound, GROUP_SIZES[1:])]
    stated = (epsilon if epsilon <= _MOST else math.inf for epsilon in found)
    return tuple(zip(GROUP_SIZES, stated, strict=True))


_DROPS: Final = (0.0, *(1.12**k for k in range(58)))
"""log(delta / d) of the general bound: up to 700."""


# The noise, and what pays for it.


@dataclass(frozen=True, slots=True)
class PrivateSGD:
    """epsilon, delta: of the whole run. steps: gradient steps of one client in the whole run.

    >>> PrivateSGD(epsilon=4.0, delta=1e-5, steps=300).clip
    1.0
    """

    epsilon: float
    delta: float
    steps: int
    learning_rate: float = 0.1
    batch: int = 64
    clip: float = 1.0

    def __post_init__(self) -> None:
        check_delta(self.delta)
        for name in ("epsilon", "steps", "learning_rate", "batch", "clip"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigurationError(name, value, "use a finite number above 0")


class PrivateBudget:
    """The steps of DP-SGD that all networks of one client may take together on its records.

    Args:
        settings: of DP-SGD; its steps are those of all networks.
        n_records: of the client.
        random: source of the key of noise and batches.
        ledger: of the client's data set; in memory by default. All planned steps are booked before
            the first batch is drawn. Steps are never replayed: a client that starts again books
            them again.

    >>> ledger = Ledger(epsilon=4.0)
    >>> budget = PrivateBudget(PrivateSGD(4.0, 1e-5, steps=3, batch=500), 500, ledger=ledger)
    >>> int(budget.batch().sum()), ledger.bookings[0].event.times
    (500, 3)
    """

    def __init__(
        self,
        settings: PrivateSGD,
        n_records: int,
        random: Random = os.urandom,
        ledger: Ledger | None = None,
    ) -> None:
        plan = TrainingPlan(n_records, settings.batch, settings.steps)
        self.settings = settings
        self.noise = calibrate(settings.epsilon, settings.delta, plan)
        """Standard deviation of a step's noise, over the clip."""
        self.rate = plan.sample_rate
        """Probability of each record to be in a batch."""
        self.expected_batch = max(1, round(self.rate * n_records))
        self.taken = 0
        """Steps so far."""
        self._plan = plan.with_noise(self.noise)
        if ledger is not None:
            draw(random, 32)  # the second key is used: seeded figures depend on it
        self._ledger = ledger or Ledger()
        self._chance = FloatGaussian(random)

    def batch(self) -> NDArray[np.bool_]:
        """Begin a step: return which records [n] are in its batch.

        Raises:
            BudgetError: all planned steps were taken, or the ledger's total would be exceeded.
        """
        if self.taken >= self.settings.steps:
            raise BudgetError(f"DP-SGD was planned for {self.settings.steps} steps")
        if self.taken == 0:
            self._ledger.book("DP-SGD", self._plan.event(), unmet=self._chance.unmet)
        self.taken += 1
        return self._chance.uniform(self._plan.n_records) < self.rate

    def step_noise(self, count: int) -> FloatArray:
        """Return [count] noise of a begun step on the mean of a batch's clipped gradients.

        Raises:
            LocalError: no step was begun.
        """
        if self.taken == 0:
            raise LocalError("DP-SGD draws no noise before a batch was paid for")
        return self._chance.normal(count) * (self.noise * self.settings.clip / self.expected_batch)

    def guarantee(self) -> Guarantee:
        """Return the claim for all planned steps."""
        epsilon, delta = self.settings.epsilon, self.settings.delta
        made = self._plan.guarantee(epsilon=epsilon, delta=delta)
        return made.invalidated_by(self._chance.unmet)
