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
from secure_fd.protection.base import Answer, FromAnswers, check_budget
from secure_fd.secagg.session import NoiseTerms

IN_CLEAR = ("no masked sum was checked, and in a sum in clear each share stands alone",)


class ClientUnit(FromAnswers):
    """Discrete Gaussian shares inside a secure sum, for large fleets.

    epsilon, delta: of a client's votes in all rounds of the plan, whose own noise is ignored; with
    an infinite epsilon there is none. small_fleet: go below LEAST_CLIENTS all the same. One
    object serves one federation, for as many rounds as were planned.
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
        check_budget(epsilon, delta)
        if plan.clients < LEAST_CLIENTS and not small_fleet:
            raise ConfigurationError(
                "clients",
                plan.clients,
                f"the client unit needs {LEAST_CLIENTS} or more for its noise to leave a signal; "
                f"set small_fleet to go on all the same",
            )
        self._noiseless = math.isinf(epsilon)
        self._delta = delta
        self.plan = plan.with_noise(calibrate(epsilon, delta, plan))
        self._shares = ClientShares(self.plan, random)
        self._odometer = Odometer()
        self._masked = False
        if not self._noiseless:
            check_delta_of(delta, plan.clients, "clients")
            self._odometer.void(*unmet_by(random))
        self._rounds = np.zeros(plan.clients, dtype=np.int64)

    def levels(self, wanted: int) -> int:
        """The scale at which every share is wide enough; without noise, as wanted."""
        return wanted if self._noiseless else self.plan.scale

    def check_sum(self, aggregation: SumPromise) -> None:
        """Refuse a sum in clear, where each share stands alone, and another number of clients.

        Under masks that the sum itself does not vouch for there is no epsilon.
        """
        if aggregation.n_clients != self.plan.clients:
            raise ConfigurationError(
                "clients", self.plan.clients, f"the sum has {aggregation.n_clients}"
            )
        if not aggregation.hides and not self._noiseless:
            raise ConfigurationError(
                "aggregation",
                aggregation.name,
                "the client unit hides in the sum only: use masks",
            )
        if not self._noiseless:
            self._odometer.void(*aggregation.caveats)
        self._masked = True

    @property
    def terms(self) -> bytes:
        """The plan: clients that were told different ones do not sum."""
        return repr(self.plan).encode()

    @property
    def noise_terms(self) -> NoiseTerms:
        """Room for the noise of all, and the inputs without which it is too little."""
        if self._noiseless:
            return NoiseTerms()
        return NoiseTerms(self._shares.room, self.plan.survivors)

    def release(self, client: int, indices: IntArray, answer: Answer) -> Released:  # noqa: ARG002 - the same for every client
        """The answer itself: the noise comes in whole units, see `perturb`."""
        if len(indices) > self.plan.proxies and not self._noiseless:
            raise LocalError(
                f"a round of {len(indices)} proxies exceeds the planned {self.plan.proxies}"
            )
        return Released.of(answer(indices))

    def perturb(self, client: int, units: WordArray) -> UnitArray:
        """Votes and this client's share. Raises BudgetError after the planned rounds.

        A round counts from here on, even where it ends void: nobody can tell a lost message from
        one that somebody kept.
        """
        if self._noiseless:
            return units
        if self._rounds[client] >= self.plan.rounds:
            raise BudgetError(f"the client unit was planned for {self.plan.rounds} rounds")
        begun = self._rounds.max()
        self._rounds[client] += 1
        if self._rounds[client] > begun:
            self._odometer.spend("noisy sums, one a round", self.plan.round_event())
        return self._shares.perturb(units)

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:
        """Votes that noise alone would hardly give, and zero for the rest.

        The largest of C noises of deviation s is about s sqrt(2 log C): what stays below it
        teaches nothing.
        """
        if self._noiseless:
            return sums
        if len(survivors) < self.plan.survivors:
            self._odometer.void(
                f"a sum of {len(survivors)} inputs was opened, where {self.plan.survivors} "
                f"carry enough noise"
            )
        floor = self._shares.deviation * math.sqrt(2 * math.log(sums.total.shape[1]))
        votes = np.where(sums.total > floor, sums.total, 0.0)
        return Sums(votes.sum(axis=1), votes)

    def guarantee(self) -> Guarantee | None:
        """Of all planned rounds; None before the first, and without noise.

        Without a sum that was checked there is no epsilon: shares alone hide nothing.
        """
        if self._noiseless or not self._rounds.any():
            return None
        made = client_guarantee(self.plan, self._delta, self._odometer)
        return made.voided_by(() if self._masked else IN_CLEAR)
