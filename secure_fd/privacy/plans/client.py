"""The client unit: votes summed under masks, with noise that no single client makes."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.events import (
    DistributedGaussian,
    DistributedSkellam,
    Event,
    IntegerSum,
    Repeated,
    Sampled,
)
from secure_fd.privacy.plans.base import Noisy, Sensitivity, check_counts
from secure_fd.privacy.units import PrivacyUnit

NoiseKind = Literal["gaussian", "skellam"]

LEAST_CLIENTS = 300
"""Below, noise that hides a client drowns what all of them say together."""

_SHARE_DEVIATION = 2.0  # from here up a sum of discrete Gaussians is one, but for 1e-15


@final
@dataclass(frozen=True, slots=True)
class ClientPlan(Noisy):
    """Votes of many clients, summed under masks, each client adding its share of the noise.

    clients: that send in a round. proxies: one vote each, a round. classes: entries of a vote.
    absent, corrupt: the most clients that may be missing from a sum, and that may tell the server
    their own share: the others' noise is enough. sample_rate: each client tosses a coin of its
    own every round and sends noise alone where it loses, so that nobody sees who was drawn.
    noise: a round's whole noise, its deviation over the sensitivity.
    """

    clients: int
    proxies: int
    rounds: int
    classes: int
    absent: int = 0
    corrupt: int = 0
    sample_rate: float = 1.0
    noise_kind: NoiseKind = "gaussian"

    unit: ClassVar = PrivacyUnit.CLIENT
    neighbours: ClassVar = (
        "all votes of one client in all rounds, cast or abstained throughout, "
        "the number of clients public"
    )

    def __post_init__(self) -> None:
        check_counts(self, "clients", "proxies", "rounds", "classes")
        check_counts(self, "absent", "corrupt", least=0)
        if self.honest < 1:
            raise ConfigurationError(
                "corrupt", self.corrupt, f"leave one of {self.survivors} senders with its share"
            )
        if not 0 < self.sample_rate <= 1:
            raise ConfigurationError("sample_rate", self.sample_rate, "use a number in (0, 1]")
        if self.noise_kind not in get_args(NoiseKind):
            raise ConfigurationError("noise_kind", self.noise_kind, "use gaussian or skellam")
        Noisy.__post_init__(self)

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
        if self.noise == 0:
            return 1
        wanted = _SHARE_DEVIATION * math.sqrt(self.honest / self.proxies)
        return max(1, math.ceil(wanted / self.noise))

    @property
    def sensitivity(self) -> Sensitivity:
        """One vote of `scale` units a proxy, against none."""
        return Sensitivity("L2", self.scale * math.sqrt(self.proxies), "a round's sums, in units")

    @property
    def mechanism(self) -> str:
        """The kind of the shares."""
        name = "discrete Gaussian" if self.noise_kind == "gaussian" else "Skellam"
        return f"{name} shares inside the sum"

    @property
    def share_variance(self) -> float:
        """Of one client's noise, in units squared: the honest shares make up the whole."""
        return (self.noise * self.sensitivity.value) ** 2 / self.honest

    def event(self) -> Event:
        """All rounds."""
        return Repeated(self.round_event(), self.rounds)

    def round_event(self) -> Event:
        """One round, behind the coin where there is one."""
        summed = self._sum(1.0, 1.0)
        return summed if self.sample_rate == 1 else Sampled(summed, self.sample_rate)

    def replaced(self) -> Event:
        """All rounds, where the client votes otherwise: both ends of a vote may move.

        The coin counts for nothing here: amplification is proven against a client that abstains.
        """
        return Repeated(self._sum(2.0, math.sqrt(2)), self.rounds)

    def _sum(self, l1: float, l2: float) -> IntegerSum:
        """A round's sum, at multiples of the sensitivities to a client that abstains."""
        l1, l2 = l1 * self.scale * self.proxies, l2 * self.sensitivity.value
        variance, shares = self.share_variance, self.honest
        if self.noise_kind == "gaussian":
            return DistributedGaussian(variance, shares, l2, self.proxies * self.classes)
        return DistributedSkellam(variance, shares, l1, l2)
