"""HKDF-SHA256 (RFC 5869), never without salt or info."""

from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secure_fd.errors import LocalError

KEY_BYTES: Final = 32


def derive_key(secret: bytes, *, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """`length` key bytes from `secret`.

    salt: the session id. info: the context of the key. LocalError where one is empty: such a
    key would be bound to no session, round, peer or purpose.
    """
    if not (secret and salt and info):
        raise LocalError("a key needs a secret, a salt and an info; none of them may be empty")
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)
