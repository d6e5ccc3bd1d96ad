"""What crosses the boundary: contributions as integers in lanes of words, sums, ensembles as bytes.

For a proxy sample x, client k has a weight w_k(x) in [0, 1] and a prediction s_k(x) in the
simplex. The server needs the count N(x) = sum_k w_k(x) and the sum S(x) = sum_k w_k(x) s_k(x),
and nothing else. Because every s_k(x) sums to one, N(x) is the class total of S(x): only S is
sent, so no client's weight ever travels beside its masked prediction.

Lanes are several small integers in one 64-bit word, with room for the sum of all clients. Value i
sits in word i mod W, lane i div W, so packing is a few whole-vector shifts. A lane holds
n_clients * bound, so sums never carry into the next lane; what does not fit is refused before it is
sent, never wrapped.

With noise in the values, a lane has `room` below zero and above that sum. A client's word is then
sum_i v_i 2^(bits i) modulo 2^64, where a negative value borrows from the lanes above it. Words add
up to the same of the summed values; `unpack` adds the room to every lane, which pays all borrows
back. No single value beyond bound and room leaves a client. The noise of all together can carry a
sum beyond its room, with the probability that whoever chose the room accepted: the sum then voids
the round, or reads as another one with its neighbour's lane one off. That is computed from the
noisy sums alone, so it costs exactness and never privacy.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError, LocalError, PeerError

if TYPE_CHECKING:
    from torch import Tensor

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

    def at(self, asked: NDArray[np.bool_]) -> "Ensemble":
        """The part about the proxies where `asked` [m] is True."""
        return Ensemble(self.indices[asked], self.predictions[asked], self.kept[asked])

    def among(self, indices: IntArray, asked: NDArray[np.bool_]) -> "Ensemble":
        """The ensemble about `indices` [m] whose part where `asked` [m] is True is this one."""
        return Ensemble(indices, spread(self.predictions, asked), spread(self.kept, asked))


def spread(rows: NDArray[Any], asked: NDArray[np.bool_]) -> NDArray[Any]:
    """[m, ...] the rows [k, ...] where `asked` [m] is True, zeros elsewhere.

    >>> spread(np.array([5, 6]), np.array([True, False, True])).tolist()
    [5, 0, 6]
    """
    made = np.zeros((len(asked), *rows.shape[1:]), dtype=rows.dtype)
    made[asked] = rows
    return made


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
        exact = target[:, None] * rescaled(released.predictions)
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


def answered(units: UnitArray, n_classes: int, levels: int) -> NDArray[np.bool_]:
    """[m] True where one client's votes [m * C] weigh enough to hide another's in their sum.

    Of two such votes neither is nine tenths of the count, see `contributors`.

    >>> answered(np.array([1, 0, 2, 0], dtype=np.uint64), n_classes=2, levels=10).tolist()
    [False, True]
    """
    return np.asarray(_LIGHT * units.reshape(-1, n_classes).sum(axis=1) > levels)


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


_HEAD: Final = struct.Struct(">BI")


class _Form(IntEnum):
    """How the rows of kept proxies are written; each gives back what the server holds."""

    CLASSES = 0
    """One-hot rows: the class, in as many bytes as the classes need."""
    SUMS = 1
    """The integers that were summed: every client divides by itself, without a rounding."""
    FLOATS = 2
    """float32, in which networks learn."""


def ensemble_message(
    ensemble: Ensemble, codec: KnowledgeCodec, total: UnitArray, contributors: int
) -> bytes:
    """A round's ensemble as every client gets it; its proxies are those that all parties drew.

    total: [m * C] the summed integers of so many contributors, sent as they are where the ensemble
    is their plain mean. Only kept proxies have rows.
    """
    rows, kept = ensemble.predictions[ensemble.kept], np.packbits(ensemble.kept)
    form, body = _Form.FLOATS, rows.astype("<f4").tobytes()
    units = total.reshape(-1, codec.n_classes)[ensemble.kept]
    if (rows.max(axis=1, initial=0.0) == 1.0).all() and (rows.sum(axis=1) == 1.0).all():
        named = rows.argmax(axis=1) if len(rows) else np.zeros(0, dtype=np.int64)
        form, body = _Form.CLASSES, named.astype(wire_type(codec.n_classes)).tobytes()
    elif units.min(initial=0) >= 0 and np.array_equal(rows, _mean(units, codec)):
        written = units.astype(wire_type(contributors * codec.levels))
        form, body = _Form.SUMS, written.tobytes()
    return _HEAD.pack(form, contributors) + kept.tobytes() + body


def read_ensemble(message: bytes, indices: IntArray, codec: KnowledgeCodec) -> Ensemble:
    """The ensemble of a message about the proxies at `indices` [m]; zero rows where none is kept.

    PeerError for a message of another form or length.
    """
    flags = -(-len(indices) // 8)
    if len(message) < _HEAD.size + flags:
        raise PeerError(f"an ensemble of {len(message)} bytes is too short")
    form, contributors = _HEAD.unpack_from(message)
    bits = np.frombuffer(message, np.uint8, flags, _HEAD.size)
    kept = np.unpackbits(bits, count=len(indices)).astype(np.bool_)
    body, count = message[_HEAD.size + flags :], int(kept.sum())
    rows = np.zeros((len(indices), codec.n_classes))
    rows[kept] = _rows(form, body, count, codec, contributors)
    return Ensemble(indices, rows, kept)


def _rows(
    form: int, body: bytes, count: int, codec: KnowledgeCodec, contributors: int
) -> FloatArray:
    classes = codec.n_classes
    types: Mapping[int, tuple[np.dtype[np.generic], int]] = {
        _Form.CLASSES: (wire_type(classes), 1),
        _Form.SUMS: (wire_type(contributors * codec.levels), classes),
        _Form.FLOATS: (np.dtype("<f4"), classes),
    }
    if form not in types or len(body) != count * types[form][1] * types[form][0].itemsize:
        raise PeerError(f"an ensemble of {count} rows has {len(body)} bytes in form {form}")
    values = np.frombuffer(body, types[form][0])
    if form == _Form.CLASSES:
        if values.size and int(values.max()) >= classes:
            raise PeerError(f"an ensemble names a class beyond {classes - 1}")
        return one_hot(values.astype(np.int64), classes)
    if form == _Form.SUMS:
        return _mean(values.reshape(count, classes).astype(np.int64), codec)
    found = values.reshape(count, classes).astype(np.float64)
    if not np.isfinite(found).all():
        raise PeerError("an ensemble holds a value that is not finite")
    return found


def _mean(units: UnitArray, codec: KnowledgeCodec) -> FloatArray:
    """[k, C] S / N of integers [k, C], with the operations of `KnowledgeCodec.decode`."""
    return ensemble_predictions(codec.votes(units.reshape(-1)))


def wire_type(largest: int) -> "np.dtype[np.unsignedinteger]":
    """Little-endian, and as wide as the largest value needs."""
    return np.min_scalar_type(largest).newbyteorder("<")


def proxy_bytes(proxies: "Tensor") -> int:
    """Bytes of the proxy set as 8-bit pixels; every client gets it once."""
    return pixel_bytes(proxy_pixels(proxies))


def pixel_bytes(pixels: NDArray[np.uint8]) -> int:
    """Bytes of 8-bit pixels, losslessly compressed."""
    return len(zlib.compress(pixels.tobytes(), level=6))


def proxy_pixels(proxies: "Tensor") -> NDArray[np.uint8]:
    """[P, ...] 8-bit pixels as they are sent, from floats in [0, 1]."""
    return np.asarray((proxies * 255).round().byte().cpu().numpy())


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client's values may come to, beside the bound of each; a proven sum enforces it.

    row: values in a row, whose total the bound holds for too. budget: most of all values together;
    None: what the rows allow.

    >>> Limits(row=10, budget=77).row
    10
    """

    row: int = 1
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.row < 1:
            raise ConfigurationError("row", self.row, "use 1 value or more")
        if self.budget is not None and self.budget < 1:
            raise ConfigurationError("budget", self.budget, "use 1 or more, or None")


NO_LIMITS: Final = Limits()

WORD_BITS: Final = 64
MODULUS_BITS: Final = 64
"""Words are summed modulo 2**64, by uint64 arithmetic; no message can ask for another modulus."""


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """How values in [0, bound] of n_clients clients share words.

    room: how far noise may carry a value or a sum beyond what it could be without. Values are
    uint64 where it is 0, else int64.
    """

    n_clients: int
    bound: int
    room: int = 0

    def __post_init__(self) -> None:
        if self.n_clients < 1:
            raise ConfigurationError("n_clients", self.n_clients, "use 1 or more")
        if self.bound < 1:
            raise ConfigurationError("bound", self.bound, "use 1 or more")
        if self.room < 0:
            raise ConfigurationError("room", self.room, "use 0 or more")
        if self.limit.bit_length() > WORD_BITS:
            allowed = f"n_clients * bound must be below 2**64 for {self.n_clients} clients"
            raise ConfigurationError("bound", self.bound, allowed)
        if self.room and self.bits >= WORD_BITS:
            allowed = f"n_clients * bound + 2 * room must be below 2**63 for a sum of {self.limit}"
            raise ConfigurationError("room", self.room, allowed)

    @property
    def limit(self) -> int:
        """The largest sum that clients who keep to the bound can reach, without noise."""
        return self.n_clients * self.bound

    @property
    def bits(self) -> int:
        """Bits of a lane."""
        return (self.limit + 2 * self.room).bit_length()

    @property
    def lanes(self) -> int:
        """Lanes of a word."""
        return WORD_BITS // self.bits

    def words(self, length: int) -> int:
        """Words that `length` values need."""
        return -(-length // self.lanes)

    def pack(self, values: UnitArray) -> WordArray:
        """Values [m] -> words [ceil(m / lanes)]; LocalError for a value beyond bound and room."""
        wanted = np.int64 if self.room else np.uint64
        if values.ndim != 1 or values.dtype != wanted:
            named = np.dtype(wanted).name
            raise LocalError(f"values must be {named} [m], not {values.dtype} {values.shape}")
        if values.size and int(values.max()) > self.bound + self.room:
            raise LocalError(f"a value exceeds the agreed bound of {self.bound}{self._noisy}")
        if values.size and int(values.min()) < -self.room:
            raise LocalError(f"a value is below zero{self._noisy}")
        return self._spread(values.view(np.uint64))

    def unpack(self, words: WordArray, length: int, limit: int | None = None) -> UnitArray:
        """Summed words -> `length` summed values. limit: what they can reach; by default `limit`.

        PeerError for the wrong number of words, for a value beyond the limit and the room and for
        a bit set outside the lanes in use: then some client did not keep to the protocol.
        """
        width = self.words(length)
        if words.shape != (width,):
            raise PeerError(f"a sum of {length} values has {width} words, not {words.shape}")
        if self.room:
            words = words + self._spread(np.full(length, self.room, np.uint64))
        mask = np.uint64((1 << self.bits) - 1)
        values = np.empty((self.lanes, width), dtype=np.uint64)
        for lane in range(self.lanes):
            np.bitwise_and(words >> np.uint64(lane * self.bits), mask, out=values[lane])
        flat = values.reshape(-1)
        self._check(words, flat, length, self.limit if limit is None else limit)
        return flat[:length].view(np.int64) - self.room if self.room else flat[:length]

    @property
    def _noisy(self) -> str:
        return f" by more than the noise's room of {self.room}" if self.room else ""

    def _spread(self, values: WordArray) -> WordArray:
        """Each value modulo 2**64, times its lane's weight, added into its word."""
        width = self.words(values.size)
        words = np.zeros(width, dtype=np.uint64)
        for lane in range(self.lanes):
            part = values[lane * width : (lane + 1) * width]
            words[: part.size] += part << np.uint64(lane * self.bits)
        return words

    def _check(self, words: WordArray, values: WordArray, length: int, limit: int) -> None:
        """words, values: with the room already added."""
        used = self.lanes * self.bits
        if values.size and int(values.max()) > limit + 2 * self.room:
            raise PeerError(f"a summed value exceeds {limit}, clients times bound{self._noisy}")
        if values[length:].any() or (used < WORD_BITS and (words >> np.uint64(used)).any()):
            raise PeerError("a sum has bits set outside the lanes in use")
