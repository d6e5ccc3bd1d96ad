"""Draws of each round's proxy samples, and the number of times that each was released."""

import struct
from typing import Final

import numpy as np

from secure_fd.crypto.public_draws import draw_indices
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.votes.codec import IntArray

_ROUNDS: Final = struct.Struct("<qq")


class Draws:
    """Draws each round's proxies; every party that has the seed finds the same ones.

    A drawn proxy counts as released by every client, also by one that is away or whose answer
    never arrives. So all parties derive all counts from the draws alone, and none is too low. Only
    a sum that ended unopened, by the server's broadcast, counts for no client.

    Args:
        seed: the joint seed of all clients, or a public one.
        n_proxies: proxies in all.
        per_round: proxies of one round.
        limit: releases agreed for each pair of client and proxy; None: one a round, without an end.
        before: releases of each pair that are no draws. A survey is one, counted from the start.

    Raises:
        ConfigurationError: the limit is below 1.
    """

    checkpointed = ("next_round", "_settled", "_last", "_counts")

    def __init__(
        self, seed: bytes, n_proxies: int, per_round: int, limit: int | None, before: int = 0
    ) -> None:
        if limit is not None and limit < 1:
            raise ConfigurationError("releases_per_pair", limit, "use 1 or more")
        self._seed, self._per_round, self._limit = seed, per_round, limit
        self._counts = np.full(n_proxies, before, dtype=np.int64)
        self.next_round = 0
        """The round after the last one that was drawn."""
        self._settled = -1  # the newest round that is not refunded any more
        self._last: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def most_released(self) -> int:
        """The most releases of any proxy."""
        return int(self._counts.max())

    def memory(self) -> bytes:
        """Return all counts, the next round, the newest settled one, and the last draw."""
        rounds = _ROUNDS.pack(self.next_round, self._settled)
        return self._counts.tobytes() + rounds + self._last.tobytes()

    def recall(self, memory: bytes) -> None:
        """Continue from what `memory` returned; LocalError for bytes of another size."""
        size = self._counts.nbytes
        counts, rest = memory[:size], memory[size:]
        if len(rest) < _ROUNDS.size or (len(rest) - _ROUNDS.size) % 8:
            raise LocalError(f"a memory of draws of {len(memory)} bytes is damaged")
        self._counts = np.frombuffer(counts, np.int64).copy()
        self.next_round, self._settled = _ROUNDS.unpack_from(rest)
        self._last = np.frombuffer(rest[_ROUNDS.size :], np.int64).copy()

    def settle(self, index: int) -> None:
        """Note that round `index`, the last one drawn, has a result: no later call refunds it."""
        if index == self.next_round - 1:
            self._settled = index

    def refund(self, index: int) -> None:
        """Take back the releases of round `index`, the last one drawn; once, and not if settled."""
        if index == self.next_round - 1 and index != self._settled:
            self._counts[self._last] -= 1
            self._settled = index

    def of(self, index: int) -> IntArray:
        """Draw the proxies of a round, and count them before anything is sent.

        Rounds before it are drawn and counted, too. If fewer proxies are left than a round takes,
        the round takes those.

        Args:
            index: of the round.

        Returns:
            [m] proxies, ascending.

        Raises:
            BudgetError: no proxy is left.
            LocalError: the round is before the last one that was drawn.
        """
        if index < self.next_round - 1:
            raise LocalError(f"round {index} was drawn before round {self.next_round - 1}")
        while self.next_round <= index:
            self._last = self._draw(self.next_round)
            self.next_round += 1
        return self._last

    def _draw(self, index: int) -> IntArray:
        most = np.inf if self._limit is None else self._limit
        allowed = np.flatnonzero(self._counts < most)
        if not len(allowed):
            raise BudgetError(
                f"round {index}: every proxy was released as often as agreed "
                f"({self._limit}); the run ends here"
            )
        count = min(self._per_round, len(allowed))
        chosen = np.asarray(allowed[draw_indices(self._seed, index, len(allowed), count)])
        self._counts[chosen] += 1
        return chosen
