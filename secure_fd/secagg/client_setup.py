"""A client's part in a set-up: it ends with the group, and a channel to every neighbour.

Rules a client keeps, whatever the server sends:
 1. Its roster is pinned; the member list is a part of it, names this client with its own keys,
    and is not below its floor.
 2. Every member has signed the very list that this client signed, and with it each member's
    channel key; one signature that fails ends the set-up.
 3. The joint seed, and with it the graph, depends on a nonce of every member, which it committed
    to before it saw another's.
 4. Any failure leaves the set-up aborted, for good, and its keys dropped.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from secure_fd.crypto import kem
from secure_fd.crypto.context import SERVER
from secure_fd.crypto.keys import PUBLIC_BYTES, AgreementKey, IdentityKey
from secure_fd.crypto.randomness import RandomBytes, draw
from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.draw import joint_seed
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import setup_messages as messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.floors import Floors
from secure_fd.secagg.group import Group
from secure_fd.secagg.session import Session
from secure_fd.secagg.wire import MessageType, message_type


class SetupState(Enum):
    """Where a client stands in a set-up."""

    READY = auto()
    JOINED = auto()
    REVEALED = auto()
    SENT_CAPSULES = auto()
    DONE = auto()
    ABORTED = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Enrolment(SecretHolder):
    """What a client takes from a set-up into the rounds."""

    group: Group
    channels: Mapping[int, Channel] = field(repr=False)


class _Held(SecretHolder):
    """What a set-up must forget when it ends."""

    __slots__ = (
        "capsules",
        "channel_key",
        "group",
        "kem_key",
        "members",
        "nonce",
        "peer_keys",
        "view",
    )

    def __init__(self, session: Session, nonce: bytes, random: RandomBytes) -> None:
        self.nonce = nonce
        self.channel_key = AgreementKey.generate(random)
        self.kem_key = kem.KemKey.generate(random) if session.hybrid else None
        self.members: tuple[messages.Member, ...] = ()
        self.view = b""
        self.group: Group | None = None
        self.peer_keys: dict[int, bytes] = {}
        self.capsules: dict[int, tuple[bytes, bytes]] = {}

    @property
    def public(self) -> bytes:
        return self.channel_key.public + (self.kem_key.public if self.kem_key else b"")


class ClientSetup(SecretHolder):
    """One attempt at a set-up: start it, then answer each message until it is DONE.

    nonce: this client's part in the joint seed, public once it is revealed.
    """

    __slots__ = (
        "_enrolment",
        "_floors",
        "_held",
        "_identity",
        "_join",
        "_state",
        "number",
        "session",
    )

    def __init__(
        self,
        number: int,
        identity: IdentityKey,
        session: Session,
        floors: Floors,
        random: RandomBytes,
        nonce: bytes | None = None,
    ) -> None:
        self.number = number
        self.session = session
        self._identity = identity
        self._floors = floors
        nonce = draw(random, messages.NONCE_BYTES) if nonce is None else nonce
        self._held: _Held | None = _Held(session, nonce, random)
        self._join = messages.Join.signed(session, number, self._held.public, nonce, identity)
        self._state = SetupState.READY
        self._enrolment: Enrolment | None = None

    @property
    def state(self) -> SetupState:
        """Where the set-up stands; ABORTED never changes again."""
        return self._state

    @property
    def enrolment(self) -> Enrolment:
        """What it ended with; LocalError unless it is DONE."""
        if self._enrolment is None or self._state is not SetupState.DONE:
            raise LocalError(f"there is no enrolment in state {self._state.name}")
        return self._enrolment

    def start(self) -> bytes:
        """Open the set-up with a JOIN; LocalError if it is open already."""
        state, held = self._take()
        if state is not SetupState.READY:
            raise LocalError(f"a set-up starts from READY, not from {state.name}")
        self._state, self._held = SetupState.JOINED, held
        return messages.encode_join(self._join, self.session)

    def receive(self, data: bytes) -> bytes | None:
        """Answer one message of the server, None where no answer is due."""
        state, held = self._take()
        kind = message_type(data, self.session.place, SERVER)
        if held is None or (state, kind) not in _TRANSITIONS:
            raise PeerError(f"a {kind.name} message is not allowed in state {state.name}")
        reply, self._state = _TRANSITIONS[state, kind](self, data, held)
        self._held = None if self._state is SetupState.DONE else held
        return reply

    def _take(self) -> tuple[SetupState, _Held | None]:
        """Leave the set-up aborted and empty; whoever succeeds puts back what it still needs."""
        state, held = self._state, self._held
        self._state, self._held = SetupState.ABORTED, None
        return state, held

    def _answer_members(self, data: bytes, held: _Held) -> "_Step":
        held.members = messages.decode_members(data, self.session)
        if self._join.member not in held.members:
            raise PeerError(f"the member list leaves out or alters client {self.number}")
        least = self._floors.members(self.session)
        if len(held.members) < least:
            raise PeerError(
                f"{len(held.members)} members are fewer than the {least} that "
                f"client {self.number} insists on"
            )
        held.view = messages.view_of(self.session, held.members)
        reveal = messages.Reveal.signed(
            self.session, self.number, held.view, held.nonce, self._identity
        )
        return messages.encode_reveal(reveal, self.session, self.number), SetupState.REVEALED

    def _answer_agreed(self, data: bytes, held: _Held) -> "_Step":
        neighbours = self.session.degree_of(len(held.members))
        reveals, keys = messages.decode_agreed(data, self.session, len(held.members), neighbours)
        for member, reveal in zip(held.members, reveals, strict=True):
            reveal.verify(self.session, member, held.view)
        numbers = tuple(member.client for member in held.members)
        seed = joint_seed([reveal.nonce for reveal in reveals])
        held.group = Group(self.session, numbers, held.view, seed)
        self._floors.check_group(held.group)
        held.peer_keys = dict(zip(held.group.neighbours(self.number), keys, strict=True))
        digests = {member.client: member.digest for member in held.members}
        for peer, public in held.peer_keys.items():
            if hashlib.sha256(public).digest() != digests[peer]:
                raise PeerError(f"the keys of client {peer} are not those that it signed")
        return self._encapsulate(held) if self.session.hybrid else self._finish(held, {})

    def _encapsulate(self, held: _Held) -> "_Step":
        held.capsules = {
            peer: kem.encapsulate(public[PUBLIC_BYTES:])
            for peer, public in held.peer_keys.items()
            if peer > self.number
        }
        sent = [ciphertext for _, ciphertext in held.capsules.values()]
        return (
            messages.encode_capsules(sent, self.session, self.number),
            SetupState.SENT_CAPSULES,
        )

    def _answer_capsules(self, data: bytes, held: _Held) -> "_Step":
        lower = [peer for peer in held.peer_keys if peer < self.number]
        received = messages.decode_capsules(data, self.session, SERVER, len(lower))
        capsules = dict(held.capsules)
        for peer, ciphertext in zip(lower, received, strict=True):
            if held.kem_key is None:
                raise LocalError("a session without ML-KEM has no capsules")
            capsules[peer] = (held.kem_key.decapsulate(ciphertext), ciphertext)
        return self._finish(held, capsules)

    def _finish(self, held: _Held, capsules: Mapping[int, tuple[bytes, bytes]]) -> "_Step":
        if held.group is None:
            raise LocalError("a set-up cannot end before its members have agreed")
        channels = {}
        for peer, public in held.peer_keys.items():
            secret, ciphertext = capsules.get(peer, (b"", b""))
            agreed = held.channel_key.exchange(public[:PUBLIC_BYTES]) + secret
            bound = held.group.view + hashlib.sha256(ciphertext).digest()
            channels[peer] = Channel(self.session.id, self.number, peer, agreed, bound)
        self._enrolment = Enrolment(held.group, channels)
        return None, SetupState.DONE


_Step = tuple[bytes | None, SetupState]

# Reading: in this state, this message -> how to answer it, with the state after. Anything that is
# not listed aborts.
_TRANSITIONS: Final[
    Mapping[tuple[SetupState, MessageType], Callable[[ClientSetup, bytes, _Held], _Step]]
] = {
    (SetupState.JOINED, MessageType.MEMBERS): ClientSetup._answer_members,
    (SetupState.REVEALED, MessageType.AGREED): ClientSetup._answer_agreed,
    (SetupState.SENT_CAPSULES, MessageType.CAPSULES): ClientSetup._answer_capsules,
}
