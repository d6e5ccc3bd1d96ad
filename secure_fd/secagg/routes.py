"""How the server passes on what clients made for each other: whole arrays, never item by item.

The number of sealed shares and of opened ones is clients times neighbours, which for a complete
graph grows with the square of the clients; so they are gathered by index.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import PUBLIC_BYTES
from secure_fd.errors import MissingClientError
from secure_fd.secagg.messages import SEALED_BYTES, Prepare
from secure_fd.secagg.session import Group
from secure_fd.votes.codec import IntArray

Bytes = NDArray[np.uint8]
SHARE: Final = shamir.ELEMENT_BYTES
_ROWS_AT_ONCE: Final = 256
"""Clients whose mail is gathered at a time, so that only their copy exists beside the original."""


class Routes:
    """A group's graph as index arrays; rows and entries are places in the list of members.

    Attributes:
        neighbours: [n, k].
        back: [n, k], the column at which a neighbour lists the row's member.
        holders, slots: [n, k + 1], the same for holders.
        places: For each client, its row.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.places = {member: place for place, member in enumerate(group.members)}
        self.neighbours = self._rows(group.neighbours)
        self.holders = self._rows(group.holders)
        self.back, self.slots = _mirror(self.neighbours), _mirror(self.holders)

    def _rows(self, listed: Callable[[int], Sequence[int]]) -> IntArray:
        rows = ([self.places[peer] for peer in listed(k)] for k in self.group.members)
        return np.array(list(rows), dtype=np.int64)

    def relay(self, prepared: Mapping[int, Prepare]) -> dict[int, bytes]:
        """By client of the cohort, its neighbours' round keys and the shares sealed for it."""
        n, k = self.neighbours.shape
        packed = np.frombuffer(b"".join(p.key + p.sealed for p in prepared.values()), np.uint8)
        packed = packed.reshape(len(prepared), -1)
        keys, sealed = (
            packed[:, :PUBLIC_BYTES],
            packed[:, PUBLIC_BYTES:].reshape(-1, k, SEALED_BYTES),
        )
        at = np.zeros(n, dtype=np.int64)  # a member that did not prepare is cut out below
        at[[self.places[client] for client in prepared]] = np.arange(len(prepared))
        there, complete, relayed = self._mask(prepared), len(prepared) == n, {}
        for start in range(0, n, _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            peers = self.neighbours[part]
            packs = at[peers]
            table = np.concatenate((keys[packs], sealed[packs, self.back[part]]), axis=2)
            for client, row, near in zip(self.group.members[part], table, peers, strict=True):
                if complete:
                    relayed[client] = row.tobytes()
                elif client in prepared:
                    relayed[client] = row[there[near]].tobytes()
        return relayed

    def _mask(self, clients: Mapping[int, object]) -> NDArray[np.bool_]:
        there = np.zeros(len(self.group.members), dtype=np.bool_)
        there[[self.places[client] for client in clients]] = True
        return there


class OpenedShares:
    """The shares that holders gave away in one round, to be looked up by owner.

    closed: by holder, the owners whose shares it could not open, and so has none of.
    """

    __slots__ = ("_asked", "_closed", "_given", "_owners", "_routes")

    def __init__(
        self, routes: Routes, cohort: Mapping[int, object], closed: Mapping[int, Collection[int]]
    ) -> None:
        self._routes = routes
        self._owners = routes._mask(cohort)[routes.holders]
        self._asked: list[int] = self._owners.sum(axis=1).tolist()
        self._given: dict[int, bytes] = {}
        self._closed = {holder: owners for holder, owners in closed.items() if owners}

    def asked_of(self, holder: int) -> int:
        """How many shares a holder is to give: one for every owner of the cohort."""
        return self._asked[self._routes.places[holder]]

    def add(self, holder: int, shares: bytes) -> None:
        """Take a holder's shares, in the order of their owners."""
        self._given[holder] = shares

    def gather(self, owners: Sequence[int], threshold: int) -> tuple[IntArray, Bytes]:
        """For each owner, `threshold` of the shares of its secret.

        Columns [o, t] among the owner's holders, or [1, t] where they are the same for all;
        encoded shares [o, t, 32]. MissingClientError where fewer came in.
        """
        rows = [self._routes.places[owner] for owner in owners]
        held, slots = self._routes.holders[rows], self._routes.slots[rows]
        if self._complete:
            columns = np.arange(threshold)[None]
            return columns, self._table()[held[:, :threshold], slots[:, :threshold]]
        columns = self._columns(owners, self._there()[held, slots], threshold)
        line = np.arange(len(rows))[:, None]
        return columns, self._table()[held[line, columns], slots[line, columns]]

    def of(self, owner: int) -> dict[int, tuple[int, int]]:
        """By holder that gave one, the place of the owner's share among its holders, and it."""
        row = self._routes.places[owner]
        held, slots = self._routes.holders[row], self._routes.slots[row]
        there, table = self._there()[held, slots], self._table()[held, slots]
        return {
            self._routes.group.members[held[at]]: (at, int.from_bytes(table[at].tobytes(), "big"))
            for at in np.flatnonzero(there).tolist()
        }

    @property
    def _complete(self) -> bool:
        everybody = len(self._given) == len(self._routes.group.members)
        return everybody and not self._closed

    def _there(self) -> NDArray[np.bool_]:
        """[n, k + 1], whether the row's member gave a share of the secret in this slot."""
        there = self._owners & self._routes._mask(self._given)[:, None]
        places = self._routes.places
        for holder, owners in self._closed.items():
            closed = self._routes._mask(dict.fromkeys(owners))
            there[places[holder]] &= ~closed[self._routes.holders[places[holder]]]
        return there

    def _columns(self, owners: Sequence[int], there: NDArray[np.bool_], threshold: int) -> IntArray:
        """[o, t] the first holders that answered."""
        for owner, count in zip(owners, there.sum(axis=1).tolist(), strict=True):
            if count < threshold:
                raise MissingClientError(
                    f"{count} shares of client {owner}'s secret came in; {threshold} open it"
                )
        return np.argsort(~there, axis=1, kind="stable")[:, :threshold]

    def _table(self) -> Bytes:
        """[n, k + 1, 32], the share that the row's member gave of each secret it holds."""
        # Assignment by a mask runs row by row, so the shares must come in the members' order.
        shares = b"".join(self._given[holder] for holder in sorted(self._given))
        flat = np.frombuffer(shares, np.uint8)
        shape = (*self._owners.shape, SHARE)
        if flat.size == math.prod(shape):
            return flat.reshape(shape)
        table = np.zeros(shape, dtype=np.uint8)
        given = self._owners & self._routes._mask(self._given)[:, None]
        table[given] = flat.reshape(-1, SHARE)
        return table


def _mirror(table: IntArray) -> IntArray:
    """[n, k] columns: table[table[i, j], mirror[i, j]] == i, for a symmetric, ascending table."""
    n, k = table.shape
    source = np.repeat(np.arange(n), k)
    order = np.lexsort((source, table.reshape(-1)))
    columns = np.empty(n * k, dtype=np.int64)
    columns[order] = np.arange(n * k) % k
    return columns.reshape(n, k)
