"""Lanes: several small integers in one 64-bit word, with room for the sum of all clients.

Value i sits in word i mod W, lane i div W, so packing is a few whole-vector shifts. A lane
holds n_clients * bound, so sums never carry into the next lane; what does not fit is refused
before it is sent, never wrapped.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.knowledge import WordArray

WORD_BITS: Final = 64
MODULUS_BITS: Final = 64
"""Words are summed modulo 2**64, by uint64 arithmetic; no message can ask for another modulus."""


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """How values in [0, bound] of n_clients clients share words."""

    n_clients: int
    bound: int

    def __post_init__(self) -> None:
        if self.n_clients < 1:
            raise ConfigurationError("n_clients", self.n_clients, "use 1 or more")
        if self.bound < 1:
            raise ConfigurationError("bound", self.bound, "use 1 or more")
        if self.bits > WORD_BITS:
            allowed = f"n_clients * bound must be below 2**64 for {self.n_clients} clients"
            raise ConfigurationError("bound", self.bound, allowed)

    @property
    def limit(self) -> int:
        """The largest sum that clients who keep to the bound can reach."""
        return self.n_clients * self.bound

    @property
    def bits(self) -> int:
        """Bits of a lane."""
        return self.limit.bit_length()

    @property
    def lanes(self) -> int:
        """Lanes of a word."""
        return WORD_BITS // self.bits

    def words(self, length: int) -> int:
        """Words that `length` values need."""
        return -(-length // self.lanes)

    def pack(self, values: WordArray) -> WordArray:
        """Values [m] -> words [ceil(m / lanes)]; LocalError for a value above the bound."""
        if values.ndim != 1 or values.dtype != np.uint64:
            raise LocalError(f"values must be uint64 [m], not {values.dtype} {values.shape}")
        if values.size and int(values.max()) > self.bound:
            raise LocalError(f"a value exceeds the agreed bound of {self.bound}")
        width = self.words(values.size)
        words = np.zeros(width, dtype=np.uint64)
        for lane in range(self.lanes):
            part = values[lane * width : (lane + 1) * width]
            words[: part.size] |= part << np.uint64(lane * self.bits)
        return words

    def unpack(self, words: WordArray, length: int, limit: int | None = None) -> WordArray:
        """Summed words -> `length` summed values. limit: what they can reach; by default `limit`.

        PeerError for the wrong number of words, for a value above the limit and for a bit set
        outside the lanes in use: then some client did not keep to the protocol.
        """
        width = self.words(length)
        if words.shape != (width,):
            raise PeerError(f"a sum of {length} values has {width} words, not {words.shape}")
        mask = np.uint64((1 << self.bits) - 1)
        values = np.empty((self.lanes, width), dtype=np.uint64)
        for lane in range(self.lanes):
            np.bitwise_and(words >> np.uint64(lane * self.bits), mask, out=values[lane])
        flat = values.reshape(-1)
        self._check(words, flat, length, self.limit if limit is None else limit)
        return flat[:length]

    def _check(self, words: WordArray, values: WordArray, length: int, limit: int) -> None:
        used = self.lanes * self.bits
        if values.size and int(values.max()) > limit:
            raise PeerError(f"a summed value exceeds {limit}, clients times bound")
        if values[length:].any() or (used < WORD_BITS and (words >> np.uint64(used)).any()):
            raise PeerError("a sum has bits set outside the lanes in use")
