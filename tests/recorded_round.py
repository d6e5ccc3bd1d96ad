"""What whoever recorded a round makes of it once one client's channels are known to it."""

from collections.abc import Mapping

import numpy as np

from secure_fd.crypto import shamir
from secure_fd.knowledge import WordArray
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.masks import (
    mask_words,
    open_shares,
    pair_stream,
    point_of,
    round_key,
    self_stream,
)
from secure_fd.secagg.messages import SEALED_BYTES, Prepare
from secure_fd.secagg.session import HEADER_BYTES, Group, RoundScope


def read_recorded(
    group: Group,
    scope: RoundScope,
    victim: int,
    ends: Mapping[int, Channel],
    prepared: Mapping[int, Prepare],
    masked: bytes,
) -> WordArray:
    """The victim's words, unmasked. ends: every neighbour's end of its channel with the victim.

    prepared, masked: what was recorded, in a complete graph. PeerError where a seal stays closed.
    """
    place, sent = scope.place, prepared[victim]
    boxes = dict(zip(group.neighbours(victim), _boxes(sent), strict=True))
    dealt = {
        peer: open_shares(place, peer, victim, end, sent.key, boxes[peer])
        for peer, end in ends.items()
    }
    holders = group.holders(victim)
    weights = shamir.weights_at_zero([point_of(holders.index(peer)) for peer in dealt])
    root, seed = (
        shamir.combine(weights, [shamir.decode(share) for share in shares])
        for shares in zip(*((one.root, one.seed) for one in dealt.values()), strict=True)
    )
    key = round_key(place, victim, root)
    pairs = {
        peer: pair_stream(
            scope, victim, peer, key, prepared[peer].key, end.pair_secret(place.index)
        )
        for peer, end in ends.items()
    }
    words = np.frombuffer(masked, "<u8", scope.words, HEADER_BYTES).astype(np.uint64)
    added = [stream for peer, stream in pairs.items() if peer < victim]
    taken = [stream for peer, stream in pairs.items() if peer > victim]
    mask_words(words, added, [self_stream(scope, victim, seed), *taken])
    return words


def _boxes(sent: Prepare) -> list[bytes]:
    starts = range(0, len(sent.sealed), SEALED_BYTES)
    return [sent.sealed[at : at + SEALED_BYTES] for at in starts]
