"""Skeleton of the state machines of client and server, and of the parties that run them.

A client's machine answers one message of the server at a time; any failure aborts it for good and
drops its secrets. A server's machine collects one message of each client that it asked, then closes
the stage; a bad message costs its sender the rest, and a stage that fails aborts it for good. An
exact copy of an accepted message has no effect: a network may deliver a message twice.
"""

import hashlib
import marshal
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import cache
from types import MethodType
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from msgspec import Meta, Struct, field

from secure_fd.codec import Codec, SecretText
from secure_fd.crypto.keys import (
    KEY_BYTES,
    SERVER,
    TAG_BYTES,
    AgreementKey,
    CapsuleKey,
    IdentityKey,
    IdentityPublic,
    SecretHolder,
)
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg.channel import STATE_BYTES
from secure_fd.secagg.session import (
    Group,
    MessageType,
    PinnedRoster,
    RoundCounter,
    RoundScope,
    RoundTerms,
    Session,
    message_type,
)
from secure_fd.wire import Place, frame


class ClientState(Enum):
    """State of a client in a set-up or a round."""

    READY = auto()
    JOINED = auto()
    REVEALED = auto()
    SENT_CAPSULES = auto()
    PREPARED = auto()
    SENT = auto()
    SIGNED = auto()
    DONE = auto()
    ABORTED = auto()


class ServerState(Enum):
    """Stage that the server is collecting in a set-up or a round, or how that ended."""

    JOINS = auto()
    REVEALS = auto()
    CAPSULES = auto()
    PREPARE = auto()
    INPUT = auto()
    CONSISTENCY = auto()
    UNMASK = auto()
    DONE = auto()
    ABORTED = auto()


class Accepted:
    """Digests of the messages that a party accepted in one round or one set-up.

    The memory is a length and 32 bytes for each accepted message, at most four for each client. An
    input is known by its tag, which covers every byte of it and was checked when it was accepted.
    """

    __slots__ = ("_digests",)

    def __init__(self) -> None:
        self._digests: dict[tuple[int, int], set[bytes]] = {}  # by sender and length

    def add(self, sender: int, data: bytes) -> None:
        """Note a message after it passed every check."""
        self._digests.setdefault((sender, len(data)), set()).add(_digest(data))

    def has(self, sender: int, data: bytes) -> bool:
        """Return whether this sender's message is an exact copy of one that was accepted."""
        known = self._digests.get((sender, len(data)))
        return known is not None and _digest(data) in known


def _digest(data: bytes) -> bytes:
    tagged = data[2:4] == MessageType.MASKED.to_bytes(2, "big")
    return data[-TAG_BYTES:] if tagged else hashlib.sha256(data).digest()


Held = TypeVar("Held")


class ClientMachine(SecretHolder, Generic[Held]):
    """One set-up or round of a client.

    state: ABORTED never changes again. answers: by state and message, the method that answers it
    and returns the reply with the state after. held: secrets, dropped when the machine ends.
    """

    __slots__ = ("_held", "accepted", "number", "place", "state")

    answers: ClassVar[
        Mapping[
            tuple[ClientState, MessageType], Callable[[Any, bytes, Any], tuple[bytes, ClientState]]
        ]
    ]

    def __init__(self, number: int, place: Place, held: Held) -> None:
        self.number, self.place, self.accepted = number, place, Accepted()
        self.state = ClientState.READY
        self._held: Held | None = held

    def receive(self, data: bytes) -> bytes:
        """Answer one message of the server, with nothing where no answer is due.

        Raises:
            PeerError: a message that the table does not list for this state, or a bad one.
        """
        if self.accepted.has(SERVER, data):
            return b""
        state, held = self._take()
        kind = message_type(data, self.place, SERVER)
        if held is None or (state, kind) not in self.answers:
            raise PeerError(f"a {kind.name} message is not allowed in state {state.name}")
        reply, self.state = self.answers[state, kind](self, data, held)
        if self.state is not ClientState.DONE:
            self._held = held
        self.accepted.add(SERVER, data)
        return reply

    def _message(self, kind: MessageType, *parts: bytes) -> bytes:
        return frame(kind, self.place, self.number, *parts)

    def _begin(self) -> Held:
        """Leave READY; LocalError in any other state."""
        state, held = self._take()
        if state is not ClientState.READY or held is None:
            raise LocalError(f"a machine starts from READY, not from {state.name}")
        return held

    def _take(self) -> tuple[ClientState, Held | None]:
        """Leave the machine aborted and empty; a step that succeeds puts back what it needs."""
        state, held = self.state, self._held
        self.state, self._held = ClientState.ABORTED, None
        return state, held


Closed = tuple[Mapping[int, bytes], ServerState]
"""Messages to each client when a stage is closed, and the state after."""


class ServerMachine:
    """One set-up or round of the server.

    takes: by stage, the type of message and the method that takes one. closes: by stage, the method
    that closes it with the clients that answered.

    Attributes:
        stage: The stage that is open, or the last one that was.
        refused: For each client that is out, what it did.
        missing: For each client that left, the first stage that was closed without its answer.
    """

    takes: ClassVar[Mapping[ServerState, tuple[MessageType, Callable[[Any, int, bytes], None]]]]
    closes: ClassVar[Mapping[ServerState, Callable[[Any, tuple[int, ...]], Closed]]]

    def __init__(
        self, place: Place, stage: ServerState, asked: Iterable[int], answered: Iterable[int] = ()
    ) -> None:
        self.place, self.stage, self.accepted = place, stage, Accepted()
        self.refused: dict[int, str] = {}
        self.missing: dict[int, ServerState] = {}
        self._ended: ServerState | None = None
        self._asked = dict.fromkeys(asked)
        self._answered, self._spoke = set(answered), set[int]()

    @property
    def state(self) -> ServerState:
        """Stage that is open, DONE or ABORTED; ABORTED never changes again."""
        return self._ended or self.stage

    @property
    def running(self) -> bool:
        """True if a stage is open."""
        return self._ended is None

    @property
    def finished(self) -> bool:
        """True if it ended well."""
        return self._ended is ServerState.DONE

    @property
    def waiting(self) -> tuple[int, ...]:
        """Clients that this stage has asked and that have not answered, ascending."""
        return tuple(client for client in self._asked if self.waits_for(client))

    def waits_for(self, client: int) -> bool:
        """Return whether this client is one of `waiting`."""
        asked = client in self._asked and client not in self.refused
        return asked and client not in self._answered

    def receive(self, sender: int, data: bytes) -> None:
        """Take one message of `sender`, by the transport's word.

        Raises:
            PeerError: a message that the stage does not take; its sender is out. A different second
                message of a stage is refused, and the first one stays. A valid second JOIN
                takes the place of the first: an earlier process or set-up sent that.
        """
        if self.accepted.has(sender, data):
            return
        if not self.running:
            raise PeerError(f"no message is allowed in state {self.state.name}")
        if sender not in self._asked or sender in self.refused:
            raise PeerError(f"client {sender} was not asked in state {self.stage.name}")
        repeated = f"client {sender} sent a second message in one stage"
        again = sender in self._spoke
        if again and self.stage is not ServerState.JOINS:
            raise PeerError(repeated)
        try:
            self._take(sender, data)
        except PeerError as error:
            if again:
                raise PeerError(repeated) from error
            self.refused[sender] = str(error)
            self._answered.discard(sender)
            raise
        self._answered.add(sender)
        self._spoke.add(sender)
        self.accepted.add(sender, data)

    def _take(self, sender: int, data: bytes) -> None:
        kind, take = self.takes[self.stage]
        if data[2:4] != kind.to_bytes(2, "big"):
            named = message_type(data, self.place, sender).name
            raise PeerError(f"a {named} message is not allowed in state {self.stage.name}")
        take(self, sender, data)

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; return what to send to each client, empty once all is done.

        Raises:
            MissingClientError: too few answered; the machine is aborted then.
        """
        state, self._ended = self.state, ServerState.ABORTED
        if state not in self.closes:
            raise LocalError(f"there is no stage to close in state {state.name}")
        for client in (*self.waiting, *self.refused):
            self.missing.setdefault(client, state)
        present = tuple(client for client in self._asked if client in self._answered)
        outbound, successor = self.closes[state](self, present)
        self._asked, self._answered, self._spoke = dict.fromkeys(present), set(), set()
        if successor is ServerState.DONE:
            self._ended = successor
        else:
            self.stage, self._ended = successor, None
        return outbound


# State of a party that must outlive its process. Nothing of a round is here: a process that ends
# within one is a client that dropped out of it. What is here, kept before anything that depends on
# it leaves, is enough to use no round's number twice, to seal nothing twice under one key, and to
# go on in the same set-up with the next round.

Keep = Callable[[bytes], None]
"""Writes a memory where it outlives the process, and returns once it is there."""

_Number: TypeAlias = Annotated[int, Meta(ge=0, lt=2**32)]
_State: TypeAlias = Annotated[bytes, Meta(min_length=STATE_BYTES, max_length=STATE_BYTES)]
_Key: TypeAlias = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
_Hash: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]


class PartyMemory(SecretText, Struct, frozen=True, array_like=True):
    """Memory of a party, as it is written: it holds keys.

    Attributes:
        last: Newest round that began, -1 before any.
        used: Whether the set-up in use has served a round.
        agreed: Members, view and seed of that set-up's group, None before one.
        setups: Of a client, nonces that it revealed since a round ended well.
        channels: Of a client, for each neighbour the state of the channel to it.
        inputs: For each client the key of its tags; at a client its own alone.
        barred: Of a server, clients that are in no later cohort.
    """

    session: bytes
    last: Annotated[int, Meta(ge=-1)]
    used: bool
    agreed: tuple[tuple[_Number, ...], _Hash, _Hash] | None
    setups: _Number = 0
    channels: dict[_Number, _State] = field(default_factory=dict)
    inputs: dict[_Number, _Key] = field(default_factory=dict)
    barred: tuple[_Number, ...] = ()
    label: Literal["secure-fd memory 5"] = "secure-fd memory 5"

    @classmethod
    def decode(cls, data: bytes, session: Session) -> "PartyMemory":
        """Read a memory; LocalError for another session's, or bytes that are none."""
        found = _MEMORIES.decode(data)
        if found.session != session.id:
            raise LocalError("a memory belongs to another session")
        return found


_MEMORIES: Final = Codec[PartyMemory](PartyMemory, "a memory of this version", LocalError)


class Enrolment(Protocol):
    """Result of a set-up that a party uses in its rounds. epoch: that it served, None before."""

    group: Group
    epoch: int | None


Enrolled = TypeVar("Enrolled", bound=Enrolment)


class Party(SecretHolder, Generic[Enrolled]):
    """A client or the server for a whole session: rounds that began, and the set-up in use.

    keep: writes what must outlive this process, before anything that depends on it leaves. memory:
    what an earlier process kept last; what was prepared for a round then is lost.
    """

    __slots__ = ("_enrolment", "_keep", "_rounds", "session")

    def __init__(self, session: Session, keep: Keep | None, memory: bytes | None) -> None:
        self.session, self._keep, self._rounds = session, keep, RoundCounter()
        self._enrolment: Enrolled | None = None
        if memory is not None:
            known = PartyMemory.decode(memory, session)
            self._rounds = RoundCounter(known.last)
            epoch = known.last // session.epoch if known.used else None
            group = None if known.agreed is None else Group(session, *known.agreed)
            self._recall(known, group, epoch)

    def _recall(self, known: PartyMemory, group: Group | None, epoch: int | None) -> None:
        """Take up what only this kind of party has in its memory. group: of the set-up in use."""
        raise NotImplementedError

    def memory(self) -> bytes:
        """Return what must outlive this process, for a file that only its owner reads."""
        agreed, used = None, False
        if self._enrolment is not None:
            group, used = self._enrolment.group, self._enrolment.epoch is not None
            agreed = (group.members, group.view, group.seed)
        common = self.session.id, self._rounds.last, used, agreed
        return _MEMORIES.encode(PartyMemory(*common, **self._own_memory()))

    def _own_memory(self) -> dict[str, Any]:
        """Return the fields of its memory that only this kind of party has."""
        raise NotImplementedError

    def _write(self) -> None:
        if self._keep is not None:
            self._keep(self.memory())

    @property
    def enrolled(self) -> bool:
        """True if a set-up is in use."""
        return self._enrolment is not None

    @property
    def group(self) -> Group:
        """Group of the set-up in use; LocalError before one."""
        return self._in_use.group

    @property
    def _in_use(self) -> Enrolled:
        if self._enrolment is None:
            raise LocalError("there is no set-up")
        return self._enrolment

    def serves(self, index: int) -> bool:
        """Return whether the set-up in use is that of the round's epoch."""
        epoch = index // self.session.epoch
        return self._enrolment is not None and self._enrolment.epoch in (None, epoch)

    def _spend(self, terms: RoundTerms) -> RoundScope:
        """Begin a round, on disk before anything of it leaves.

        Raises:
            LocalError: a number not above that of every earlier round, or no set-up for its epoch.
        """
        if not self.serves(terms.index):
            raise LocalError(f"there is no set-up to open round {terms.index} in")
        scope = RoundScope(self.session, terms)
        self._rounds.spend(terms.index)
        self._in_use.epoch = terms.index // self.session.epoch
        self._write()
        return scope


# Seams for tests that visit every schedule: a copy of a party, and a digest of its state.

Value = TypeVar("Value")
Digests = dict[int, tuple[object, bytes]]
"""Values that do not change and their digests, by identity."""
_ABSENT: Final = object()
_OF_FIXED: Final = {"secure_fd.secagg.session", "secure_fd.secagg.messages"}
"""Modules whose frozen values hold nothing that changes."""
_PLAIN: Final = 2
"""Version of `marshal` in which equal values give equal bytes."""


def snapshot(value: Value) -> Value:
    """Copy a party or machine with its secrets, for tests only: a copied round could run twice.

    Immutable values, keys of the library and the callables that it was given are shared.
    """
    copied: Value = _copied(value, {})
    return copied


def digest(value: object, kept: Digests | None = None) -> bytes:
    """Hash the state of a party or a machine: equal digests mean equal answers to all that follows.

    Keys of the library are left out; what they were made from stands beside them. kept: digests of
    values that do not change; a caller that asks for many digests passes the same one.
    """
    found = _canonical(value, {}, {} if kept is None else kept)
    return hashlib.sha256(marshal.dumps(found, _PLAIN)).digest()


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Slots of a class of this package; none of any other."""
    if not kind.__module__.startswith("secure_fd.") or issubclass(kind, Enum):
        return ()
    slots = {name for base in kind.__mro__ for name in getattr(base, "__slots__", ())}
    return tuple(sorted(slots - {"__dict__", "__weakref__"}))


@cache
def _is_fixed(kind: type) -> bool:
    """Return whether values of this class do not change: keys, terms, a group, and messages."""
    fixed = IdentityKey, IdentityPublic, AgreementKey, CapsuleKey, Group
    frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    return issubclass(kind, fixed) or (frozen and kind.__module__ in _OF_FIXED)


def _attributes(value: object) -> list[tuple[str, Any]]:
    """Slots and attributes of an object of this package, by name; none of any other."""
    kind: Any = type(value)
    found = [(name, getattr(value, name, _ABSENT)) for name in _names(kind)]
    if kind.__module__.startswith("secure_fd."):
        found += sorted(getattr(value, "__dict__", {}).items())
    return [pair for pair in found if pair[1] is not _ABSENT]


def _copied(value: Any, known: dict[int, Any]) -> Any:  # noqa: ANN401, PLR0911 - by type
    kind: Any = type(value)
    if kind in (bytes, int, str) or _is_fixed(kind):
        return value
    if id(value) in known:
        return known[id(value)]
    if kind is tuple:
        return tuple(_copied(each, known) for each in value)
    if kind is MethodType:
        return MethodType(value.__func__, _copied(value.__self__, known))
    if isinstance(value, dict):
        known[id(value)] = copied = dict[Any, Any]()
        copied.update((key, _copied(each, known)) for key, each in value.items())
        return copied
    if isinstance(value, list | set | np.ndarray):  # of values that do not change
        return known.setdefault(id(value), value.copy())
    held = [] if isinstance(value, Enum) else _attributes(value)
    if not held:
        return value
    known[id(value)] = made = object.__new__(kind)
    for name, each in held:
        object.__setattr__(made, name, _copied(each, known))
    return made


def _canonical(value: Any, known: dict[int, Any], kept: Digests) -> Any:  # noqa: ANN401
    """Return nested tuples of plain values. known: by identity, what was read or is being read."""
    kind: Any = type(value)
    if kind in (bytes, int, str, bool) or value is None:
        return value
    if isinstance(value, Enum):
        return str(value)
    fixed = _is_fixed(kind)
    if fixed and id(value) in kept:
        return kept[id(value)][1]
    if id(value) not in known:
        known[id(value)] = "above"
        found = known[id(value)] = (kind.__name__, *_parts(value, known, kept))
        if fixed:
            known[id(value)] = hashed = hashlib.sha256(marshal.dumps(found, _PLAIN)).digest()
            kept[id(value)] = (value, hashed)
    return known[id(value)]


def _parts(value: Any, known: dict[int, Any], kept: Digests) -> Iterable[Any]:  # noqa: ANN401
    if isinstance(value, list | tuple):
        return [_canonical(each, known, kept) for each in value]
    if isinstance(value, dict | PinnedRoster):
        keys = [(_canonical(key, known, kept), key) for key in value]
        keys.sort()
        return [(one, _canonical(value[key], known, kept)) for one, key in keys]
    if isinstance(value, set | frozenset):
        return sorted(_canonical(each, known, kept) for each in value)
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.tobytes()]
    if isinstance(value, Session):
        return [value.id]
    return [(name, _canonical(each, known, kept)) for name, each in _attributes(value)]
