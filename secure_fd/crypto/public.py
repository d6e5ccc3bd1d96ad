"""A round's proxies, drawn by all clients together: no single party can choose the seed.

Every client gives a nonce that it has committed to before it sees another's, so one honest
client makes the seed uniform. Whoever knows all nonces finds the same proxies, of coming rounds
as well: a server that makes rounds void can skip draws, in sight of every client.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto.primitives import WORD, Keystream, derive_key, fields
from secure_fd.errors import LocalError, PeerError
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


# One hash for the whole proxy set, against which every single proxy can be checked.
#
# The Merkle tree of RFC 6962: a leaf is hashed behind a zero byte and a node behind a one, so that
# no node can be passed off as a leaf. Clients that agree on the root agree on every pixel.


_LEAF, _NODE = b"\x00", b"\x01"


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """32 bytes that no other list of leaves gives (RFC 6962, section 2.1)."""
    if not leaves:
        return hashlib.sha256().digest()
    level = [_leaf(leaf) for leaf in leaves]
    while len(level) > 1:
        level = _parents(level)
    return level[0]


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings of leaf `index` from the bottom up. Raises LocalError where there is none."""
    if not 0 <= index < len(leaves):
        raise LocalError(f"leaf {index} is not one of {len(leaves)}")
    level, proof = [_leaf(leaf) for leaf in leaves], []
    while len(level) > 1:
        proof += level[index ^ 1 : (index ^ 1) + 1]
        level, index = _parents(level), index // 2
    return tuple(proof)


def check_inclusion(
    root: bytes, leaf: bytes, index: int, count: int, proof: Sequence[bytes]
) -> None:
    """Raise PeerError unless `leaf` is number `index` of the `count` leaves under `root`."""
    place = f"leaf {index} of {count}"
    if not 0 <= index < count:
        raise PeerError(f"{place}: there is no such leaf")
    node, siblings = _leaf(leaf), iter(proof)
    while count > 1:
        # The last node of an odd level has no sibling and moves up as it is.
        if index ^ 1 < count:
            other = next(siblings, b"")
            node = _node(other, node) if index % 2 else _node(node, other)
        index, count = index // 2, (count + 1) // 2
    if node != root or next(siblings, None) is not None:
        raise PeerError(f"{place}: its proof does not lead to the agreed root")


def proxy_commitment(pixels: NDArray[np.uint8]) -> bytes:
    """32 bytes that bind the number of proxies, their order, their shape and every pixel.

    pixels: uint8 [P, ...], one leaf a proxy. Raises LocalError for another type or no proxies.
    """
    return merkle_root(proxy_leaves(pixels))


def proxy_leaves(pixels: NDArray[np.uint8]) -> list[bytes]:
    """[P] leaves: a proxy's shape, then its pixels."""
    if pixels.dtype != np.uint8 or pixels.ndim < 2 or not len(pixels):
        raise LocalError(
            f"pixels: {pixels.dtype} {pixels.shape} is not allowed; use uint8 [P, ...]"
        )
    shape = b"".join(side.to_bytes(4, "big") for side in (pixels.ndim - 1, *pixels.shape[1:]))
    return [shape + proxy.tobytes() for proxy in pixels]


def _leaf(content: bytes) -> bytes:
    return hashlib.sha256(_LEAF + content).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def _parents(level: list[bytes]) -> list[bytes]:
    pairs = zip(level[::2], level[1::2], strict=False)
    return [_node(left, right) for left, right in pairs] + level[len(level) & ~1 :]
