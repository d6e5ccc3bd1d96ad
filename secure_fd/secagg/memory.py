"""State of a client or a server of the sum that must outlive its process, as bytes.

Nothing of a round is here: a process that ends within one is a client that dropped out of it. What
is here, kept before anything that depends on it leaves, is enough to use no round's number twice,
to seal nothing twice under one key, and to go on in the same set-up with the next round.
"""

from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

from secure_fd.codec import Codec, SecretText
from secure_fd.crypto.keys import KEY_BYTES
from secure_fd.errors import LocalError
from secure_fd.secagg.channel import STATE_BYTES
from secure_fd.secagg.session import Group, Session

Keep = Callable[[bytes], None]
"""Writes a memory where it outlives the process, and returns once it is there."""

_Number: TypeAlias = Annotated[int, Meta(ge=0, lt=2**32)]
_State: TypeAlias = Annotated[bytes, Meta(min_length=STATE_BYTES, max_length=STATE_BYTES)]
_Key: TypeAlias = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
_Hash: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Agreed: TypeAlias = tuple[tuple[_Number, ...], _Hash, _Hash]
"""Members, view and seed of a group."""


class PartyMemory(SecretText, Struct, frozen=True, array_like=True):
    """Memory of a party, as it is written: it holds keys.

    Attributes:
        last: Newest round that began, -1 before any.
        used: Whether the set-up in use has served a round.
        agreed: Group of that set-up, None before one.
        setups: Of a client, nonces that it revealed since a round ended well.
        channels: Of a client, for each neighbour the state of the channel to it.
        inputs: For each client the key of its tags; at a client its own alone.
        barred: Of a server, clients that are in no later cohort.
    """

    session: bytes
    last: Annotated[int, Meta(ge=-1)]
    used: bool
    agreed: Agreed | None
    setups: _Number = 0
    channels: dict[_Number, _State] = field(default_factory=dict)
    inputs: dict[_Number, _Key] = field(default_factory=dict)
    barred: tuple[_Number, ...] = ()
    label: Literal["secure-fd memory 5"] = "secure-fd memory 5"

    def encode(self) -> bytes:
        """Return the bytes of a file that only its owner reads."""
        return _MEMORIES.encode(self)

    @classmethod
    def decode(cls, data: bytes, session: Session) -> "PartyMemory":
        """Read a memory; LocalError for another session's, or bytes that are none."""
        found = _MEMORIES.decode(data)
        if found.session != session.id:
            raise LocalError("a memory belongs to another session")
        return found

    def group(self, session: Session) -> Group | None:
        """Return the group of the set-up in use."""
        return None if self.agreed is None else Group(session, *self.agreed)


_MEMORIES: Final = Codec[PartyMemory](PartyMemory, "a memory of this version", LocalError)
