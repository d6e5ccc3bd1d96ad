"""Checks a run's transcript with nothing but the roster: who was in each sum, and what was told.

Verified: every entry is the server's, in its place, and none is missing; every broadcast follows
the ones before it under the key that sites pinned; each sum stands where the method asked for it,
and a threshold of its committee signed who is in it, for exactly what had been told before; every
round is over, as it ended, and so is the run.

Not verified: the list of members behind the hash of a set-up, which names those in a sum that did
not sign; that a sum has the hash that the server wrote, or that it made of it what it told.
Inputs are masked, so that nobody but the server saw the sum; a sum that it shows later can be held
against the hash.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from secure_fd.broadcasts import Listener
from secure_fd.errors import ConfigurationError, PeerError, SecureFDError
from secure_fd.exchange import Kind
from secure_fd.flower.roster import Roster
from secure_fd.flower.transcript import TRANSCRIPT, Entry, digest_after, lines, signed_text
from secure_fd.secagg.evidence import SignedSurvivors
from secure_fd.secagg.session import NoiseTerms, RoundScope, RoundTerms

_HASH_BYTES: Final = 32


@dataclass(slots=True)
class Verdict:
    """What a transcript that holds says. told: the digest of all broadcasts, which sites log too.

    rounds, void: of the method. survivors: by sum that came about. ended: whether the run is over.
    """

    rounds: int = 0
    void: int = 0
    survivors: list[tuple[int, ...]] = field(default_factory=list)
    broadcasts: int = 0
    told: bytes = b""
    ended: bool = False

    def __str__(self) -> str:
        counts = [len(each) for each in self.survivors]
        whom = f" of {min(counts)} to {max(counts)} sites" if counts else ""
        state = "the run is over" if self.ended else "the run is not over"
        return (
            f"{self.rounds} rounds, {self.void} of them void; {len(counts)} sums{whom}; "
            f"{self.broadcasts} broadcasts up to {self.told.hex()[:16]}; {state}"
        )


def verify(folder: Path, roster: Roster, *, unfinished: bool = False) -> Verdict:
    """Verify the transcript in a folder.

    unfinished: take one whose run is not over. Raises PeerError for a transcript that does not
    hold, in a sentence; ConfigurationError where there is none.
    """
    path = folder / TRANSCRIPT
    if not path.is_file():
        raise ConfigurationError("run", str(folder), f"use a folder with {TRANSCRIPT}")
    reader = _Reader(roster)
    for entry, signature in lines(path):
        reader.take(entry, signature)
    verdict = reader.verdict
    if not (verdict.ended or unfinished):
        raise PeerError(f"the transcript ends after {verdict.rounds} rounds, before the run does")
    return verdict


class _Reader:
    """Takes entries in order; PeerError for the first that does not hold."""

    def __init__(self, roster: Roster) -> None:
        session = roster.session
        self.verdict = Verdict(told=session.id)
        self._roster, self._session = roster, session
        self._listener = Listener(session.id, roster.server)
        self._digest, self._position = session.id, 0
        self._sums = 0  # that ended, well or not
        self._void = False  # in this round
        self._asked = -1  # the sum that the newest broadcast is about

    def take(self, entry: Entry, signature: bytes) -> None:
        """Check the server's signature, then what it signed."""
        self._digest = digest_after(self._digest, entry)
        text = signed_text(self._session.id, self._position, self._digest)
        self._position += 1
        line = f"line {self._position}"
        try:
            self._roster.server.verify(signature, text, line)
        except PeerError:
            why = "a line was changed or left out, or the roster is another"
            raise PeerError(f"the server did not sign {line} as it stands: {why}") from None
        if self.verdict.ended:
            raise PeerError(f"{line} stands after the end of the run")
        try:
            self._read(entry)
        except PeerError as error:
            raise PeerError(f"{line}: {error}") from None
        except (KeyError, TypeError, ValueError, OverflowError, SecureFDError):
            raise PeerError(f"{line}: it is no entry of this version") from None

    def _read(self, entry: Entry) -> None:
        match entry:
            case {"what": "broadcast", "data": str(data), **rest} if not rest:
                self._broadcast(base64.b64decode(data, validate=True))
            case {"what": "sum", **values}:
                self._sum(values)
            case {"what": "void", "index": int(index), "why": str(), "opened": bool(), **rest} if (
                not rest
            ):
                self._in_turn(index)
                self._void = True
            case {"what": "round", "index": int(index), "void": bool(void), **rest} if not rest:
                self._round(index, void=void)
            case {"what": "end", "rounds": int(rounds), **rest} if not rest:
                self._end(rounds)
            case _:
                raise ValueError

    def _broadcast(self, data: bytes) -> None:
        kind, index, _ = self._listener.read(data)
        if index not in (self._sums, max(self._sums - 1, 0)):
            raise PeerError(f"a broadcast about sum {index} stands after {self._sums} sums")
        self._asked, self._void = index, self._void or kind is Kind.VOID
        self.verdict.broadcasts, self.verdict.told = self._listener.count, self._listener.digest

    def _in_turn(self, index: int) -> None:
        if index != self._sums or self._asked != index:
            raise PeerError(f"sum {index} stands where sum {self._sums} is due")
        self._sums += 1

    def _sum(self, values: dict[str, Any]) -> None:
        signed = SignedSurvivors(
            *(_numbers(values.pop("members")), _hash(values.pop("view"))),
            *(_hash(values.pop("seed")), _numbers(values.pop("cohort"))),
            _numbers(values.pop("survivors")),
            {int(k): bytes.fromhex(each) for k, each in values.pop("signatures").items()},
        )
        _hash(values.pop("sum"))
        if any(type(value) is not int for value in values.values()):
            raise ValueError
        noise = NoiseTerms(values.pop("room"), values.pop("least"))
        terms = RoundTerms(subject=self._listener.digest, noise=noise, **values)
        self._in_turn(terms.index)
        signed.check(RoundScope(self._session, terms))
        self.verdict.survivors.append(signed.survivors)

    def _round(self, index: int, *, void: bool) -> None:
        if index != self.verdict.rounds:
            raise PeerError(f"round {index} stands where round {self.verdict.rounds} is due")
        if void is not self._void:
            raise PeerError(f"round {index} is said to have ended in another way than it did")
        self.verdict.rounds, self.verdict.void = index + 1, self.verdict.void + void
        self._void = False

    def _end(self, rounds: int) -> None:
        planned = self._roster.terms.rounds or rounds
        if not rounds == self.verdict.rounds == planned:
            raise PeerError(f"the run ends after {self.verdict.rounds} rounds; {planned} were due")
        self.verdict.ended = True


def _numbers(found: Iterable[int]) -> tuple[int, ...]:
    """Clients, ascending; ValueError for anything else."""
    numbers = tuple(found)
    if any(type(k) is not int for k in numbers) or list(numbers) != sorted(set(numbers)):
        raise ValueError
    return numbers


def _hash(found: str) -> bytes:
    raw = bytes.fromhex(found)
    if len(raw) != _HASH_BYTES:
        raise ValueError
    return raw
