"""The server's part in a set-up: it collects, checks who is at fault, and relays.

Rules:
 1. A stage takes one message from every client it asked, from nobody else and from nobody twice.
 2. Whoever joined is a member; a member that then goes missing ends the set-up, which may begin
    again without it. Nothing private has been used by then.
 3. Joins and reveals are checked against the pinned identities, so the client at fault is named.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

from secure_fd.crypto.context import SERVER
from secure_fd.draw import joint_seed
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg import setup_messages as messages
from secure_fd.secagg.group import Group
from secure_fd.secagg.session import Session
from secure_fd.secagg.wire import MessageType, message_type


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

    def _close_joins(self) -> "_Step":
        if len(self._joins) < 2:
            raise MissingClientError(f"{len(self._joins)} clients joined; a sum needs more")
        self._members = {client: self._joins[client].member for client in sorted(self._joins)}
        listed = tuple(self._members.values())
        self._view = messages.view_of(self.session, listed)
        message = messages.encode_members(listed, self.session)
        return dict.fromkeys(self._members, message), SetupStage.REVEALS

    def _close_reveals(self) -> "_Step":
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

    def _close_capsules(self) -> "_Step":
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


_Step = tuple[Mapping[int, bytes], SetupStage]

# Reading: in this stage, this message -> what takes it. Anything not listed aborts.
_INBOUND: Final[
    Mapping[tuple[SetupStage, MessageType], Callable[[ServerSetup, int, bytes], None]]
] = {
    (SetupStage.JOINS, MessageType.JOIN): ServerSetup._add_join,
    (SetupStage.REVEALS, MessageType.REVEAL): ServerSetup._add_reveal,
    (SetupStage.CAPSULES, MessageType.CAPSULES): ServerSetup._add_capsules,
}

# Reading: closing this stage -> what is sent, and the stage after.
_ADVANCE: Final[Mapping[SetupStage, Callable[[ServerSetup], _Step]]] = {
    SetupStage.JOINS: ServerSetup._close_joins,
    SetupStage.REVEALS: ServerSetup._close_reveals,
    SetupStage.CAPSULES: ServerSetup._close_capsules,
}
