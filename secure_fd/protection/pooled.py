"""The pooled record unit: one noisy sum over the records of all clients, and rules that follow it.

Each client adds a share of the noise inside the masked sum, so that ten clients together add what
one would have to add alone. The rules read public facts and nothing else: the proxies, the clients'
numbers of records, and the noise.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from secure_fd.aggregation.base import SumPromise
from secure_fd.data.images import Images
from secure_fd.errors import BudgetError, ConfigurationError
from secure_fd.knowledge import IntArray
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.guarantees import Odometer, pooled_guarantee
from secure_fd.privacy.plans import PooledPlan
from secure_fd.privacy.pooled import PooledShares, pooled_sums
from secure_fd.privacy.release import Features
from secure_fd.privacy.samplers import Random, unmet_by
from secure_fd.privacy.units import Guarantee
from secure_fd.protection.base import Guard, Protection, check_budget
from secure_fd.protection.client import IN_CLEAR
from secure_fd.secagg.graph import threshold
from secure_fd.secagg.session import NoiseTerms
from secure_fd.selection.density import ReferenceSettings

_RANK, _LEAST_RANK = 0.93, 8
_LEVEL = 3.0


def rank_for(noise: float) -> int:
    """Whitened features that the noise leaves room for: of one coordinate of the mean.

    A component adds as much noise as any other, and the later ones less detail. Chosen on seed 0 of
    MNIST-5k and digits, whose best ranks at epsilon .25 to 4 it follows within a third.

    >>> rank_for(4.3e-4), rank_for(5.4e-3), rank_for(0.1)
    (45, 13, 8)
    """
    return max(_LEAST_RANK, round(_RANK / math.sqrt(noise)))


def level_for(noise: float) -> float:
    """Where the solver cuts off (see `ProxyReference.under_noise`): thrice the noise of a mean."""
    return _LEVEL * noise


@dataclass(frozen=True, slots=True)
class PooledRules:
    """What follows from the noise: rank: of the features, None for their own. level: of the solver.

    >>> PooledRules.of(1e-3).rank
    29
    """

    rank: int | None
    level: float

    @classmethod
    def of(cls, noise: float) -> "PooledRules":
        """Of a mean over all records whose entries carry noise of this deviation."""
        return cls(rank_for(noise), level_for(noise)) if noise else cls(None, 0.0)

    def settings(self, plain: ReferenceSettings) -> ReferenceSettings:
        """The feature map, with no more features than the noise leaves room for."""
        return plain if self.rank is None else replace(plain, most_rank=self.rank)


class PooledGuard(Guard):
    """One client's shares of noise, for as many sums as were planned."""

    def __init__(self, unit: "PooledRecordUnit", shares: PooledShares) -> None:
        self._unit, self._shares = unit, shares
        self._odometer, self._sums = Odometer(), 0

    @property
    def noiseless(self) -> bool:
        """Whether the unit has an infinite epsilon."""
        return self._unit.noiseless

    def release(
        self, parts: Iterable[tuple[Features, Features]], shape: tuple[int, int]
    ) -> IntArray:
        """[D C] sums over the records, and this client's share. BudgetError after those planned.

        parts: features [n, D] and residuals [n, C] of all records. A sum counts from here on, even
        where it ends void: nobody can tell a lost message from one that somebody kept.
        """
        sums = pooled_sums(parts, shape)
        if self._unit.noiseless:
            return sums.values
        plan = self._unit.plan
        if self._sums >= plan.sums:
            raise BudgetError(f"the pooled record unit was planned for {plan.sums} sums")
        self._sums += 1
        self._odometer.spend("noisy class sums", replace(plan, sums=1).event())
        return self._shares.perturb(sums)

    def guarantee(self) -> Guarantee | None:
        """Of all planned sums; None before the first, and without noise."""
        if not self._sums:
            return None
        unit = self._unit
        self._odometer.void(*unit.voids)
        made = pooled_guarantee(unit.plan, unit.delta, unit.records, self._odometer)
        return made.voided_by(() if unit.masked else IN_CLEAR)


class PooledRecordUnit(Protection):
    """Shares of one discrete Gaussian inside masked sums of class sums: epsilon for one record.

    epsilon, delta: of one record of one client over the whole run; all blocks of all classes are
    released, so no set of classes is public. records: by client, public. n_proxies, n_classes: of
    the federation. sums: how many the run will make. honest: clients of a sum that keep their noise
    to themselves, by default as few as the masks need. One object serves one federation.

    >>> unit = PooledRecordUnit(4.0, 1e-5, records=(300,) * 10, n_proxies=1000, n_classes=10)
    >>> unit.plan.honest, unit.rules.rank
    (7, 49)
    """

    name = "pooled record unit"
    asks_network = False

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        records: Sequence[int],
        n_proxies: int,
        n_classes: int,
        sums: int = 1,
        honest: int | None = None,
        features: ReferenceSettings | None = None,
        random: Random = os.urandom,
    ) -> None:
        super().__init__()
        check_budget(epsilon, delta)
        clients, plain = len(records), features or ReferenceSettings()
        plan = PooledPlan(
            clients=clients,
            honest=threshold(clients) if honest is None else honest,
            entries=plain.size(n_proxies) * n_classes,
            sums=sums,
        )
        self.plan = plan.with_noise(calibrate(epsilon, delta, plan))
        self.records, self.delta = tuple(records), delta
        self.noiseless, self.masked = math.isinf(epsilon), False
        self.rules = PooledRules.of(self.plan.noise / sum(records))
        self.features = self.rules.settings(plain)
        """The public map that the noise leaves room for."""
        self.voids: list[str] = [] if self.noiseless else list(unmet_by(random))
        """Public reasons why there is no epsilon."""
        self._shares = PooledShares(self.plan, random)

    def check_sum(self, aggregation: SumPromise) -> None:
        """Refuse a sum in clear, where each share stands alone, and another number of clients.

        Under masks that the sum itself does not vouch for there is no epsilon.
        """
        if aggregation.n_clients != self.plan.clients:
            allowed = f"the sum has {aggregation.n_clients}"
            raise ConfigurationError("records", self.plan.clients, allowed)
        if self.noiseless:
            return
        if not aggregation.hides:
            allowed = "the pooled record unit hides in the sum only: use masks"
            raise ConfigurationError("aggregation", aggregation.name, allowed)
        self.voids.extend(aggregation.caveats)
        self.masked = True

    @property
    def terms(self) -> bytes:
        """The plan: clients that were told different ones do not sum."""
        return repr((self.plan, self.records, self.features)).encode()

    @property
    def noise_terms(self) -> NoiseTerms:
        """Room for the noise of all, and the inputs without which it is too little."""
        return NoiseTerms() if self.noiseless else NoiseTerms(self._shares.room, self.plan.honest)

    def client(self, number: int, records: Images | None = None) -> PooledGuard:
        """The part of client `number`. Raises BudgetError the second time."""
        return cast(PooledGuard, super().client(number, records))

    def _guard(self, number: int, records: Images | None) -> PooledGuard:  # noqa: ARG002 - all are alike
        return PooledGuard(self, self._shares)
