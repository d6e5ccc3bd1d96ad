"""What the server does with the shares: restore secrets, check them, and take the masks off.

A restored secret is checked against what its owner published for the round, so a wrong share
voids the round instead of garbling the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from secure_fd.crypto import shamir
from secure_fd.crypto.prg import Keystream
from secure_fd.crypto.shamir_batch import combine_many
from secure_fd.errors import PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.group import Group
from secure_fd.secagg.masking import mask_words, pair_stream, self_stream
from secure_fd.secagg.round_messages import Prepare
from secure_fd.secagg.routing import OpenedShares
from secure_fd.secagg.secrets import commit_seed, open_vault, point_of, round_key
from secure_fd.secagg.session import RoundScope

_STREAMS_AT_ONCE: Final = 512
"""Ciphers that are open at a time: memory must not grow with the number of pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class Unmasking:
    """All that ends a round: what its cohort prepared, who survived, the shares that came in."""

    scope: RoundScope
    group: Group
    prepared: Mapping[int, Prepare] = field(repr=False)
    survivors: tuple[int, ...]
    shares: OpenedShares = field(repr=False)

    @property
    def dropped(self) -> tuple[int, ...]:
        """The clients of the cohort whose input did not come."""
        return tuple(sorted(set(self.prepared) - set(self.survivors)))

    def unmask(self, total: WordArray) -> None:
        """Take every survivor's self mask, and all masks of the dropped, off `total` in place.

        MissingClientError where a secret has too few shares, PeerError where one is wrong.
        """
        secrets = self._restore()
        for client in self.survivors:
            if (
                commit_seed(self.scope.place, client, secrets[client])
                != self.prepared[client].commitment
            ):
                raise PeerError(f"the shares of client {client}'s seed restore another secret")
        for start in range(0, len(self.survivors), _STREAMS_AT_ONCE):
            part = self.survivors[start : start + _STREAMS_AT_ONCE]
            mask_words(total, [], [self_stream(self.scope, k, secrets[k]) for k in part])
        for client in self.dropped:
            added, subtracted = self._left_behind(client, secrets[client])
            mask_words(total, added, subtracted)

    def _left_behind(self, client: int, root: int) -> tuple[list[Keystream], list[Keystream]]:
        """The streams to add and to subtract, so that a dropped client's pairs cancel."""
        place, sent = self.scope.place, self.prepared[client]
        alive = set(self.survivors)
        peers = [peer for peer in self.group.neighbours(client) if peer in alive]
        key = round_key(place, client, root)
        if key.public != sent.key:
            raise PeerError(f"the shares of client {client}'s root restore another secret")
        secrets = open_vault(self.group, place, client, root, sent.vault)
        streams = {
            peer: pair_stream(self.scope, client, peer, key, self.prepared[peer].key, secrets[peer])
            for peer in peers
        }
        # Survivor v added the stream where v < client, and subtracted it where v > client.
        added = [stream for peer, stream in streams.items() if peer > client]
        subtracted = [stream for peer, stream in streams.items() if peer < client]
        return added, subtracted

    def _restore(self) -> dict[int, int]:
        """By client of the cohort, the one secret of it that its holders opened."""
        owners = sorted(self.prepared)
        columns, shares = self.shares.gather(owners, self.group.threshold)
        weights = [_weights(row.tobytes()) for row in columns]
        return dict(zip(owners, combine_many(weights, shares), strict=True))


@lru_cache(maxsize=256)
def _weights(columns: bytes) -> tuple[int, ...]:
    """The weights at zero of some holders, given by their places among all, 64 bits each.

    Public; where nobody is missing the same for every secret of a session.
    """
    places = np.frombuffer(columns, dtype=np.int64).tolist()
    return shamir.weights_at_zero([point_of(place) for place in places])
