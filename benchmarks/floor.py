"""The floor of a whole round of secure aggregation: its bare primitives, run and checked.

What is counted, for n clients with k neighbours and m words of 32 bits:

  client   2 X25519 key pairs; 2 exchanges with each neighbour, one for its mask and one for the
           channel that would seal its share; 2 secrets shared among k + 1 holders; k + 1
           AES-128-CTR keystreams, each added to or taken from the vector, block by block
  server   the vectors of the survivors added; Lagrange weights once a set of responders; one
           secret combined for each client; a survivor's self mask taken away; for a dropped
           client, one exchange and one keystream with each of its surviving neighbours

Nothing else is: no packing, no key derivation, no seal, no signature, no message and no check,
so nothing that could be used. It is a real sum all the same: `floor_round` refuses to give a
time for a round whose total is not the sum of the survivors' vectors.

A session that keeps its channels needs one exchange a neighbour and one key pair a round;
`exchanges=1` gives that floor.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from cells import Cell, Cost, Meter
from secure_fd.crypto.shamir import combine, draw_element, split, weights_at_zero

Words = NDArray[np.uint32]
Stream = tuple[CipherContext, bool]
"""A keystream, and whether it is added."""

BLOCK_WORDS: Final = 65_536
"""256 KiB: block and keystream stay in a core's cache."""

_ZEROS: Final = memoryview(bytes(4 * BLOCK_WORDS))
_KEY_BYTES: Final = 16
_NO_COUNTER: Final = bytes(16)


@dataclass(slots=True)
class _Client:
    number: int
    self_seed: int
    private: list[X25519PrivateKey]
    public: list[bytes]
    root_shares: list[int]
    seed_shares: list[int]


def floor_round(cell: Cell, dropped: frozenset[int], values: Words, *, exchanges: int = 2) -> Cost:
    """Run one round of the bare primitives; every client sums `values` [m].

    dropped: clients that share their secrets and send no vector. exchanges: 2 where channels
    are set up as well, 1 where they stand. Raises SystemExit where the total is wrong.
    """
    opening, masking, server = Meter(), Meter(), Meter()
    parties = []
    for number in range(cell.clients):
        with opening:
            parties.append(_open(number, cell, exchanges))
    total = np.zeros_like(values)
    alive = [party for party in parties if party.number not in dropped]
    for party in alive:
        with masking:
            masked = _mask(party, parties, cell, values)
        with server:
            total += masked
    with server:
        _unmask(total, parties, dropped, cell)
    if not np.array_equal(total, values * np.uint32(len(alive))):
        raise SystemExit("floor: the total is not the sum of the survivors' vectors")
    client = opening.seconds / len(parties) + masking.seconds / len(alive)
    return Cost(client, server.seconds, values.nbytes)


def _open(number: int, cell: Cell, exchanges: int) -> _Client:
    root, seed = draw_element(os.urandom), int.from_bytes(os.urandom(_KEY_BYTES))
    private = [X25519PrivateKey.from_private_bytes(root.to_bytes(32))]
    private += [X25519PrivateKey.generate() for _ in range(exchanges - 1)]
    public = [key.public_key().public_bytes_raw() for key in private]
    points = range(1, cell.shares + 1)
    shares = [split(secret, points, cell.threshold, os.urandom) for secret in (root, seed)]
    return _Client(number, seed, private, public, *shares)


def _stream(key: bytes, added: bool) -> Stream:
    return Cipher(AES128(key[:_KEY_BYTES]), CTR(_NO_COUNTER)).encryptor(), added


def _exchange(key: X25519PrivateKey, peer: bytes) -> bytes:
    return key.exchange(X25519PublicKey.from_public_bytes(peer))


def _apply(words: Words, streams: Iterable[Stream]) -> None:
    # update_into wants one cipher block of room beyond the data.
    buffer = np.empty(BLOCK_WORDS + 4, dtype=np.uint32)
    room, streams = buffer.view(np.uint8).data, list(streams)
    for start in range(0, words.size, BLOCK_WORDS):
        block = words[start : start + BLOCK_WORDS]
        zeros, mask = _ZEROS[: block.nbytes], buffer[: block.size]
        for cipher, added in streams:
            cipher.update_into(zeros, room)
            (np.add if added else np.subtract)(block, mask, out=block)


def _mask(party: _Client, parties: Sequence[_Client], cell: Cell, values: Words) -> Words:
    streams = [_stream(party.self_seed.to_bytes(_KEY_BYTES), True)]
    for peer in cell.peers(party.number):
        secret, *_ = [
            _exchange(key, public)
            for key, public in zip(party.private, parties[peer].public, strict=True)
        ]
        streams.append(_stream(secret, party.number < peer))
    masked = values.copy()
    _apply(masked, streams)
    return masked


def _unmask(total: Words, parties: Sequence[_Client], dropped: frozenset[int], cell: Cell) -> None:
    weights: dict[tuple[int, ...], tuple[int, ...]] = {}
    streams: list[Stream] = []
    for party in parties:
        holders = enumerate(cell.holders(party.number), 1)
        answers = [point for point, holder in holders if holder not in dropped]
        points = tuple(answers[: cell.threshold])
        if points not in weights:
            weights[points] = weights_at_zero(points)
        lost = party.number in dropped
        shares = party.root_shares if lost else party.seed_shares
        secret = combine(weights[points], [shares[point - 1] for point in points])
        if lost:
            alive = [parties[peer] for peer in cell.peers(party.number) if peer not in dropped]
            streams += _lost_halves(party.number, secret, alive)
        else:
            streams.append(_stream(secret.to_bytes(_KEY_BYTES), False))
    _apply(total, streams)


def _lost_halves(number: int, root: int, alive: Iterable[_Client]) -> Iterator[Stream]:
    """The masks a dropped client would have sent: they cancel the survivors' halves."""
    key = X25519PrivateKey.from_private_bytes(root.to_bytes(32))
    for peer in alive:
        yield _stream(_exchange(key, peer.public[0]), number < peer.number)
