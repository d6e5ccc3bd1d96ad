"""What the server does with the shares: restore secrets, check them, and take the masks off.

A restored secret is checked against what its owner published for the round. Where it is another,
the spare shares correct it; who gave wrong ones, or dealt them, is known once it is more than there
may be corrupt clients to blame it on. Where the spare ones do not suffice, the round is void.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, islice
from typing import Final

import numpy as np

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import Keystream
from secure_fd.errors import GarbledSumError, PeerError
from secure_fd.secagg.masks import (
    commit_seed,
    mask_words,
    open_vault,
    pair_stream,
    point_of,
    round_key,
    self_stream,
)
from secure_fd.secagg.messages import Prepare
from secure_fd.secagg.routes import SHARE, OpenedShares
from secure_fd.secagg.session import Group, RoundScope
from secure_fd.votes.codec import WordArray

_STREAMS_AT_ONCE: Final = 512
"""Ciphers that are open at a time: memory must not grow with the number of pairs."""
_MOST_SUBSETS: Final = 1000
"""Sets of holders that are tried for a secret where a code cannot correct its shares."""


@dataclass(frozen=True, slots=True, eq=False)
class Unmasking:
    """All that ends a round: what its cohort prepared, who survived, the shares that came in.

    wrong: by holder, the owners of whose secrets it gave wrong shares. frauds: by client, what
    shows that it prepared the round wrongly.
    """

    scope: RoundScope
    group: Group
    prepared: Mapping[int, Prepare] = field(repr=False)
    survivors: tuple[int, ...]
    shares: OpenedShares = field(repr=False)
    wrong: dict[int, set[int]] = field(default_factory=dict)
    frauds: dict[int, str] = field(default_factory=dict)

    @property
    def dropped(self) -> tuple[int, ...]:
        """The clients of the cohort whose input did not come."""
        return tuple(sorted(set(self.prepared) - set(self.survivors)))

    def unmask(self, total: WordArray) -> None:
        """Take every survivor's self mask, and all masks of the dropped, off `total` in place.

        MissingClientError where a secret has too few shares, GarbledSumError where too many are
        wrong.
        """
        secrets = self._restore()
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
        try:
            secrets = open_vault(self.group, place, client, root, sent.vault)
        except PeerError as error:
            self.frauds[client] = str(error)
            raise
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
        owners, alive = sorted(self.prepared), set(self.survivors)
        columns, shares = self.shares.gather(owners, self.group.threshold)
        weights = [_weights(row.tobytes()) for row in columns]
        each = weights * (len(owners) // len(weights))  # one row for all where nobody is missing
        secrets = {}
        for owner, at_zero, opened in zip(owners, each, shares, strict=True):
            packed = opened.tobytes()
            starts = range(0, len(packed), SHARE)
            elements = [int.from_bytes(packed[at : at + SHARE], "big") for at in starts]
            secret = shamir.combine(at_zero, elements)
            if not self._fits(owner, secret, owner in alive):
                secret = self._corrected(owner, owner in alive)
            secrets[owner] = secret
        return secrets

    def _fits(self, owner: int, secret: int, alive: bool) -> bool:
        """Whether it is what the owner published for the round."""
        place, sent = self.scope.place, self.prepared[owner]
        if alive:
            return commit_seed(place, owner, secret) == sent.commitment
        return round_key(place, owner, secret).public == sent.key

    def _corrected(self, owner: int, alive: bool) -> int:
        """The owner's secret, from all shares of it, those of holders that were wrong before last.

        GarbledSumError where more are wrong than the spare ones can tell.
        """
        given, least = self.shares.of(owner), self.group.threshold
        holders = sorted(given, key=lambda holder: (holder in self.wrong, given[holder][0]))
        places, values = [given[k][0] for k in holders], [given[k][1] for k in holders]
        points = [point_of(place) for place in places]
        if self.wrong:  # the rest is mostly right, and decoding is slow
            secret = shamir.combine(shamir.weights_at_zero(points[:least]), values[:least])
            if self._fits(owner, secret, alive):
                self._note(owner, holders, points, values)
                return secret
        found = shamir.correct(points, values, least)
        if found is not None and self._fits(owner, found[0], alive):
            for at in found[1]:
                self._accuse(holders[at], owner)
            return found[0]
        for chosen in islice(combinations(range(len(points)), least), _MOST_SUBSETS):
            weights = shamir.weights_at_zero([points[at] for at in chosen])
            secret = shamir.combine(weights, [values[at] for at in chosen])
            if self._fits(owner, secret, alive):
                return secret
        raise GarbledSumError(
            f"the shares of client {owner}'s secret restore another one; more are wrong, or were "
            f"dealt wrong, than {len(points) - least} spare ones can tell"
        )

    def _note(
        self, owner: int, holders: Sequence[int], points: Sequence[int], values: Sequence[int]
    ) -> None:
        """Count the shares, of holders that were wrong before, that do not fit the first ones."""
        least = self.group.threshold
        for holder, point, value in zip(
            holders[least:], points[least:], values[least:], strict=True
        ):
            if holder in self.wrong:
                there = shamir.weights_at_zero([one - point for one in points[:least]])
                if shamir.combine(there, values[:least]) != value:
                    self._accuse(holder, owner)

    def _accuse(self, holder: int, owner: int) -> None:
        """One of these two is corrupt: who gave a wrong share, or who dealt it."""
        self.wrong.setdefault(holder, set()).add(owner)

    @property
    def liars(self) -> tuple[int, ...]:
        """Holders whose shares of more secrets were wrong than there may be corrupt dealers."""
        most = self.group.tolerated
        return tuple(holder for holder, owners in sorted(self.wrong.items()) if len(owners) > most)


@lru_cache(maxsize=256)
def _weights(columns: bytes) -> tuple[int, ...]:
    """The weights at zero of some holders, given by their places among all, 64 bits each.

    Public; where nobody is missing the same for every secret of a session.
    """
    places = np.frombuffer(columns, dtype=np.int64).tolist()
    return shamir.weights_at_zero([point_of(place) for place in places])
