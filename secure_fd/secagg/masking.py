"""Masks: one stream for each pair, which cancels in the sum, and one of each client's own.

For a pair i < j both derive one keystream; i adds it and j subtracts it, modulo 2**64, and each
adds its self mask (Bonawitz et al. 2017, section 4.0.2). A pair's key needs two secrets: what the
two round keys agree on, fresh in every round, and what the pair's channel gives for this round,
which in a hybrid session holds against a quantum computer as well.
"""

from collections.abc import Mapping, Sequence

from secure_fd.crypto import shamir
from secure_fd.crypto.context import EVERYONE, Purpose
from secure_fd.crypto.kdf import derive_key
from secure_fd.crypto.keys import AgreementKey
from secure_fd.crypto.prg import BLOCK_WORDS, Keystream, scratch_words
from secure_fd.knowledge import WordArray
from secure_fd.secagg.session import RoundScope


def pair_stream(
    scope: RoundScope, one: int, other: int, key: AgreementKey, public: bytes, pair_secret: bytes
) -> Keystream:
    """The mask stream of a pair of clients: the same from either side, for this round alone.

    key: the round key of either; public: that of the other.
    """
    info = scope.context(Purpose.PAIR_MASK, sender=min(one, other), receiver=max(one, other))
    secret = key.exchange(public) + pair_secret
    return Keystream(derive_key(secret, salt=scope.session.id, info=info))


def self_stream(scope: RoundScope, client: int, seed: int) -> Keystream:
    """The stream of a client's self mask. seed: an element of Shamir's field."""
    info = scope.context(Purpose.SELF_MASK, sender=client, receiver=EVERYONE)
    return Keystream(derive_key(shamir.encode(seed), salt=scope.session.id, info=info))


def mask_words(
    words: WordArray, added: Sequence[Keystream], subtracted: Sequence[Keystream]
) -> None:
    """Add and subtract the words of every stream, in place, block by block."""
    scratch = scratch_words()
    for start in range(0, words.size, BLOCK_WORDS):
        block = words[start : start + BLOCK_WORDS]
        for stream in added:
            block += stream.read_words(block.size, scratch)
        for stream in subtracted:
            block -= stream.read_words(block.size, scratch)


def mask_input(
    words: WordArray, client: int, pairs: Mapping[int, Keystream], own: Keystream
) -> None:
    """Mask `client`'s packed words in place. pairs: its stream with each neighbour."""
    added = [stream for peer, stream in pairs.items() if client < peer]
    subtracted = [stream for peer, stream in pairs.items() if client > peer]
    mask_words(words, [own, *added], subtracted)
