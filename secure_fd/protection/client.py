"""The client unit: every client adds a share of the noise to its votes before they are masked."""

import math
import os
from collections.abc import Sequence

import numpy as np

from secure_fd.aggregation.base import SumPromise
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.knowledge import IntArray, Released, Sums, UnitArray, WordArray
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.guarantees import Odometer, check_delta_of, client_guarantee
from secure_fd.privacy.plans import LEAST_CLIENTS, ClientPlan
from secure_fd.privacy.release import ClientShares
from secure_fd.privacy.samplers import Random, unmet_by
from secure_fd.privacy.units import Guarantee
from secure_fd.protection.base import Answer, FromAnswers, Protection, check_budget
from secure_fd.secagg.session import NoiseTerms

IN_CLEAR = ("no masked sum was checked, and in a sum in clear each share stands alone",)


class ClientGuard(FromAnswers):
    """One client's votes and shares of noise, for as many rounds as were planned."""

    def __init__(self, unit: "ClientUnit", shares: ClientShares) -> None:
        self._unit, self._shares = unit, shares
        self._odometer, self._rounds = Odometer(), 0

    def release(self, indices: IntArray, answer: Answer) -> Released:
        """The answer itself: the noise comes in whole units, see `perturb`."""
        most = self._unit.plan.proxies
        if len(indices) > most and not self._unit.noiseless:
            raise LocalError(f"a round of {len(indices)} proxies exceeds the planned {most}")
        return Released.of(answer(indices))

    def perturb(self, units: WordArray) -> UnitArray:
        """Votes and this client's share. Raises BudgetError after the planned rounds.

        A round counts from here on, even where it ends void: nobody can tell a lost message from
        one that somebody kept.
        """
        plan = self._unit.plan
        if self._unit.noiseless:
            return units
        if self._rounds >= plan.rounds:
            raise BudgetError(f"the client unit was planned for {plan.rounds} rounds")
        self._rounds += 1
        self._odometer.spend("noisy sums, one a round", plan.round_event())
        return self._shares.perturb(units)

    def guarantee(self) -> Guarantee | None:
        """Of all planned rounds; None before the first, and without noise.

        Without a sum that was checked there is no epsilon: shares alone hide nothing.
        """
        if not self._rounds:
            return None
        unit = self._unit
        self._odometer.void(*unit.voids)
        made = client_guarantee(unit.plan, unit.delta, self._odometer)
        return made.voided_by(() if unit.masked else IN_CLEAR)


class ClientUnit(Protection):
    """Discrete Gaussian shares inside a secure sum, for large fleets.

    epsilon, delta: of a client's votes in all rounds of the plan, whose own noise is ignored; with
    an infinite epsilon there is none. small_fleet: go below LEAST_CLIENTS all the same. One
    object serves one federation, for as many rounds as were planned.

    >>> ClientUnit.name
    'client unit'
    """

    name = "client unit"

    def __init__(
        self,
        epsilon: float,
        delta: float,
        plan: ClientPlan,
        *,
        small_fleet: bool = False,
        random: Random = os.urandom,
    ) -> None:
        super().__init__()
        check_budget(epsilon, delta)
        if plan.clients < LEAST_CLIENTS and not small_fleet:
            raise ConfigurationError(
                "clients",
                plan.clients,
                f"the client unit needs {LEAST_CLIENTS} or more for its noise to leave a signal; "
                f"set small_fleet to go on all the same",
            )
        self.noiseless, self.delta, self.masked = math.isinf(epsilon), delta, False
        self.voids: list[str] = []
        """Public reasons why there is no epsilon."""
        self.plan = plan.with_noise(calibrate(epsilon, delta, plan))
        self._shares = ClientShares(self.plan, random)
        if not self.noiseless:
            check_delta_of(delta, plan.clients, "clients")
            self.voids.extend(unmet_by(random))

    def levels(self, wanted: int) -> int:
        """The scale at which every share is wide enough; without noise, as wanted."""
        return wanted if self.noiseless else self.plan.scale

    def check_sum(self, aggregation: SumPromise) -> None:
        """Refuse a sum in clear, where each share stands alone, and another number of clients.

        Under masks that the sum itself does not vouch for there is no epsilon.
        """
        if aggregation.n_clients != self.plan.clients:
            raise ConfigurationError(
                "clients", self.plan.clients, f"the sum has {aggregation.n_clients}"
            )
        if not aggregation.hides and not self.noiseless:
            raise ConfigurationError(
                "aggregation",
                aggregation.name,
                "the client unit hides in the sum only: use masks",
            )
        if not self.noiseless:
            self.voids.extend(aggregation.caveats)
        self.masked = True

    @property
    def terms(self) -> bytes:
        """The plan: clients that were told different ones do not sum."""
        return repr(self.plan).encode()

    @property
    def noise_terms(self) -> NoiseTerms:
        """Room for the noise of all, and the inputs without which it is too little."""
        if self.noiseless:
            return NoiseTerms()
        return NoiseTerms(self._shares.room, self.plan.survivors)

    def _guard(self, number: int) -> ClientGuard:  # noqa: ARG002 - all are alike
        return ClientGuard(self, self._shares)

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:
        """Votes that noise alone would hardly give, and zero for the rest.

        The largest of C noises of deviation s is about s sqrt(2 log C): what stays below it
        teaches nothing.
        """
        if self.noiseless:
            return sums
        if len(survivors) < self.plan.survivors:
            self.voids.append(
                f"a sum of {len(survivors)} inputs was opened, where {self.plan.survivors} "
                f"carry enough noise"
            )
        floor = self._shares.deviation * math.sqrt(2 * math.log(sums.total.shape[1]))
        votes = np.where(sums.total > floor, sums.total, 0.0)
        return Sums(votes.sum(axis=1), votes)
