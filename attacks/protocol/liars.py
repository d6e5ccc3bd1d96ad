"""One client that lies in sums of votes, beside parties that are as they were.

It has the labels of the public proxies. For every proxy it votes for the class after the right one,
with `strength` times the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from unittest.mock import patch

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.prio3.votes import VoteRows
from secure_fd.privacy.base import Answer, NoNoise, NoProtection
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.base import SecureSum, SumClient
from secure_fd.votes.codec import IntArray, Released, UnitArray, WordArray
from secure_fd.votes.packing import LaneLayout

LIAR: Final = 0
"""The client that lies."""


@dataclass(frozen=True, slots=True)
class Lie:
    """Vote of the liar on every proxy, as a multiple of the bound.

    >>> Lie(3).votes(np.array([0, 1]), 2, bound=1).tolist()
    [0, 3, 3, 0]
    """

    strength: int = 1

    def __post_init__(self) -> None:
        if self.strength < 1:
            raise ConfigurationError("strength", self.strength, "use 1 or more times the bound")

    def votes(self, right: IntArray, n_classes: int, bound: int) -> WordArray:
        """[m * C] signed integers about proxies of these classes [m]; their bits are packed."""
        votes = np.zeros((len(right), n_classes), dtype=np.int64)
        votes[np.arange(len(right)), (right + 1) % n_classes] = self.strength * bound
        return votes.reshape(-1).view(np.uint64)


class Lying(NoProtection):
    """No privacy mechanism: one client replaces its votes by a lie.

    Its answer to the survey before the first vote is honest.

    Args:
        truth: [P] labels of the proxies.
        lie: its votes; beyond the bound it needs a `lenient` sum.
    """

    def __init__(self, truth: IntArray, lie: Lie) -> None:
        super().__init__()
        self.truth, self.lie = truth, lie
        self.classes, self.bound = 0, 0

    def levels(self, wanted: int) -> int:
        """Store the bound of a vote."""
        self.bound = wanted
        return wanted

    def agree(self, n_proxies: int, n_classes: int) -> None:
        """Store the number of classes."""
        super().agree(n_proxies, n_classes)
        self.classes = n_classes

    def _part(self, number: int) -> NoNoise:
        return _Liar(self) if number == LIAR else super()._part(number)


class _Liar(NoNoise):
    def __init__(self, known: Lying) -> None:
        self._known = known
        self._right = known.truth[:0]

    def release(self, indices: IntArray, answer: Answer) -> Released:
        self._right = self._known.truth[indices]
        return super().release(indices, answer)

    def perturb(self, units: WordArray) -> UnitArray:  # noqa: ARG002 - its honest votes
        return self._known.lie.votes(self._right, self._known.classes, self._known.bound)


class _LenientSum:
    def __init__(self, inner: SecureSum) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the inner one's
        return getattr(self._inner, name)

    def client(self, number: int) -> SumClient:
        role = self._inner.client(number)
        return cast(SumClient, _Lenient(role)) if number == LIAR else role


def lenient(sums: SecureSum) -> SecureSum:
    """Return a secure sum whose liar packs any values; every other party is as it was.

    >>> from secure_fd import PlainSum
    >>> lenient(PlainSum(3)).n_clients
    3
    """
    return cast(SecureSum, _LenientSum(sums))


@dataclass(frozen=True, slots=True)
class _Lenient:
    inner: SumClient

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the inner one's
        return getattr(self.inner, name)

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        with (
            patch.object(LaneLayout, "pack", _unchecked),
            patch.object(VoteRows, "check", _unproven),
        ):
            return self.inner.load(terms, values)


def _unchecked(self: LaneLayout, values: UnitArray) -> WordArray:
    """Any values modulo 2^64: negative ones borrow from the next lane, until the sum is made."""
    return self._spread(values.view(np.uint64))


def _unproven(self: VoteRows, rows: IntArray) -> None:
    """Let any values pass, for which the client then makes a proof."""


def honest(accuracies: Sequence[float]) -> list[float]:
    """Return those of all clients but the liar.

    >>> honest([0.1, 0.9])
    [0.9]
    """
    return [value for client, value in enumerate(accuracies) if client != LIAR]
