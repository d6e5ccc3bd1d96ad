"""What a client or a server of the sum must not forget when its process ends, as bytes.

Nothing of a round is here: a process that ends within one is a client that dropped out of it. What
is here, kept before anything that depends on it leaves, is enough to use no round's number twice,
to seal nothing twice under one key, and to go on in the same set-up with the next round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from secure_fd.codec import Codec
from secure_fd.crypto.keys import KEY_BYTES, SecretHolder
from secure_fd.errors import LocalError
from secure_fd.secagg.channel import STATE_BYTES
from secure_fd.secagg.session import Group, Session

Keep = Callable[[bytes], None]
"""Writes a memory where it outlives the process, and returns once it is there."""

_Number: TypeAlias = Annotated[int, Meta(ge=0, lt=2**32)]
_State: TypeAlias = Annotated[bytes, Meta(min_length=STATE_BYTES, max_length=STATE_BYTES)]
_Key: TypeAlias = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
_Hash: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]


class _Form(Struct, frozen=True, array_like=True):
    """A memory as it is written. agreed: members, view and seed of the group."""

    label: Literal["secure-fd memory 4"]
    session: bytes
    last: Annotated[int, Meta(ge=-1)]
    setups: _Number
    used: bool
    agreed: tuple[tuple[_Number, ...], _Hash, _Hash] | None
    channels: dict[_Number, _State]
    inputs: dict[_Number, _Key]
    barred: tuple[_Number, ...]

    __repr__ = SecretHolder.__repr__


_FORMS: Final = Codec[_Form](_Form, "a memory of this version", LocalError)


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
        form = _Form(
            label="secure-fd memory 4",
            session=session.id,
            last=self.last,
            setups=self.setups,
            used=self.used,
            agreed=None if group is None else (tuple(group.members), group.view, group.seed),
            channels=dict(self.channels),
            inputs=dict(self.inputs),
            barred=self.barred,
        )
        return _FORMS.encode(form)

    @classmethod
    def decode(cls, data: bytes, session: Session) -> "Memory":
        """LocalError for another session's memory, or bytes that `encode` does not write."""
        found = _FORMS.decode(data)
        if found.session != session.id:
            raise LocalError("a memory belongs to another session")
        return cls(
            last=found.last,
            setups=found.setups,
            used=found.used,
            group=None if found.agreed is None else Group(session, *found.agreed),
            channels=found.channels,
            inputs=found.inputs,
            barred=found.barred,
        )
