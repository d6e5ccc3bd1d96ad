"""A round's proxies, drawn by all clients together: no single party can choose the seed.

Every client gives a nonce that it has committed to before it sees another's, so one honest
client makes the seed uniform. Whoever knows all nonces finds the same proxies, of coming rounds
as well: a server that makes rounds void can skip draws, in sight of every client.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from secure_fd.crypto.context import fields
from secure_fd.crypto.kdf import derive_key
from secure_fd.crypto.prg import WORD, Keystream
from secure_fd.errors import LocalError
from secure_fd.knowledge import IntArray

NONCE_BYTES: Final = 32
_SEED_LABEL: Final = b"secure-fd joint seed"
_DRAW_LABEL: Final = b"secure-fd joint draw"
_PUBLIC_LABEL: Final = b"secure-fd public nonce"


def joint_seed(nonces: Sequence[bytes]) -> bytes:
    """32 bytes from all clients' nonces, in the order of the clients.

    Lengths are hashed as well, so no two lists of nonces are the same bytes. Raises LocalError
    for a nonce below 16 bytes, or for none at all: such a draw could be foreseen.
    """
    if not nonces or min(map(len, nonces)) < 16:
        raise LocalError("nonces: a joint seed needs one of 16 bytes or more from every client")
    return hashlib.sha256(fields(_SEED_LABEL, *nonces)).digest()


def draw_indices(seed: bytes, round_index: int, population: int, count: int) -> IntArray:
    """[count] distinct numbers below `population`, ascending; every subset is equally likely.

    Each number gets a 64-bit word of the round's own AES-256-CTR keystream, and those with the
    smallest words are drawn. Where two words are equal all are read anew, so that no tie has to
    be broken and the draw has no bias at all. Raises LocalError where it cannot be made.
    """
    if not (0 < count <= population and round_index >= 0):
        raise LocalError(
            f"a draw of {count} of {population} in round {round_index} is impossible; "
            f"use a count from 1 to the population and a round from 0"
        )
    terms = (round_index, population, count)
    info = _DRAW_LABEL + b"".join(term.to_bytes(8, "big") for term in terms)
    stream = Keystream(derive_key(seed, salt=_DRAW_LABEL, info=info))
    while True:
        words = np.frombuffer(stream.read(population * WORD.itemsize), dtype=WORD)
        order = np.argsort(words)
        if (np.diff(words[order]) > 0).all():
            return np.sort(order[:count]).astype(np.int64)


def public_nonces(seed: int, n: int) -> tuple[bytes, ...]:
    """[n] nonces that anybody can compute: for runs that have to be repeated, not for secrecy."""
    return tuple(
        hashlib.sha256(_PUBLIC_LABEL + f" {seed} {client}".encode()).digest()[:NONCE_BYTES]
        for client in range(n)
    )
