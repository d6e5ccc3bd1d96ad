"""Set-up of a session: both its machines. It ends with the group, and a channel to every neighbour.

Rules a client keeps, whatever the server sends:
 1. Its roster is pinned; the member list is a part of it, names this client with its own keys, and
    has a threshold of the roster; so have those of it that reveal. A server can then neither name
    the few that it has corrupted as the only members, nor form two groups of honest clients.
 2. Every member that goes on has signed the very list that this client signed, and with it each
    member's channel key; one signature that fails ends the set-up.
 3. The joint seed, and with it the graph, depends on a nonce of every member, which it committed
    to before it saw another's. A server can call members late, and so choose among seeds: the
    degree of a sparse graph allows for that, and a complete graph does not depend on the seed.
 4. Any failure leaves the set-up aborted, for good, and its keys dropped.

Rules of the server:
 1. A client that is late, or sends what it should not, is out of the set-up, which goes on without
    it while enough are left. Nothing private has been used by then.
 2. Joins and reveals are checked against the pinned identities, so the client at fault is named.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from secure_fd.crypto.keys import (
    CAPSULE_SECRET_BYTES,
    EVERYONE,
    PUBLIC_BYTES,
    SERVER,
    AgreementKey,
    CapsuleKey,
    IdentityKey,
    Purpose,
    RandomBytes,
    SealCapsule,
    Sealer,
    SecretHolder,
    derive_key,
    draw,
    fields,
)
from secure_fd.crypto.public_draws import joint_seed
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.machine import ClientMachine, ClientState, Closed, ServerMachine, ServerState
from secure_fd.secagg.masks import Prepared
from secure_fd.secagg.session import Group, MessageType, Session, encode_set
from secure_fd.wire import frame


@dataclass(slots=True, eq=False, repr=False)
class ClientEnrolment(SecretHolder):
    """Result of a set-up for a client.

    Attributes:
        channels: For each neighbour that went on to the end, the channel to it.
        authenticator: Tags inputs to the server.
        epoch: Epoch that it serves, None before its first round.
        prepared: Secrets of the next round, where they are drawn.
    """

    group: Group
    channels: Mapping[int, Channel]
    authenticator: Sealer
    epoch: int | None = None
    prepared: Prepared | None = None


@dataclass(slots=True, eq=False, repr=False)
class _SetupHeld(SecretHolder):
    """Secrets of a set-up, and what it has received."""

    nonce: bytes
    channel_key: AgreementKey
    capsule_key: CapsuleKey | None
    listed: dict[int, bytes] = field(default_factory=dict)
    view: bytes = b""
    group: Group = field(init=False)
    peer_keys: dict[int, bytes] = field(default_factory=dict)
    agreed: dict[int, bytes] = field(default_factory=dict)
    secrets: dict[int, bytes] = field(default_factory=dict)

    @property
    def public(self) -> bytes:
        return self.channel_key.public + (self.capsule_key.public if self.capsule_key else b"")


class ClientSetup(ClientMachine[_SetupHeld]):
    """One attempt at a set-up: start it, then answer each message until it is DONE.

    random, seal: sources of keys, and of the randomness in capsules. nonce: this client's part in
    the joint seed, public once it is revealed. before_reveal: called before that; what it raises
    ends the set-up.
    """

    __slots__ = (
        "_before_reveal",
        "_enrolment",
        "_identity",
        "_join",
        "_random",
        "_seal",
        "session",
    )

    def __init__(
        self,
        number: int,
        identity: IdentityKey,
        session: Session,
        random: RandomBytes,
        seal: SealCapsule,
        nonce: bytes | None,
        before_reveal: Callable[[], None],
    ) -> None:
        self.session, self._identity, self._before_reveal = session, identity, before_reveal
        self._random, self._seal = random, seal
        nonce = draw(random, messages.NONCE_BYTES) if nonce is None else nonce
        key = AgreementKey.generate(random)
        held = _SetupHeld(nonce, key, CapsuleKey.generate(random) if session.hybrid else None)
        super().__init__(number, session.place, held)
        self._join = messages.SignedJoin.signed(session, number, held.public, nonce, identity)
        self._enrolment: ClientEnrolment | None = None

    @property
    def enrolment(self) -> ClientEnrolment:
        """Result of the set-up; LocalError unless it is DONE."""
        if self._enrolment is None or self.state is not ClientState.DONE:
            raise LocalError(f"there is no enrolment in state {self.state.name}")
        return self._enrolment

    def start(self) -> bytes:
        """Open the set-up with a JOIN; LocalError if it is open already."""
        self._held, self.state = self._begin(), ClientState.JOINED
        join = self._join
        return self._message(MessageType.JOIN, join.keys, join.commitment, join.signature)

    def _answer_members(self, data: bytes, held: _SetupHeld) -> tuple[bytes, ClientState]:
        held.listed = messages.decode_members(data, self.session)
        if held.listed.get(self.number) != self._join.line:
            raise PeerError(f"the member list leaves out or alters client {self.number}")
        self._check_number(held.listed)
        held.view = messages.view_of(self.session, held.listed)
        self._before_reveal()
        reveal = messages.Reveal.signed(
            self.session, self.number, held.view, held.nonce, self._identity
        )
        message = self._message(MessageType.REVEAL, reveal.nonce, reveal.signature)
        return message, ClientState.REVEALED

    def _check_number(self, members: Collection[int]) -> None:
        least = self.session.least_members
        if len(members) < least:
            raise PeerError(
                f"{len(members)} members are fewer than the {least} that client {self.number} "
                f"insists on"
            )

    def _answer_agreed(self, data: bytes, held: _SetupHeld) -> tuple[bytes, ClientState]:
        reveals, keys = messages.decode_agreed(data, self.session, tuple(held.listed))
        if self.number not in reveals:
            raise PeerError(f"client {self.number} revealed, and the server went on without it")
        self._check_number(reveals)
        for client, reveal in reveals.items():
            reveal.verify(self.session, client, held.listed[client], held.view)
        held.group = group_of(self.session, held.view, tuple(held.listed), reveals)
        held.peer_keys = dict(zip(held.group.neighbours(self.number), keys, strict=True))
        for peer, public in held.peer_keys.items():
            if not held.listed[peer].startswith(hashlib.sha256(public).digest()):
                raise PeerError(f"the keys of client {peer} are not those that it signed")
            held.agreed[peer] = held.channel_key.exchange(public[:PUBLIC_BYTES])
        return self._seal_capsules(held) if self.session.hybrid else self._finish(held)

    def _seal_capsules(self, held: _SetupHeld) -> tuple[bytes, ClientState]:
        """Send a secret to each neighbour of a higher number; the lower ones send theirs."""
        sent = []
        held.secrets = {
            peer: draw(self._random, CAPSULE_SECRET_BYTES)
            for peer in held.peer_keys
            if peer > self.number
        }
        for peer, secret in held.secrets.items():
            info = _capsule_info(held.group, held.agreed[peer], self.number, peer)
            sent.append(self._seal(held.peer_keys[peer][PUBLIC_BYTES:], secret, info))
        return self._message(MessageType.CAPSULES, *sent), ClientState.SENT_CAPSULES

    def _answer_capsules(self, data: bytes, held: _SetupHeld) -> tuple[bytes, ClientState]:
        """A client that sent none has left. A capsule that does not open is as good as none."""
        present, received = messages.decode_relayed(data, held.group, self.number)
        self._check_number(present)
        for peer in held.secrets.keys() - set(present):
            del held.secrets[peer]
        for peer, capsule in received.items():
            held.secrets[peer] = self._opened(peer, capsule, held)
        return self._finish(held)

    def _opened(self, peer: int, capsule: bytes, held: _SetupHeld) -> bytes:
        info = _capsule_info(held.group, held.agreed[peer], peer, self.number)
        try:
            if held.capsule_key is not None:
                return held.capsule_key.open(capsule, info, f"client {peer}'s capsule")
        except PeerError:
            pass
        return draw(self._random, CAPSULE_SECRET_BYTES)

    def _finish(self, held: _SetupHeld) -> tuple[bytes, ClientState]:
        """Put both keys in one channel: the secrets of agreement and capsule."""
        peers = held.secrets if self.session.hybrid else held.peer_keys
        channels = {}
        for peer in sorted(peers):
            secret = held.agreed[peer] + held.secrets.get(peer, b"")
            channels[peer] = Channel.agreed(
                self.session, self.number, peer, secret, held.group.view
            )
        key = held.channel_key.exchange(self.session.server)
        inputs = input_authenticator(held.group, self.number, key)
        self._enrolment = ClientEnrolment(held.group, channels, inputs)
        return b"", ClientState.DONE

    answers: ClassVar = {
        (ClientState.JOINED, MessageType.MEMBERS): _answer_members,
        (ClientState.REVEALED, MessageType.AGREED): _answer_agreed,
        (ClientState.SENT_CAPSULES, MessageType.CAPSULES): _answer_capsules,
    }


def group_of(
    session: Session,
    view: bytes,
    listed: Sequence[int],
    reveals: Mapping[int, messages.Reveal],
) -> Group:
    """Return the group of those that revealed. view: of the list that all of them signed."""
    members, seed = tuple(reveals), joint_seed([reveal.nonce for reveal in reveals.values()])
    label = session.place.context(Purpose.GROUP, SERVER, EVERYONE)
    agreed = fields(label, view, encode_set(members, listed), seed)
    return Group(session, members, hashlib.sha256(agreed).digest(), seed)


def input_authenticator(group: Group, client: int, secret: bytes) -> Sealer:
    """Return a client's tags to the server. secret: what their X25519 keys agree on."""
    info = group.session.place.context(Purpose.INPUT_MAC, client, SERVER) + group.view
    return Sealer(derive_key(secret, salt=group.session.id, info=info))


def _capsule_info(group: Group, agreed: bytes, sender: int, receiver: int) -> bytes:
    """Return what a capsule is sealed under; a key that only its two ends have stands at its end.

    Anybody can seal to a public key. Without that key a server could put capsules of its own in
    the place of all that a client gets, and would lack nothing but what X25519 hides.
    """
    session, view = group.session, group.view
    info = session.place.context(Purpose.CAPSULE_KEY, sender, receiver) + view
    key = derive_key(agreed, salt=session.id, info=info)
    return session.place.context(Purpose.CAPSULE, sender, receiver) + view + key


class ServerSetup(ServerMachine):
    """One attempt at a set-up: receive a stage's messages, then advance to the next stage.

    Attributes:
        present: Once it is done, the members that went on to the end.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session.place, ServerState.JOINS, session.roster)
        self.session = session
        self.present: tuple[int, ...] = ()
        self._joins: dict[int, messages.SignedJoin] = {}
        self._listed: dict[int, bytes] = {}
        self._view = b""
        self._reveals: dict[int, messages.Reveal] = {}
        self._capsules: dict[int, tuple[bytes, ...]] = {}
        self._group: Group

    @property
    def group(self) -> Group:
        """Group that the set-up ended with; LocalError unless it is DONE."""
        if not self.finished:
            raise LocalError(f"there is no group in state {self.state.name}")
        return self._group

    def channel_key(self, client: int) -> bytes:
        """Return the X25519 key that a member joined with."""
        return self._joins[client].keys[:PUBLIC_BYTES]

    def _add_join(self, sender: int, data: bytes) -> None:
        join = messages.decode_join(data, self.session, sender)
        join.verify(self.session)
        self._joins[sender] = join

    def _add_reveal(self, sender: int, data: bytes) -> None:
        reveal = messages.decode_reveal(data, self.session, sender)
        reveal.verify(self.session, sender, self._listed[sender], self._view)
        self._reveals[sender] = reveal

    def _add_capsules(self, sender: int, data: bytes) -> None:
        count = len(_higher(self._group, sender))
        self._capsules[sender] = messages.decode_capsules(data, self.session, sender, count)

    def _close_joins(self, joined: tuple[int, ...]) -> Closed:
        self._require(joined, "joined")
        self._listed = {client: self._joins[client].line for client in joined}
        self._view = messages.view_of(self.session, self._listed)
        message = messages.encode_members(self._listed, self.session)
        return dict.fromkeys(joined, message), ServerState.REVEALS

    def _close_reveals(self, revealed: tuple[int, ...]) -> Closed:
        self._require(revealed, "revealed their nonces")
        listed, self.present = tuple(self._listed), revealed
        reveals, outbound = {client: self._reveals[client] for client in revealed}, {}
        group = self._group = group_of(self.session, self._view, listed, reveals)
        for client in revealed:
            keys = [self._joins[peer].keys for peer in group.neighbours(client)]
            outbound[client] = messages.encode_agreed(reveals, listed, keys, self.session)
        return outbound, ServerState.CAPSULES if self.session.hybrid else ServerState.DONE

    def _close_capsules(self, sent: tuple[int, ...]) -> Closed:
        self._require(sent, "sent their capsules")
        self.present, members = sent, self._group.members
        relayed: dict[int, list[bytes]] = {client: [] for client in members}
        for sender in sent:
            receivers = _higher(self._group, sender)
            for peer, capsule in zip(receivers, self._capsules[sender], strict=True):
                relayed[peer].append(capsule)
        there = encode_set(sent, members)
        return {
            client: frame(MessageType.CAPSULES, self.place, SERVER, there, *relayed[client])
            for client in sent
        }, ServerState.DONE

    def _require(self, seen: Collection[int], what: str) -> None:
        """MissingClientError below what a roster's threshold asks, as clients do."""
        roster, least = len(self.session.roster), self.session.least_members
        if len(seen) < least:
            raise MissingClientError(f"{len(seen)} of {roster} clients {what}; {least} are needed")

    takes: ClassVar = {
        ServerState.JOINS: (MessageType.JOIN, _add_join),
        ServerState.REVEALS: (MessageType.REVEAL, _add_reveal),
        ServerState.CAPSULES: (MessageType.CAPSULES, _add_capsules),
    }
    closes: ClassVar = {
        ServerState.JOINS: _close_joins,
        ServerState.REVEALS: _close_reveals,
        ServerState.CAPSULES: _close_capsules,
    }


def _higher(group: Group, client: int) -> tuple[int, ...]:
    return tuple(peer for peer in group.neighbours(client) if peer > client)
