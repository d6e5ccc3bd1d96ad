"""Pairwise masks that cancel in the sum of all clients.

For a pair i < j both derive one keystream; i adds it and j subtracts it, modulo 2**64
(Bonawitz et al. 2017, equation 1).
"""

from collections.abc import Mapping, Sequence

from secure_fd.crypto.context import Purpose
from secure_fd.crypto.kdf import derive_key
from secure_fd.crypto.keys import AgreementKey
from secure_fd.crypto.prg import BLOCK_WORDS, Keystream, scratch_words
from secure_fd.knowledge import WordArray
from secure_fd.secagg.session import RoundScope


def pair_stream(scope: RoundScope, secret: bytes, one: int, other: int) -> Keystream:
    """The mask stream of a pair of clients: the same from either side, for this round alone."""
    info = scope.context(Purpose.PAIR_MASK, sender=min(one, other), receiver=max(one, other))
    return Keystream(derive_key(secret, salt=scope.session.id, info=info))


def mask_words(
    words: WordArray, added: Sequence[Keystream], subtracted: Sequence[Keystream]
) -> None:
    """Add and subtract the next words of every stream, in place, block by block."""
    scratch = scratch_words()
    for start in range(0, words.size, BLOCK_WORDS):
        block = words[start : start + BLOCK_WORDS]
        for stream in added:
            block += stream.read_words(block.size, scratch)
        for stream in subtracted:
            block -= stream.read_words(block.size, scratch)


def mask_input(
    scope: RoundScope,
    client: int,
    key: AgreementKey,
    peers: Mapping[int, bytes],
    words: WordArray,
) -> None:
    """Mask `client`'s packed words in place, against every peer's key-agreement key."""
    streams = {
        peer: pair_stream(scope, key.exchange(public), client, peer)
        for peer, public in peers.items()
    }
    mask_words(
        words,
        added=[stream for peer, stream in streams.items() if client < peer],
        subtracted=[stream for peer, stream in streams.items() if client > peer],
    )
