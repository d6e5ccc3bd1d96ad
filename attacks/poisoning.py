"""One client that lies: what it can do to a sum of votes, within the bound and beyond it.

Under masks nobody sees a vote. What is checked is the sum, lane by lane: 0 to n times the bound. So
one client can move each sum by n times the bound either way, as long as the others' votes keep it
in that range; out of it, the round is void and nobody is named. Within the bound it has one vote,
which decides wherever few others speak: in the strong split, wherever one holder does.

The liar here knows the labels of the public proxies. Of every proxy it says the class after the
right one, `strength` times the bound, and takes `off` times the bound from the right one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, cast

import numpy as np
from torch import nn

from attacks.audit.setting import replaced
from attacks.base import AttackResult, Words
from attacks.statistics import mean
from attacks.told_apart import AroundClient
from secure_fd.aggregation.base import SecureSum, SumClient
from secure_fd.errors import ConfigurationError
from secure_fd.exchange import ClientReport, ClientTurn, Share, Void
from secure_fd.knowledge import FloatArray, IntArray, LaneLayout, UnitArray, WordArray
from secure_fd.methods.base import Exchange, LearningHalf, Own, RecordingHalf, Setting
from secure_fd.methods.budget import within
from secure_fd.methods.votes import VoteClient
from secure_fd.prio3.field import FieldArray
from secure_fd.prio3.votes import VoteRows
from secure_fd.privacy.units import Guarantee
from secure_fd.secagg.session import RoundTerms
from secure_fd.training import Steps

LIAR: Final = 0
"""The client that lies."""
POISONING: Final = Words(
    "poisoning",
    "Poisoning: one client lies",
    "accuracy of the honest clients",
    "the same clients without a liar",
)


Spend = Literal["", "spread", "classes"]
SPENT: Final[Mapping[Spend, str]] = {
    "spread": "that spreads its budget",
    "classes": "that spends it class by class",
}
"""How a liar that keeps to a budget goes about it, in words."""


@dataclass(frozen=True, slots=True)
class Lie:
    """What the liar says of every proxy, in bounds; off: taken from the right class.

    spend: where votes have a budget, how it keeps to it: "" not at all, "spread" over the round's
    proxies as they were drawn, "classes" on one class after the other.

    >>> Lie(3, off=1).votes(np.array([0, 1]), n_classes=2, bound=1).view(np.int64).tolist()
    [-1, 3, 3, -1]
    """

    strength: int = 1
    off: int = 0
    spend: Spend = ""

    def __post_init__(self) -> None:
        for name, value, least in (("strength", self.strength, 1), ("off", self.off, 0)):
            if value < least:
                raise ConfigurationError(name, value, f"use {least} or more times the bound")

    def votes(self, right: IntArray, n_classes: int, bound: int) -> WordArray:
        """[m * C] signed integers about proxies of these classes [m]; their bits are packed."""
        votes, at = np.zeros((len(right), n_classes), dtype=np.int64), np.arange(len(right))
        votes[at, right] -= self.off * bound
        votes[at, (right + 1) % n_classes] += self.strength * bound
        return votes.reshape(-1).view(np.uint64)

    def spent(self, votes: WordArray, right: IntArray, budget: int | None) -> WordArray:
        """[m * C] of these votes, what it goes on to cast under a budget."""
        if not self.spend:
            return votes
        at = np.argsort(right, kind="stable") if self.spend == "classes" else np.arange(len(right))
        rows, chosen = votes.reshape(len(right), -1), np.zeros(len(votes), dtype=np.uint64)
        kept = within(rows[at].reshape(-1), rows.shape[1], budget, place=0.0)
        chosen.reshape(rows.shape)[at] = kept.reshape(rows.shape)
        return chosen


@dataclass(frozen=True, slots=True, eq=False)
class Poisoned:
    """A method of votes in which one client lies; the others, and the server, are as they were.

    method: as two halves. labels: [P] of the proxies. lie: what it says; beyond the bound it needs
    a `LenientSum`.

    >>> from secure_fd import SelectiveFD
    >>> from secure_fd.federation import exchange_of
    >>> Poisoned(exchange_of(SelectiveFD()), np.arange(3), Lie()).name
    'Selective-FD soft'
    """

    method: Exchange
    labels: IntArray = field(repr=False)
    lie: "Lie"

    needs_proxies = True

    @property
    def name(self) -> str:
        """Of the method."""
        return self.method.name

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """As the method's."""
        self.method.check(setting, models)

    def client(self, setting: Setting, own: Own) -> LearningHalf:
        """The method's half, but the liar's."""
        half = self.method.client(setting, own)
        return LyingHalf(half, setting, self.labels, self.lie) if own.number == LIAR else half

    def server(self, setting: Setting, initial: nn.Module) -> RecordingHalf:
        """The method's."""
        return self.method.server(setting, initial)


class LyingHalf(LearningHalf):
    """A half that does what the method does, and votes as the module says."""

    def __init__(self, half: LearningHalf, setting: Setting, labels: IntArray, lie: Lie) -> None:
        self.half, self.learner = half, half.learner
        self._labels, self._lie, self._classes = labels, lie, setting.n_classes
        self._draws = cast(VoteClient, half).draws
        self._index = 0

    def begin(self) -> ClientTurn:
        """As the method's."""
        return self.half.begin()

    def announced(self, index: int, digest: bytes) -> None:
        """As the method's."""
        self.half.announced(index, digest)

    def round(self, subject: bytes) -> ClientTurn:
        """As the method's, with other votes; what it says it knows before the first is honest."""
        indices = self._draws.of(int.from_bytes(subject[:8], "big"))
        turn = self.half.round(subject)
        wanted = _next(partial(next, turn))
        while wanted is not None:
            if isinstance(wanted, Share) and len(wanted.values) == len(indices) * self._classes:
                right = self._labels[indices]
                votes = self._lie.votes(right, self._classes, wanted.bound)
                spent = self._lie.spent(votes, right, wanted.limits.budget)
                wanted = replace(wanted, values=spent)
            try:
                reply = yield wanted
            except Void as failed:
                wanted = _next(partial(turn.throw, failed))
            else:
                wanted = _next(partial(turn.send, reply))

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """As the method's."""
        self.half.missed(subject, message)

    def unopened(self, subject: bytes) -> None:
        """As the method's."""
        self.half.unopened(subject)

    def report(self) -> ClientReport:
        """Empty: the method's votes were not sent."""
        return ClientReport()

    def scores(self) -> FloatArray | None:
        """As the method's."""
        return self.half.scores()

    def guarantee(self) -> Guarantee | None:
        """As the method's: nothing that was said rests on its records."""
        return self.half.guarantee()


def _next(step: Callable[[], "Share | Steps"]) -> "Share | Steps | None":
    try:
        return step()
    except StopIteration:
        return None


class LenientSum:
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
        self.server, self.setup_traffic = inner.server, inner.setup_traffic

    def client(self, number: int) -> SumClient:
        """Its half; the liar's does not check what it packs."""
        half = self._inner.client(number)
        return _Lenient(half) if number == LIAR else half


class _Lenient(AroundClient):
    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        with (
            replaced(LaneLayout, "pack", _unchecked),
            replaced(VoteRows, "encode", _unproven),
        ):
            return self.inner.load(terms, values)


def _unchecked(self: LaneLayout, values: UnitArray) -> WordArray:
    """Any values modulo 2^64: negative ones borrow from the next lane, until the sum is made."""
    return self._spread(values.view(np.uint64))


def _unproven(self: VoteRows, values: UnitArray) -> FieldArray:
    """Any values as field elements: what a proof of them is worth, the aggregators find out."""
    return self.spell(values.view(np.int64).reshape(self.rows, -1))


def honest(accuracies: Sequence[float]) -> list[float]:
    """Of all clients but the liar.

    >>> honest([0.1, 0.9])
    [0.9]
    """
    return [value for client, value in enumerate(accuracies) if client != LIAR]


def poisoned(
    with_liar: Sequence[float], without: Sequence[float], seed: int, details: Mapping[str, float]
) -> AttackResult:
    """Accuracy of the honest clients beside the same without a liar; both by client.

    >>> poisoned([0.0, 0.5, 0.7], [0.9, 0.9, 0.9], 0, {}).figure
    0.6
    """
    left = mean(honest(with_liar), seed)
    return AttackResult(
        name=POISONING.name,
        title=POISONING.title,
        figure=left.value,
        figure_name=POISONING.figure_name,
        unit="",
        interval=left.interval,
        control=float(np.mean(honest(without))),
        control_name=POISONING.control_name,
        caveats=("the interval covers clients, not runs",),
        details=details,
    )
