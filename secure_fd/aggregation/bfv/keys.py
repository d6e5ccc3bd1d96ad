"""Who of an encrypted sum holds which secret, and what is derived from it for a round.

A dealer, in practice one of the key holders, makes the secrets once a session and hands every
client its part on channels that the server cannot read; nothing of them ever travels through the
server. Every client gets the public key, the weight key that all share, and its own pad key; a
key holder besides the secret key, and the key from which it derives every client's pads.
"""

from typing import Final

import numpy as np

from secure_fd.aggregation.bfv import tags
from secure_fd.aggregation.bfv.scheme import DecryptionKey, Encryptor
from secure_fd.aggregation.bfv.scope import Purpose, Scope, Session, context
from secure_fd.crypto.primitives import (
    EVERYONE,
    KEY_BYTES,
    RandomBytes,
    SecretHolder,
    derive_key,
    draw,
)
from secure_fd.knowledge import WordArray

KEY_HOLDERS: Final = 3
"""Clients 0, 1 and 2: the more hold the key, the more dropouts a round survives, and the more
clients the others must trust."""


class ClientKeys(SecretHolder):
    """What every client holds: enough to encrypt and to tag its own input."""

    __slots__ = ("_pad_key", "_weight_key", "encryptor")

    def __init__(self, encryptor: Encryptor, weight_key: bytes, pad_key: bytes) -> None:
        self.encryptor = encryptor
        self._weight_key = weight_key
        self._pad_key = pad_key

    def weights(self, scope: Scope) -> WordArray:
        """The round's tag weights [TAGS, DATA_SLOTS], the same for all clients."""
        return tags.weights(_round_key(self._weight_key, Purpose.WEIGHTS, scope, EVERYONE))

    def pads(self, scope: Scope, client: int) -> WordArray:
        """This client's tag pads [ciphertexts, TAGS] of the round."""
        return _pads(self._pad_key, scope, client)


class HolderKeys(SecretHolder):
    """What a key holder holds besides."""

    __slots__ = ("_pad_root", "decryption")

    def __init__(self, decryption: DecryptionKey, pad_root: bytes) -> None:
        self.decryption = decryption
        self._pad_root = pad_root

    def pads(self, scope: Scope, survivors: tuple[int, ...]) -> WordArray:
        """The tag pads of all these clients, added up and not yet reduced: below 2**59."""
        session = scope.session
        each = [_pads(_pad_key(self._pad_root, session, k), scope, k) for k in survivors]
        total: WordArray = np.sum(each, axis=0, dtype=np.uint64)
        return total


class Dealer(SecretHolder):
    """Makes the secrets of a session and hands them out."""

    __slots__ = ("_holder", "_pad_root", "_session", "_weight_key")

    def __init__(self, session: Session, random: RandomBytes) -> None:
        self._session = session
        self._weight_key = draw(random, KEY_BYTES)
        self._pad_root = draw(random, KEY_BYTES)
        self._holder = HolderKeys(DecryptionKey.generate(), self._pad_root)

    def client_keys(self, client: int) -> ClientKeys:
        """The part of one client."""
        pad_key = _pad_key(self._pad_root, self._session, client)
        return ClientKeys(self._holder.decryption.encryptor, self._weight_key, pad_key)

    def holder_keys(self, client: int) -> HolderKeys | None:
        """The key holders' part; None for any other client."""
        return self._holder if client < KEY_HOLDERS else None


def _pad_key(root: bytes, session: Session, client: int) -> bytes:
    info = context(Purpose.PAD_KEY, session.id, b"", client)
    return derive_key(root, salt=session.id, info=info)


def _pads(pad_key: bytes, scope: Scope, client: int) -> WordArray:
    return tags.pads(_round_key(pad_key, Purpose.PADS, scope, client), scope.ciphertexts)


def _round_key(key: bytes, purpose: Purpose, scope: Scope, party: int) -> bytes:
    return derive_key(key, salt=scope.session.id, info=scope.context(purpose, party))
