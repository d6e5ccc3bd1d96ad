"""The record unit over class sums: noisy sums over the records of clients, and rules that follow.

Pooled, each client adds a share of the noise inside the masked sum, so that ten clients together
add what one would have to add alone. Local, with one honest client, every client's own noise is
enough: nobody is trusted, and sums may be in clear. The rules read public facts and nothing else:
the proxies, the clients' numbers of records, and the noise.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, cast

import numpy as np

from secure_fd.aggregation.base import SumPromise
from secure_fd.crypto.primitives import fields
from secure_fd.errors import BudgetError, ConfigurationError
from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.guarantees import Odometer, pooled_guarantee
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.privacy.plans import UNITS, PooledPlan
from secure_fd.privacy.pooled import PooledShares, pooled_sums
from secure_fd.privacy.release import Features
from secure_fd.privacy.samplers import MAX_SIGMA, Random, unmet_by
from secure_fd.privacy.units import Guarantee
from secure_fd.protection.base import Guard, Protection, above_noise, check_budget, ledger_of
from secure_fd.protection.client import IN_CLEAR
from secure_fd.secagg.graph import corrupt_of, threshold
from secure_fd.secagg.session import NoiseTerms
from secure_fd.selection.density import ReferenceSettings

_RANK, _LEAST_RANK = 1.0, 8
_LEVEL = 2.5
_SPEAKERS = 0.25
"""Of the clients, those that are expected to say something of a class, locally. Chosen as `_ABOVE`
of `protection.base` was."""


def rank_for(noise: float) -> int:
    """Whitened features that the noise leaves room for: of one coordinate of the mean.

    A component adds as much noise as any other, and the later ones less detail. Chosen on seed 0 of
    MNIST-5k and digits, whose best ranks at epsilon .25 to 4 it follows within a third; images that
    take more features to explain keep as many more (see `selection.density.patches`).

    >>> rank_for(4.3e-4), rank_for(5.4e-3), rank_for(0.1)
    (48, 14, 8)
    """
    return max(_LEAST_RANK, round(_RANK / math.sqrt(noise)))


def level_for(noise: float) -> float:
    """Where the solver cuts off (see `ProxyReference.under_noise`), in the noise of a mean."""
    return _LEVEL * noise


@dataclass(frozen=True, slots=True)
class PooledRules:
    """What follows from the noise: rank: of the features, None for their own. level: of the solver.

    >>> PooledRules.of(1e-3).rank
    32
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


def audible(
    sums: IntArray, common: FloatArray, n_records: int, n_classes: int, deviation: float
) -> IntArray:
    """[D C] a client's noisy sums without the classes of which they say next to nothing: 0 there.

    common: [D] the mean feature of the proxies, in units. Others' sums of the classes that are left
    out (see `above_noise`) then carry less noise; but none is where most of the client's records
    would go. Post-processing of its own release.

    >>> sums = np.array([[900, 1], [900, -1]]).ravel()
    >>> audible(sums, np.array([9.0, 9.0]), 100, n_classes=2, deviation=1.0).tolist()
    [900, 0, 900, 0]
    """
    blocks = sums.reshape(-1, n_classes)
    counts, heard = above_noise(blocks, common, deviation)
    if counts[heard].sum() < n_records / 2:
        return sums
    return np.where(heard, blocks, 0).ravel()


class PooledGuard(Guard):
    """One client's shares of noise, for as many sums as were planned.

    ledger: of its data set. request: what all of its sums have in common, in public terms.
    """

    def __init__(
        self,
        unit: "PooledRecordUnit",
        shares: PooledShares,
        number: int,
        ledger: BudgetLedger | None = None,
        request: bytes = b"",
    ) -> None:
        self._unit, self._shares, self._number = unit, shares, number
        self._ledger, self._request = ledger, request
        self._odometer, self._sums = Odometer(), 0

    @property
    def shares(self) -> bool:
        """Whether what it releases carries a share of a noise that is complete in the sum alone."""
        return not (self._unit.noiseless or self._unit.local)

    def heard(self, released: IntArray, proxies: FloatArray, n_classes: int) -> IntArray:
        """[D C] what it released, without the classes that `audible` leaves out of a local release.

        proxies: [P, D] their features.
        """
        unit = self._unit
        if not unit.local or unit.noiseless:
            return released
        deviation = math.sqrt(unit.plan.share_variance)
        count = unit.records[self._number]
        common = UNITS * proxies.mean(axis=0)
        return audible(released, common, count, n_classes, deviation)

    def release(
        self,
        parts: Iterable[tuple[Features, Features]],
        shape: tuple[int, int],
        asked: bytes = b"",
        announced: bytes = b"",
    ) -> IntArray:
        """[D C] sums over the records, and this client's share. BudgetError after those planned.

        parts: features [n, D] and residuals [n, C] of all records. asked: what the residuals are
        of, in public terms. announced: the sum's number and the digest of its announcement. A
        ledger replays a vector that carries a share of the noise into that sum alone, and into none
        if this is empty. A sum counts from here on, even if it is aborted: a lost message looks
        like one that was kept. BudgetError beyond the total of a ledger, too.
        """
        sums, plan = pooled_sums(parts, shape), self._unit.plan
        event = replace(plan, sums=1).event()
        if self._unit.noiseless:
            if self._ledger is not None:
                self._ledger.book("class sums without noise", event)
            return sums.values
        if self._sums >= plan.sums:
            raise BudgetError(f"the pooled record unit was planned for {plan.sums} sums")
        self._sums += 1
        self._odometer.spend("noisy class sums", event)
        if self._ledger is None:
            return self._shares.perturb(sums)
        place = (announced or os.urandom(32)) if self.shares else b""
        return self._ledger.release_integers(
            "noisy class sums",
            event,
            fields(self._request, place, asked),
            partial(self._shares.perturb, sums),
            size=plan.entries,
            unmet=unmet_by(self._shares.random),
        )

    def guarantee(self) -> Guarantee | None:
        """Of all planned sums; None before the first, and without noise."""
        if not self._sums:
            return None
        unit = self._unit
        self._odometer.void(*unit.voids)
        made = pooled_guarantee(unit.plan, unit.delta, unit.records, self._odometer)
        return made.voided_by(() if unit.masked or unit.local else IN_CLEAR)


class PooledRecordUnit(Protection):
    """Discrete Gaussian noise on class sums, shared inside masked sums: epsilon for one record.

    epsilon, delta: of one record of one client over the whole run; all blocks of all classes are
    released, so no set of classes is public. records: by client, public. n_proxies, n_classes: of
    the federation. sums: how many the run will make. honest: the fewest clients of a sum that keep
    their noise to themselves; by default the inputs of the smallest masked sum, less the corrupt
    clients that its guarantee names. A sum needs both together as inputs, up to all clients. 1 is
    the local unit: each client's own noise is enough, and sums may be in clear. One object serves
    one federation.
    ledgers: by client, the budget of its data set. session: names the one set-up of masked sums in
    which a client that restarts may send its vector again. Without it nothing is replayed: two sums
    with the same vectors, and one client in only the first, differ by that client's own.

    >>> unit = PooledRecordUnit(4.0, 1e-5, records=(300,) * 10, n_proxies=1000, n_classes=10)
    >>> unit.plan.survivors, unit.plan.corrupt, unit.plan.honest, unit.rules.rank
    (7, 3, 4, 42)
    """

    name = "pooled record unit"
    asks_network = False
    _alone: ClassVar[bool] = False
    """Whether each client's noise must be enough by itself."""

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
        ledgers: Mapping[int, BudgetLedger] | None = None,
        session: bytes | None = None,
    ) -> None:
        super().__init__()
        check_budget(epsilon, delta)
        if self._alone:
            if (honest, session) != (None, None):
                raise ConfigurationError("honest", honest, f"not of a {self.name}: leave it out")
            honest, session = 1, b""  # each release is complete by itself, in any session
        clients, plain = len(records), features or ReferenceSettings()
        corrupt, self._as_the_masks = corrupt_of(clients), honest is None
        enough = threshold(clients) - corrupt if honest is None else honest
        plan = PooledPlan(
            clients=clients,
            honest=enough,
            corrupt=0 if enough == 1 else max(0, min(corrupt, clients - enough)),
            entries=plain.size(n_proxies) * n_classes,
            sums=sums,
        )
        self.plan = plan.with_noise(calibrate(epsilon, delta, plan))
        deviation = math.sqrt(self.plan.share_variance)
        if deviation > MAX_SIGMA:
            allowed = f"at delta {delta:g} it takes a share of noise of deviation {deviation:.3g}, "
            allowed += f"above the sampler's {MAX_SIGMA:.3g}: use a larger epsilon or delta"
            raise ConfigurationError("epsilon", epsilon, allowed)
        self.records, self.delta = tuple(records), delta
        self.noiseless, self.masked = math.isinf(epsilon), False
        self.local = self.plan.honest == 1
        """Whether each client's noise is enough by itself."""
        speakers = max(1.0, _SPEAKERS * clients) if self.local else clients
        inside = self.plan.noise * math.sqrt(speakers / self.plan.honest)
        self.rules = PooledRules.of(inside / sum(records))
        self.features = self.rules.settings(plain)
        """The public map that the noise leaves room for."""
        self.voids: list[str] = [] if self.noiseless else list(unmet_by(random))
        """Public reasons why there is no epsilon."""
        self._shares = PooledShares(self.plan, random)
        self._ledgers, self._session = ledgers, os.urandom(32) if session is None else session

    def check_sum(self, aggregation: SumPromise) -> None:
        """Refuse a sum in clear, where each share stands alone, and another number of clients.

        Also refuse one whose guarantee names more corrupt clients than the noise was made for.
        Under masks that the sum itself does not vouch for there is no epsilon.
        """
        if aggregation.n_clients != self.plan.clients:
            allowed = f"the sum has {aggregation.n_clients}"
            raise ConfigurationError("records", self.plan.clients, allowed)
        if self.noiseless or self.local:
            return
        if not aggregation.hides:
            allowed = "the pooled record unit hides in the sum only: use masks"
            raise ConfigurationError("aggregation", aggregation.name, allowed)
        if self._as_the_masks and aggregation.corrupt > self.plan.corrupt:
            allowed = f"its guarantee names {aggregation.corrupt} corrupt clients: set honest"
            raise ConfigurationError("aggregation", aggregation.name, allowed)
        self.voids.extend(aggregation.caveats)
        self.masked = True

    @property
    def terms(self) -> bytes:
        """The plan: clients that were told different ones do not sum."""
        return repr((self.plan, self.records, self.features)).encode()

    @property
    def noise_terms(self) -> NoiseTerms:
        """Room for the noise of all, and the inputs without which it is too little.

        None of either for the local unit, whose releases are in range and complete by themselves.
        """
        if self.noiseless or self.local:
            return NoiseTerms()
        return NoiseTerms(self._shares.room(self.plan.clients), self.plan.survivors)

    @property
    def own_room(self) -> int:
        """How far a client's own noise may move what it releases, in units; of the local unit."""
        return self._shares.room(1) if self.local else 0

    def client(self, number: int) -> PooledGuard:
        """The part of client `number`. Raises BudgetError the second time."""
        return cast(PooledGuard, super().client(number))

    def _guard(self, number: int) -> PooledGuard:
        request = fields(self._session, self.terms, number.to_bytes(4, "big"))
        return PooledGuard(self, self._shares, number, ledger_of(self._ledgers, number), request)


class LocalRecordUnit(PooledRecordUnit):
    """The record unit of clients that trust nobody: each one's own noise on its sums is enough.

    Arguments are those of `PooledRecordUnit`, without honest and session; sums may be in clear. A
    restart is given the release that a ledger kept, in any session: it is complete by itself.

    >>> LocalRecordUnit(4.0, 1e-5, records=(300,) * 10, n_proxies=1000, n_classes=10).plan.honest
    1
    """

    name = "local record unit"
    _alone = True
