"""Votes and their authors: the truth that scores attacks on sums, and claims about authors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from attacks.core.base import ABSTAIN, NEVER, FloatArray
from secure_fd.errors import LocalError
from secure_fd.privacy.base import Answer, ClientMechanism, NoProtection, PrivacyMechanism
from secure_fd.privacy.label import LabelUnit, NoisyLabels, RandomizedResponse
from secure_fd.protocol.transcript import ObservedVotes, Transcript
from secure_fd.votes.codec import Contribution, IntArray, Released, UnitArray, WordArray

WHOLE: Final = 1.0 + 1e-9
"""One vote, and the rounding of a sum of units."""
ByClient = Mapping[int, IntArray]
"""By client, the class [m] that it names for each proxy, or ABSTAIN."""


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """The votes of the clients of one sum about its proxies: the truth that scores an attack.

    indices: [m] the proxies. sent: as uploaded. meant: before any noise was added to it; where a
    protection never asks for answers, the same as `sent`.
    """

    indices: IntArray
    sent: ByClient = field(repr=False)
    meant: ByClient = field(repr=False)


def named(votes: FloatArray) -> IntArray:
    """[m] the class of most weight in votes [m, C], ABSTAIN in a row without any."""
    return np.where(votes.sum(axis=1) > 0, votes.argmax(axis=1), ABSTAIN).astype(np.int64)


def in_votes(units: UnitArray, seen: ObservedVotes) -> FloatArray:
    """Integers [m * C] of a round as votes [m, C]."""
    return units.reshape(len(seen.result.indices), -1).astype(np.float64) / seen.levels


def summed(rounds: Iterable[ObservedVotes]) -> list[tuple[ObservedVotes, FloatArray]]:
    """Every round whose sum was seen, with the sum in votes [m, C]."""
    return [(seen, in_votes(seen.total, seen)) for seen in rounds if seen.total is not None]


def allot(
    votes: FloatArray,
    clients: Sequence[int],
    rng: np.random.Generator,
    known: Mapping[int, IntArray] | None = None,
) -> ByClient:
    """Give the votes [m, C] of a sum to clients at random: all that a sum shows of its authors.

    A proxy's heaviest class is given first, a whole vote at a time, and never two to one client.
    known: by client what is known already, [m] a class or ABSTAIN, NEVER where nothing is.
    """
    left, m, every = votes.copy(), len(votes), np.arange(len(votes))
    claimed = np.full((len(clients), m), NEVER, dtype=np.int64)
    for row, k in enumerate(clients):
        claimed[row] = NEVER if known is None else known[k]
        cast = np.flatnonzero(claimed[row] >= 0)
        left[cast, claimed[row, cast]] -= 1.0
    turns = rng.permuted(np.tile(np.arange(len(clients)), (m, 1)), axis=1)
    for turn in turns.T:
        classes = left.argmax(axis=1)
        free = claimed[turn, every] == NEVER
        rows = np.flatnonzero(free & (left[every, classes] > WHOLE - 1.0))
        claimed[turn[rows], rows] = classes[rows]
        left[rows, classes[rows]] -= 1.0
    claimed[claimed == NEVER] = ABSTAIN
    return dict(zip(clients, claimed, strict=True))


def newest(rounds: Iterable[tuple[IntArray, ByClient]], shape: tuple[int, int]) -> IntArray:
    """[K, P] each client's last class for each proxy; NEVER where it was in no sum."""
    table = np.full(shape, NEVER, dtype=np.int64)
    for indices, said in rounds:
        for client, classes in said.items():
            table[client, indices] = classes
    return table


def require_same_rounds(said: Sequence[Said], rounds: int) -> None:
    """LocalError where truth and estimate are of different numbers of sums."""
    if len(said) != rounds:
        raise LocalError(f"said: {len(said)} rounds are not allowed; the attack saw {rounds} sums")


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Kept:
    """By round, and in it by client: uploads [m * C], and answers [m] before any noise."""

    uploads: list[dict[int, UnitArray]] = field(default_factory=list, repr=False)
    answers: list[dict[int, IntArray]] = field(default_factory=list, repr=False)


class Recorder(PrivacyMechanism):
    """Keeps every upload, the truth that scores attacks on sums; a run changes by no bit.

    An experiment holds it, never an attacker. A client out of order begins another round.
    """

    kept: Kept

    def _part(self, number: int) -> Any:  # noqa: ANN401 - as the protection
        part: ClientMechanism = super()._part(number)
        perturb = part.perturb

        def kept(units: WordArray) -> UnitArray:
            _add(self.kept.uploads, number, units)
            return perturb(units)

        part.perturb = kept  # type: ignore[method-assign]  # the same integers
        return part


class RecordedClear(Recorder, NoProtection):
    """No protection."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = Kept()


class RecordedLabels(Recorder, LabelUnit):
    """The label unit, with the answers that it makes noisy."""

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(epsilon, delta)
        self.kept = Kept()

    def _part(self, number: int) -> NoisyLabels:
        part: NoisyLabels = super()._part(number)
        release = part.release

        def kept(indices: IntArray, answer: Answer) -> Released:
            def recorded(asked: IntArray) -> Contribution:
                honest = answer(asked)
                said = named(honest.weights[:, None] * honest.predictions)
                _add(self.kept.answers, number, said)
                return honest

            return release(indices, recorded)

        part.release = kept  # type: ignore[method-assign]  # the same release
        return part


def said_in_clear(seen: ObservedVotes) -> Said:
    """Return the votes of a round whose uploads are readable; noise is not known apart."""
    uploads = seen.uploads or {}
    sent = {k: named(in_votes(uploads[k], seen)) for k in seen.survivors}
    return Said(seen.result.indices, sent, sent)


def statements(recorder: Recorder, transcript: Transcript) -> tuple[Said, ...]:
    """The votes of the clients of every sum of a run, in the order of its rounds."""
    return tuple(
        Said(
            record.result.indices,
            {k: named(in_votes(uploads[k], record)) for k in record.survivors},
            {k: answers[k] for k in record.survivors}
            if answers
            else {k: named(in_votes(uploads[k], record)) for k in record.survivors},
        )
        for record, uploads, answers in _matched(recorder.kept, transcript)
    )


def _matched(
    kept: Kept, transcript: Transcript
) -> Iterator[tuple[ObservedVotes, Mapping[int, UnitArray], ByClient]]:
    """Every sum with the uploads that it is the sum of; rounds that were void are passed over."""
    rounds = iter(range(len(kept.uploads)))
    for record in transcript.distillation:
        at = next((i for i in rounds if _adds_up(kept.uploads[i], record)), None)
        if at is None:
            raise LocalError(f"round {record.index}: no uploads that were kept give its sum")
        yield record, kept.uploads[at], kept.answers[at] if kept.answers else {}


def _adds_up(uploads: Mapping[int, UnitArray], record: ObservedVotes) -> bool:
    if not set(record.survivors) <= uploads.keys():
        return False
    total = sum((uploads[k].astype(np.int64) for k in record.survivors), np.int64(0))
    return np.array_equal(total, np.asarray(record.total).astype(np.int64))


def _add(rounds: list[dict[int, T]], client: int, value: T) -> None:
    """Clients come in ascending order within a round."""
    if not rounds or client <= max(rounds[-1]):
        rounds.append({})
    rounds[-1][client] = value


Debias = Callable[[FloatArray, int], FloatArray]
"""(class totals [C] in votes, answers asked for) -> unbiased totals: public noise, undone."""


def undoing(response: RandomizedResponse) -> Debias:
    """Takes the label unit's noise off class totals: its chances p and q are public."""

    def debias(votes: FloatArray, asked: int) -> FloatArray:
        return (votes - asked * response.q) / (response.p - response.q)

    return debias
