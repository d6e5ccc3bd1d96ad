"""A server's sums on disk, and how it comes back: it does again what it did, from the sums alone.

A server's half is a function of the sums that it was sent, and signatures of Ed25519 are the same
each time. So every sum is written before anything that follows from it leaves, and a server that
starts again runs its rounds once more without any site: it then holds every broadcast, byte for
byte, and the method stands where it stood. A sum that was open when its process ended is void; it
may have been read, so it is told as opened.

It begins after the newest checkpoint (`secure_fd.deployment.checkpoints`).
"""

import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from secure_fd.errors import LocalError, PeerError
from secure_fd.protocol.server import Server
from secure_fd.secagg.server import Server as SumServerMember
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.base import SumServer
from secure_fd.secure_sum.masked import MaskedServer
from secure_fd.storage import Store
from secure_fd.wire import Sum

_HEAD: Final = struct.Struct(">BBII")
"""Whether a sum is there; whether it may have been read; survivors; integers."""


class JournaledSum(MaskedServer):
    """The masked sum, each of whose results is on disk before it is used."""

    def __init__(self, server: SumServerMember, file: Store) -> None:
        super().__init__(server)
        self._file, self._index = file, -1

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Begin a sum."""
        self._index = terms.index
        return super().open(terms)

    def advance(self) -> Mapping[int, bytes]:
        """Close a stage; a result, or that there is none, is written before this returns."""
        try:
            relayed = super().advance()
        except PeerError as error:
            self._write(None, str(error))
            raise
        if not self.busy and self.result is not None:
            self._write(self.result, "")
        return relayed

    def _write(self, result: Sum | None, why: str) -> None:
        kept = _encode(result, why, opened=self.opened)
        self._file.put({f"sum {self._index}": kept})


class ReplayedSum(SumServer):
    """The sums of earlier processes, read from the file; one that is not there is void."""

    busy = opened = False
    result: Sum | None = None
    waiting: frozenset[int] = frozenset()

    def __init__(self, file: Store) -> None:
        self._file, self._index = file, -1

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Begin a sum."""
        self._index, self.busy, self.result = terms.index, True, None
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """LocalError: no client takes part."""
        raise LocalError(f"client {sender} sent {len(data)} bytes to a sum that is over")

    def advance(self) -> Mapping[int, bytes]:
        """Read the sum; PeerError for one that was void, or open when its process ended."""
        self.busy = False
        kept = self._file.get(f"sum {self._index}")
        if kept is None:
            self.opened, why = True, "the server's process ended while this sum was open"
            raise PeerError(why)
        self.result, self.opened, why = _decode(kept)
        if self.result is None:
            raise PeerError(why)
        return {}


def digest_of(result: Sum) -> str:
    """SHA-256 of a sum's integers, 8 bytes each, little-endian."""
    words = result.total.astype("<i8" if result.total.dtype == np.int64 else "<u8")
    return hashlib.sha256(words.tobytes()).hexdigest()


def _encode(result: Sum | None, why: str, *, opened: bool) -> bytes:
    if result is None:
        return _HEAD.pack(0, opened, 0, 0) + why.encode()
    signed = result.total.dtype == np.int64
    head = _HEAD.pack(2 if signed else 1, opened, len(result.survivors), len(result.total))
    survivors = np.asarray(result.survivors, "<u4").tobytes()
    return head + survivors + result.total.astype("<i8" if signed else "<u8").tobytes()


def _decode(data: bytes) -> tuple[Sum | None, bool, str]:
    there, opened, survivors, length = _HEAD.unpack_from(data)
    rest = data[_HEAD.size :]
    if not there:
        return None, bool(opened), rest.decode()
    if len(rest) != 4 * survivors + 8 * length:
        raise LocalError("a sum on disk is damaged")
    who = np.frombuffer(rest, "<u4", survivors).tolist()
    words = np.frombuffer(rest, "<u8", length, 4 * survivors).astype(np.uint64)
    return Sum(words.view(np.int64) if there == 2 else words, tuple(who)), bool(opened), ""


def begun(file: Store) -> int:
    """Rounds that a server began, in all of its lives."""
    return int.from_bytes(file.get("begun") or b"", "big")


def note_begun(file: Store, count: int) -> None:
    """Write that so many rounds have begun, before anything of the newest leaves."""
    file.put({"begun": count.to_bytes(8, "big")})


def replay(server: Server, file: Store, over: Callable[[], None]) -> int:
    """Run a server through the rounds of its earlier lives that it lacks; how many began in all.

    over: called after each round.
    """
    sums, server.sums = server.sums, ReplayedSum(file)
    rounds = begun(file)
    for _ in range(server.place[0], rounds):
        server.begin()
        while server.busy:
            server.advance()
        over()
    server.sums = sums
    return rounds
