"""The masked sum with one corrupt client, which sends each kind of bad message.

Its machine is the real one; what it sends is changed on the way, with its keys where the message is
tagged. An honest server must name nobody else, and the honest clients must be in the sum again.
"""

from collections.abc import Iterator
from functools import partial

from secure_fd.crypto.keys import TAG_BYTES, Sealer
from secure_fd.secagg.session import MessageType
from secure_fd.wire import HEADER_BYTES
from tests.model.explorer import Choice, State
from tests.model.masked import MaskedWorld, Outcome, Spot
from tests.secagg_cohort import flip

PARTS = {
    MessageType.JOIN: {"keys": 0, "commitment": 32, "signature": 64},
    MessageType.REVEAL: {"nonce": 0, "signature": 32},
    MessageType.PREPARE: {"key": 0, "commitment": 32, "vault": 64, "seals": -1},
    MessageType.MASKED: {"words": 0, "complaints": 8, "cohort": 9, "next": 137, "next seals": -17},
    MessageType.CONSISTENT: {"signature": 0},
    MessageType.UNMASK: {"first share": 31, "last share": -1},
}
"""By type, where the body's parts begin, or end."""
HARMFUL = {MessageType.PREPARE, MessageType.MASKED}
"""Types with which a client can abort a round, and make a sum wrong, without being named."""


class CorruptWorld(MaskedWorld):
    """Client 0 is corrupt; each of its bad messages is a fault. The others are honest."""

    def __init__(self, n: int = 4, rounds: int = 1, **options: object) -> None:
        super().__init__(n, rounds, **options)  # type: ignore[arg-type]
        self.corrupt = frozenset({0})

    def first(self) -> State:
        return Spot._make(super().first())._replace(apart=self.corrupt)

    def _send(self, spot: Spot, *, faults: bool) -> Iterator[Choice]:
        """What the corrupt client sends is changed."""
        yield from super()._send(spot, faults=faults)
        k, data = spot.at, self.messages[spot.up[0]]
        if not faults or k not in self.corrupt:
            return
        kind, machine = MessageType(data[3]), self.nodes[spot.clients[k]].machine
        for what, bad in self._bad(data, kind):
            if kind is MessageType.MASKED and machine.enrolled and len(bad) == len(data):
                tags, index = machine._in_use.authenticator, int.from_bytes(data[8:16], "big")
                bad = bad[:-TAG_BYTES] + Sealer(tags.key).seal(index, b"", bad[:-TAG_BYTES])  # noqa: PLW2901
            harmful = kind in HARMFUL and what.startswith("a bad")
            yield self._choice(
                f"{self._where(spot)}: client {k} sends {kind.name} with {what}",
                partial(self._lied, spot, (k, self.number(bad)), harmful=harmful),
            )

    def _bad(self, data: bytes, kind: MessageType) -> Iterator[tuple[str, bytes]]:
        for part, at in PARTS[kind].items():
            yield f"a bad {part}", flip(data, at if at < 0 else HEADER_BYTES + at)
        if kind is MessageType.PREPARE:
            body = data[HEADER_BYTES + 32 :]
            yield "a key of low order", data[:HEADER_BYTES] + bytes(32) + body
        yield "a byte less", data[:-1]
        yield "another sender", data[:4] + bytes(4) + data[8:]
        yield "another type", data[:3] + b"\7" + data[4:]

    def _lied(self, spot: Spot, sent: tuple[int, int], *, harmful: bool) -> Spot:
        hurt, inbox = spot.hurt | {sent[0]}, (*spot.inbox, sent)
        lied = spot._replace(up=spot.up[1:], inbox=inbox, hurt=hurt)
        return lied._replace(shaken=True) if harmful else lied

    def _check_end(self, spot: Spot, taken: Outcome) -> None:
        """A sum that the corrupt client may have changed is not checked."""
        if not (spot.shaken and taken.result and self.corrupt.intersection(taken.result[0])):
            super()._check_end(spot, taken)
