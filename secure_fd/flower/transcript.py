"""What an auditor can check after a run: the server's transcript, public values alone.

    line        {"entry": E, "signature": S}, JSON without spaces, names ascending
    digest      at first the session's id; then SHA-256(digest || SHA-256(E))
    S           Ed25519, the server's, on session, position and the digest after this entry

    broadcast   what all sites were told, whole, under the server's signature that they checked
    sum         terms, cohort, survivors, the committee's signatures, SHA-256 of the sum
    void        a sum that did not come about, why, and whether it may have been read
    round, end  a round is over, void or not; the run is over after so many

All of it follows from the server's state. A server that comes back signs the lines of the rounds
that its state has dropped once more and compares their digest with the one that it kept; the lines
after them it writes again, byte for byte, and compares.
"""

import base64
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from secure_fd.crypto.primitives import IdentityKey, fields
from secure_fd.errors import LocalError, PeerError
from secure_fd.exchange import LIMIT
from secure_fd.flower.journal import JournaledSum
from secure_fd.server import Server

TRANSCRIPT: Final = "transcript.jsonl"
"""In the server's home, beside its state."""
MOST_BYTES: Final = LIMIT // 3 * 4 + 4096
"""Of a line: the longest broadcast in base64."""
_LABEL: Final = b"secure-fd transcript"
_POSITION: Final = struct.Struct(">Q")

Entry = Mapping[str, Any]


def packed(value: Any) -> bytes:  # noqa: ANN401 - whatever JSON has
    """The one way in which an entry is written.

    >>> packed({"b": [1, 2], "a": "x"})
    b'{"a":"x","b":[1,2]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_after(digest: bytes, entry: Entry) -> bytes:
    """The running digest after one more entry."""
    return hashlib.sha256(digest + hashlib.sha256(packed(entry)).digest()).digest()


def signed_text(session: bytes, position: int, digest: bytes) -> bytes:
    """What the server signs of an entry; no other signature of it is of this form."""
    return fields(_LABEL, session, _POSITION.pack(position), digest)


class Transcript:
    """A file that only grows. An earlier life may have left a part of it.

    Raises LocalError, from `add`, where a line of an earlier life is another than the one that the
    server's state gives.
    """

    def __init__(self, path: Path, session: bytes, key: IdentityKey) -> None:
        self._path, self._session, self._key = path, session, key
        self._digest, self._position, self._end = session, 0, 0
        self._whole = _whole_bytes(path)

    @property
    def place(self) -> tuple[bytes, int, int]:
        """Digest, entries and bytes so far."""
        return self._digest, self._position, self._end

    def go_on_from(self, place: tuple[bytes, int, int]) -> None:
        """Read the file up to where an earlier life stood; LocalError where it differs."""
        try:
            for entry, _ in islice(lines(self._path), place[1]):
                self.add(entry)
        except PeerError as error:
            raise LocalError(f"{TRANSCRIPT}: {error}") from error
        if self.place != place:
            raise LocalError(f"{TRANSCRIPT} and the state differ before line {place[1] + 1}")

    def sync(self) -> None:
        """Return once all entries are on the disk."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())

    def add(self, entry: Entry) -> None:
        """Write the next entry, or find it where it was written."""
        digest = digest_after(self._digest, entry)
        signature = self._key.sign(signed_text(self._session, self._position, digest))
        line = packed({"entry": entry, "signature": signature.hex()}) + b"\n"
        with self._path.open("rb" if self._end < self._whole else "ab") as file:
            if self._end < self._whole:
                file.seek(self._end)
                if file.read(len(line)) != line:
                    at = self._position + 1
                    raise LocalError(f"{TRANSCRIPT} and the state differ at line {at}")
            else:
                file.write(line)
        self._digest, self._position = digest, self._position + 1
        self._end += len(line)


def _whole_bytes(path: Path) -> int:
    """Bytes of whole lines; what a crash left of one more is cut off."""
    end = 0
    with path.open("a+b") as file:
        file.seek(0)
        for line in file:
            end += len(line) if line.endswith(b"\n") else 0
        file.truncate(end)
    return end


class Recorder:
    """Turns what a server does into entries, in its order: sums as they end, then broadcasts."""

    def __init__(self, transcript: Transcript, server: Server, sums: JournaledSum) -> None:
        self._transcript, self._server, self._sums = transcript, server, sums
        self._told, self._last = server.dropped, server.place[1] - 1

    def step(self) -> None:
        """Write what is new since the last step; call it after each."""
        ended = self._sums.ended
        if ended is not None and ended["index"] > self._last:
            self._transcript.add(ended)
            self._last = ended["index"]
        told, dropped = self._server.broadcasts, self._server.dropped
        for data in told[self._told - dropped :]:
            kept = base64.b64encode(data).decode()
            self._transcript.add({"what": "broadcast", "data": kept})
        self._told = dropped + len(told)

    def round(self, index: int) -> None:
        """Write that a round is over."""
        self._transcript.add({"what": "round", "index": index, "void": self._server.void})

    def end(self, rounds: int) -> None:
        """Write that the run is over."""
        self._transcript.add({"what": "end", "rounds": rounds})


def lines(path: Path) -> Iterator[tuple[Entry, bytes]]:
    """Entries and signatures, unchecked. PeerError for a line that `add` does not write."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_BYTES + 1), b""), 1):
            yield _line(line, number)


def _line(line: bytes, number: int) -> tuple[Entry, bytes]:
    try:
        found = json.loads(line)
        entry, signature = found["entry"], bytes.fromhex(found["signature"])
        again = packed({"entry": entry, "signature": signature.hex()}) + b"\n"
        if again == line and isinstance(entry, dict):
            return entry, signature
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise PeerError(f"line {number} is no entry of a transcript")
