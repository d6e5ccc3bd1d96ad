"""The record unit over class sums: noisy sums over the records of clients, and rules that follow.

Pooled, each client adds a share of the noise inside the masked sum, so that ten clients together
add what one would have to add alone. Local, with one honest client, every client's own noise is
enough: no other party is trusted, and sums may be in clear. The rules read public facts and nothing
else: the proxies, the clients' numbers of records, and the noise.

A record adds phi(x) r^T, its features times what a head is wrong by about it. Both are rounded to
integers of bounded norm before they are multiplied, so that what one record can move a sum by is
exact: `UNITS` in L2, whatever the record. Integers in, integers out: floating-point noise would
leave its low bits behind (Mironov, 2012).
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NoReturn, Self, cast, final

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto.keys import fields
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.privacy.accountants import accountant_for, cost, sampled_cost
from secure_fd.privacy.base import ClientMechanism, SharedNoise, check_epsilon
from secure_fd.privacy.calibration import Plan, calibrate
from secure_fd.privacy.events import DistributedGaussian, Event, Repeated
from secure_fd.privacy.guarantee import (
    GROUP_SIZES,
    NEVER_COVERED,
    AtUnit,
    Guarantee,
    Part,
    PrivacyUnit,
    check_delta_of,
    format_epsilon,
    shares_assumed,
)
from secure_fd.privacy.ledger import Ledger, ledger_of
from secure_fd.privacy.samplers import MAX_SIGMA, Random, discrete_gaussian, room_for, unmet_by
from secure_fd.secagg.graph import corrupt_of, threshold
from secure_fd.secagg.session import NoiseTerms
from secure_fd.votes.codec import FloatArray, IntArray
from secure_fd.votes.fixed_point import FixedPoint

if TYPE_CHECKING:
    from secure_fd.selection.density_ratio import ReferenceSettings

Features = NDArray[np.float64] | NDArray[np.float32]


_WARMED_UP = "a network that others may query and that learnt from raw records besides"
UNITS = 1 << 20
"""Integer units in what one record adds to a pooled sum, at most."""


@final
@dataclass(frozen=True, slots=True)
class PooledPlan(Plan):
    """Sums over the records of all clients under masks, each client adding its share of the noise.

    honest: the fewest clients of a sum whose shares no other party learns: these are noise enough.
    corrupt: clients of a sum that may give the server their shares, at most. entries: integers of a
    sum. sums: how many there are. noise: of one sum, its deviation over what a record moves it.

    >>> plan = PooledPlan(clients=10, honest=4, corrupt=3, entries=10_000, noise=1.0)
    >>> plan.survivors, round((plan.honest * plan.share_variance) ** 0.5) == UNITS
    (7, True)
    """

    clients: int
    honest: int
    entries: int
    sums: int = 1
    corrupt: int = 0

    def __post_init__(self) -> None:
        self.check_counts("clients", "honest", "entries", "sums")
        self.check_counts("corrupt", least=0)
        if self.survivors > self.clients:
            allowed = f"use up to {self.clients - self.corrupt}, the clients that are not corrupt"
            raise ConfigurationError("honest", self.honest, allowed)
        Plan.__post_init__(self)

    @property
    def survivors(self) -> int:
        """The fewest inputs that a sum may be opened with."""
        return self.honest + self.corrupt

    @property
    def share_variance(self) -> float:
        """Variance of one client's noise, in units squared: the honest shares make up the whole."""
        return (self.noise * UNITS) ** 2 / self.honest

    def event(self) -> Event:
        """Return all sums."""
        return self.moved_by(1.0)

    def moved_by(self, records: float) -> Event:
        """Return all sums if `records` records of one client are zeroed out together."""
        distance = records * UNITS
        one = DistributedGaussian(self.share_variance, self.honest, distance, self.entries)
        return Repeated(one, self.sums)

    def with_honest(self, honest: int) -> Self:
        """The same shares of noise, where fewer or more of them count."""
        noise = self.noise * math.sqrt(honest / self.honest)
        corrupt = max(0, self.survivors - honest)
        return replace(self, honest=honest, corrupt=corrupt, noise=noise)

    def check(self, sums: "Bounded") -> None:
        """Raise LocalError for other sums than planned."""
        if sums.l2 > UNITS or sums.values.size != self.entries:
            raise LocalError(f"a sum has {sums.values.size} entries; use {self.entries}")

    def perturb(self, sums: "Bounded", random: Random) -> IntArray:
        """Return [entries] sums plus one client's share of noise.

        A share alone hides nothing: only the sum of the planned number of honest shares does.

        Raises:
            LocalError: other sums than planned.
        """
        self.check(sums)
        deviation = math.sqrt(self.share_variance)
        return sums.values + discrete_gaussian(deviation, self.entries, random)

    def room(self, clients: int) -> int:
        """Return the most that the clients' noise moves a sum, except with probability 2^-40."""
        return room_for(clients * self.share_variance, self.entries * self.sums)

    def guarantee(
        self, delta: float, records: Sequence[int], released: int, unmet: Sequence[str] = ()
    ) -> Guarantee:
        """Return the claim for one record and all planned sums.

        All rounds and networks that follow are post-processing of the sums.

        Args:
            delta: below one over the largest number of records.
            records: of each client, public.
            released: sums so far, 1 or more.
            unmet: reasons why there is no epsilon.

        Raises:
            ConfigurationError: delta would allow to publish one record outright.
        """
        check_delta_of(delta, max(records), "records of a client")
        draws = self.entries * self.sums
        assumed: tuple[str, ...] = ()
        weaker: tuple[str, ...] = ()
        if self.honest == 1:  # each client's noise is its own, and enough
            sums = "releases"
            sampler = "discrete Gaussian on integers, within 2^-110 of exact, "
            sampler += f"noise multiplier {self.noise:.4g} at every client"
        else:
            draws *= self.clients
            sums, assumed = "sums", shares_assumed(self.clients, self.survivors, self.corrupt)
            sampler = "discrete Gaussian shares inside the sum, within 2^-110 of exact, "
            sampler += f"{self.clients} shares, each of 1 / sqrt({self.honest}) "
            sampler += f"of a noise multiplier of {self.noise:.4g}"
            fewer = max(1, self.honest - 2)
            found, _ = sampled_cost(self.with_honest(fewer).event(), delta, draws)
            weaker = (
                f"where only {fewer} keep their noise to themselves it is epsilon "
                f"{format_epsilon(found)}",
            )
        epsilon, total = sampled_cost(self.event(), delta, draws)
        client = sampled_cost(self.moved_by(float(max(records))), delta, draws)
        spent = cost(replace(self, sums=released).event(), delta)
        groups = {k: sampled_cost(self.moved_by(float(k)), delta, draws)[0] for k in GROUP_SIZES}
        replaced = groups[2]  # two vectors of norm 1 are at most 2 apart
        made = Guarantee(
            unit=PrivacyUnit.RECORD,
            neighbours="one record of one client, present or zeroed out, "
            "every client's number of records public",
            epsilon=epsilon,
            delta=total,
            covers=(
                f"everything that the {sums}, and whatever follows from them, reveal of a record",
            ),
            not_covered=("the numbers of records", _WARMED_UP, *NEVER_COVERED),
            composes_to=(AtUnit(PrivacyUnit.CLIENT, *client),),
            sampler=sampler,
            accountant=f"{accountant_for(self.event()).name}, {self.sums} planned {sums}",
            parts=(Part("noisy class sums", released, spent),),
            assumptions=(
                "the features were fitted on public data",
                "nothing computed from a network trained on the raw records leaves the client",
                *assumed,
            ),
            caveats=(
                f"for replace-one neighbours the same noise is epsilon {format_epsilon(replaced)}",
                *weaker,
            ),
            epsilon_replace_one=replaced,
            groups=tuple(groups.items()),  # k records that are summed move a release k times as far
        )
        return made.checked(self.noise, unmet)


def sums_for(epsilon: float, *, local: bool = False) -> int:
    """Return the number of sums that share a budget: a second one corrects the first.

    On MNIST-5k, seeds 0 and 1, epsilon 4, strong: right labels of 93.9 / 94.7 % after one sum,
    94.3 / 95.5 after two with sqrt(2) the noise each. local: each client makes its own noise, of
    which one sum has enough.

    >>> sums_for(1.0), sums_for(4.0)
    (1, 2)
    """
    return 1 if local or epsilon < _TWO_FROM else 2


_TWO_FROM = 2.0


# What a client sums: its records' residuals in integers.


FEATURE_UNITS: Final = 1 << 12
RESIDUAL_UNITS: Final = UNITS // FEATURE_UNITS
"""Units in features of norm 1, and in residuals of norm 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Integers before any noise, so private, and the most that a neighbour moves them.

    values: of any shape, in units. l2: sensitivity in units, of all entries together.
    """

    values: IntArray = field(repr=False)
    l2: int

    def __post_init__(self) -> None:
        if self.values.dtype != np.int64:
            raise LocalError(
                f"values: {self.values.dtype} is not allowed; only integers take exact noise"
            )
        if not self.l2 > 0:
            raise LocalError(f"l2: {self.l2} is no sensitivity; use the units a neighbour may move")

    def __reduce__(self) -> NoReturn:
        raise LocalError("values without noise stay in this process: they cannot be pickled")


def shrink(n_features: int) -> float:
    """Return the factor of features before they are rounded: no norm then exceeds its units.

    Rounding moves each of D entries by half a unit at most, so a row by sqrt(D) / 2.

    >>> shrink(4096) * FEATURE_UNITS
    4064.0
    """
    return 1.0 - math.sqrt(n_features) / (2 * FEATURE_UNITS)


def feature_units(features: Features) -> IntArray:
    """Rows [n, D] of norm 1 at most as integers of norm `FEATURE_UNITS` at most.

    Raises LocalError for a row beyond it; the check is exact.
    """
    _check_entries(features)
    scaled = features.astype(np.float64) * (FEATURE_UNITS * shrink(features.shape[1]))
    return _checked(np.rint(scaled).astype(np.int64), FEATURE_UNITS)


def residual_units(residuals: Features) -> IntArray:
    """Rows [n, C], shortened to norm 1 where they are longer, truncated to `RESIDUAL_UNITS`.

    >>> residual_units(np.array([[1.0, 0.0], [3.0, -4.0]])).tolist()
    [[256, 0], [153, -204]]
    """
    _check_entries(residuals)
    norms = np.linalg.norm(residuals, axis=1, keepdims=True)
    # A quotient that was rounded up must not come out a unit too long.
    within = residuals / np.where(norms > 1, norms * (1 + 1e-12), 1.0)
    return _checked(np.trunc(within * RESIDUAL_UNITS).astype(np.int64), RESIDUAL_UNITS)


def _check_entries(values: Features) -> None:
    if not np.isfinite(values).all() or (values.size and np.abs(values).max() > _LARGEST):
        raise LocalError("a record's features or residuals are not finite, or far too large")


_LARGEST: Final = 1e6


def _checked(units: IntArray, most: int) -> IntArray:
    if units.size and (units * units).sum(axis=1).max() > most**2:
        raise LocalError("a record would move the sum by more than its noise covers")
    return units


def pooled_sums(parts: Iterable[tuple[Features, Features]], shape: tuple[int, int]) -> Bounded:
    """[D C] exact sum of phi(x) r^T over records, from parts of features and of their residuals."""
    total = np.zeros(shape, dtype=np.int64)
    for features, residuals in parts:
        # Products of integers below 2^53 in all: exact in floating point, and far faster.
        one, other = feature_units(features), residual_units(residuals)
        product = one.T.astype(np.float64) @ other.astype(np.float64)
        total += product.astype(np.int64)
    return Bounded(total.ravel(), l2=UNITS)


def sums_codec(records: Sequence[int], n_features: int, room: int = 0) -> FixedPoint:
    """Make the codec of pooled sums, whose decoded value is the mean over all records.

    Args:
        records: of each client, public.
        n_features: D.
        room: how far a client's own noise may move its sums, where these are to be in range by
            themselves.

    >>> codec, sums = sums_codec((2, 3), 1000), np.array([5 * UNITS // 100], dtype=np.int64)
    >>> codec.decode(2 * codec.shift(sums, clip=False), (0, 1)).round(4).tolist()
    [0.0201]
    """
    entry = math.ceil(math.sqrt(2 / n_features) * FEATURE_UNITS)  # of a feature, at most
    limit = max(records) * entry * RESIDUAL_UNITS + room
    return FixedPoint(tuple(records), limit / (UNITS * shrink(n_features)), 2 * limit)


# What the noise leaves room for.


_RANK, _LEAST_RANK = 1.0, 8
_LEVEL = 2.5
"""Cut-off of the solver, in the noise of one coordinate of the mean."""
_SPEAKERS = 0.25
"""Share of the clients that are expected to hold a class, locally. Chosen as `_ABOVE` was."""


def rank_for(noise: float) -> int:
    """Whitened features that the noise leaves room for: of one coordinate of the mean.

    A component adds as much noise as any other, and the later ones less detail. Chosen on seed 0 of
    MNIST-5k and digits, whose best ranks at epsilon .25 to 4 it follows within a third; images that
    take more features to explain keep as many more (see `ReferenceSettings` of the selectors).

    >>> rank_for(4.3e-4), rank_for(5.4e-3), rank_for(0.1)
    (48, 14, 8)
    """
    return max(_LEAST_RANK, round(_RANK / math.sqrt(noise)))


_ABOVE = 3.0
"""Chosen on seeds 0 and 1 of MNIST-5k in three splits at epsilon .25, 1 and 4."""


def significant_classes(
    sums: IntArray, common: FloatArray, n_records: int, n_classes: int, deviation: float
) -> IntArray:
    """[D C] a client's noisy sums, with 0 for classes of which it has too few records to show.

    common: [D] the mean feature of the proxies, in units. A sum of n features is about n times
    that along it, so its projection counts them, within the noise's deviation over the norm; three
    of these are asked. Others' sums of the classes that are left out then carry less noise; but
    none is where most of the client's records would go. Post-processing of its own release.

    >>> sums = np.array([[900, 1], [900, -1]]).ravel()
    >>> significant_classes(sums, np.array([9.0, 9.0]), 100, n_classes=2, deviation=1.0).tolist()
    [900, 0, 900, 0]
    """
    blocks = sums.reshape(-1, n_classes)
    squared = float(common @ common)
    counts = np.asarray(common @ blocks / squared)
    significant = counts >= _ABOVE * deviation / math.sqrt(squared)
    if counts[significant].sum() < n_records / 2:
        return sums
    return np.where(significant, blocks, 0).ravel()


# The unit and its parts.


class NoisyClassSums(ClientMechanism):
    """One client's shares of noise, for as many sums as were planned.

    ledger: of its data set. request: what all of its sums have in common, in public terms.
    """

    def __init__(self, unit: "PooledRecordUnit", number: int) -> None:
        self._unit, self._number = unit, number
        self._ledger = ledger_of(unit.ledgers, number) or Ledger()
        self._request = fields(unit.session, unit.terms, number.to_bytes(4, "big"))

    @property
    def shares(self) -> bool:
        """True if its releases carry a share of a noise that is complete in the sum alone."""
        return self._unit.shares

    def drop_insignificant(
        self, released: IntArray, proxies: FloatArray, n_classes: int
    ) -> IntArray:
        """Return a local release [D C] without the classes that `significant_classes` leaves out.

        proxies: [P, D] their features. A share of a pooled release is returned as it is.
        """
        unit = self._unit
        if not unit.local or unit.noiseless:
            return released
        deviation = math.sqrt(unit.plan.share_variance)
        count = unit.records[self._number]
        common = UNITS * proxies.mean(axis=0)
        return significant_classes(released, common, count, n_classes, deviation)

    def release_sums(
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
        unit, plan, sums = self._unit, self._unit.plan, pooled_sums(parts, shape)
        plan.check(sums)  # before it is booked
        event = replace(plan, sums=1).event()
        if unit.noiseless:
            self._ledger.book("class sums without noise", event)
            return sums.values
        if self.released >= plan.sums:
            raise BudgetError(f"the {unit.name} was planned for {plan.sums} sums")
        self.released += 1
        place = (announced or os.urandom(32)) if self.shares else b""
        answer = self._ledger.release(
            "noisy class sums",
            event,
            fields(self._request, place, asked),
            lambda: unit.plan.perturb(sums, unit.random).astype("<i8").tobytes(),
            draws=plan.entries,
            unmet=unmet_by(unit.random),
        )
        return np.frombuffer(answer, dtype="<i8").astype(np.int64)

    def guarantee(self) -> Guarantee | None:
        """Return the claim for all planned sums; None before the first, and without noise."""
        if not self.released:
            return None
        unit = self._unit
        return unit.plan.guarantee(unit.delta, unit.records, self.released, unit.unmet)


class PooledRecordUnit(SharedNoise):
    """Discrete Gaussian noise on class sums, shared inside masked sums: epsilon for one record.

    epsilon, delta: of one record of one client over the whole run; all blocks of all classes are
    released, so no set of classes is public. records: by client, public. n_proxies, n_classes: of
    the federation. sums: how many the run will make. honest: the fewest clients of a sum that keep
    their noise to themselves; by default the inputs of the smallest masked sum, less the corrupt
    clients that its guarantee names. A sum needs both together as inputs, up to all clients. 1 is
    the local unit, of clients that trust no other party: each one's own noise is enough, sums may
    be in clear, and a restart is given the release that a ledger kept, in any session. One object
    serves one federation.
    ledgers: by client, the budget of its data set. session: names the one set-up of masked sums in
    which a client that restarts may send its vector again. Without it nothing of a share is
    replayed: two sums with the same vectors, and one client in only the first, differ by that
    client's own.

    >>> unit = PooledRecordUnit(4.0, 1e-5, records=(300,) * 10, n_proxies=1000, n_classes=10)
    >>> unit.plan.survivors, unit.plan.corrupt, unit.plan.honest, unit.features.most_rank
    (7, 3, 4, 42)
    """

    asks_network = False
    counted = "records"

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
        features: "ReferenceSettings | None" = None,
        random: Random = os.urandom,
        ledgers: Mapping[int, Ledger] | None = None,
        session: bytes | None = None,
    ) -> None:
        check_epsilon(epsilon, delta, finite=False)
        clients = len(records)
        corrupt = corrupt_of(clients)
        enough = threshold(clients) - corrupt if honest is None else honest
        super().__init__(epsilon, delta, clients, random, local=enough == 1)
        self.name = f"{'local' if self.local else 'pooled'} record unit"
        from secure_fd.selection.density_ratio import ReferenceSettings  # with torch, so not above

        plain = features or ReferenceSettings()
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
        self.corrupt = plan.corrupt if honest is None else None
        speakers = max(1.0, _SPEAKERS * clients) if self.local else clients
        inside = self.plan.noise * math.sqrt(speakers / self.plan.honest)
        of_mean = inside / sum(records)
        self.level = _LEVEL * of_mean
        """Cut-off of the solver (see `RatioSolver.under_noise`); 0 without noise."""
        self.features = plain if self.noiseless else replace(plain, most_rank=rank_for(of_mean))
        """The public map that the noise leaves room for."""
        self.records = tuple(records)
        self.terms = repr((self.plan, self.records, self.features)).encode()
        self.random = random
        if self.shares:
            self.noise_terms = NoiseTerms(self.plan.room(clients), self.plan.survivors)
        self.ledgers = ledgers
        self.session = os.urandom(32) if session is None else session
        if self.local:
            self.session = b""  # each release is complete by itself, in any session

    @property
    def own_room(self) -> int:
        """Most that a client's own noise moves its release, in units; 0 for a pooled unit."""
        return self.plan.room(1) if self.local else 0

    def client(self, number: int) -> NoisyClassSums:
        """Make the part of client `number`. Raises BudgetError the second time."""
        return cast(NoisyClassSums, super().client(number))

    def _part(self, number: int) -> NoisyClassSums:
        return NoisyClassSums(self, number)
