"""The homomorphic sum in one process: real BFV ciphertexts of TenSEAL, over the real bytes."""

import os
from collections.abc import Mapping
from typing import ClassVar, Final

from secure_fd.aggregation.base import (
    Stage,
    SumResult,
    Traffic,
    VoidRoundError,
    absences,
    agreed_length,
    uploaders,
)
from secure_fd.aggregation.bfv.client import Client, ClientRound
from secure_fd.aggregation.bfv.keys import KEY_HOLDERS, Dealer
from secure_fd.aggregation.bfv.scheme import MAX_CLIENTS
from secure_fd.aggregation.bfv.scope import MIN_SURVIVORS, Session
from secure_fd.aggregation.bfv.server import Server, ServerRound
from secure_fd.crypto.primitives import SERVER, IdentityKey, RandomBytes, SecretHolder, draw
from secure_fd.errors import ConfigurationError, LocalError, MissingClientError, PeerError
from secure_fd.exchange import Kind, Sum, read_header
from secure_fd.knowledge import UnitArray, WordArray
from secure_fd.secagg.session import NO_NOISE, NoiseTerms, Place, Roster, RoundTerms, frame

_NONCE_BYTES: Final = 32
_STAGES: Final = 3
_SIGNING: Final = (None, Stage.UNMASK)
"""How late a client may go missing and still consent."""


class HomomorphicSum(SecretHolder):
    """Sums under BFV encryption: the server adds ciphertexts, and a key holder reads the sum.

    n_clients: the cohort, numbered from 0, of 3 to 1024; clients 0, 1 and 2 hold the key.
    random: the source of identities and tag keys; encryption draws from SEAL's own generator.
    configuration, proxies: what the session id commits to, beside the roster.

    Raises MissingCapabilityError where tenseal is not installed. A key holder is not kept from
    studying the noise of the summed ciphertext, which is not flooded.
    """

    __slots__ = ("_clients", "_server", "caveats", "n_clients")

    name: ClassVar[str] = "he"
    hides: ClassVar[bool] = True
    guarantee: ClassVar[str] = (
        "Clients 0, 1 and 2 hold one secret key, handed to them where the server cannot read: a "
        "server that follows the protocol, alone or pooling what it knows with any of the other "
        "clients, learns the sum and no more about the rest than that gives away, and a server "
        "that lies, with no client's help, cannot pass off one ciphertext as the sum, since a "
        "key holder decrypts one sum a round, of at least three clients (and a majority of the "
        "cohort) that signed the list of them, and checks under the encryption that every "
        "listed input is in it exactly once. TenSEAL has no threshold decryption: the server "
        "with any one key holder, or a key holder that overhears the others' connections, reads "
        "everybody's input, and that the key holder returns the sum it decrypted is trusted."
    )

    def __init__(
        self,
        n_clients: int,
        *,
        random: RandomBytes = os.urandom,
        configuration: bytes = b"",
        proxies: bytes = b"",
    ) -> None:
        if not MIN_SURVIVORS <= n_clients <= MAX_CLIENTS:
            allowed = f"use {MIN_SURVIVORS} to {MAX_CLIENTS}"
            raise ConfigurationError("n_clients", n_clients, allowed)
        self.n_clients = n_clients
        self.caveats: tuple[str, ...] = ()
        if random is not os.urandom:
            self.caveats = (
                "identities and tag keys come from a caller's randomness, for which this package "
                "cannot vouch",
            )
        identities = {k: IdentityKey.generate(random) for k in range(n_clients)}
        roster = Roster({k: identity.public.raw for k, identity in identities.items()})
        session = Session(roster, configuration, proxies, nonce=draw(random, _NONCE_BYTES))
        dealer = Dealer(session, random)
        self._server = Server(session)
        self._clients = {
            k: Client(k, identities[k], session, dealer.client_keys(k), dealer.holder_keys(k))
            for k in roster
        }

    @property
    def session(self) -> bytes:
        """The id of the session, which commits to roster, proxies and configuration."""
        return self._server.session.id

    @property
    def seed(self) -> None:
        """None: the clients draw nothing together."""

    def client(self, number: int) -> "EncryptedClient":
        """The half of client `number`."""
        return EncryptedClient(self._clients[number])

    def server(self) -> "EncryptedServer":
        """The server's half."""
        return EncryptedServer(self._server)

    def setup_traffic(self) -> Traffic:
        """Nothing: keys are handed out where the server cannot read."""
        return Traffic({}, {}, 0)

    def draw(self, round_index: int, population: int, count: int) -> None:
        """None: the clients draw nothing together."""

    def sum(
        self,
        round_index: int,
        vectors: Mapping[int, UnitArray],
        bound: int,
        *,
        subject: bytes = b"",
        dropouts: Mapping[int, Stage] | None = None,
        noise: NoiseTerms = NO_NOISE,
    ) -> SumResult:
        """See SecureSum.sum. round_index must grow; a round that fails is spent.

        Void with fewer survivors, or consents, than 3 or a majority of the cohort, and where no
        key holder is left to decrypt. PeerError where the sum is not what it should be,
        ConfigurationError for any noise, which an encrypted sum does not carry.
        """
        length = agreed_length(vectors, self.n_clients)
        missing = absences(vectors, self.n_clients, dropouts)
        terms = RoundTerms(round_index, length, bound, subject, noise)
        server = self._server.open_round(terms)
        rounds = {k: self._clients[k].open_round(terms) for k in vectors}
        senders = uploaders(missing, self.n_clients)
        inputs = {k: rounds[k].input(vectors[k]) for k in senders}
        return _Exchange(server, rounds, missing, self.n_clients).run(inputs)


class EncryptedClient:
    """A client's half of the encrypted sum: an input, a consent, and what a key holder opens."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._round: ClientRound | None = None
        self._consented = False
        self._place = Place(client.session.id)

    def start(self) -> list[bytes]:
        """Keys were handed out before."""
        return []

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """The encrypted values."""
        self._round, self._consented = self._client.open_round(terms), False
        self._place = Place(self._client.session.id, terms.index)
        return [self._framed(self._round.input(values))]

    def receive(self, data: bytes) -> list[bytes]:
        """A consent to the list of inputs; of a key holder, after it, the sum."""
        _, _, body = read_header(data, self._place.session, SERVER)
        if self._round is None:
            raise PeerError("a message of a sum came where none is open")
        if self._consented:
            return [self._framed(self._round.open(body))]
        consent = self._round.consent(body)
        self._consented = True
        return [self._framed(consent)]

    def _framed(self, message: bytes) -> bytes:
        return frame(Kind.CIPHER, self._place, self._client.number, message)


class EncryptedServer:
    """The server's half of the encrypted sum: it adds, and asks one key holder after another."""

    readable = False

    def __init__(self, server: Server) -> None:
        self._server, self._session = server, server.session
        self.busy, self.stage = False, Stage.INPUT
        self.result: Sum | None = None
        self.payloads: dict[int, WordArray] = {}
        self.missing: dict[int, Stage] = {}
        self._round: ServerRound | None = None
        self._came: set[int] = set()
        self._expected: set[int] = set()
        self._holders: list[int] = []
        self._survivors: tuple[int, ...] = ()

    @property
    def waiting(self) -> set[int]:
        """The clients whose message of this stage has not come."""
        return self._expected - self._came

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Wait for inputs."""
        self._round = self._server.open_round(terms)
        self._place = Place(self._session.id, terms.index)
        self.busy, self.stage, self.result = True, Stage.INPUT, None
        self._came, self._expected = set(), set(self._session.roster)
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """Take an input, a consent or the sum, whichever this stage asks for."""
        kind, index, body = read_header(data, self._session.id, sender)
        if self._round is None or (kind, index) != (Kind.CIPHER, self._place.index):
            raise PeerError(f"client {sender} sent something else than this sum asks for")
        if sender not in self.waiting:
            raise PeerError(f"client {sender} was not asked in this stage")
        if self.stage is Stage.INPUT:
            self._round.receive_input(sender, body)
        elif self.stage is Stage.CONSISTENCY:
            self._round.receive_consent(sender, body)
        else:
            total = self._round.receive_total(sender, body)
            self.result = Sum(total, self._survivors)
        self._came.add(sender)

    def advance(self) -> Mapping[int, bytes]:
        """Relay the list of inputs, then ask a key holder; MissingClientError with too few."""
        if self._round is None:
            raise LocalError("no sum was opened")
        self.busy = False  # where it fails, this sum is over
        came = tuple(sorted(self._came))
        if self.stage is Stage.INPUT:
            relayed = self._list_inputs(self._round, came)
        elif self.stage is Stage.CONSISTENCY:
            relayed = self._ask_holder(self._round, came)
        elif self.result is None:
            relayed = self._ask_next()
        else:
            return {}
        self.busy = True
        return relayed

    def _list_inputs(self, opened: ServerRound, came: tuple[int, ...]) -> Mapping[int, bytes]:
        self._need_quorum(came, "inputs")
        self._survivors = came
        listed = self._framed(opened.survivors())
        self.stage, self._came, self._expected = Stage.CONSISTENCY, set(), set(came)
        return dict.fromkeys(came, listed)

    def _ask_holder(self, opened: ServerRound, signers: tuple[int, ...]) -> Mapping[int, bytes]:
        self._need_quorum(signers, "consents")
        self._opening = self._framed(opened.opening())
        self._holders = [k for k in signers if k < KEY_HOLDERS]
        self.stage = Stage.UNMASK
        return self._ask_next()

    def _ask_next(self) -> Mapping[int, bytes]:
        if not self._holders:
            raise MissingClientError("no key holder is left to decrypt the sum")
        holder = self._holders.pop(0)
        self._came, self._expected = set(), {holder}
        return {holder: self._opening}

    def _framed(self, message: bytes) -> bytes:
        return frame(Kind.CIPHER, self._place, SERVER, message)

    def _need_quorum(self, clients: tuple[int, ...], what: str) -> None:
        if len(clients) < self._session.quorum:
            needed = self._session.quorum
            raise MissingClientError(f"{len(clients)} {what} arrived and {needed} are needed")


class _Exchange:
    """Carries one round's messages, counts their bytes, and leaves out who is silent."""

    __slots__ = ("_down", "_missing", "_rounds", "_server", "_up")

    def __init__(
        self,
        server: ServerRound,
        rounds: Mapping[int, ClientRound],
        missing: Mapping[int, Stage],
        n_clients: int,
    ) -> None:
        self._server = server
        self._rounds = rounds
        self._missing = missing
        self._up = dict.fromkeys(range(n_clients), 0)
        self._down = dict.fromkeys(range(n_clients), 0)

    def run(self, inputs: Mapping[int, bytes]) -> SumResult:
        """The three stages; VoidRoundError where one of them has too few clients."""
        survivors = tuple(inputs)
        for k, message in inputs.items():
            self._server.receive_input(k, self._sent(k, message))
        self._need_quorum(survivors, "inputs")
        listed = self._server.survivors()
        for k in survivors:
            self._down[k] += len(listed)
        signers = tuple(k for k in survivors if self._missing.get(k) in _SIGNING)
        for k in signers:
            self._server.receive_consent(k, self._sent(k, self._rounds[k].consent(listed)))
        self._need_quorum(signers, "consents")
        return SumResult(
            total=self._decrypted(signers),
            traffic=Traffic(self._up, self._down, _STAGES),
            payloads={},
            readable=False,
            survivors=survivors,
            missing=self._missing,
        )

    def _decrypted(self, signers: tuple[int, ...]) -> WordArray:
        """The sum, from the first key holder that answers; those before it were asked in vain."""
        opening = self._server.opening()
        for holder in (k for k in signers if self._rounds[k].holds_key):
            self._down[holder] += len(opening)
            if holder not in self._missing:
                total = self._sent(holder, self._rounds[holder].open(opening))
                return self._server.receive_total(holder, total)
        raise self._void("no key holder is left to decrypt the sum")

    def _sent(self, client: int, message: bytes) -> bytes:
        self._up[client] += len(message)
        return message

    def _need_quorum(self, clients: tuple[int, ...], what: str) -> None:
        quorum = self._server.scope.session.quorum
        if len(clients) < quorum:
            raise self._void(f"{len(clients)} {what} arrived and {quorum} are needed")

    def _void(self, why: str) -> VoidRoundError:
        traffic = Traffic(self._up, self._down, _STAGES)
        index = self._server.scope.terms.index
        return VoidRoundError(f"round {index} is void: {why}", self._missing, traffic)
