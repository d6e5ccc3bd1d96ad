"""Contributions as integers that may be summed, sums, and ensembles as bytes.

For a proxy sample x, client k has a weight w_k(x) in [0, 1] and a prediction s_k(x) in the
simplex. The server needs the count N(x) = sum_k w_k(x) and the sum S(x) = sum_k w_k(x) s_k(x),
and nothing else. Because every s_k(x) sums to one, N(x) is the class total of S(x): only S is
sent, so no client's weight ever travels beside its masked prediction.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

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
SOFT_LEVELS = 4095
"""Resolution of a soft label; ten clients then need 16 bits a lane."""


_NEARLY_ALL = 0.9
_LIGHT = 9
"""A vote of a ninth of a whole one or less may leave `_NEARLY_ALL` of a count to another vote."""
_ROUNDING = 1e-3
"""Largest distance from 1 of a row's sum of probabilities: float16 networks round as much."""


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """Answer of one client about m proxies, before any protection.

    weights: [m] in [0, 1]; 0 abstains. predictions: [m, C], each row in the simplex.
    """

    weights: FloatArray = field(repr=False)
    predictions: FloatArray = field(repr=False)

    def __post_init__(self) -> None:
        weights, rows = self.weights, self.predictions
        if rows.ndim != 2 or weights.shape != rows.shape[:1]:
            raise LocalError(f"weights {weights.shape} do not fit predictions {rows.shape}")
        if not (np.isfinite(weights).all() and np.isfinite(rows).all()):
            raise LocalError("a contribution holds a value that is not finite")
        rows = rows[weights > 0]
        if ((weights < 0) | (weights > 1)).any():
            raise LocalError("a weight is outside [0, 1]")
        if (rows < 0).any() or (np.abs(rows.sum(axis=1) - 1.0) > _ROUNDING).any():
            raise LocalError(
                "a prediction is not in the simplex: give probabilities (a softmax), not logits"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """A contribution [m], [m, C] after the privacy mechanism; the codec encodes nothing else."""

    weights: FloatArray = field(repr=False)
    predictions: FloatArray = field(repr=False)

    @classmethod
    def of(cls, contribution: Contribution) -> "Released":
        """Return the contribution as it is, for a mechanism that changes nothing in it."""
        return cls(contribution.weights, contribution.predictions)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums that an honest server receives in a round: count [m] and sum [m, C], in votes."""

    count: FloatArray
    total: FloatArray

    @property
    def mean(self) -> FloatArray:
        """h(x) = S(x) / N(x), [m, C]; a zero row where no client answered."""
        count = self.count[:, None]
        return np.divide(self.total, count, out=np.zeros_like(self.total), where=count > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """The server's answer for a round's proxies.

    indices: [m] into the proxy set. predictions: [m, C], h(x) = S(x) / N(x).
    kept: [m], True where the server selector lets h(x) teach. of_classes: whether rows are classes,
    as where there are no proxies: then `indices` are class numbers.
    """

    indices: IntArray
    predictions: FloatArray
    kept: NDArray[np.bool_]
    of_classes: bool = False

    @classmethod
    def without_answers(cls, indices: IntArray, n_classes: int) -> "Ensemble":
        """Nothing is kept."""
        none = np.zeros((len(indices), n_classes))
        return cls(indices, none, np.zeros(len(indices), dtype=np.bool_))


_HEAD: Final = struct.Struct(">BI")


class EnsembleForm(IntEnum):
    """Form of the rows of kept proxies in a message; each is exact, or as exact as networks."""

    CLASSES = 0
    """One-hot rows: the class, in as many bytes as the classes need."""
    SUMS = 1
    """The integers that were summed: every client divides by itself, without a rounding."""
    FLOATS = 2
    """float32, in which networks learn."""


@dataclass(frozen=True, slots=True)
class KnowledgeCodec:
    """Codec of released votes to integers with exact sums, and of ensembles to bytes.

    levels: integer units in one whole vote; no encoded value exceeds it.
    """

    n_classes: int
    levels: int

    def encode(self, released: Released) -> WordArray:
        """[m * C] integers; each proxy's C integers total round(w * levels) exactly.

        Largest-remainder rounding, so that the class total carries the count without error.

        Raises:
            LocalError: for a contribution that has not passed the privacy mechanism.
        """
        if not isinstance(released, Released):
            raise LocalError("only votes that passed the privacy mechanism are encoded")
        target = np.rint(released.weights * self.levels)
        exact = target[:, None] * rescaled(released.predictions)
        low = np.floor(exact)
        short = (target - low.sum(axis=1)).astype(np.int64)
        order = np.argsort(low - exact, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(self.n_classes)[None, :], axis=1)
        units = low + (rank < short[:, None])
        return np.asarray(units.reshape(-1), dtype=np.uint64)

    def decode(self, total: UnitArray, contributors: int, room: int = 0) -> Sums:
        """Return the sums, in votes, of the [m * C] summed integers of `contributors` clients.

        room: how far noise may have moved each integer. PeerError where a proxy has more votes
        than contributors and noise can give: one did not keep to one vote a proxy, and the round
        aborts.
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

    def answered(self, units: UnitArray) -> NDArray[np.bool_]:
        """[m] True where one client's votes [m * C] weigh enough to hide another's in their sum.

        Of two such votes neither is nine tenths of the count, see `contributors`.

        >>> KnowledgeCodec(2, levels=10).answered(np.array([1, 0, 2, 0], np.uint64)).tolist()
        [False, True]
        """
        return np.asarray(_LIGHT * units.reshape(-1, self.n_classes).sum(axis=1) > self.levels)

    def budget(self, slack: float | None, proxies: int, clients: int) -> int | None:
        """Return the budget of one client's votes, in integer units; None if it limits no client.

        Each client has an equal share of the round's proxies, times a public slack. Without a
        budget, a client that keeps to one vote a proxy may still vote at every one of them, also
        where the only holder of a class is outvoted by it. A proven sum enforces the budget; others
        trust in it.

        >>> KnowledgeCodec(10, levels=3).budget(1.5, proxies=256, clients=10)
        117
        """
        if slack is None or slack >= clients:
            return None
        return math.ceil(slack * proxies / clients) * self.levels

    def within(self, units: WordArray, budget: int | None, place: float) -> WordArray:
        """The votes [m * C] that a budget leaves, whole rows alone; 0 where it leaves none.

        The heaviest votes come first, a rule that reads no labels. Among equal ones those come
        first that follow the client's own place in the round's draw, so that clients which know all
        proxies alike leave none out together.

        place: in [0, 1), where in the round the client begins among votes of equal weight.

        >>> votes = np.array([0, 1, 3, 0, 0, 3], np.uint64)
        >>> KnowledgeCodec(2, levels=3).within(votes, 4, place=0.5).tolist()
        [0, 0, 3, 0, 0, 0]
        """
        rows = units.reshape(-1, self.n_classes)
        weights = rows.sum(axis=1).astype(np.int64)
        if budget is None or int(weights.sum()) <= budget:
            return units
        order = np.roll(np.arange(len(rows)), -int(place * len(rows)))
        order = order[np.argsort(-weights[order], kind="stable")]
        kept = np.zeros(len(rows), dtype=np.bool_)
        kept[order] = np.cumsum(weights[order]) <= budget
        return np.where(kept[:, None], rows, np.zeros_like(rows)).reshape(-1)

    def write(
        self, ensemble: Ensemble, indices: IntArray, total: UnitArray, contributors: int
    ) -> bytes:
        """Write a round's ensemble as every client receives it; only kept proxies have rows.

        Args:
            ensemble: about some of the round's proxies, in their order.
            indices: [m] the proxies that all parties drew.
            total: the summed integers of the ensemble's proxies, sent as they are where the
                ensemble is their plain mean.
            contributors: to the sum.
        """
        rows = ensemble.predictions[ensemble.kept]
        flags = np.packbits(np.isin(indices, ensemble.indices[ensemble.kept]))
        units = total.reshape(-1, self.n_classes)[ensemble.kept]
        form, values = EnsembleForm.FLOATS, np.asarray(rows)
        if (rows.max(axis=1, initial=0.0) == 1.0).all() and (rows.sum(axis=1) == 1.0).all():
            form, values = EnsembleForm.CLASSES, rows.argmax(axis=1)
        elif units.min(initial=0) >= 0 and np.array_equal(rows, self.votes(units).mean):
            form, values = EnsembleForm.SUMS, np.asarray(units)
        written = values.astype(self._type_of(form, contributors))
        return _HEAD.pack(form, contributors) + flags.tobytes() + written.tobytes()

    def read(self, message: bytes, indices: IntArray) -> Ensemble:
        """Read the ensemble about the proxies at `indices` [m]; zero rows where none is kept.

        PeerError for a message of another form or length.
        """
        flags, classes = -(-len(indices) // 8), self.n_classes
        if len(message) < _HEAD.size + flags:
            raise PeerError(f"an ensemble of {len(message)} bytes is too short")
        form, contributors = _HEAD.unpack_from(message)
        bits = np.frombuffer(message, np.uint8, flags, _HEAD.size)
        kept = np.unpackbits(bits, count=len(indices)).astype(np.bool_)
        body, kind = message[_HEAD.size + flags :], self._type_of(form, contributors)
        shape = (int(kept.sum()), 1 if form == EnsembleForm.CLASSES else classes)
        if len(body) != math.prod(shape) * kind.itemsize:
            raise PeerError(f"an ensemble of {shape[0]} rows has {len(body)} bytes in form {form}")
        values = np.frombuffer(body, kind).reshape(shape)
        rows = np.zeros((len(indices), classes))
        if form == EnsembleForm.CLASSES:
            if values.max(initial=0) >= classes:
                raise PeerError(f"an ensemble names a class beyond {classes - 1}")
            rows[kept] = one_hot(values[:, 0].astype(np.int64), classes)
        elif form == EnsembleForm.SUMS:
            rows[kept] = self.votes(values.astype(np.int64)).mean
        else:
            rows[kept] = values
        if not np.isfinite(rows).all():
            raise PeerError("an ensemble holds a value that is not finite")
        return Ensemble(indices, rows, kept)

    def _type_of(self, form: int, contributors: int) -> "np.dtype[Any]":
        """Type of a value in the message; PeerError for an unknown form."""
        types = {
            EnsembleForm.CLASSES: wire_type(self.n_classes),
            EnsembleForm.SUMS: wire_type(contributors * self.levels),
            EnsembleForm.FLOATS: np.dtype("<f4"),
        }
        if form not in types:
            raise PeerError(f"an ensemble has the unknown form {form}")
        return types[EnsembleForm(form)]


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


def check_budget(budget: float | None) -> None:
    """Raise ConfigurationError for a slack that leaves a client less than its equal share."""
    if budget is not None and not 1 <= budget < math.inf:
        raise ConfigurationError("budget", budget, "use 1 or more, or None")


def rescaled(predictions: FloatArray) -> FloatArray:
    """Rows rescaled to total one; a zero row (an abstention) becomes uniform and weighs nothing."""
    total = predictions.sum(axis=1, keepdims=True)
    uniform = np.full_like(predictions, 1.0 / predictions.shape[1])
    return np.asarray(np.divide(predictions, total, out=uniform, where=total > 0))


def one_hot(classes: Sequence[int] | IntArray, n_classes: int) -> FloatArray:
    """[m, C] rows with a single one."""
    rows = np.zeros((len(classes), n_classes))
    rows[np.arange(len(classes)), np.asarray(classes, dtype=np.int64)] = 1.0
    return rows


def among(predictions: FloatArray, allowed: NDArray[np.bool_]) -> FloatArray:
    """Predictions [m, C] rescaled over the allowed classes [m or 1, C] alone; as they are for none.

    A tiny floor keeps an allowed class nameable where the network gives it nothing.
    """
    inside = (predictions + np.finfo(np.float64).tiny) * allowed
    total = inside.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(inside, total, out=predictions.copy(), where=total > 0))


def hard_or_soft(predictions: FloatArray, labels: str) -> FloatArray:
    """Return predictions [m, C], as one-hot rows of their largest class where labels are hard."""
    if labels == "soft":
        return predictions
    return one_hot(predictions.argmax(axis=1), predictions.shape[1])


def wire_type(largest: int) -> "np.dtype[np.unsignedinteger]":
    """Little-endian, and as wide as the largest value needs."""
    return np.min_scalar_type(largest).newbyteorder("<")
