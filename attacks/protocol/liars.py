"""One client that lies in sums of votes, beside parties that are as they were.

It knows the labels of the public proxies. Of every proxy it says the class after the right one,
`strength` times the bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, cast
from unittest.mock import patch

import numpy as np
from torch import nn

from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Method, Own, Setting
from secure_fd.methods.votes import VoteClient
from secure_fd.prio3.votes import VoteRows
from secure_fd.protocol.messages import (
    ClientRole,
    ClientTurn,
    RoundAborted,
    ServerRole,
    SumInput,
)
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.base import SecureSum, SumClient, SumServer
from secure_fd.training.trainer import Steps
from secure_fd.votes.codec import IntArray, UnitArray, WordArray
from secure_fd.votes.packing import LaneLayout

LIAR: Final = 0
"""The client that lies."""


@dataclass(frozen=True, slots=True)
class Lie:
    """What the liar says of every proxy, in bounds.

    >>> from secure_fd.protocol.messages import SumInput
    >>> wanted = SumInput(np.zeros(4, dtype=np.uint64), bound=1)
    >>> Lie(3).votes(np.array([0, 1]), 2, wanted).tolist()
    [0, 3, 3, 0]
    """

    strength: int = 1

    def __post_init__(self) -> None:
        if self.strength < 1:
            raise ConfigurationError("strength", self.strength, "use 1 or more times the bound")

    def votes(self, right: IntArray, n_classes: int, wanted: SumInput) -> WordArray:
        """[m * C] signed integers about proxies of these classes [m]; their bits are packed.

        wanted: what the method would have said.
        """
        votes = np.zeros((len(right), n_classes), dtype=np.int64)
        votes[np.arange(len(right)), (right + 1) % n_classes] = self.strength * wanted.bound
        return votes.reshape(-1).view(np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class Poisoned(Method):
    """A method of votes in which one client lies; the others, and the server, are as they were.

    method: of votes. truth: [P] labels of the proxies. lie: what it says; beyond the bound it needs
    a `LenientSum`.
    """

    method: Method
    truth: IntArray = field(repr=False)
    lie: Lie

    needs_proxies: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Of the method."""
        return self.method.name

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """As the method's."""
        self.method.check(setting, models)

    def client(self, setting: Setting, own: Own) -> ClientRole:
        """The method's half, but the liar's."""
        role = self.method.client(setting, own)
        if own.number != LIAR:
            return role
        lying = _LyingRole(role, setting.n_classes, self.truth, self.lie)
        return cast(ClientRole, lying)

    def server(self, setting: Setting, initial: nn.Module) -> ServerRole:
        """The method's."""
        return self.method.server(setting, initial)


@dataclass(frozen=True, slots=True, eq=False)
class _LyingRole:
    """A half that does what the method does, and votes as the lie says."""

    units: ClassVar[None] = None
    """The method's votes were not sent."""
    role: ClientRole
    classes: int
    labels: IntArray
    lie: Lie

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the half's
        return getattr(self.role, name)

    def round(self, subject: bytes) -> ClientTurn:
        """As the method's, with other votes; what it says it knows before the first is honest."""
        indices = cast(VoteClient, self.role).terms.draws.of(int.from_bytes(subject[:8], "big"))
        turn = self.role.round(subject)
        wanted = _next(partial(next, turn))
        while wanted is not None:
            if isinstance(wanted, SumInput) and len(wanted.values) == len(indices) * self.classes:
                votes = self.lie.votes(self.labels[indices], self.classes, wanted)
                wanted = replace(wanted, values=votes)
            try:
                reply = yield wanted
            except RoundAborted as failed:
                wanted = _next(partial(turn.throw, failed))
            else:
                wanted = _next(partial(turn.send, reply))


def _next(step: Callable[[], SumInput | Steps]) -> SumInput | Steps | None:
    try:
        return step()
    except StopIteration:
        return None


class LenientSum(SecureSum):
    """A secure sum whose liar packs whatever it wants; every other party is as it was.

    >>> from secure_fd import PlainSum
    >>> LenientSum(PlainSum(3)).n_clients
    3
    """

    def __init__(self, inner: SecureSum) -> None:
        self._inner = inner
        self.name, self.n_clients, self.hides = inner.name, inner.n_clients, inner.hides
        self.guarantee, self.caveats = inner.guarantee, inner.caveats
        self.corrupt = inner.corrupt
        self.session, self.seed = inner.session, inner.seed
        self.setup_traffic = inner.setup_traffic

    def server(self) -> SumServer:
        """Return the inner sum's."""
        return self._inner.server()

    def client(self, number: int) -> SumClient:
        """Its half; the liar's does not check what it packs."""
        role = self._inner.client(number)
        return cast(SumClient, _Lenient(role)) if number == LIAR else role


@dataclass(frozen=True, slots=True)
class _Lenient:
    inner: SumClient

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the half's
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
    """Of all clients but the liar.

    >>> honest([0.1, 0.9])
    [0.9]
    """
    return [value for client, value in enumerate(accuracies) if client != LIAR]
