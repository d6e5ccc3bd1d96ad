"""Records from which a server starts again: sums of the newest rounds, and a checkpoint before.

The server role is a function of the sums that it receives, and Ed25519 signatures are
deterministic. So every sum is written before anything that follows from it leaves. A server that
starts again repeats its rounds from these sums without any site, and stands byte for byte where it
stood. A sum that was open when its process ended is aborted; it counts as opened, since it may
have been read.

The checkpoint is the state at the end of a round. It replaces the sums and broadcasts before it
once every site has read those broadcasts. A site that is away keeps what came since it left.
"""

import hashlib
import io
import pickle
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from msgspec import Struct

from secure_fd.codec import Codec, SecretText
from secure_fd.crypto.keys import AgreementKey
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.protocol.server import Server
from secure_fd.secagg.session import RoundTerms, Session
from secure_fd.secure_sum.base import SumServer
from secure_fd.secure_sum.masked import MaskedServer
from secure_fd.simulation import saved
from secure_fd.storage import Store
from secure_fd.wire import Sum


class _StoredSum(SecretText, Struct, frozen=True, array_like=True):
    """A sum on disk. opened: whether it may have been read. why: it was aborted, or empty."""

    opened: bool
    why: str
    survivors: tuple[int, ...] = ()
    signed: bool = False
    words: bytes = b""


_CODEC: Final = Codec[_StoredSum](_StoredSum, "a sum of this version", LocalError)


def digest_of(result: Sum) -> str:
    """Return the SHA-256 of a sum's integers, 8 bytes each, little-endian."""
    return hashlib.sha256(_words(result)).hexdigest()


def _words(result: Sum) -> bytes:
    return bytes(result.total.view(np.uint64).astype("<u8").data)


class StoredSums(MaskedServer):
    """The masked sum, with every result on disk before it is used."""

    def __init__(self, session: Session, key: AgreementKey, file: Store) -> None:
        super().__init__(
            session, key, lambda memory: file.put({"memory": memory}), file.get("memory")
        )
        self._file, self._index = file, -1

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Open a sum."""
        self._index = terms.index
        return super().open(terms)

    def advance(self) -> Mapping[int, bytes]:
        """Close a stage; a result, or the reason why there is none, is on disk at return."""
        try:
            relayed = super().advance()
        except PeerError as error:
            self._record(_StoredSum(self.opened, str(error)))
            raise
        if not self.busy and (result := self.result) is not None:
            kept = _StoredSum(
                self.opened, "", result.survivors, result.total.dtype == np.int64, _words(result)
            )
            self._record(kept)
        return relayed

    def _record(self, stored: _StoredSum) -> None:
        if self._index >= 0:  # else it is a set-up before the first sum
            self._file.put({f"sum {self._index}": _CODEC.encode(stored)})


class RepeatedSums(SumServer):
    """The sums of earlier processes, read from the file; one that is missing is aborted."""

    busy = opened = False
    result: Sum | None = None
    waiting: frozenset[int] = frozenset()

    def __init__(self, file: Store) -> None:
        self._file, self._index = file, -1

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Open a sum."""
        self._index, self.busy, self.result = terms.index, True, None
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """Raise LocalError: no client takes part."""
        raise LocalError(f"client {sender} sent {len(data)} bytes to a sum that is over")

    def advance(self) -> Mapping[int, bytes]:
        """Read the sum; PeerError for one that was aborted, or open when its process ended."""
        self.busy, kept = False, self._file.get(f"sum {self._index}")
        ended = _StoredSum(True, "the server's process ended while this sum was open")
        found = ended if kept is None else _CODEC.decode(kept)
        self.opened = found.opened
        if found.why:
            raise PeerError(found.why)
        words = np.frombuffer(found.words, "<u8").astype(np.uint64)
        self.result = Sum(words.view(np.int64) if found.signed else words, found.survivors)
        return {}


class Recovery:
    """Files of a server's rounds: what it wrote, and how it comes back.

    A server role whose class names no `checkpointed` attributes, or whose values have no form in a
    file, is repeated from its first round on, and nothing is dropped.
    """

    def __init__(self, server: Server, file: Store) -> None:
        self._server, self._file = server, file
        self._first = 0  # sums in the file are those from this one on
        self._next: tuple[int, int, bytes] | None = None  # sums, broadcasts, state of a round's end

    def come_back(self) -> int:
        """Stand where an earlier process stood, and return the rounds that have begun."""
        server, data = self._server, self._file.get("checkpoint")
        if data is not None:
            try:
                found = saved.load(io.BytesIO(data))
                saved.restore(server.role, found["role"])
                server.go_on_from(*found["server"])
            except (ConfigurationError, KeyError, pickle.UnpicklingError) as error:
                why = "this state file is of another version: make a new roster"
                raise LocalError(why) from error
            self._first = server.place[1]
        sums, server.sums = server.sums, RepeatedSums(self._file)
        begun = int.from_bytes(self._file.get("begun") or b"", "big")
        for _ in range(server.place[0], begun):
            server.begin()
            while server.busy:
                server.advance()
        server.sums = sums
        return begun

    def note_begun(self, rounds: int) -> None:
        """Write how many rounds have begun, before anything of the newest leaves."""
        self._file.put({"begun": rounds.to_bytes(8, "big")})

    def note_ended(self, read: int) -> None:
        """Take a checkpoint of a round that is over. read: broadcasts that every site has read."""
        if self._next is not None and self._next[1] <= read:
            (last, broadcasts, data), self._next = self._next, None
            old = [f"sum {k}" for k in range(self._first, last)]
            self._file.put({"checkpoint": data}, drop=old)
            self._server.drop(broadcasts)
            self._first = last
        if self._next is None:
            self._next = self._checkpoint()

    def _checkpoint(self) -> tuple[int, int, bytes] | None:
        server = self._server
        (rounds, sums), count = server.place, server.count
        role = saved.state_of(server.role)
        if not role:
            return None
        written = io.BytesIO()
        try:
            torch.save({"role": role, "server": (rounds, sums, server.digest, count)}, written)
            written.seek(0)
            saved.load(written)
        except (LocalError, pickle.PickleError, AttributeError, TypeError):
            return None
        return sums, count, written.getvalue()
