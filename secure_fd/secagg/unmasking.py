"""Unmasking by the server: restore secrets from shares, check them, and remove the masks.

A restored secret is checked against what its owner published for the round. Where it is another,
the spare shares correct it; who gave wrong ones, or dealt them, is known once it is more than there
may be corrupt clients to blame it on. Where the spare ones do not suffice, the round aborts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, islice
from typing import Final

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import Keystream
from secure_fd.errors import GarbledSumError, MissingClientError, PeerError
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
from secure_fd.secagg.session import Group, RoundScope
from secure_fd.votes.codec import WordArray

_STREAMS_AT_ONCE: Final = 512
"""Ciphers that are open at a time: memory must not grow with the number of pairs."""
_MOST_SUBSETS: Final = 1000
"""Sets of holders that are tried for a secret where a code cannot correct its shares."""


@dataclass(frozen=True, slots=True, eq=False)
class Unmasking:
    """All that ends a round: what its cohort prepared, who survived, the shares that come in.

    closed: by holder, the owners whose shares it could not open, and so has none of. wrong: by
    holder, the owners of whose secrets it gave wrong shares: it or the owner, who dealt them, is
    corrupt. frauds: by client, what shows that it prepared the round wrongly.
    """

    scope: RoundScope
    group: Group
    prepared: Mapping[int, Prepare] = field(repr=False)
    survivors: tuple[int, ...]
    closed: Mapping[int, Collection[int]]
    wrong: dict[int, set[int]] = field(default_factory=dict)
    frauds: dict[int, str] = field(default_factory=dict)
    _given: dict[int, bytes] = field(default_factory=dict, repr=False)  # by holder
    _starts: dict[int, dict[int, int]] = field(default_factory=dict)  # in these, by owner

    def asked_of(self, holder: int) -> list[int]:
        """Return the owners of the shares that a holder is to give: all of the cohort."""
        return [owner for owner in self.group.holders(holder) if owner in self.prepared]

    def add(self, holder: int, owners: Sequence[int], shares: bytes) -> None:
        """Take a holder's encoded shares, in the order of their owners."""
        starts = dict(zip(owners, range(0, len(shares), shamir.ELEMENT_BYTES), strict=True))
        for owner in self.closed.get(holder, ()):
            del starts[owner]
        self._given[holder], self._starts[holder] = shares, starts

    def unmask(self, total: WordArray) -> None:
        """Take every survivor's self mask, and all masks of the dropped, off `total` in place.

        MissingClientError where a secret has too few shares, GarbledSumError where too many are
        wrong.
        """
        alive, least, secrets = set(self.survivors), self.group.threshold, {}
        for owner in self.prepared:
            holders = [k for k in self.group.holders(owner) if owner in self._starts.get(k, ())]
            if len(holders) < least:
                raise MissingClientError(
                    f"{len(holders)} shares of client {owner}'s secret came in; {least} open it"
                )
            secret = self._combined(owner, holders[:least])
            if not self._fits(owner, secret):
                secret = self._corrected(owner, holders)
            secrets[owner] = secret
        for start in range(0, len(self.survivors), _STREAMS_AT_ONCE):
            part = self.survivors[start : start + _STREAMS_AT_ONCE]
            mask_words(total, [], [self_stream(self.scope, k, secrets[k]) for k in part])
        for client in sorted(self.prepared.keys() - alive):
            peers = [peer for peer in self.group.neighbours(client) if peer in alive]
            mask_words(total, *self._left_behind(client, secrets[client], peers))

    def _left_behind(
        self, client: int, root: int, peers: Sequence[int]
    ) -> tuple[list[Keystream], list[Keystream]]:
        """The streams to add and to subtract, so that a dropped client's pairs cancel."""
        place, sent = self.scope.place, self.prepared[client]
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

    def _shares(self, owner: int, chosen: Sequence[int]) -> list[int]:
        """The chosen holders' shares of an owner's secret."""
        given = [(self._given[holder], self._starts[holder][owner]) for holder in chosen]
        size = shamir.ELEMENT_BYTES
        return [int.from_bytes(shares[start : start + size]) for shares, start in given]

    def _combined(self, owner: int, chosen: Sequence[int]) -> int:
        """The secret that the shares of the chosen holders restore."""
        points = _points(self.group.holders(owner))
        weights = _weights(tuple([points[holder] for holder in chosen]))
        return shamir.combine(weights, self._shares(owner, chosen))

    def _fits(self, owner: int, secret: int) -> bool:
        """Return whether a secret matches what its owner published for the round."""
        place, sent = self.scope.place, self.prepared[owner]
        if owner in self.survivors:
            return commit_seed(place, owner, secret) == sent.commitment
        return round_key(place, owner, secret).public == sent.key

    def _corrected(self, owner: int, given: Sequence[int]) -> int:
        """The owner's secret, from the shares of all that gave one; those that were wrong last.

        GarbledSumError where more are wrong than the spare ones can correct.
        """
        least, points = self.group.threshold, _points(self.group.holders(owner))
        holders = sorted(given, key=lambda holder: (holder in self.wrong, holder))
        if self.liars:  # they are known, the rest is mostly right, and decoding is slow
            secret = self._combined(owner, holders[:least])
            if self._fits(owner, secret):
                return secret
        at = [points[holder] for holder in holders]
        found = shamir.correct(at, self._shares(owner, holders), least)
        if found is not None and self._fits(owner, found[0]):
            for place in found[1]:
                self.wrong.setdefault(holders[place], set()).add(owner)
            return found[0]
        for chosen in islice(combinations(holders, least), _MOST_SUBSETS):
            secret = self._combined(owner, chosen)
            if self._fits(owner, secret):
                return secret
        raise GarbledSumError(
            f"the shares of client {owner}'s secret restore another one; more are wrong, or were "
            f"dealt wrong, than {len(given) - least} spare ones can tell"
        )

    @property
    def liars(self) -> tuple[int, ...]:
        """Holders whose shares of more secrets were wrong than there may be corrupt dealers."""
        most = self.group.tolerated
        return tuple(holder for holder, owners in sorted(self.wrong.items()) if len(owners) > most)


@lru_cache(maxsize=16)
def _points(holders: tuple[int, ...]) -> dict[int, int]:
    """Return the point of each holder's shares."""
    return {holder: point_of(place) for place, holder in enumerate(holders)}


@lru_cache(maxsize=256)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return these points' weights at zero, the same for all secrets if no holder is missing."""
    return shamir.weights_at_zero(points)
