"""A client's part in a set-up: it ends with the group, and a channel to every neighbour.

Rules a client keeps, whatever the server sends:
 1. Its roster is pinned; the member list is a part of it, names this client with its own keys,
    and is not below its floor; nor are those of it that reveal.
 2. Every member that goes on has signed the very list that this client signed, and with it each
    member's channel key; one signature that fails ends the set-up.
 3. The joint seed, and with it the graph, depends on a nonce of every member, which it committed
    to before it saw another's. A server can call members late, and so choose among seeds: the
    degree of a sparse graph allows for that, and a complete graph does not depend on the seed.
 4. Any failure leaves the set-up aborted, for good, and its keys dropped.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from secure_fd.crypto.keys import (
    CAPSULE_SECRET_BYTES,
    EVERYONE,
    PUBLIC_BYTES,
    SERVER,
    AgreementKey,
    Authenticator,
    CapsuleKey,
    IdentityKey,
    Purpose,
    RandomBytes,
    SecretHolder,
    derive_key,
    draw,
    fields,
    seal_capsule,
)
from secure_fd.crypto.public_draws import joint_seed
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.graph import threshold
from secure_fd.secagg.session import (
    Accepted,
    Floors,
    Group,
    MessageType,
    Session,
    encode_set,
    message_type,
)


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
    """What a client takes from a set-up into the rounds.

    channels: by neighbour that went on to the end. authenticator: of inputs to the server.
    """

    group: Group
    channels: Mapping[int, Channel] = field(repr=False)
    authenticator: Authenticator


class _Held(SecretHolder):
    """What a set-up must forget when it ends."""

    __slots__ = (
        "agreed",
        "capsule_key",
        "channel_key",
        "group",
        "listed",
        "nonce",
        "peer_keys",
        "secrets",
        "view",
    )

    def __init__(self, session: Session, nonce: bytes, random: RandomBytes) -> None:
        self.nonce = nonce
        self.channel_key = AgreementKey.generate(random)
        self.capsule_key = CapsuleKey.generate(random) if session.hybrid else None
        self.listed: tuple[messages.Member, ...] = ()
        self.view = b""
        self.group: Group | None = None
        self.peer_keys: dict[int, bytes] = {}
        self.agreed: dict[int, bytes] = {}
        self.secrets: dict[int, bytes] = {}

    @property
    def public(self) -> bytes:
        return self.channel_key.public + (self.capsule_key.public if self.capsule_key else b"")


class ClientSetup(SecretHolder):
    """One attempt at a set-up: start it, then answer each message until it is DONE.

    nonce: this client's part in the joint seed, public once it is revealed. before_reveal: called
    before that; what it raises ends the set-up.
    """

    __slots__ = (
        "_before_reveal",
        "_enrolment",
        "_floors",
        "_held",
        "_identity",
        "_join",
        "_random",
        "_state",
        "accepted",
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
        before_reveal: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.session = session
        self._before_reveal = before_reveal
        self.accepted = Accepted()
        self._identity = identity
        self._floors = floors
        self._random = random
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
        """Answer one message of the server, None where no answer is due.

        An exact copy of an accepted message has no effect.
        """
        if self.accepted.has(SERVER, data):
            return None
        state, held = self._take()
        kind = message_type(data, self.session.place, SERVER)
        if held is None or (state, kind) not in _TRANSITIONS:
            raise PeerError(f"a {kind.name} message is not allowed in state {state.name}")
        reply, self._state = _TRANSITIONS[state, kind](self, data, held)
        self._held = None if self._state is SetupState.DONE else held
        self.accepted.add(SERVER, data)
        return reply

    def _take(self) -> tuple[SetupState, _Held | None]:
        """Leave the set-up aborted and empty; whoever succeeds puts back what it still needs."""
        state, held = self._state, self._held
        self._state, self._held = SetupState.ABORTED, None
        return state, held

    def _answer_members(self, data: bytes, held: _Held) -> "_Step":
        held.listed = messages.decode_members(data, self.session)
        if self._join.member not in held.listed:
            raise PeerError(f"the member list leaves out or alters client {self.number}")
        self._check_number(len(held.listed))
        held.view = messages.view_of(self.session, held.listed)
        self._before_reveal()
        reveal = messages.Reveal.signed(
            self.session, self.number, held.view, held.nonce, self._identity
        )
        return messages.encode_reveal(reveal, self.session, self.number), SetupState.REVEALED

    def _check_number(self, members: int) -> None:
        least = self._floors.members(self.session)
        if members < least:
            raise PeerError(
                f"{members} members are fewer than the {least} that client {self.number} insists on"
            )

    def _answer_agreed(self, data: bytes, held: _Held) -> "_Step":
        by_number = {member.client: member for member in held.listed}
        members, reveals, keys = messages.decode_agreed(data, self.session, tuple(by_number))
        if self.number not in members:
            raise PeerError(f"client {self.number} revealed, and the server went on without it")
        self._check_number(len(members))
        for number, reveal in zip(members, reveals, strict=True):
            reveal.verify(self.session, by_number[number], held.view)
        held.group = group_of(self.session, held.view, tuple(by_number), members, reveals)
        self._floors.check_group(held.group)
        held.peer_keys = dict(zip(held.group.neighbours(self.number), keys, strict=True))
        for peer, public in held.peer_keys.items():
            if hashlib.sha256(public).digest() != by_number[peer].digest:
                raise PeerError(f"the keys of client {peer} are not those that it signed")
            held.agreed[peer] = held.channel_key.exchange(public[:PUBLIC_BYTES])
        return self._seal_capsules(held) if self.session.hybrid else self._finish(held)

    def _seal_capsules(self, held: _Held) -> "_Step":
        """A secret for each neighbour of a higher number; the lower ones send theirs."""
        higher = [peer for peer in held.peer_keys if peer > self.number]
        held.secrets = {peer: draw(self._random, CAPSULE_SECRET_BYTES) for peer in higher}
        sent = [
            seal_capsule(
                held.peer_keys[peer][PUBLIC_BYTES:], secret, _capsule_info(held, self.number, peer)
            )
            for peer, secret in held.secrets.items()
        ]
        return (
            messages.encode_capsules(sent, self.session, self.number),
            SetupState.SENT_CAPSULES,
        )

    def _answer_capsules(self, data: bytes, held: _Held) -> "_Step":
        """Who sent none has left. A capsule that does not open is as good as none."""
        if held.group is None or held.capsule_key is None:
            raise LocalError("a session without ML-KEM has no capsules")
        present, received = messages.decode_relayed(data, held.group, self.number)
        self._check_number(len(present))
        there = set(present)
        held.secrets = {peer: secret for peer, secret in held.secrets.items() if peer in there}
        for peer, capsule in received.items():
            info, what = _capsule_info(held, peer, self.number), f"client {peer}'s capsule"
            try:
                held.secrets[peer] = held.capsule_key.open(capsule, info, what)
            except PeerError:
                held.secrets[peer] = draw(self._random, CAPSULE_SECRET_BYTES)
        return self._finish(held)

    def _finish(self, held: _Held) -> "_Step":
        """Both keys in one channel: the capsule's secret, and what names the two that agreed."""
        if held.group is None:
            raise LocalError("a set-up cannot end before its members have agreed")
        peers = held.secrets if self.session.hybrid else held.peer_keys
        channels = {}
        for peer in sorted(peers):
            secret = held.agreed[peer] + held.secrets.get(peer, b"")
            channels[peer] = Channel.agreed(
                self.session, self.number, peer, secret, held.group.view
            )
        key = held.channel_key.exchange(self.session.server)
        inputs = input_authenticator(held.group, self.number, key)
        self._enrolment = Enrolment(held.group, channels, inputs)
        return None, SetupState.DONE


def group_of(
    session: Session,
    view: bytes,
    listed: tuple[int, ...],
    members: tuple[int, ...],
    reveals: Sequence[messages.Reveal],
) -> Group:
    """The group of those that revealed. view: of the list that all of them signed."""
    seed = joint_seed([reveal.nonce for reveal in reveals])
    label = session.place.context(Purpose.GROUP, SERVER, EVERYONE)
    agreed = fields(label, view, encode_set(members, listed), seed)
    return Group(session, members, hashlib.sha256(agreed).digest(), seed)


def input_authenticator(group: Group, client: int, secret: bytes) -> Authenticator:
    """Of a client's inputs to the server. secret: what their X25519 keys agree on."""
    info = group.session.place.context(Purpose.INPUT_MAC, client, SERVER) + group.view
    return Authenticator(derive_key(secret, salt=group.session.id, info=info))


def _capsule_info(held: _Held, sender: int, receiver: int) -> bytes:
    """What a capsule is sealed under, a key that only its two ends have at its end.

    Anybody can seal to a public key. Without that key a server could put capsules of its own in
    the place of all that a client gets, and would lack nothing but what X25519 hides.
    """
    if held.group is None:
        raise LocalError("a capsule belongs to a group")
    session, view = held.group.session, held.group.view
    agreed = held.agreed[sender if receiver not in held.agreed else receiver]
    info = session.place.context(Purpose.CAPSULE_KEY, sender, receiver) + view
    key = derive_key(agreed, salt=session.id, info=info)
    return session.place.context(Purpose.CAPSULE, sender, receiver) + view + key


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
#     An exact copy of a message that was accepted has no effect.
#  2. Whoever is late, or sends what it should not, is out of the set-up; that goes on without it
#     while enough are left. Nothing private has been used by then.
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
        "_refused",
        "_reveals",
        "_stage",
        "_view",
        "accepted",
        "session",
    )

    def __init__(self, session: Session) -> None:
        self.session = session
        self.accepted = Accepted()
        self._refused: set[int] = set()
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

    @property
    def present(self) -> tuple[int, ...]:
        """The members that went on to the end."""
        members = self.group.members
        if not self.session.hybrid:
            return members
        return tuple(client for client in members if client in self._capsules)

    def authenticator_key(self, client: int) -> bytes:
        """The X25519 key that a member joined with."""
        return self._joins[client].keys[:PUBLIC_BYTES]

    def receive(self, sender: int, data: bytes) -> None:
        """Take one message that the transport says `sender` sent.

        An exact copy of an accepted message has no effect, in this stage and in later ones.
        PeerError for any other that the stage does not take, and its sender is out of the set-up.
        A different second message of a stage is refused, and the first one stays.
        """
        if self.accepted.has(sender, data):
            return
        if sender not in self.session.roster:
            raise PeerError(f"client {sender} is not on the pinned roster")
        if sender in self._refused:
            raise PeerError(f"client {sender} is out of this set-up")
        if sender in self._answered():
            raise PeerError(f"client {sender} sent a second message in one stage")
        try:
            self._take(sender, data)
        except PeerError:
            self._refused.add(sender)
            raise
        self.accepted.add(sender, data)

    def _take(self, sender: int, data: bytes) -> None:
        kind = message_type(data, self.session.place, sender)
        take = _INBOUND.get((self._stage, kind))
        if take is None:
            raise PeerError(f"a {kind.name} message is not allowed in stage {self._stage.name}")
        take(self, sender, data)

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; what to send to each member, empty once the set-up is done.

        MissingClientError where too few members are left.
        """
        stage, self._stage = self._stage, SetupStage.ABORTED
        if stage not in _ADVANCE:
            raise LocalError(f"there is no stage to close in stage {stage.name}")
        outbound, self._stage = _ADVANCE[stage](self)
        return outbound

    def _answered(self) -> Collection[int]:
        if self._stage is SetupStage.REVEALS:
            return self._reveals.keys()
        return (self._joins if self._stage is SetupStage.JOINS else self._capsules).keys()

    def _add_join(self, sender: int, data: bytes) -> None:
        join = messages.decode_join(data, self.session, sender)
        join.verify(self.session)
        self._joins[sender] = join

    def _add_reveal(self, sender: int, data: bytes) -> None:
        if sender not in self._joins:
            raise PeerError(f"client {sender} reveals a nonce without having joined")
        reveal = messages.decode_reveal(data, self.session, sender)
        reveal.verify(self.session, self._members[sender], self._view)
        self._reveals[sender] = reveal

    def _add_capsules(self, sender: int, data: bytes) -> None:
        if self._group is None or sender not in self._group.members:
            raise PeerError(f"client {sender} sends capsules without being in the group")
        count = len(_higher(self._group, sender))
        self._capsules[sender] = messages.decode_capsules(data, self.session, sender, count)

    def _close_joins(self) -> "_Step_server_setup":
        self._require(self._joins, "joined")
        self._members = {client: self._joins[client].member for client in sorted(self._joins)}
        listed = tuple(self._members.values())
        self._view = messages.view_of(self.session, listed)
        message = messages.encode_members(listed, self.session)
        return dict.fromkeys(self._members, message), SetupStage.REVEALS

    def _close_reveals(self) -> "_Step_server_setup":
        self._require(self._reveals, "revealed their nonces")
        listed = tuple(self._members)
        numbers = tuple(client for client in listed if client in self._reveals)
        reveals = [self._reveals[client] for client in numbers]
        group = self._group = group_of(self.session, self._view, listed, numbers, reveals)
        who, outbound = encode_set(numbers, listed), {}
        for client in numbers:
            keys = [self._joins[peer].keys for peer in group.neighbours(client)]
            outbound[client] = messages.encode_agreed(who, reveals, keys, self.session)
        return outbound, SetupStage.CAPSULES if self.session.hybrid else SetupStage.DONE

    def _close_capsules(self) -> "_Step_server_setup":
        self._require(self._capsules, "sent their capsules")
        if self._group is None:
            raise LocalError("capsules cannot be relayed before the members have agreed")
        relayed: dict[int, list[bytes]] = {client: [] for client in self._group.members}
        for sender in sorted(self._capsules):
            receivers = _higher(self._group, sender)
            for peer, capsule in zip(receivers, self._capsules[sender], strict=True):
                relayed[peer].append(capsule)
        there = encode_set(self._capsules, self._group.members)
        outbound = {
            client: messages.encode_relayed(there, relayed[client], self.session)
            for client in sorted(self._capsules)
        }
        return outbound, SetupStage.DONE

    def _require(self, seen: Mapping[int, object], what: str) -> None:
        """MissingClientError below what a roster's threshold asks, as clients do."""
        roster = len(self.session.roster)
        least = max(2, threshold(roster))
        if len(seen) < least:
            raise MissingClientError(f"{len(seen)} of {roster} clients {what}; {least} are needed")


def _higher(group: Group, client: int) -> tuple[int, ...]:
    return tuple(peer for peer in group.neighbours(client) if peer > client)


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
