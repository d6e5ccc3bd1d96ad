"""The types that cross the boundary: a client's contribution, two sums, an ensemble.

For a proxy sample x, client k has a weight w_k(x) in [0, 1] and a prediction s_k(x) in the
simplex. The server needs the count N(x) = sum_k w_k(x) and the sum S(x) = sum_k w_k(x) s_k(x),
and nothing else. Because every s_k(x) sums to one, N(x) is the class total of S(x): only S is
sent, so no client's weight ever travels beside its masked prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError, LocalError, PeerError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
WordArray = NDArray[np.uint64]
UnitArray = WordArray | IntArray
"""Votes in whole units: signed where noise is in them."""

HARD_LEVELS = 1
"""One unit a vote: a hard label is a whole number."""
WEIGHED_LEVELS = 63
"""Resolution of a hard label's weight; ten clients then need 10 bits a lane."""
SOFT_LEVELS = 4095
"""Resolution of a soft label; ten clients then need 16 bits a lane."""


_NEARLY_ALL = 0.9
_ROUNDING = 1e-3
"""How far from one a row of probabilities may sum: float16 networks round as much."""


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """What one client would say about m proxies, before anything protects it.

    weights: [m] in [0, 1]; 0 abstains. predictions: [m, C], each row in the simplex.
    """

    weights: FloatArray = field(repr=False)
    predictions: FloatArray = field(repr=False)

    def __post_init__(self) -> None:
        if self.predictions.ndim != 2 or self.weights.shape != self.predictions.shape[:1]:
            raise LocalError(
                f"a contribution needs weights [m] and predictions [m, C], "
                f"not {self.weights.shape} and {self.predictions.shape}"
            )
        if not (np.isfinite(self.weights).all() and np.isfinite(self.predictions).all()):
            raise LocalError("a contribution holds a value that is not finite")
        if self.weights.size and (self.weights.min() < 0 or self.weights.max() > 1):
            raise LocalError("a weight is outside [0, 1]")
        rows = self.predictions[self.weights > 0]
        if rows.size and (rows.min() < 0 or np.abs(rows.sum(axis=1) - 1.0).max() > _ROUNDING):
            raise LocalError(
                "a prediction is not in the simplex: give probabilities (a softmax), not logits"
            )


class Released(Contribution):
    """What a client lets go of: a contribution after its protection, and the only thing encoded."""

    __slots__ = ()

    @classmethod
    def of(cls, contribution: Contribution) -> "Released":
        """The contribution as it is: for a protection that has nothing left to hide in it."""
        return cls(contribution.weights, contribution.predictions)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """What an honest server learns of a round: count [m] and sum [m, C], in votes."""

    count: FloatArray
    total: FloatArray


def ensemble_predictions(sums: Sums) -> FloatArray:
    """h(x) = S(x) / N(x), [m, C]; a zero row where nobody answered."""
    count = sums.count[:, None]
    return np.divide(sums.total, count, out=np.zeros_like(sums.total), where=count > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """The server's answer for a round's proxies.

    indices: [m] into the proxy set. predictions: [m, C], h(x) = S(x) / N(x).
    kept: [m], True where the server selector lets h(x) teach.
    """

    indices: IntArray
    predictions: FloatArray
    kept: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KnowledgeCodec:
    """What clients release <-> non-negative integers that may be summed exactly.

    levels: integer units in one whole vote; no encoded value exceeds it.
    """

    n_classes: int
    levels: int

    def __post_init__(self) -> None:
        if self.n_classes < 2:
            raise ConfigurationError("n_classes", self.n_classes, "use 2 or more")
        if self.levels < 1:
            raise ConfigurationError("levels", self.levels, "use 1 or more")

    def encode(self, released: Released) -> WordArray:
        """[m * C] integers; each proxy's C integers total round(w * levels) exactly.

        Largest-remainder rounding, so that the class total carries the count without error.
        Raises LocalError for a contribution that no protection has let go.
        """
        if not isinstance(released, Released):
            raise LocalError("only what a protection released may leave a client")
        target = np.rint(released.weights * self.levels)
        exact = target[:, None] * _simplex(released.predictions)
        low = np.floor(exact)
        short = (target - low.sum(axis=1)).astype(np.int64)
        order = np.argsort(low - exact, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(self.n_classes)[None, :], axis=1)
        units = low + (rank < short[:, None])
        return np.asarray(units.reshape(-1), dtype=np.uint64)

    def decode(self, total: UnitArray, contributors: int, room: int = 0) -> Sums:
        """Sums, in votes, of the [m * C] summed integers of so many contributors.

        room: how far noise may have moved each integer. PeerError where a proxy has more votes
        than contributors and noise can give: one did not keep to one vote a proxy, and the round
        is void.
        """
        units = total.reshape(-1, self.n_classes)
        most = contributors * self.levels + self.n_classes * room
        if units.size and int(units.sum(axis=1).max()) > most:
            raise PeerError(f"a proxy has more votes than its {contributors} contributors can cast")
        return self.votes(total)

    def votes(self, total: UnitArray) -> Sums:
        """Sums, in votes, of summed integers [m * C], unchecked."""
        votes = total.reshape(-1, self.n_classes).astype(np.float64) / self.levels
        return Sums(count=votes.sum(axis=1), total=votes)


def contributors(units: Sequence[UnitArray], n_classes: int) -> tuple[int, int]:
    """At how many proxies one client gives nine tenths of the count or more, and any client some.

    units: by client, the [m * C] integers of its votes, before noise.
    """
    if not units:
        return 0, 0
    counts = np.array([own.reshape(-1, n_classes).sum(axis=1) for own in units], dtype=np.float64)
    total = counts.sum(axis=0)
    alone = (total > 0) & (counts.max(axis=0) >= _NEARLY_ALL * total)
    return int(alone.sum()), int((total > 0).sum())


def _simplex(predictions: FloatArray) -> FloatArray:
    """Rows rescaled to total one; a zero row (an abstention) becomes uniform and weighs nothing."""
    total = predictions.sum(axis=1, keepdims=True)
    uniform = np.full_like(predictions, 1.0 / predictions.shape[1])
    return np.asarray(np.divide(predictions, total, out=uniform, where=total > 0))


def one_hot(classes: Sequence[int] | IntArray, n_classes: int) -> FloatArray:
    """[m, C] rows with a single one."""
    rows = np.zeros((len(classes), n_classes))
    rows[np.arange(len(classes)), np.asarray(classes, dtype=np.int64)] = 1.0
    return rows
