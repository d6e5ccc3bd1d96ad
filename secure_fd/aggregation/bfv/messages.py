"""The messages of an encrypted sum, byte by byte.

The frame is that of the masked sum (secagg/wire.py), with types of its own.

    INPUT      client -> server      ciphertexts, 73,728 bytes each; signature 64
    SURVIVORS  server -> client      set of clients 1 bit each
    CONSENT    client -> server      signature 64
    OPEN       server -> key holder  set of survivors, set of signers, their signatures 64 each;
                                     the summed ciphertexts
    TOTAL      key holder -> server  slots, each u64 little-endian; signature 64

Every length is fixed before the message comes; what is not exactly such a message is a PeerError.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from secure_fd.aggregation.bfv import scheme
from secure_fd.aggregation.bfv.scope import Purpose, Scope
from secure_fd.crypto.primitives import SERVER, SIGNATURE_BYTES, WORD, IdentityKey
from secure_fd.errors import PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.session import Place, decode_set, encode_set, frame, set_bytes


class MessageType(IntEnum):
    """Every message there is."""

    INPUT = 1
    SURVIVORS = 2
    CONSENT = 3
    OPEN = 4
    TOTAL = 5


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What a key holder is asked to decrypt, and on whose word.

    consents: by client, its signature on the survivors. ciphertexts: their sum.
    """

    survivors: tuple[int, ...]
    consents: Mapping[int, bytes]
    ciphertexts: WordArray = field(repr=False)


def encode_input(scope: Scope, client: int, ciphertexts: WordArray, identity: IdentityKey) -> bytes:
    """A client's ciphertexts, signed -> message."""
    body = scheme.encode(ciphertexts)
    signature = scope.sign(Purpose.INPUT, client, body, identity)
    return _frame(MessageType.INPUT, scope, client, body, signature)


def decode_input(data: bytes, scope: Scope, client: int) -> WordArray:
    """Message -> the ciphertexts that this client signed for this round."""
    size = scope.ciphertexts * scheme.CIPHER_BYTES
    body = _body(data, MessageType.INPUT, scope, client, size + SIGNATURE_BYTES)
    scope.verify(Purpose.INPUT, client, body[:size], body[size:])
    return scheme.decode(body[:size], scope.ciphertexts)


def encode_survivors(scope: Scope, survivors: tuple[int, ...]) -> bytes:
    """Whose inputs the server has added up -> message."""
    return _frame(MessageType.SURVIVORS, scope, SERVER, encode_set(survivors, scope.clients))


def decode_survivors(data: bytes, scope: Scope) -> tuple[int, ...]:
    """Message -> the survivors, ascending."""
    size = set_bytes(scope.clients)
    return decode_set(_body(data, MessageType.SURVIVORS, scope, SERVER, size), scope.clients)


def encode_consent(
    scope: Scope, client: int, survivors: tuple[int, ...], identity: IdentityKey
) -> bytes:
    """A client's signature on the survivors -> message."""
    listed = encode_set(survivors, scope.clients)
    signature = scope.sign(Purpose.CONSENT, client, listed, identity)
    return _frame(MessageType.CONSENT, scope, client, signature)


def decode_consent(data: bytes, scope: Scope, client: int, survivors: tuple[int, ...]) -> bytes:
    """Message -> this client's signature on these survivors."""
    signature = _body(data, MessageType.CONSENT, scope, client, SIGNATURE_BYTES)
    check_consent(scope, client, survivors, signature)
    return signature


def check_consent(scope: Scope, client: int, survivors: tuple[int, ...], signature: bytes) -> None:
    """PeerError unless the client signed these survivors in this round."""
    listed = encode_set(survivors, scope.clients)
    scope.verify(Purpose.CONSENT, client, listed, signature)


def encode_open(scope: Scope, opening: Opening) -> bytes:
    """Opening -> message."""
    sets = (encode_set(chosen, scope.clients) for chosen in (opening.survivors, opening.consents))
    signatures = (opening.consents[k] for k in sorted(opening.consents))
    ciphertexts = scheme.encode(opening.ciphertexts)
    return _frame(MessageType.OPEN, scope, SERVER, *sets, *signatures, ciphertexts)


def decode_open(data: bytes, scope: Scope) -> Opening:
    """Message -> opening; its signatures are not checked here."""
    body = _body(data, MessageType.OPEN, scope, SERVER)
    width = set_bytes(scope.clients)
    survivors = decode_set(body[:width], scope.clients)
    signers = decode_set(body[width : 2 * width], scope.clients)
    start, stop = 2 * width, 2 * width + SIGNATURE_BYTES * len(signers)
    each = (body[at : at + SIGNATURE_BYTES] for at in range(start, stop, SIGNATURE_BYTES))
    consents = dict(zip(signers, each, strict=True))
    return Opening(survivors, consents, scheme.decode(body[stop:], scope.ciphertexts))


def encode_total(scope: Scope, client: int, slots: WordArray, identity: IdentityKey) -> bytes:
    """The summed slots, signed -> message."""
    body = slots.astype(WORD).tobytes()
    signature = scope.sign(Purpose.TOTAL, client, body, identity)
    return _frame(MessageType.TOTAL, scope, client, body, signature)


def decode_total(data: bytes, scope: Scope, client: int) -> WordArray:
    """Message -> the summed slots that this key holder signed for this round."""
    size = scope.slots * WORD.itemsize
    body = _body(data, MessageType.TOTAL, scope, client, size + SIGNATURE_BYTES)
    scope.verify(Purpose.TOTAL, client, body[:size], body[size:])
    return np.frombuffer(body[:size], dtype=WORD).astype(np.uint64)


def _frame(kind: MessageType, scope: Scope, sender: int, *body: bytes) -> bytes:
    return frame(kind, Place(scope.session.id, scope.terms.index), sender, *body)


def _body(
    data: bytes, kind: MessageType, scope: Scope, sender: int, size: int | None = None
) -> bytes:
    """What follows the header that this message must have, of this size where one is given."""
    expected = _frame(kind, scope, sender)
    if data[: len(expected)] != expected:
        raise PeerError(
            f"a message is not party {sender}'s {kind.name} for round {scope.terms.index} "
            f"of this session"
        )
    body = data[len(expected) :]
    if size is not None and len(body) != size:
        raise PeerError(f"a {kind.name} body has {len(body)} bytes, not {size}")
    return body
