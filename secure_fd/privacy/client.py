"""The client unit: every client adds a share of the noise to its votes before they are masked."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.privacy.accountants import accountant_for, cost, sampled_cost
from secure_fd.privacy.base import Answer, ClientMechanism, SharedNoise, check_epsilon
from secure_fd.privacy.calibration import Plan, calibrate
from secure_fd.privacy.events import DistributedGaussian, Event, Repeated
from secure_fd.privacy.guarantee import (
    GROUP_SIZES,
    LEAST_CLIENTS,
    NEVER_COVERED,
    QUERIED,
    AtUnit,
    Guarantee,
    Part,
    PrivacyUnit,
    check_delta_of,
    format_epsilon,
    shares_assumed,
)
from secure_fd.privacy.samplers import Random, discrete_gaussian, room_for
from secure_fd.secagg.session import NoiseTerms
from secure_fd.votes.codec import IntArray, Released, Sums, UnitArray, WordArray

_SHARE_DEVIATION = 2.0  # from here up a sum of discrete Gaussians is one, but for 1e-15


@final
@dataclass(frozen=True, slots=True)
class ClientPlan(Plan):
    """Votes of many clients, summed under masks, each client adding its share of the noise.

    clients: that send in a round. proxies: one vote each, a round. classes: entries of a vote.
    absent, corrupt: the most clients that may be missing from a sum, and that may give the server
    their own share: the others' noise is enough. noise: a round's whole noise, its deviation
    over the sensitivity.

    >>> plan = ClientPlan(clients=1000, proxies=512, rounds=10, classes=10, absent=100, noise=3.0)
    >>> plan.honest, plan.scale
    (900, 1)
    """

    clients: int
    proxies: int
    rounds: int
    classes: int
    absent: int = 0
    corrupt: int = 0

    def __post_init__(self) -> None:
        self.check_counts("clients", "proxies", "rounds", "classes")
        self.check_counts("absent", "corrupt", least=0)
        if self.honest < 1:
            raise ConfigurationError(
                "corrupt", self.corrupt, f"leave one of {self.survivors} senders with its share"
            )
        Plan.__post_init__(self)

    @property
    def survivors(self) -> int:
        """The fewest inputs that a sum may be opened with."""
        return self.clients - self.absent

    @property
    def honest(self) -> int:
        """Shares of noise that a sum can count on."""
        return self.survivors - self.corrupt

    @property
    def scale(self) -> int:
        """Units of a vote: the fewest that give each share a deviation of 2 units or more."""
        return math.ceil(self._least_scale)

    @property
    def _least_scale(self) -> float:
        """The same before it is rounded up.

        This is what is priced, for finer units cost no more: so more noise never does.
        """
        if self.noise == 0:
            return 1.0
        wanted = _SHARE_DEVIATION * math.sqrt(self.honest / self.proxies)
        return max(1.0, wanted / self.noise)

    @property
    def l2(self) -> float:
        """Sensitivity of a round's sums, in units: a vote of `scale` units a proxy, or none."""
        return self.scale * math.sqrt(self.proxies)

    @property
    def share_variance(self) -> float:
        """Variance of one client's noise, in units squared: the honest shares make up the whole."""
        return (self.noise * self.l2) ** 2 / self.honest

    def event(self) -> Event:
        """Return all rounds."""
        return Repeated(self._sum(1), self.rounds)

    def replaced(self) -> Event:
        """Return all rounds if the client votes otherwise: both ends of a vote may move."""
        return Repeated(self._sum(2), self.rounds)

    def _sum(self, votes: int) -> DistributedGaussian:
        """Return a round's sum if `votes` votes a proxy differ, each in at most `scale` entries."""
        squared = self._least_scale**2 * self.proxies
        return DistributedGaussian(
            variance=self.noise**2 * squared / self.honest,
            shares=self.honest,
            l2=math.sqrt(votes * squared),
            dimension=self.proxies * min(self.classes, votes * self.scale),
        )

    def perturb(self, units: WordArray, random: Random) -> IntArray:
        """Return votes plus one client's share of noise.

        A share alone hides nothing: only the sum of the planned number of honest shares does.

        Args:
            units: [m * C] votes in units of the scale, at most one vote for each planned proxy.
            random: source of the noise.

        Raises:
            LocalError: votes that the planned noise does not cover.
        """
        if units.dtype != np.uint64:
            raise LocalError(f"votes are {units.dtype}; use uint64, which has no negative ones")
        if units.size > self.proxies * self.classes or units.size % self.classes:
            raise LocalError(
                f"{units.size} votes are not those of up to {self.proxies} proxies, "
                f"{self.classes} classes each"
            )
        votes = units.reshape(-1, self.classes)
        # Entries first: the sum of any that are larger might wrap.
        if units.size and max(int(votes.max()), int(votes.sum(axis=1).max())) > self.scale:
            raise LocalError(f"a proxy has more than one vote of {self.scale} units")
        return units.astype(np.int64) + self.share(units.size, random)

    def share(self, size: int, random: Random) -> IntArray:
        """Return [size] noise of one client."""
        return discrete_gaussian(math.sqrt(self.share_variance), size, random)

    @property
    def sum_variance(self) -> float:
        """Variance of the noise in a sum of all clients, in units squared."""
        return self.clients * self.share_variance

    @property
    def room(self) -> int:
        """Most that the noise of all clients moves a sum, but for a chance of 2^-40."""
        return room_for(self.sum_variance, self.proxies * self.classes * self.rounds)

    def guarantee(self, delta: float, released: int, unmet: Sequence[str] = ()) -> Guarantee:
        """Return the claim for one client and all planned rounds.

        A record can move every vote of its client: at the record level the neighbours are those
        of a client that votes otherwise.

        Args:
            delta: below one over the number of clients.
            released: rounds so far, 1 or more.
            unmet: reasons why there is no epsilon.

        Raises:
            ConfigurationError: delta would allow to publish one client outright.
        """
        check_delta_of(delta, self.clients, "clients")
        draws = self.clients * self.proxies * self.classes * self.rounds
        epsilon, total = sampled_cost(self.event(), delta, draws)
        spent = cost(Repeated(self._sum(1), released), delta)
        record = AtUnit(PrivacyUnit.RECORD, *sampled_cost(self.replaced(), delta, draws))
        made = Guarantee(
            unit=PrivacyUnit.CLIENT,
            neighbours="all votes of one client in all rounds, cast or abstained throughout, "
            "the number of clients public",
            epsilon=epsilon,
            delta=total,
            covers=(
                "everything that the sums, and whatever is computed from them, reveal of a client",
            ),
            not_covered=(QUERIED, *NEVER_COVERED),
            composes_to=(record,),
            sampler=f"discrete Gaussian shares inside the sum, {self.clients:,} shares of "
            f"variance {self.share_variance:.4g} on votes of {self.scale:,} units",
            accountant=f"{accountant_for(self.event()).name}, {self.rounds:,} planned rounds",
            parts=(Part("noisy sums, one a round", released, spent),),
            assumptions=shares_assumed(self.clients, self.survivors, self.corrupt),
            caveats=(
                f"for a client that votes otherwise instead of abstaining it is epsilon "
                f"{format_epsilon(record.epsilon)}",
            ),
            epsilon_replace_one=record.epsilon,
            groups=tuple((size, record.epsilon) for size in GROUP_SIZES),
        )
        return made.checked(self.noise, unmet)


# The unit and its parts.


class NoisyVotes(ClientMechanism):
    """One client's votes and shares of noise, for as many rounds as were planned."""

    def __init__(self, unit: "ClientUnit") -> None:
        self._unit = unit

    def release(self, indices: IntArray, answer: Answer) -> Released:
        """Return the answer itself: the noise comes in whole units, see `perturb`."""
        most = self._unit.plan.proxies
        if len(indices) > most:
            raise LocalError(f"a round of {len(indices)} proxies exceeds the planned {most}")
        return Released.of(answer(indices))

    def perturb(self, units: WordArray) -> UnitArray:
        """Return votes and this client's share of the noise.

        A round counts from here on, even if it is aborted: a lost message looks like one that was
        kept.

        Raises:
            BudgetError: all planned rounds were released.
        """
        rounds = self._unit.plan.rounds
        if self.released >= rounds:
            raise BudgetError(f"the client unit was planned for {rounds} rounds")
        self.released += 1
        return self._unit.plan.perturb(units, self._unit.random)

    def guarantee(self) -> Guarantee | None:
        """Return the claim for all planned rounds, None before the first."""
        unit = self._unit
        if not self.released:
            return None
        return unit.plan.guarantee(unit.delta, self.released, unit.unmet)


class ClientUnit(SharedNoise):
    """Discrete Gaussian shares inside a secure sum, for large fleets.

    Args:
        epsilon: of a client's votes in all rounds of the plan, whose own noise is ignored.
        delta: of the same, below one over the number of clients.
        plan: all rounds of the federation that this object serves.
        small_fleet: whether to go below LEAST_CLIENTS all the same.
        random: source of the noise.

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
        check_epsilon(epsilon, delta)
        super().__init__(epsilon, delta, plan.clients, random)
        if plan.clients < LEAST_CLIENTS and not small_fleet:
            raise ConfigurationError(
                "clients",
                plan.clients,
                f"the client unit needs {LEAST_CLIENTS} or more for its noise to leave a signal; "
                f"set small_fleet to go on all the same",
            )
        self.plan = plan.with_noise(calibrate(epsilon, delta, plan))
        self.terms = repr(self.plan).encode()
        self.random = random
        self.noise_terms = NoiseTerms(self.plan.room, self.plan.survivors)
        check_delta_of(delta, plan.clients, "clients")

    def levels(self, wanted: int) -> int:  # noqa: ARG002 - the noise decides
        """Return the scale at which every share is wide enough."""
        return self.plan.scale

    def _part(self, number: int) -> NoisyVotes:  # noqa: ARG002 - all are alike
        return NoisyVotes(self)

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:
        """Keep votes that noise alone would hardly give; the rest is zero.

        The largest of C noises of deviation s is about s sqrt(2 log C): what stays below it
        is not used.
        """
        if len(survivors) < self.plan.survivors:
            self.unmet.append(
                f"a sum of {len(survivors)} inputs was opened, where {self.plan.survivors} "
                f"carry enough noise"
            )
        deviation = math.sqrt(self.plan.sum_variance) / self.plan.scale
        floor = deviation * math.sqrt(2 * math.log(sums.total.shape[1]))
        votes = np.where(sums.total > floor, sums.total, 0.0)
        return Sums(votes.sum(axis=1), votes)
