"""Votes and their authors: the truth that scores attacks on sums, and claims about authors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np

from attacks.core.base import ABSTAIN, NEVER, FloatArray
from secure_fd.errors import LocalError
from secure_fd.methods.votes import VoteClient
from secure_fd.protocol.transcript import ObservedVotes
from secure_fd.simulation.federation import Federation
from secure_fd.votes.codec import IntArray, UnitArray

WHOLE: Final = 1.0 + 1e-9
"""One vote, and the rounding of a sum of units."""
ByClient = Mapping[int, IntArray]
"""Class [m] that a client names for each proxy, or ABSTAIN, by client."""


@dataclass(frozen=True, slots=True, eq=False)
class SumVotes:
    """The votes of the clients of one sum about its proxies: the truth that scores an attack.

    indices: [m] the proxies. sent: as uploaded. meant: before any noise was added to it; in clear
    the same as `sent`.
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


def votes_in_clear(seen: ObservedVotes) -> SumVotes:
    """Return the votes of a round whose uploads are readable; noise is not known apart."""
    uploads = seen.uploads or {}
    sent = {k: named(in_votes(uploads[k], seen)) for k in seen.survivors}
    return SumVotes(seen.result.indices, sent, sent)


def record(run: Federation, truth: list[SumVotes]) -> None:
    """Append the votes of a run's newest sum, readable or not; to be called after each round."""
    sums = run.transcript.distillation
    if len(sums) == len(truth):  # the round was aborted
        return
    seen, sent, meant = sums[-1], {}, {}
    for k in seen.survivors:
        role = cast(VoteClient, run.roles[k])
        if role.units is None or role.answered is None:
            raise LocalError(f"client {k} is in a sum, but did not vote")
        sent[k] = named(in_votes(role.units, seen))
        meant[k] = named(role.answered.weights[:, None] * role.answered.predictions)
    before_noise = sent if run.protection.is_identity else meant
    truth.append(SumVotes(seen.result.indices, sent, before_noise))


def summed(rounds: Iterable[ObservedVotes]) -> list[tuple[ObservedVotes, FloatArray]]:
    """Every round whose sum was seen, with the sum in votes [m, C]."""
    return [(seen, in_votes(seen.total, seen)) for seen in rounds if seen.total is not None]


def allot(
    votes: FloatArray, clients: Sequence[int], rng: np.random.Generator, known: ByClient
) -> ByClient:
    """Give the votes [m, C] of a sum to clients at random: all that a sum shows of its authors.

    A proxy's heaviest class is given first, a whole vote at a time, and never two to one client.
    known: by client what is known already, [m] a class or ABSTAIN, NEVER where nothing is.
    """
    left, m, every = votes.copy(), len(votes), np.arange(len(votes))
    claimed = np.stack([known[k] for k in clients])
    for own in claimed:
        voted = np.flatnonzero(own >= 0)
        left[voted, own[voted]] -= 1.0
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
    for indices, votes in rounds:
        for client, classes in votes.items():
            table[client, indices] = classes
    return table
