"""Draws that every party can repeat, and commitments to public data.

Every client commits to a nonce before it receives another's, so one honest client makes the seed of
the joint draw uniform. The draws of all rounds follow from the nonces: a server that aborts rounds
can skip draws, but every client detects that.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto.keys import WORD, Keystream, derive_key, fields
from secure_fd.errors import LocalError

_SEED_LABEL: Final = b"secure-fd joint seed"
_DRAW_LABEL: Final = b"secure-fd joint draw"
_PUBLIC_LABEL: Final = b"secure-fd public nonce"


def joint_seed(nonces: Sequence[bytes]) -> bytes:
    """Hash all clients' nonces, in the order of the clients, to a seed of 32 bytes.

    Lengths are hashed as well, so no two lists of nonces are the same bytes. Raises LocalError
    for a nonce below 16 bytes, or for none at all: such a draw could be foreseen.

    >>> len(joint_seed([b"a nonce of alice", b"and one of bob's"]))
    32
    """
    if not nonces or min(map(len, nonces)) < 16:
        raise LocalError("nonces: a joint seed needs one of 16 bytes or more from every client")
    return hashlib.sha256(fields(_SEED_LABEL, *nonces)).digest()


def draw_indices(seed: bytes, round_index: int, population: int, count: int) -> NDArray[np.int64]:
    """Draw [count] distinct numbers below `population`, ascending; all subsets equally likely.

    Each number gets a 64-bit word of the round's own AES-256-CTR keystream, and those with the
    smallest words are drawn. Where two words are equal all are read anew, so that no tie has to
    be broken and the draw has no bias at all. Raises LocalError where it cannot be made.

    >>> seed = joint_seed(public_nonces(seed=0, n=3))
    >>> draw_indices(seed, round_index=0, population=1000, count=4)
    array([152, 498, 666, 824])
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
    """Derive [n] nonces from a public seed: for runs that have to be repeated, not for secrecy."""
    return tuple(
        hashlib.sha256(_PUBLIC_LABEL + f" {seed} {client}".encode()).digest() for client in range(n)
    )


# Prefixes of RFC 6962: with them no inner node can be passed off as a leaf.
_LEAF, _NODE = b"\x00", b"\x01"


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Hash a list of leaves to 32 bytes that no other list gives (RFC 6962, section 2.1).

    >>> merkle_root([b"a", b"b"]) == merkle_root([b"b", b"a"])
    False
    """
    if not leaves:
        return hashlib.sha256().digest()
    level = [_leaf(leaf) for leaf in leaves]
    while len(level) > 1:
        nodes = [_NODE + one + other for one, other in zip(level[::2], level[1::2], strict=False)]
        alone = level[len(level) & ~1 :]
        level = [hashlib.sha256(node).digest() for node in nodes] + alone
    return level[0]


def proxy_commitment(pixels: NDArray[np.uint8]) -> bytes:
    """Commit to a proxy set: 32 bytes that bind number, order, shape and every pixel.

    pixels: uint8 [P, ...]. A proxy's leaf is its shape, then its pixels. Raises LocalError for
    another type or no proxies.

    >>> proxies = np.zeros((2, 1, 28, 28), dtype=np.uint8)
    >>> proxy_commitment(proxies) == proxy_commitment(proxies.reshape(2, 28, 28))
    False
    """
    if pixels.dtype != np.uint8 or pixels.ndim < 2 or not len(pixels):
        raise LocalError(
            f"pixels: {pixels.dtype} {pixels.shape} is not allowed; use uint8 [P, ...]"
        )
    shape = b"".join(side.to_bytes(4, "big") for side in (pixels.ndim - 1, *pixels.shape[1:]))
    return merkle_root([shape + proxy.tobytes() for proxy in pixels])


def _leaf(content: bytes) -> bytes:
    return hashlib.sha256(_LEAF + content).digest()
