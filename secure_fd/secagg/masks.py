"""Masks: one stream for each pair, which cancels in the sum, and one of each client's own.

For a pair i < j both derive one keystream; i adds it and j subtracts it, modulo 2**64, and each
adds its self mask (Bonawitz et al. 2017, section 4.0.2). A pair's key needs two secrets: what the
two round keys agree on, fresh in every round, and what the pair's channel gives for this round,
which in a hybrid session holds against a quantum computer as well.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import (
    BLOCK_WORDS,
    EVERYONE,
    KEY_BYTES,
    AgreementKey,
    Keystream,
    Purpose,
    RandomBytes,
    Sealer,
    SecretHolder,
    derive_key,
    scratch_words,
)
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.messages import SEALED_BYTES, Prepare
from secure_fd.secagg.session import Group, RoundScope
from secure_fd.votes.codec import WordArray
from secure_fd.wire import Place


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
    scratch = scratch_words(min(words.size, BLOCK_WORDS))
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


# A client's secrets of one round, and what it shares of them so that others can end the round.
#
# Two secrets, both fresh in every round, both elements of Shamir's field. From the *root* follow
# the round's X25519 key and the key of the vault; opened, it removes the masks that a client left
# behind when it dropped out. From the *seed* follows the self mask; opened, it removes that of a
# client that stayed. A party with both would read the client's input, so no client gives a share of
# both (Bonawitz et al. 2017, section 4; the check is in client.py).


class RoundSecrets(SecretHolder):
    """The two secrets of a client in a round, and the key pair that follows from the root.

    root, seed: elements of Shamir's field.
    """

    __slots__ = ("key", "root", "seed")

    def __init__(self, place: Place, client: int, root: int, seed: int) -> None:
        self.root = root
        self.seed = seed
        self.key = round_key(place, client, root)

    @classmethod
    def draw(cls, place: Place, client: int, random: RandomBytes) -> "RoundSecrets":
        """Fresh secrets from `random`."""
        root, seed = shamir.draw_element(random), shamir.draw_element(random)
        return cls(place, client, root, seed)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shares(SecretHolder):
    """One holder's shares of another client's two secrets, encoded; it gives away one at most."""

    root: bytes
    seed: bytes


NO_SHARES: Final = Shares(bytes(shamir.ELEMENT_BYTES), bytes(shamir.ELEMENT_BYTES))
"""In the place of shares that did not open."""


@dataclass(slots=True, eq=False, repr=False)
class Prepared(SecretHolder):
    """Secrets of a round that a client has prepared.

    Attributes:
        own: Its shares of its own secrets.
        sent: What the server needs of it; sent again, it is the same bytes.
        confirmed: Whether the server has that.
    """

    index: int
    secrets: RoundSecrets
    own: Shares
    sent: Prepare
    confirmed: bool = False


def round_key(place: Place, client: int, root: int) -> AgreementKey:
    """The X25519 key pair of a client in a round."""
    info = place.context(Purpose.ROUND_KEY, client, EVERYONE)
    return AgreementKey.derive(derive_key(shamir.encode(root), salt=place.session, info=info))


def commit_seed(place: Place, client: int, seed: int) -> bytes:
    """Return the commitment to a seed that the server checks it against: 32 bytes that hide it."""
    label = place.context(Purpose.SELF_COMMITMENT, client, EVERYONE)
    return hashlib.sha256(label + shamir.encode(seed)).digest()


def prepare(
    group: Group,
    place: Place,
    client: int,
    channels: Mapping[int, Channel],
    random: RandomBytes,
) -> Prepared:
    """Draw a round's secrets, and what `client` sends of them.

    A neighbour without a channel left during the set-up, and is in no cohort: zeros stand for it.
    """
    secrets = RoundSecrets.draw(place, client, random)
    holders = group.holders(client)
    points = [point_of(place) for place in range(len(holders))]
    roots = shamir.split(secrets.root, points, group.threshold, random)
    seeds = shamir.split(secrets.seed, points, group.threshold, random)
    shares = {
        holder: Shares(shamir.encode(root), shamir.encode(seed))
        for holder, root, seed in zip(holders, roots, seeds, strict=True)
    }
    public = secrets.key.public
    sealed, pairs = [], []
    for peer in group.neighbours(client):
        channel, text = channels.get(peer), shares[peer].root + shares[peer].seed
        if channel is None:
            sealed.append(bytes(SEALED_BYTES))
            pairs.append(bytes(KEY_BYTES))
            continue
        sealed.append(channel.seal(place.index, text, _label(place, client, peer, public)))
        pairs.append(channel.pair_secret(place.index))
    sent = Prepare(
        key=public,
        commitment=commit_seed(place, client, secrets.seed),
        vault=_vault(place, client, secrets.root).seal(0, b"".join(pairs), b""),
        sealed=b"".join(sealed),
    )
    return Prepared(place.index, secrets, shares[client], sent)


def open_shares(
    place: Place, client: int, peer: int, channel: Channel, key: bytes, sealed: bytes
) -> Shares:
    """The shares that `peer` sealed for `client`, under the round key that the server relayed.

    PeerError where the peer did not seal them for this round together with this very key.
    """
    what = f"client {peer}'s shares for client {client}"
    text = channel.open(place.index, sealed, _label(place, peer, client, key), what)
    return Shares(text[: shamir.ELEMENT_BYTES], text[shamir.ELEMENT_BYTES :])


def open_vault(
    group: Group, place: Place, client: int, root: int, vault: bytes
) -> dict[int, bytes]:
    """Return a dropped client's pair secrets by neighbour, from its restored root."""
    what = f"client {client}'s vault"
    text = _vault(place, client, root).open(0, vault, b"", what)
    peers = group.neighbours(client)
    starts = range(0, len(text), KEY_BYTES)
    return {peer: text[at : at + KEY_BYTES] for peer, at in zip(peers, starts, strict=True)}


def point_of(place: int) -> int:
    """Return the point of a holder's shares, by its place among an owner's holders, from 0.

    Never zero, which is the secret. Places and not client numbers, so that the same weights
    restore every secret as long as no holder is missing.
    """
    return place + 1


def _vault(place: Place, client: int, root: int) -> Sealer:
    info = place.context(Purpose.VAULT, client, EVERYONE)
    return Sealer(derive_key(shamir.encode(root), salt=place.session, info=info))


def _label(place: Place, sender: int, receiver: int, key: bytes) -> bytes:
    return place.context(Purpose.SHARES, sender, receiver) + key
