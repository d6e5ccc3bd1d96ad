"""The messages of a proven sum; PeerError for bytes that are not exactly one of them.

    client -> leader   Report    the votes in shares; the leader hands it on without its own share
    leader -> helper   Reports   terms, commitment to its part of the verify key, reports by client
    helper -> leader   Key       its part of the verify key, the clients whose report it takes
    leader -> helper   Opened    its part of the key, then a verifier share a report that both take
    helper -> leader   Verified  a verifier share a report, the clients whose proof holds, and,
                                 where they are a quorum, the sum of its output shares

Every message has the header of the masked sum (`secagg.session`), and a MessagePack array behind
it. Lengths of shares follow from the terms of the round: `vdaf` checks them.
"""

from enum import IntEnum
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec

from secure_fd.codec import Codec, SecretText
from secure_fd.crypto import keys as crypto
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.prio3.session import VotePurpose, VoteRound, VoteSession
from secure_fd.prio3.vdaf import NONCE_BYTES
from secure_fd.prio3.xof import SEED_BYTES
from secure_fd.secagg.session import RoundTerms
from secure_fd.wire import Kind, Place, frame, read_header

PART_BYTES: Final = 32
"""Bytes of an aggregator's part of the verify key, and of a commitment to one."""
SEALED_BYTES: Final = crypto.PUBLIC_BYTES + 2 * SEED_BYTES + crypto.TAG_BYTES
"""Bytes of the helper's sealed share, which is a seed and a blind."""
_Part = Annotated[bytes, msgspec.Meta(min_length=PART_BYTES, max_length=PART_BYTES)]
_Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Between(IntEnum):
    """Types of messages between the aggregators; no client sends or reads them."""

    REPORTS = 64
    KEY = 65
    OPENED = 66
    VERIFIED = 67


class _Body(SecretText, msgspec.Struct, array_like=True):
    """A message without its header."""

    kind: ClassVar[IntEnum]


class Report(_Body):
    """A client's votes in shares. sealed: the helper's input share. share: the leader's.

    The helper receives it without the leader's share.
    """

    kind = Kind.REPORT

    nonce: _Nonce
    public: bytes
    sealed: bytes
    signature: bytes
    share: bytes = b""

    def signed(self, opened: VoteRound, sender: int) -> bytes:
        """Return the bytes that the client signs."""
        label = opened.context(VotePurpose.SIGNATURE, sender)
        return label + self.nonce + self.public + self.sealed

    def check(self, opened: VoteRound, sender: int) -> None:
        """PeerError unless the sender signed it for this round, and no part of it is too long.

        The leader hands all reports on in one message, which long ones would make unreadable.
        """
        if len(self.sealed) != SEALED_BYTES:
            raise PeerError(f"the sealed share of client {sender} has {len(self.sealed)} bytes")
        signer, what = opened.session.roster[sender], f"the report of client {sender}"
        signer.verify(self.signature, self.signed(opened, sender), what)


class Reports(_Body):
    """The reports that the leader asks the helper to verify, by client."""

    kind = Between.REPORTS

    terms: RoundTerms
    commitment: _Part
    reports: dict[int, Report]


class Key(_Body):
    """The helper's part of the verify key. taken: the clients whose report it can verify."""

    kind = Between.KEY

    part: _Part
    taken: tuple[int, ...]


class Opened(_Body):
    """The leader's part of the verify key, and its verifier shares by client."""

    kind = Between.OPENED

    part: _Part
    verifiers: dict[int, bytes]


class Verified(_Body):
    """The helper's verifier shares by client. valid: the clients whose proof holds.

    total: its share of the sum of their votes; empty below the quorum.
    """

    kind = Between.VERIFIED

    verifiers: dict[int, bytes]
    valid: tuple[int, ...]
    total: bytes


_Message = TypeVar("_Message", Report, Reports, Key, Opened, Verified)
_CODECS: Final[dict[type, Codec[Any]]] = {
    message: Codec(message, f"the {message.kind.name} of a proven sum", PeerError)
    for message in (Report, Reports, Key, Opened, Verified)
}


def write(opened: VoteRound, sender: int, message: _Message) -> bytes:
    """Return a message with its header."""
    return frame(message.kind, opened.place, sender, _CODECS[type(message)].encode(message))


def read(place: Place, sender: int, data: bytes, kind: type[_Message]) -> _Message:
    """Return the message of a round that is due; PeerError, naming the sender, for another."""
    found, index, body = read_header(data, place.session, sender)
    if (found, index) != (kind.kind, place.index):
        wanted = f"{kind.kind.name} of round {place.index}"
        raise PeerError(f"party {sender} sent something else than the {wanted}")
    message: _Message = _CODECS[kind].decode(body)
    return message


def read_reports(session: VoteSession, data: bytes) -> tuple[VoteRound, Reports]:
    """Return the round that a leader asks about, and the reports; PeerError for anything else.

    The helper trusts no terms: each client signed its report under them.
    """
    _, index, _ = read_header(data, session.id, crypto.SERVER)
    asked = read(Place(session.id, index), crypto.SERVER, data, Reports)
    try:
        opened = VoteRound(session, asked.terms)
    except ConfigurationError as error:
        raise PeerError(f"the leader asks for a round that cannot be: {error}") from None
    if index != asked.terms.index or not asked.reports.keys() <= set(session.roster):
        raise PeerError("the leader names another round, or clients that are no voters")
    return opened, asked


def seal(opened: VoteRound, sender: int, share: bytes, random: crypto.RandomBytes) -> bytes:
    """Seal the helper's share under a key of this report alone; its private part is dropped."""
    once = crypto.AgreementKey.generate(random)
    label, cipher = _sealer(opened, sender, once.public, once.exchange(opened.session.helper_key))
    return once.public + cipher.seal(0, share, label)


def unseal(opened: VoteRound, sender: int, sealed: bytes, key: crypto.AgreementKey) -> bytes:
    """Return the share; PeerError, naming the sender, for one that is not sealed to this key."""
    public, box = sealed[: crypto.PUBLIC_BYTES], sealed[crypto.PUBLIC_BYTES :]
    label, cipher = _sealer(opened, sender, public, key.exchange(public))
    return cipher.open(0, box, label, f"the helper's share of client {sender}")


def _sealer(
    opened: VoteRound, sender: int, public: bytes, secret: bytes
) -> tuple[bytes, crypto.Sealer]:
    """(associated data, cipher) of the seal on one report."""
    label = opened.context(VotePurpose.SEAL, sender, crypto.HELPER)
    info = label + public + opened.session.helper_key
    return label, crypto.Sealer(crypto.derive_key(secret, salt=opened.session.id, info=info))
