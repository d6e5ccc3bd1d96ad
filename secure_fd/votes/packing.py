"""Integers in lanes of 64-bit words, which are summed modulo 2^64.

Lanes are several small integers in one 64-bit word, with room for the sum of all clients. Value i
sits in word i mod W, lane i div W, so packing is a few whole-vector shifts. A lane holds
n_clients * bound, so sums never carry into the next lane; what does not fit is refused before it is
sent, never wrapped.

With noise in the values, a lane has `room` below zero and above that sum. A client's word is then
sum_i v_i 2^(bits i) modulo 2^64, where a negative value borrows from the lanes above it. Words add
up to the same of the summed values; `unpack` adds the room to every lane, which pays all borrows
back. No single value beyond bound and room leaves a client. The noise of all together can carry a
sum beyond its room, with the probability that was accepted when the room was chosen: the round then
aborts, or the sum reads as another one with its neighbour's lane one off. That is computed from the
noisy sums alone, so it costs exactness and never privacy.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.votes.codec import UnitArray, WordArray


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one client's values beside the bound of each; a proven sum enforces them.

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
"""Words are summed modulo 2**64, by uint64 arithmetic; no message can ask for another modulus."""


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """Layout of words that hold values in [0, bound] of n_clients clients.

    room: how far noise may carry a value or a sum beyond what it could be without. Values are
    uint64 where it is 0, else int64.
    """

    n_clients: int
    bound: int
    room: int = 0

    def __post_init__(self) -> None:
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
        """Values [m] -> words [ceil(m / lanes)]; LocalError for a value beyond bound and room.

        LocalError for another type, too: the bits of a float would be read as an integer.
        """
        wanted = np.dtype(np.int64 if self.room else np.uint64)
        if values.dtype != wanted:
            raise LocalError(f"values must be {wanted}, not {values.dtype}")
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
            np.right_shift(words, np.uint64(lane * self.bits), out=values[lane])
            values[lane] &= mask
        flat, used = values.reshape(-1), self.lanes * self.bits
        most = self.limit if limit is None else limit
        if flat.size and int(flat.max()) > most + 2 * self.room:
            raise PeerError(f"a summed value exceeds {most}, clients times bound{self._noisy}")
        if flat[length:].any() or (used < WORD_BITS and (words >> np.uint64(used)).any()):
            raise PeerError("a sum has bits set outside the lanes in use")
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
