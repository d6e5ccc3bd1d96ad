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

from secure_fd.crypto.primitives import (
    PUBLIC_BYTES,
    SERVER,
    AgreementKey,
    IdentityKey,
    KemKey,
    RandomBytes,
    SecretHolder,
    draw,
    encapsulate,
    joint_seed,
)
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.messages import Channel
from secure_fd.secagg.session import Floors, Group, MessageType, Session, message_type


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
        self.kem_key = KemKey.generate(random) if session.hybrid else None
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
            peer: encapsulate(public[PUBLIC_BYTES:])
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


# The server's part in a set-up: it collects, checks who is at fault, and relays.
#
# Rules:
#  1. A stage takes one message from every client it asked, from nobody else and from nobody twice.
#  2. Whoever joined is a member; a member that then goes missing ends the set-up, which may begin
#     again without it. Nothing private has been used by then.
#  3. Joins and reveals are checked against the pinned identities, so the client at fault is named.


class SetupStage(Enum):
    """What the server is collecting."""

    JOINS = auto()
    REVEALS = auto()
    CAPSULES = auto()
    DONE = auto()
    ABORTED = auto()


class ServerSetup:
    """One attempt at a set-up: receive a stage's messages, then advance to the next stage."""

    __slots__ = (
        "_capsules",
        "_group",
        "_joins",
        "_members",
        "_reveals",
        "_stage",
        "_view",
        "session",
    )

    def __init__(self, session: Session) -> None:
        self.session = session
        self._stage = SetupStage.JOINS
        self._joins: dict[int, messages.Join] = {}
        self._members: dict[int, messages.Member] = {}
        self._view = b""
        self._reveals: dict[int, messages.Reveal] = {}
        self._capsules: dict[int, tuple[bytes, ...]] = {}
        self._group: Group | None = None

    @property
    def stage(self) -> SetupStage:
        """Where the set-up stands; ABORTED never changes again."""
        return self._stage

    @property
    def group(self) -> Group:
        """What the set-up ended with; LocalError unless it is DONE."""
        if self._group is None or self._stage is not SetupStage.DONE:
            raise LocalError(f"there is no group in stage {self._stage.name}")
        return self._group

    def receive(self, sender: int, data: bytes) -> None:
        """Take one message that the transport says `sender` sent."""
        stage = self._take()
        if sender not in self.session.roster:
            raise PeerError(f"client {sender} is not on the pinned roster")
        kind = message_type(data, self.session.place, sender)
        take = _INBOUND.get((stage, kind))
        if take is None:
            raise PeerError(f"a {kind.name} message is not allowed in stage {stage.name}")
        take(self, sender, data)
        self._stage = stage

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; what to send to each member, empty once the set-up is done.

        MissingClientError where a member did not answer the stage.
        """
        stage = self._take()
        if stage not in _ADVANCE:
            raise LocalError(f"there is no stage to close in stage {stage.name}")
        outbound, self._stage = _ADVANCE[stage](self)
        return outbound

    def _take(self) -> SetupStage:
        """Leave the set-up aborted; whoever succeeds puts the stage back."""
        stage, self._stage = self._stage, SetupStage.ABORTED
        return stage

    def _add_join(self, sender: int, data: bytes) -> None:
        join = messages.decode_join(data, self.session, sender)
        _refuse_repeat(sender, self._joins)
        join.verify(self.session)
        self._joins[sender] = join

    def _add_reveal(self, sender: int, data: bytes) -> None:
        if sender not in self._joins:
            raise PeerError(f"client {sender} reveals a nonce without having joined")
        reveal = messages.decode_reveal(data, self.session, sender)
        _refuse_repeat(sender, self._reveals)
        reveal.verify(self.session, self._members[sender], self._view)
        self._reveals[sender] = reveal

    def _add_capsules(self, sender: int, data: bytes) -> None:
        if sender not in self._joins or self._group is None:
            raise PeerError(f"client {sender} sends capsules without having joined")
        count = len(_higher(self._group, sender))
        ciphertexts = messages.decode_capsules(data, self.session, sender, count)
        _refuse_repeat(sender, self._capsules)
        self._capsules[sender] = ciphertexts

    def _close_joins(self) -> "_Step_server_setup":
        if len(self._joins) < 2:
            raise MissingClientError(f"{len(self._joins)} clients joined; a sum needs more")
        self._members = {client: self._joins[client].member for client in sorted(self._joins)}
        listed = tuple(self._members.values())
        self._view = messages.view_of(self.session, listed)
        message = messages.encode_members(listed, self.session)
        return dict.fromkeys(self._members, message), SetupStage.REVEALS

    def _close_reveals(self) -> "_Step_server_setup":
        self._require_all(self._reveals)
        numbers = tuple(self._members)
        reveals = [self._reveals[client] for client in numbers]
        seed = joint_seed([reveal.nonce for reveal in reveals])
        group = self._group = Group(self.session, numbers, self._view, seed)
        outbound = {}
        for client in numbers:
            keys = [self._joins[peer].keys for peer in group.neighbours(client)]
            outbound[client] = messages.encode_agreed(reveals, keys, self.session)
        return outbound, SetupStage.CAPSULES if self.session.hybrid else SetupStage.DONE

    def _close_capsules(self) -> "_Step_server_setup":
        self._require_all(self._capsules)
        if self._group is None:
            raise LocalError("capsules cannot be relayed before the members have agreed")
        relayed: dict[int, list[bytes]] = {client: [] for client in self._group.members}
        for sender in self._group.members:
            receivers = _higher(self._group, sender)
            for peer, ciphertext in zip(receivers, self._capsules[sender], strict=True):
                relayed[peer].append(ciphertext)
        outbound = {
            client: messages.encode_capsules(ciphertexts, self.session, SERVER)
            for client, ciphertexts in relayed.items()
        }
        return outbound, SetupStage.DONE

    def _require_all(self, seen: Mapping[int, object]) -> None:
        missing = [client for client in sorted(self._joins) if client not in seen]
        if missing:
            raise MissingClientError(f"clients {missing} joined and then went missing")


def _higher(group: Group, client: int) -> tuple[int, ...]:
    return tuple(peer for peer in group.neighbours(client) if peer > client)


def _refuse_repeat(sender: int, seen: Mapping[int, object]) -> None:
    if sender in seen:
        raise PeerError(f"client {sender} sent a second message in one stage")


_Step_server_setup = tuple[Mapping[int, bytes], SetupStage]

# Reading: in this stage, this message -> what takes it. Anything not listed aborts.
_INBOUND: Final[
    Mapping[tuple[SetupStage, MessageType], Callable[[ServerSetup, int, bytes], None]]
] = {
    (SetupStage.JOINS, MessageType.JOIN): ServerSetup._add_join,
    (SetupStage.REVEALS, MessageType.REVEAL): ServerSetup._add_reveal,
    (SetupStage.CAPSULES, MessageType.CAPSULES): ServerSetup._add_capsules,
}

# Reading: closing this stage -> what is sent, and the stage after.
_ADVANCE: Final[Mapping[SetupStage, Callable[[ServerSetup], _Step_server_setup]]] = {
    SetupStage.JOINS: ServerSetup._close_joins,
    SetupStage.REVEALS: ServerSetup._close_reveals,
    SetupStage.CAPSULES: ServerSetup._close_capsules,
}
