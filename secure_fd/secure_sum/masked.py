"""The masked sum: both halves over the protocol's own machines, and a set-up in one process."""

import os
from collections.abc import Mapping
from typing import Final

from secure_fd.crypto.keys import (
    SERVER,
    AgreementKey,
    IdentityKey,
    RandomBytes,
    SecretHolder,
    draw,
    insecure_bytes,
    quantum_safe_available,
)
from secure_fd.crypto.public_draws import public_nonces
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.client import Client, ClientRound
from secure_fd.secagg.graph import COMPLETE_UP_TO, SECURITY_BITS, SEED_BYTES
from secure_fd.secagg.server import Server, ServerRound, ServerState
from secure_fd.secagg.session import (
    EPOCH_ROUNDS,
    MIN_COHORT,
    SESSION_BYTES,
    Accepted,
    Floors,
    Group,
    MessageType,
    Roster,
    RoundTerms,
    Session,
)
from secure_fd.secagg.setup import ClientSetup, ServerSetup, SetupStage, SetupState
from secure_fd.secure_sum.base import (
    SecureSum,
    Stage,
    SumClient,
    SumPromise,
    SumServer,
    Traffic,
)
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Sum

_STAGES: Final = {
    ServerState.PREPARE: Stage.PREPARE,
    ServerState.INPUT: Stage.INPUT,
    ServerState.CONSISTENCY: Stage.CONSISTENCY,
    ServerState.UNMASK: Stage.UNMASK,
}
_JOIN: Final = MessageType.JOIN.to_bytes(2, "big")
_PREPARE: Final = MessageType.PREPARE.to_bytes(2, "big")


def set_up(
    server: Server, clients: Mapping[int, Client], nonces: Mapping[int, bytes] | None = None
) -> tuple[Group, Traffic]:
    """One set-up of all these clients in this process, and what it moved.

    nonces: parts in the joint seed that are not drawn.
    """
    collected, given = server.open_setup(), nonces or {}
    setups = {k: client.open_setup(given.get(k)) for k, client in clients.items()}
    outbound: dict[int, bytes | None] = {k: machine.start() for k, machine in setups.items()}
    up, down, stages = dict.fromkeys(clients, 0), dict.fromkeys(clients, 0), 0
    while collected.stage is not SetupStage.DONE:
        for k, message in outbound.items():
            if message is not None:
                up[k] += len(message)
                collected.receive(k, message)
        stages += 1
        inbound = collected.advance()
        for k, answer in inbound.items():
            down[k] += len(answer)
        outbound = {k: setups[k].receive(answer) for k, answer in inbound.items()}
    server.enrol(collected)
    for k, client in clients.items():
        client.enrol(setups[k])
    return collected.group, Traffic(up, down, stages)


class MaskedClient(SumClient, SecretHolder):
    """A client's half of the masked sum: set-up, then one round after another.

    A round of another epoch than the last set-up's begins with a set-up. So does one in which the
    server invites all clients to a set-up: MEMBERS without a line. It does so when a client asked
    for one, because a message of the last set-up did not reach it.

    client: enrolled already, or it joins the set-up. nonce: its part in the joint seed, drawn by
    default.
    """

    __slots__ = (
        "_client",
        "_due",
        "_earlier",
        "_invitation",
        "_joined",
        "_machine",
        "_nonce",
    )

    def __init__(self, client: Client, nonce: bytes | None = None) -> None:
        self._client, self._nonce = client, nonce
        self._machine: ClientSetup | ClientRound | None = None
        self._due: tuple[RoundTerms, UnitArray] | None = None
        self._invitation = invitation(client.session)
        self._joined = False  # since the last `load`
        self._earlier = Accepted()  # of the last set-up

    @property
    def gave(self) -> bool:
        """Whether it has given what the server needs to read the newest sum."""
        return isinstance(self._machine, ClientRound) and self._machine.gave

    def start(self) -> list[bytes]:
        """The first message of the set-up, where it was not made yet."""
        return [] if self._client.enrolled else self.join()

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """Open the round and prepare its masks, or join the set-up that it needs."""
        self._joined, self._due = False, (terms, values)
        serves = self._client.serves(terms.index)
        return self._begin(terms, values) if serves else self.join()

    def _begin(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        opened = self._client.open_round(terms)
        opened.load(values)
        self._machine = opened
        first = opened.start()
        return [] if first is None else [first]

    def receive(self, data: bytes) -> list[bytes]:
        """The machine's answer; the end of a set-up enrols, and opens the round that waits.

        An exact copy of an accepted message has no effect.
        """
        machine = self._machine
        # The CAPSULES of a client without lower neighbours are the same bytes in every set-up.
        if not isinstance(machine, ClientSetup) and self._earlier.has(SERVER, data):
            return []
        if data == self._invitation:
            return self._accept_invitation()
        if machine is None:
            raise PeerError("a message of a sum came where none is open")
        due, self._due = self._due, None  # dropped where it is masked, or the machine refuses
        reply = machine.receive(data)
        if isinstance(machine, ClientSetup):
            self._due = due
            if machine.state is SetupState.DONE:
                self._earlier, self._machine = machine.accepted, None
                self._client.enrol(machine)
                return [] if due is None else self._begin(*due)
        return [reply] if reply else []

    def _accept_invitation(self) -> list[bytes]:
        """Leave the round and join; after a JOIN in the same round an invitation has no effect.

        The values that wait are masked once, under the next set-up: a round that masked an input
        does not give its number back, and its values are not here any more.
        """
        if self._joined or self._client.settled:
            return []
        if isinstance(self._machine, ClientRound) and not self._machine.withdraw():
            self._due = None
        return self.join()

    def join(self) -> list[bytes]:
        """Join a set-up, and leave the one in use."""
        self._joined = True
        self._machine = self._client.open_setup(self._nonce)
        return [self._machine.start()]


def invitation(session: Session) -> bytes:
    """The message that asks clients to join a set-up: MEMBERS without a line.

    It is not signed: a set-up without need costs time, as a round that is aborted does.
    """
    return messages.encode_members((), session)


class MaskedServer(SumServer):
    """Server role of the masked sum: a set-up, or a round of the server's machine.

    A client that lost a message of the set-up has none, and joins in every round. The next round
    then begins with a set-up of all clients, so that it is in that round's sum.

    server: enrolled already, or it begins with a set-up. anew: it begins with one in any case.
    """

    def __init__(self, server: Server, *, anew: bool = False) -> None:
        self._server = server
        self._setup = server.open_setup() if anew or not server.enrolled else None
        self._round: ServerRound | None = None
        self._due: RoundTerms | None = None  # of the round that waits for the set-up
        self._earlier = Accepted()  # of the last set-up
        self._asking: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether a stage of the set-up or of a sum is open."""
        if self._setup is not None:
            return self._setup.stage is not SetupStage.ABORTED
        return self._round is not None and self._round.running

    @property
    def stage(self) -> Stage:
        """The stage that is open, or was last; PREPARE in a set-up."""
        return Stage.PREPARE if self._round is None else _STAGES[self._round.stage]

    @property
    def opened(self) -> bool:
        """Whether clients may have given what it takes to read the newest sum."""
        return self._round is not None and self._round.opened

    @property
    def result(self) -> Sum | None:
        """The newest sum, once it is there."""
        if self._round is None or not self._round.finished:
            return None
        return Sum(self._round.total, self._round.survivors)

    @property
    def missing(self) -> dict[int, Stage]:
        """By client, the first stage of this sum that it did not answer."""
        noticed = {} if self._round is None else self._round.missing
        return {client: _STAGES[stage] for client, stage in noticed.items()}

    @property
    def waiting(self) -> set[int]:
        """The clients that the round still waits for in this stage."""
        return set() if self._round is None else set(self._round.waiting)

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Open the round; inputs of the last one may have carried its first stage already.

        A round of a new epoch begins with a set-up, for which clients join of themselves. A set-up
        within an epoch is for clients that asked for one; the others are invited.
        """
        serves = self._server.serves(terms.index)
        if not serves or self._needs_setup():
            self._setup, self._due, self._round = self._server.open_setup(), terms, None
            session = self._server.session
            if not session.complete:
                self._asking = set()  # where the others are settled, no further round is lost
            return dict.fromkeys(session.roster, invitation(session)) if serves else {}
        self._asking = set()
        return self._open_round(terms)

    def _open_round(self, terms: RoundTerms) -> Mapping[int, bytes]:
        self._due, self._round = None, self._server.open_round(terms)
        return {} if self._round.waiting else self._round.advance()

    def _needs_setup(self) -> bool:
        """Whether a client asks for a set-up that the others would join.

        In a sparse graph clients keep a set-up that served a round; see `Client.settled`.
        """
        return bool(self._asking) and (self._failed or self._server.session.complete)

    @property
    def _failed(self) -> bool:
        """Whether the newest set-up or round was aborted."""
        if self._setup is not None:
            return self._setup.stage is SetupStage.ABORTED
        return self._round is not None and self._round.state is ServerState.ABORTED

    def receive(self, sender: int, data: bytes) -> None:
        """Take a message of this stage; one that is not asked for any more is left unread.

        A client that was away cannot know that its last input brought what PREPARE brings, nor one
        that begins a round that a set-up comes before it. An exact copy has no effect.
        PeerError for a bad one, whose sender is out of the round.
        """
        prepares = data[2:4] == _PREPARE
        if self._setup is not None:
            if not prepares:
                self._setup.receive(sender, data)
            return
        if self._earlier.has(sender, data) or self._asks(sender, data):
            return
        opened = self._open()
        again = prepares and opened.state is not ServerState.PREPARE
        if opened.waits_for(sender) and not again:
            opened.receive(sender, data)

    def _asks(self, sender: int, data: bytes) -> bool:
        """Whether a client has no part in the set-up in use; PeerError for a bad JOIN.

        It joins where it knows of no set-up; where it knows of an earlier one, it prepares a round
        without being a member. A barred client brings about no set-up.
        """
        session = self._server.session
        if data[2:4] not in (_JOIN, _PREPARE) or sender not in session.roster:
            return False
        if data[2:4] == _JOIN:
            messages.decode_join(data, session, sender).verify(session)
        elif sender in self._server.group.members:
            return False
        if sender not in self._server.barred:
            self._asking.add(sender)
        return True

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage: relays by client. MissingClientError where too few are left."""
        return self._open().advance() if self._setup is None else self._advance_setup(self._setup)

    def _advance_setup(self, setup: ServerSetup) -> Mapping[int, bytes]:
        relayed = setup.advance()
        if setup.stage is SetupStage.DONE:
            terms = self._due
            within = terms is not None and self._server.serves(terms.index)
            self._server.enrol(setup, self._server.barred if within else None)
            self._setup, self._earlier, self._asking = None, setup.accepted, set()
            if terms is not None:
                self._open_round(terms)
        return relayed

    def _open(self) -> ServerRound:
        if self._round is None:
            raise LocalError("no sum was opened")
        return self._round


class MaskedSum(SecureSum, SecretHolder):
    """Sums under pairwise masks; the server adds words that are uniform to it.

    n_clients: the cohort, numbered from 0: three or more.
    random: the source of every key; insecure_seed makes all keys repeatable instead.
    public_seed: makes the clients' public choices (proxies of a round, graph) repeatable, and
    foreseeable by whoever knows it. configuration, proxies: what the session id commits to,
    beside the roster.
    hybrid: ML-KEM-768 in the channels, by default wherever the library offers it; True refuses to
    go without.
    epoch: rounds after which clients set up anew.

    >>> sums = MaskedSum(3)
    >>> sums.hides, sums.n_clients
    (True, 3)
    """

    __slots__ = (
        *("_clients", "_server", "_traffic"),
        *("caveats", "corrupt", "guarantee", "n_clients", "seed", "session"),
    )

    name = "masks"

    def __init__(
        self,
        n_clients: int,
        *,
        random: RandomBytes = os.urandom,
        insecure_seed: int | None = None,
        public_seed: int | None = None,
        configuration: bytes = b"",
        proxies: bytes = b"",
        hybrid: bool | None = None,
        epoch: int = EPOCH_ROUNDS,
    ) -> None:
        if n_clients < MIN_COHORT:
            allowed = f"use {MIN_COHORT} or more, since the sum of fewer shows the inputs"
            raise ConfigurationError("n_clients", n_clients, allowed)
        self.n_clients = n_clients
        self.caveats = _caveats(n_clients, random, insecure_seed, public_seed)
        random = random if insecure_seed is None else insecure_bytes(insecure_seed)
        # The library takes no randomness for an encapsulation, so a seed cannot repeat it.
        offered = quantum_safe_available() and insecure_seed is None
        identities = {k: IdentityKey.generate(random) for k in range(n_clients)}
        key = AgreementKey.generate(random)
        session = Session(
            roster=Roster({k: identity.public.raw for k, identity in identities.items()}),
            configuration=configuration,
            proxies=proxies,
            nonce=draw(random, SESSION_BYTES),
            server=key.public,
            hybrid=offered if hybrid is None else hybrid,
            epoch=epoch,
        )
        floors = Floors(quantum_safe=bool(hybrid))
        self._server = Server(session, key)
        self._clients = {
            k: Client(k, identity, session, floors, random) for k, identity in identities.items()
        }
        nonces = {}
        if public_seed is not None:
            nonces = dict(enumerate(public_nonces(public_seed, n_clients)))
        group, self._traffic = set_up(self._server, self._clients, nonces)
        self.session, self.seed, self.corrupt = session.id, group.seed, group.corrupt
        self.guarantee = masked_guarantee(group, public_seed)

    def client(self, number: int) -> "MaskedClient":
        """The client role of client `number`, enrolled."""
        return MaskedClient(self._clients[number])

    def server(self) -> "MaskedServer":
        """The server role, enrolled."""
        return MaskedServer(self._server)

    def setup_traffic(self) -> Traffic:
        """What the set-up moved."""
        return self._traffic


class RosterMasks(SumPromise):
    """Promise of the masked sum of a roster, as it is known before the set-up: all clients join."""

    name = "masks"

    def __init__(self, session: Session) -> None:
        group = Group(session, tuple(session.roster), b"", bytes(SEED_BYTES))
        self.n_clients, self.corrupt = len(session.roster), group.corrupt
        self.guarantee = masked_guarantee(group, None)


def masked_guarantee(group: Group, public_seed: int | None) -> str:
    """What a group's masks promise, and what they do not; docs/protocol.md says why."""
    session = group.session
    agreement = (
        "X25519 and ML-KEM-768, so that a later quantum computer does not open them"
        if session.hybrid
        else "X25519, which a later quantum computer would open"
    )
    draws = (
        "The clients draw each round's proxies together."
        if public_seed is None
        else f"Each round's proxies follow from the public seed {public_seed}, so that rows can be "
        f"compared; in earnest the clients draw them together."
    )
    return (
        f"A server, even one that lies, {_with_whom(group)}, learns the sums that a round asks "
        f"for, each over at least {group.quorum} clients (it carries the count), and nothing more "
        f"about any one input than they give away, if the identities are pinned; keys are "
        f"agreed with {agreement}. Every input carries a tag, and a signature that is kept for "
        f"disputes. Whoever reads a client's memory in a round opens none of its inputs of earlier "
        f"rounds, but the one that it has not sent yet and those until the next set-up (one every "
        f"{session.epoch} rounds). One client can move a sum by {len(session.roster)} times the "
        f"bound either way, speak for a class that it alone holds, and void rounds without being "
        f"named. Not covered: a value that only one client contributes to, what two sums give away "
        f"together, lying inputs, and a server that corrupts the sum. {draws}"
    )


def _with_whom(group: Group) -> str:
    """How many corrupt clients a group stands, and when they may become so."""
    n, corrupt = len(group.members), group.corrupt
    if group.degree == n - 1:
        return f"together with up to {corrupt} of the {n} clients, whenever it corrupts them"
    return (
        f"together with up to {corrupt} of the {n} clients, corrupt before the graph is drawn "
        f"({group.degree} neighbours each, failure below 2^-{SECURITY_BITS} a set-up; if it "
        f"corrupts {group.tolerated + 1} of one client's neighbours once the graph is known, it "
        f"reads that client)"
    )


def _caveats(
    n_clients: int, random: RandomBytes, seed: int | None, public_seed: int | None
) -> tuple[str, ...]:
    found = []
    if seed is not None and random is not os.urandom:
        raise ConfigurationError("insecure_seed", seed, "give a seed or a random source, not both")
    if seed is not None:
        found.append(
            f"INSECURE: all keys are derived from the seed {seed}; whoever knows it unmasks"
        )
    elif random is not os.urandom:
        found.append("keys come from a caller's randomness, for which this package cannot vouch")
    if public_seed is not None and n_clients > COMPLETE_UP_TO:
        found.append(
            f"INSECURE: the graph of who masks with whom follows from the seed {public_seed}; "
            f"corrupt clients can foresee it"
        )
    return tuple(found)
