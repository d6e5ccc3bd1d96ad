"""A client of an encrypted sum, and the key holder that some clients are besides.

    READY --input--> SENT --consent--> CONSENTED --open, key holders only--> ANSWERED

Every step happens once; one that fails leaves ABORTED, for good. What a key holder insists on
before it decrypts, whatever the server says:

- it is asked once a round, and decrypts nothing for a round in which it did not consent;
- the survivors are those to whom it consented itself, at least a quorum, and at least a quorum
  of them signed that very list: a second list, with one client less, would give that client away;
- the tags show every survivor's input of this round in the sum exactly once, and nothing else.
  If they do not, it throws the secret key away: whether false ciphertexts pass would tell a
  patient server of the key (Chillotti, Gama and Goubin 2016), and an honest one sends none.
"""

from enum import Enum, auto

import numpy as np

from secure_fd.aggregation.bfv import messages, tags
from secure_fd.aggregation.bfv.keys import ClientKeys, HolderKeys
from secure_fd.aggregation.bfv.messages import Opening
from secure_fd.aggregation.bfv.scope import Scope, Session
from secure_fd.crypto.primitives import IdentityKey, SecretHolder
from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import UnitArray, WordArray
from secure_fd.secagg.session import RoundCounter, RoundTerms


class ClientState(Enum):
    """How far a client is in a round."""

    READY = auto()
    SENT = auto()
    CONSENTED = auto()
    ANSWERED = auto()
    ABORTED = auto()


class Client(SecretHolder):
    """One client of a session, its keys, and the rounds that it has begun."""

    __slots__ = ("_counter", "holder", "identity", "keys", "number", "session")

    def __init__(
        self,
        number: int,
        identity: IdentityKey,
        session: Session,
        keys: ClientKeys,
        holder: HolderKeys | None = None,
    ) -> None:
        self.number = number
        self.identity = identity
        self.session = session
        self.keys = keys
        self.holder = holder
        self._counter = RoundCounter()

    def open_round(self, terms: RoundTerms) -> "ClientRound":
        """Begin a round on this client's own terms; LocalError unless its number has grown."""
        self._counter.spend(terms.index)
        return ClientRound(self, Scope(self.session, terms))


class ClientRound(SecretHolder):
    """One round of one client."""

    __slots__ = ("_client", "_consented", "scope", "state")

    def __init__(self, client: Client, scope: Scope) -> None:
        self._client = client
        self._consented: tuple[int, ...] = ()
        self.scope = scope
        self.state = ClientState.READY

    @property
    def holds_key(self) -> bool:
        """Whether this client could decrypt."""
        return self._client.holder is not None

    def input(self, values: UnitArray) -> bytes:
        """Encrypt, tag and sign [length] values; LocalError for a value above the bound."""
        self._begin(ClientState.READY)
        scope, client = self.scope, self._client
        if values.shape != (scope.terms.length,):
            raise LocalError(f"the round sums {scope.terms.length} values, not {values.shape}")
        data = np.zeros(scope.ciphertexts * tags.DATA_SLOTS, dtype=np.uint64)
        data[: scope.slots] = scope.layout.pack(values)
        weights, pads = client.keys.weights(scope), client.keys.pads(scope, client.number)
        slots = tags.attach(data.reshape(-1, tags.DATA_SLOTS), weights, pads)
        ciphertexts = client.keys.encryptor.encrypt(slots)
        message = messages.encode_input(scope, client.number, ciphertexts, client.identity)
        self.state = ClientState.SENT
        return message

    def consent(self, message: bytes) -> bytes:
        """Sign the list of survivors, once; PeerError if it is too short or leaves us out."""
        self._begin(ClientState.SENT)
        scope, client = self.scope, self._client
        survivors = messages.decode_survivors(message, scope)
        if client.number not in survivors:
            raise PeerError(f"the survivors {survivors} leave out client {client.number}")
        _check_quorum(len(survivors), "survivors", scope)
        self._consented = survivors
        signed = messages.encode_consent(scope, client.number, survivors, client.identity)
        self.state = ClientState.CONSENTED
        return signed

    def open(self, message: bytes) -> bytes:
        """Decrypt the sum that the survivors agreed on; PeerError for anything else."""
        self._begin(ClientState.CONSENTED)
        scope, client = self.scope, self._client
        if client.holder is None:
            raise LocalError(f"client {client.number} holds no decryption key")
        opening = messages.decode_open(message, scope)
        self._check_consents(opening)
        slots = self._decrypt(client.holder, opening)
        scope.unpack(slots, opening.survivors)  # values that no honest survivors reach stay here
        signed = messages.encode_total(scope, client.number, slots, client.identity)
        self.state = ClientState.ANSWERED
        return signed

    def _begin(self, expected: ClientState) -> None:
        if self.state is not expected:
            raise LocalError(
                f"round {self.scope.terms.index}: client {self._client.number} is "
                f"{self.state.name} where {expected.name} is due"
            )
        self.state = ClientState.ABORTED  # until the step has succeeded

    def _check_consents(self, opening: Opening) -> None:
        if opening.survivors != self._consented:
            raise PeerError(
                f"the sum of {opening.survivors} is offered where {self._consented} was agreed"
            )
        strangers = sorted(set(opening.consents) - set(opening.survivors))
        if strangers:
            raise PeerError(f"clients {strangers} consent to a sum that they are not in")
        _check_quorum(len(opening.consents), "signatures", self.scope)
        for k, signature in opening.consents.items():
            messages.check_consent(self.scope, k, opening.survivors, signature)

    def _decrypt(self, holder: HolderKeys, opening: Opening) -> WordArray:
        scope = self.scope
        slots = holder.decryption.decrypt(opening.ciphertexts)
        weights, pads = self._client.keys.weights(scope), holder.pads(scope, opening.survivors)
        try:
            data = tags.detach(slots, weights, pads)
        except PeerError:
            self._client.holder = None
            raise
        return data.reshape(-1)[: scope.slots]


def _check_quorum(count: int, what: str, scope: Scope) -> None:
    quorum = scope.session.quorum
    if count < quorum:
        raise PeerError(f"{count} {what} are too few; {quorum} of {len(scope.clients)} are needed")
