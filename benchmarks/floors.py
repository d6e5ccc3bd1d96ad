"""Floor of a masked sum: the CPU seconds of operations that no implementation can leave out.

Each operation is timed alone in the same process and multiplied by how often a round needs it.
For n clients of which d drop out, with k neighbours, t shares that restore a secret, and m values
that are packed into words:

  client  an X25519 key pair, an exchange with each neighbour (its channel is of the set-up), 2
          secrets shared among k + 1 holders, k + 1 AES-128-CTR streams added to the words
  server  n - d vectors added, one set of Lagrange weights for each set of responders, n secrets
          restored, n - d streams, and for each client that dropped out an exchange and a stream
          with each of its surviving neighbours
"""

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR

from clock import seconds
from secure_fd.crypto.shamir import combine, draw_element, split, weights_at_zero
from secure_fd.secagg.graph import default_degree, threshold
from secure_fd.secagg.session import RoundTerms
from secure_fd.votes.codec import WordArray
from secure_fd.votes.packing import LaneLayout

TIMES = 20
"""Calls over which an operation is timed."""
BLOCK_WORDS = 32_768
"""256 KiB: block and stream stay in a core's cache."""


class Floor(NamedTuple):
    """CPU seconds of one client, and of the server."""

    client: float
    server: float


def floor(n: int, terms: RoundTerms, dropped: int) -> Floor:
    """Return the floor of one round of n clients."""
    degree, staying = default_degree(n), n - dropped
    points, t = range(1, degree + 2), threshold(degree + 1)
    key, peer = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    secret = draw_element(os.urandom)
    shares, weights = split(secret, points, t, os.urandom)[:t], weights_at_zero(points[:t])
    words = np.zeros(LaneLayout(n, terms.bound).words(terms.length), np.uint64)
    total = np.zeros_like(words)
    pair = _timed(lambda: X25519PrivateKey.generate().public_key().public_bytes_raw())
    exchange = _timed(lambda: key.exchange(peer))
    sharing = _timed(lambda: split(secret, points, t, os.urandom))
    lagrange = _timed(lambda: weights_at_zero(points[:t]))
    restoring = _timed(lambda: combine(weights, shares))
    stream = _timed(lambda: _add_stream(words))
    adding = _timed(lambda: np.add(total, words, out=total))
    responders = n if dropped and degree < n - 1 else 1
    lost_pairs = dropped * degree * staying / (n - 1)
    return Floor(
        client=pair + degree * exchange + 2 * sharing + (degree + 1) * stream,
        server=staying * (adding + stream)
        + responders * lagrange
        + n * restoring
        + lost_pairs * (exchange + stream),
    )


def _timed(work: Callable[[], object]) -> float:
    work()  # a library loads at its first use
    return seconds(work, TIMES)


def _add_stream(words: WordArray) -> None:
    """Add one AES-128-CTR stream to the words, block by block."""
    stream = Cipher(AES128(bytes(16)), CTR(bytes(16))).encryptor()
    # update_into needs one cipher block of room beyond the data.
    buffer = np.empty(min(BLOCK_WORDS, words.size) + 2, np.uint64)
    room = buffer.view(np.uint8).data
    for start in range(0, words.size, BLOCK_WORDS):
        block = words[start : start + BLOCK_WORDS]
        stream.update_into(bytes(block.nbytes), room)
        np.add(block, buffer[: block.size], out=block)
