"""Clients and server of the masked sum with repeatable keys, driven one stage at a time.

Beside them messages that a server forges, from what clients sent it and from keys of its own, and a
round in which client 0 can receive any message in any state.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pytest

from secure_fd.crypto.keys import (
    SERVER,
    SIGNATURE_BYTES,
    TAG_BYTES,
    WORD,
    AgreementKey,
    IdentityKey,
    RandomBytes,
    Sealer,
    insecure_bytes,
)
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.client import ClientRound, MaskingClient
from secure_fd.secagg.machine import ClientState, ServerState
from secure_fd.secagg.messages import Body, Masked, Prepare, Relayed
from secure_fd.secagg.server import MaskingServer, ServerRound
from secure_fd.secagg.session import (
    EPOCH_ROUNDS,
    Group,
    MessageType,
    PinnedRoster,
    RoundScope,
    RoundTerms,
    Session,
    encode_set,
    set_bytes,
)
from secure_fd.secagg.setup import ClientSetup, ServerSetup
from secure_fd.secure_sum.masked import MaskedClient, MaskedServer, set_up
from secure_fd.votes.codec import IntArray, WordArray
from secure_fd.wire import frame

TERMS = RoundTerms(index=3, length=40, bound=4)
Values = Mapping[int, WordArray | IntArray]
Carry = Callable[[Mapping[int, bytes], bool], Iterable[tuple[int, bytes]]]


@dataclass(frozen=True, slots=True)
class SparseSession(Session):
    """A session with this degree in place of the default; its id does not name it."""

    degree: int = 0

    def degree_of(self, members: int) -> int:
        """An odd number of members has no regular graph of odd degree."""
        return min(self.degree + (self.degree * members) % 2, members - 1)


class Cohort:
    """n clients and a server that share a session and, by default, a set-up."""

    def __init__(
        self,
        n: int = 3,
        seed: int = 0,
        nonce: bytes = b"n",
        *,
        degree: int | None = None,
        hybrid: bool = False,
        epoch: int = EPOCH_ROUNDS,
        enrolled: bool = True,
    ) -> None:
        self.random: RandomBytes = insecure_bytes(seed)
        self.key = AgreementKey.generate(insecure_bytes(1000 + seed))
        self.identities = {k: IdentityKey.generate(self.random) for k in range(n)}
        roster = PinnedRoster({k: key.public.raw for k, key in self.identities.items()})
        agreed = roster, b"configuration", b"proxies", nonce, self.key.public, hybrid, epoch
        self.session = Session(*agreed) if degree is None else SparseSession(*agreed, degree)
        self.server = MaskedServer(self.session, self.key)
        self.clients = {
            k: MaskedClient(k, key, self.session, self.random) for k, key in self.identities.items()
        }
        if enrolled:
            self.enrol()

    def enrol(self, members: Collection[int] | None = None) -> None:
        """Set these clients up, by default all."""
        set_up(self.server, {k: self.clients[k] for k in members or self.clients})
        self.group: Group = self.server.group

    def open(self, terms: RoundTerms, values: Values | None = None) -> "Round":
        """Open a round with these values, of the clients that have some; zeros by default."""
        given = dict.fromkeys(self.clients, zeros(terms)) if values is None else values
        return Round(self.server.open_round(terms), self.open_clients(terms, given), given)

    def draw(self, terms: RoundTerms, who: Collection[int] | None = None) -> "Round":
        """Open a round of these clients, by default of all; values differ from round to round."""
        values = random_values(self, terms, terms.index)
        given = values if who is None else {k: values[k] for k in who}
        return self.open(terms, given)

    def open_clients(
        self, terms: RoundTerms, values: Values | None = None
    ) -> dict[int, ClientRound]:
        """Open the round at the clients that have values."""
        given = dict.fromkeys(self.clients, zeros(terms)) if values is None else values
        return {k: self.clients[k].open_round(terms, given[k]) for k in given}

    def open_setup(self, members: Collection[int] | None = None) -> "SetUp":
        """Open a set-up of these clients, by default of all."""
        chosen = self.clients if members is None else members
        return SetUp(self.server.open_setup(), {k: self.clients[k].open_setup() for k in chosen})


def unchanged(messages_: Mapping[int, bytes], _: bool) -> Iterable[tuple[int, bytes]]:
    return messages_.items()


@dataclass
class Stages:
    """Machines of a set-up or a round, driven one stage at a time.

    at: the party that acts in `run`, and whether it receives a message or closes a stage.
    """

    server: Any
    clients: dict[int, Any]
    at: tuple[int, str] = field(default=(SERVER, ""), init=False)

    def start(self) -> dict[int, bytes]:
        """Start every client; none of those whose last input carried its first message."""
        started = {k: machine.start() for k, machine in self.clients.items()}
        return {k: message for k, message in started.items() if message}

    def deliver(
        self, outbound: Mapping[int, bytes], without: Collection[int] = ()
    ) -> dict[int, bytes]:
        """Deliver a stage's messages, but for those of `without`, and close it."""
        for k, message in outbound.items():
            if k not in without:
                self.server.receive(k, message)
        return dict(self.server.advance())

    def answer(self, inbound: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return the answers of the clients that are there."""
        there = {k: message for k, message in inbound.items() if k in self.clients}
        answers = {k: self.clients[k].receive(message) for k, message in there.items()}
        return {k: answer for k, answer in answers.items() if answer}

    def go_on(self, inbound: Mapping[int, bytes]) -> None:
        """Run to the end from what the server has just sent."""
        while not self.server.finished:
            inbound = self.deliver(self.answer(inbound))
        self.answer(inbound)

    def run(self, carry: Carry = unchanged) -> None:
        """Run from start to end; carry: what arrives of the messages up (True) or down."""
        up = self.start()
        while self.server.running:
            for sender, message in carry(up, True):
                self.at = SERVER, "receive"
                self.server.receive(sender, message)
            self.at = SERVER, "close"
            down, up = self.server.advance(), {}
            for k, message in carry(down, False):
                self.at = k, "receive"
                if answer := self.clients[k].receive(message):
                    up[k] = answer


@dataclass
class SetUp(Stages):
    """Machines of one set-up."""

    server: ServerSetup
    clients: dict[int, ClientSetup]

    def finish(self, outbound: Mapping[int, bytes]) -> None:
        """Run to the end from the clients' messages."""
        self.go_on(self.deliver(outbound))

    def enrol(self, cohort: Cohort) -> None:
        """Take it as the set-up of the rounds to come."""
        cohort.server.enrol(self.server)
        for k, machine in self.clients.items():
            cohort.clients[k].enrol(machine)
        cohort.group = self.server.group

    def until_agreed(self) -> dict[int, bytes]:
        """Run until every client has revealed its nonce; return the AGREED for each."""
        return self.deliver(self.answer(self.deliver(self.start())))


@dataclass
class Round(Stages):
    """Machines of one round."""

    server: ServerRound
    clients: dict[int, ClientRound]
    values: Values

    def prepare(self) -> dict[int, bytes]:
        """Return what the server sends once every client has started."""
        return self.deliver(self.start())

    def masked(self) -> dict[int, bytes]:
        """Return every masked input; the server has none of them."""
        return self.answer(self.prepare())

    def shares(self, without: Collection[int] = ()) -> dict[int, bytes]:
        """Return every client's shares; the inputs of `without` are lost."""
        inbound = self.deliver(self.masked(), without)
        while self.server.state is not ServerState.UNMASK:
            inbound = self.deliver(self.answer(inbound))
        return self.answer(inbound)

    def finish(self, without: Collection[int] = ()) -> WordArray | IntArray:
        """Return the sum of all clients but those whose inputs get lost."""
        self.go_on(self.deliver(self.masked(), without))
        return self.server.total

    def assert_exact(self, who: Collection[int] | None = None) -> None:
        """The sum is that of these clients' values, by default of all."""
        summed = sorted(self.values if who is None else who)
        assert self.server.survivors == tuple(summed)
        expected = np.sum([self.values[k] for k in summed], axis=0)
        assert self.server.total.tolist() == expected.tolist()


def open_round(party: MaskingClient | MaskingServer, terms: RoundTerms) -> object:
    """A round of any party, of zeros at a client."""
    if isinstance(party, MaskingServer):
        return party.open_round(terms)
    return party.open_round(terms, zeros(terms))


def zeros(terms: RoundTerms) -> WordArray | IntArray:
    """Return an input of zeros."""
    nothing = np.zeros(terms.length, np.int64)
    return nothing if terms.noise.room else nothing.astype(np.uint64)


def random_values(
    cohort: Cohort, terms: RoundTerms = TERMS, seed: int = 0
) -> dict[int, WordArray | IntArray]:
    """Values of every client within the bound, and beyond by its part of the room for noise."""
    rng = np.random.default_rng(seed)
    share, size = terms.noise.room // len(cohort.clients), (terms.length,)
    kind = np.int64 if terms.noise.room else np.uint64
    return {k: rng.integers(-share, terms.bound + share + 1, size, kind) for k in cohort.clients}


def round_of(cohort: Cohort | None = None, terms: RoundTerms = TERMS) -> Round:
    """A round of three clients with random values loaded."""
    cohort = cohort or Cohort()
    return cohort.open(terms, random_values(cohort, terms))


def assert_dead(machine: ClientSetup | ClientRound) -> None:
    """No input brings it back, and it holds neither key nor words."""
    assert machine.state is ClientState.ABORTED
    assert machine._held is None
    honest = frame(MessageType.COHORT, machine.place, SERVER, b"\0")
    for attempt in (machine.start, lambda: machine.receive(honest)):
        with pytest.raises((LocalError, PeerError), match="ABORTED"):
            attempt()
    assert machine.state is ClientState.ABORTED


Clients = tuple[int, ...]
ROUND_STATES: Final = [
    ClientState[name] for name in ("READY", "PREPARED", "SENT", "SIGNED", "DONE")
]
SERVER_KEY: Final = AgreementKey.generate(insecure_bytes(99))


def flip(data: bytes, at: int = -1) -> bytes:
    """The data with one bit of one byte flipped."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def take_prepare(machine: ClientRound) -> Prepare:
    """Return the PREPARE of a client that starts a round."""
    message, degree = machine.start(), machine._enrolment.group.degree
    return messages.decode_prepare(message, machine.scope.place, machine.number, degree)


def read_input(machine: ClientRound, message: bytes) -> Masked:
    """Return the parts of a client's MASKED."""
    enrolment = machine._enrolment
    return messages.decode_masked(
        message, machine.scope, machine.number, enrolment.group, enrolment.authenticator
    )


def write_input(machine: ClientRound, masked: Masked) -> bytes:
    """A MASKED that a corrupt client tags."""
    group, tags = machine._enrolment.group, Sealer(machine._enrolment.authenticator.key)
    return messages.encode_masked(masked, machine.scope, machine.number, group, tags)


def closed_in(machine: ClientRound, message: bytes) -> Clients:
    """The neighbours that a client's MASKED names: their seals did not open."""
    return read_input(machine, message).closed


def line(prepared: Mapping[int, Prepare], group: Group, client: int, peer: int) -> Relayed:
    """Return the line of a peer that an honest server relays to a client."""
    sent, at = prepared[peer], group.neighbours(peer).index(client)
    size = messages.SEALED_BYTES
    return Relayed(sent.key, sent.sealed[size * at : size * (at + 1)])


def lines(
    prepared: Mapping[int, Prepare], group: Group, client: int, cohort: Collection[int]
) -> dict[int, Relayed]:
    """The same for all of a client's neighbours in the cohort."""
    near = [peer for peer in group.neighbours(client) if peer in cohort]
    return {peer: line(prepared, group, client, peer) for peer in near}


def cohort_message(
    relayed: Mapping[int, Relayed], cohort: Collection[int], machine: ClientRound
) -> bytes:
    """COHORT, with these lines."""
    body = b"".join(relayed[peer].key + relayed[peer].sealed for peer in sorted(relayed))
    members = machine._enrolment.group.members
    return frame(MessageType.COHORT, machine.scope.place, SERVER, encode_set(cohort, members), body)


def survivors_message(
    survivors: Collection[int], signatures: Mapping[int, bytes], machine: ClientRound
) -> bytes:
    """SURVIVORS, with these signatures."""
    group = machine._enrolment.group
    return messages.encode_survivors(survivors, signatures, group, machine.scope.place)


def signatures_message(signatures: Mapping[int, bytes], machine: ClientRound) -> bytes:
    """SIGNATURES, with these."""
    return messages.encode_signatures(signatures, machine._enrolment.group, machine.scope.place)


def sign_story(
    identity: IdentityKey,
    scope: RoundScope,
    group: Group,
    client: int,
    cohort: Clients,
    survivors: Clients,
) -> bytes:
    """Return a client's signature of the cohort, or of the cohort and the survivors."""
    everyone, left = (encode_set(chosen, group.members) for chosen in (cohort, survivors))
    if cohort == survivors:
        return identity.sign(messages.cohort_text(scope, client, group, everyone))
    return identity.sign(messages.survivor_text(scope, client, group, everyone, left))


def still(channel: Channel, index: int) -> None:
    """Channel._move of a mutant: the chain stays what it was in the set-up, in every round."""
    if index != channel._at:
        channel._at = index
        channel._derive()


ALL: Clients = (0, 1, 2, 3)
LATER = RoundTerms(TERMS.index + 2, TERMS.length, TERMS.bound)


@dataclass
class Stage:
    """Four clients, of whom client 0 receives the messages."""

    cohort: Cohort
    machines: Mapping[int, ClientRound]
    prepared: Mapping[int, Prepare]

    @classmethod
    def opened(cls, cohort: Cohort | None = None, terms: RoundTerms = TERMS) -> "Stage":
        cohort = cohort or Cohort(4)
        machines = cohort.open_clients(terms)
        prepared = {k: take_prepare(machine) for k, machine in machines.items()}
        return cls(cohort, machines, prepared)

    def relayed(self, client: int = 0, cohort: Clients = ALL) -> dict[int, Relayed]:
        """Return the line that an honest server relays."""
        return lines(self.prepared, self.cohort.group, client, cohort)

    def tell(self, relayed: Mapping[int, Relayed], cohort: Clients = ALL) -> bytes:
        return self.machines[0].receive(cohort_message(relayed, cohort, self.machines[0]))


def slow_round(cohort: Cohort, terms: RoundTerms = TERMS) -> Iterator[tuple[ClientRound, bytes]]:
    """Client 0 and, stage by stage, the message that it is about to get; client 3 drops out."""
    current = round_of(cohort, terms)
    inbound = current.prepare()
    for lost in ((3,), (), ()):
        yield current.clients[0], inbound[0]
        inbound = current.deliver(current.answer(inbound), without=lost)


def reach(state: ClientState, cohort: Cohort, terms: RoundTerms = TERMS) -> ClientRound:
    """Client 0 of a round, in this state."""
    if state is ClientState.READY:
        return round_of(cohort, terms).clients[0]
    machine = None
    for machine, _ in slow_round(cohort, terms):
        if machine.state is state:
            return machine
    assert machine.state is state
    return machine


def inbox(cohort: Cohort, terms: RoundTerms = TERMS) -> dict[str, bytes]:
    """Every message to client 0 of a round in which client 3 drops out."""
    names = ("COHORT", "SURVIVORS", "SIGNATURES")
    return dict(zip(names, (message for _, message in slow_round(cohort, terms)), strict=True))


def verify_input(data: bytes, scope: RoundScope, sender: int, group: Group, cohort: bytes) -> None:
    """Check the signature of the words in a MASKED message; PeerError where it does not verify.

    cohort: the encoded set that the words are masked for.
    """
    body = Body(data, scope.place, sender, MessageType.MASKED)
    words = np.frombuffer(body.view(scope.words * WORD.itemsize), WORD)
    head, rest = set_bytes(group.neighbours(sender)), messages._prepare_sizes(group.degree)
    _, _, proof, *_ = body.parts(head, SIGNATURE_BYTES, SIGNATURE_BYTES, *rest, TAG_BYTES)
    body.end()
    text = messages.input_text(scope, sender, group, words, cohort)
    scope.session.roster[sender].verify(proof, text, f"client {sender}'s input")
