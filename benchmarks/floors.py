"""Floors of secure sums: the CPU seconds of operations that no implementation can leave out.

Each operation is timed alone in the same process and multiplied by how often a round needs it.
For n clients of which d drop out, with k neighbours, t shares that restore a secret, and m values
that are packed into words:

  masks   client  2 X25519 key pairs, 2 exchanges with each neighbour (mask, channel), 2 secrets
                  shared among k + 1 holders, k + 1 AES-128-CTR streams added to the words
          server  n - d vectors added, one set of Lagrange weights for each set of responders, n
                  secrets restored, n - d streams, and for each client that dropped out an exchange
                  and a stream with each of its surviving neighbours
  prio3   client  field additions of a share, and one transform of the proof's wires
          server  the same for each client, by leader and by helper
  he      client  TenSEAL's encryption; its decryption once, by one of n clients
          server  arrays of the ciphertexts' size added
"""

import os
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR

from clock import seconds
from secure_fd.crypto.shamir import combine, draw_element, split, weights_at_zero
from secure_fd.prio3.field import add, ntt
from secure_fd.prio3.votes import vote_sum
from secure_fd.secagg.graph import default_degree, threshold
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.base import SecureSum
from secure_fd.votes.codec import WordArray
from secure_fd.votes.packing import LaneLayout

TIMES = 20
"""Calls over which an operation is timed."""
BLOCK_WORDS = 32_768
"""256 KiB: block and stream stay in a core's cache."""


class Floor(NamedTuple):
    """CPU seconds: client: of one client. server: of the server and its helper."""

    client: float
    server: float


def floor(sums: SecureSum, terms: RoundTerms, dropped: int) -> Floor:
    """Return the floor of one round of this sum."""
    if sums.name == "prio3":
        return _proofs(sums.n_clients, terms)
    if sums.name == "he":
        return _encryption(sums.n_clients, terms)
    return _masks(sums.n_clients, terms, dropped)


def _masks(n: int, terms: RoundTerms, dropped: int) -> Floor:
    degree, staying = default_degree(n), n - dropped
    points, t = range(1, degree + 2), threshold(degree + 1)
    key, peer = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    secret = draw_element(os.urandom)
    shares, weights = split(secret, points, t, os.urandom)[:t], weights_at_zero(points[:t])
    words = np.zeros(LaneLayout(n, terms.bound).words(terms.length), np.uint64)
    total = np.zeros_like(words)
    pair = seconds(lambda: X25519PrivateKey.generate().public_key().public_bytes_raw(), TIMES)
    exchange = seconds(lambda: key.exchange(peer), TIMES)
    sharing = seconds(lambda: split(secret, points, t, os.urandom), TIMES)
    lagrange = seconds(lambda: weights_at_zero(points[:t]), TIMES)
    restoring = seconds(lambda: combine(weights, shares), TIMES)
    stream = seconds(lambda: _add_stream(words), TIMES)
    adding = seconds(lambda: np.add(total, words, out=total), TIMES)
    responders = 1 if degree == n - 1 else n
    lost_pairs = dropped * degree * staying / n
    return Floor(
        client=2 * pair + 2 * degree * exchange + 2 * sharing + (degree + 1) * stream,
        server=staying * (adding + stream)
        + responders * lagrange
        + n * restoring
        + lost_pairs * (exchange + stream),
    )


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


def _proofs(n: int, terms: RoundTerms) -> Floor:
    rows = terms.length // terms.limits.row
    budget = terms.limits.budget or rows * terms.bound
    size = vote_sum(rows, terms.limits.row, terms.bound, budget).circuit.size
    share = np.arange(size.measurement, dtype=np.uint64)
    wires = np.ones((size.points, size.arity), dtype=np.uint64)
    once = seconds(lambda: add(share, share), TIMES) + seconds(lambda: ntt(wires), TIMES)
    return Floor(once, 2 * n * once)


def _encryption(n: int, terms: RoundTerms) -> Floor:
    import tenseal

    from secure_fd.secure_sum import homomorphic as he

    scheme = tenseal.SCHEME_TYPE.BFV
    bits = list(he.PRIME_BITS)
    context = tenseal.context(scheme, he.DEGREE, he.PLAIN_MODULUS, bits, n_threads=1)
    slots, lanes = list(range(he.DEGREE)), he.SLOT_BITS // (n * terms.bound).bit_length()
    ciphertexts = -(-terms.length // lanes) // he.DEGREE + 1
    vector = tenseal.bfv_vector(context, slots)
    array = np.ones(4 * he.DEGREE, np.uint64)
    total = np.zeros_like(array)
    encrypting = seconds(lambda: tenseal.bfv_vector(context, slots), TIMES)
    decrypting = seconds(vector.decrypt, TIMES)
    adding = seconds(lambda: np.add(total, array, out=total), TIMES)
    return Floor(ciphertexts * (encrypting + decrypting / n), ciphertexts * n * adding)
