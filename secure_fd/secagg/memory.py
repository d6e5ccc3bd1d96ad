"""What a client or a server of the sum must not forget when its process ends, as bytes.

Nothing of a round is here: a process that ends within one is a client that dropped out of it. What
is here, kept before anything that depends on it leaves, is enough to use no round's number twice,
to seal nothing twice under one key, and to go on in the same set-up with the next round.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from secure_fd.crypto.primitives import KEY_BYTES, SecretHolder, fields
from secure_fd.errors import LocalError
from secure_fd.secagg.channel import STATE_BYTES
from secure_fd.secagg.session import Group, Session

Keep = Callable[[bytes], None]
"""Writes a memory where it outlives the process, and returns once it is there."""

_HEAD: Final = struct.Struct(">IQI")
_MEMBER: Final = struct.Struct(">I")
_CHANNEL: Final = struct.Struct(f">I{STATE_BYTES}s")
_KEY: Final = struct.Struct(f">I{KEY_BYTES}s")
_FORMAT: Final = b"secure-fd memory 3"
_PARTS: Final = 7


@dataclass(frozen=True, slots=True, eq=False)
class Memory(SecretHolder):
    """last: the newest round that began, -1 before any. setups: begun since one ended well.

    group: of the set-up in use, None before one; used: whether it has served a round. channels: of
    a client, by neighbour, where each stands. inputs: keys of the tags, by client; a client's own
    alone at a client. barred: of a server, who is in no later cohort.
    """

    last: int
    setups: int
    used: bool
    group: Group | None
    channels: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    inputs: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    barred: tuple[int, ...] = ()

    def encode(self, session: Session) -> bytes:
        """For a file that only its owner reads: it holds keys."""
        group = self.group
        members = () if group is None else group.members
        agreed = b"" if group is None else group.view + group.seed
        return fields(
            _FORMAT,
            session.id,
            _HEAD.pack(self.setups, self.last + 1, int(self.used)),
            b"".join(_MEMBER.pack(member) for member in members) + agreed,
            b"".join(_CHANNEL.pack(peer, state) for peer, state in self.channels.items()),
            b"".join(_KEY.pack(client, key) for client, key in self.inputs.items()),
            b"".join(_MEMBER.pack(client) for client in self.barred),
        )

    @classmethod
    def decode(cls, data: bytes, session: Session) -> "Memory":
        """LocalError for another session's memory, or bytes that `encode` does not write."""
        label, owner, head, agreed, channels, inputs, barred = _parts(data)
        if (label, owner) != (_FORMAT, session.id):
            raise LocalError("a memory belongs to another session or version")
        try:
            setups, after, used = _HEAD.unpack(head)
            return cls(
                last=after - 1,
                setups=setups,
                used=bool(used),
                group=_group(agreed, session),
                channels=dict(_CHANNEL.iter_unpack(channels)),
                inputs=dict(_KEY.iter_unpack(inputs)),
                barred=tuple(client for (client,) in _MEMBER.iter_unpack(barred)),
            )
        except struct.error:
            raise LocalError("a memory is damaged") from None


def _group(agreed: bytes, session: Session) -> Group | None:
    if not agreed:
        return None
    names, view, seed = agreed[:-64], agreed[-64:-32], agreed[-32:]
    members = tuple(member for (member,) in _MEMBER.iter_unpack(names))
    return Group(session, members, view, seed)


def _parts(data: bytes) -> list[bytes]:
    """What `fields` joined; LocalError where it is not so many parts."""
    found: list[bytes] = []
    at = 0
    while at + 4 <= len(data) and len(found) < _PARTS:
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if at != len(data) or len(found) != _PARTS:
        raise LocalError("a memory is damaged")
    return found
