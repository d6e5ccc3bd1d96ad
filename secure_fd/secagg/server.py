"""How the server passes on what clients made for each other: whole arrays, never item by item.

The number of sealed shares and of opened ones is clients times neighbours, which for a complete
graph grows with the square of the clients; so they are gathered by index.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from itertools import combinations, islice
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto import shamir
from secure_fd.crypto.primitives import (
    PUBLIC_BYTES,
    AgreementKey,
    Authenticator,
    Keystream,
    SecretHolder,
)
from secure_fd.errors import GarbledSumError, LocalError, MissingClientError, PeerError
from secure_fd.knowledge import IntArray, UnitArray, WordArray
from secure_fd.secagg import messages
from secure_fd.secagg.masks import (
    commit_seed,
    mask_words,
    open_vault,
    pair_stream,
    point_of,
    round_key,
    self_stream,
)
from secure_fd.secagg.memory import Keep, Memory
from secure_fd.secagg.messages import SEALED_BYTES, Prepare
from secure_fd.secagg.session import (
    Group,
    MessageType,
    RoundCounter,
    RoundScope,
    RoundTerms,
    Session,
    encode_set,
    message_type,
)
from secure_fd.secagg.setup import ServerSetup, input_authenticator

Bytes = NDArray[np.uint8]
_SHARE: Final = shamir.ELEMENT_BYTES
_ROWS_AT_ONCE: Final = 256
"""Clients whose mail is gathered at a time, so that only their copy exists beside the original."""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """A group's graph as index arrays; rows and entries are places in the list of members.

    neighbours: [n, k]. back: [n, k], the column at which a neighbour lists the row's member.
    holders, slots: [n, k + 1], the same for holders. places: by client, its row; members: [n],
    by row, its client.
    """

    group: Group
    neighbours: IntArray = field(init=False, repr=False)
    back: IntArray = field(init=False, repr=False)
    holders: IntArray = field(init=False, repr=False)
    slots: IntArray = field(init=False, repr=False)
    places: Mapping[int, int] = field(init=False, repr=False)
    members: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        members = self.group.members
        places = {member: place for place, member in enumerate(members)}
        near = _rows(places, [self.group.neighbours(member) for member in members])
        held = _rows(places, [self.group.holders(member) for member in members])
        for name, value in (
            ("neighbours", near),
            ("back", _mirror(near)),
            ("holders", held),
            ("slots", _mirror(held)),
            ("places", places),
            ("members", np.array(members, dtype=np.int64)),
        ):
            object.__setattr__(self, name, value)

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

    __slots__ = ("_asked", "_closed", "_given", "_owners", "_routes", "_untrue")

    def __init__(
        self, routes: Routes, cohort: Mapping[int, object], closed: Mapping[int, Collection[int]]
    ) -> None:
        self._routes = routes
        self._owners = routes._mask(cohort)[routes.holders]
        self._asked: list[int] = self._owners.sum(axis=1).tolist()
        self._given: dict[int, bytes] = {}
        self._untrue: set[int] = set()
        self._closed = {holder: owners for holder, owners in closed.items() if owners}

    def asked_of(self, holder: int) -> int:
        """How many shares a holder is to give: one for every owner of the cohort."""
        return self._asked[self._routes.places[holder]]

    def add(self, holder: int, shares: bytes) -> None:
        """Take a holder's shares, in the order of their owners."""
        self._given[holder] = shares

    def distrust(self, holder: int) -> None:
        """Ask this holder for nothing any more: a share of it was wrong."""
        self._untrue.add(holder)

    def gather(self, owners: Sequence[int], threshold: int) -> tuple[IntArray, Bytes]:
        """For each owner, `threshold` of the shares of its secret.

        Columns [o, t] among the owner's holders, or [1, t] where they are the same for all;
        encoded shares [o, t, 32]. MissingClientError where fewer came in.
        """
        rows = [self._routes.places[owner] for owner in owners]
        held, slots = self._routes.holders[rows], self._routes.slots[rows]
        if self._complete:
            columns = np.arange(threshold)[None]
        else:
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
        everybody = len(self._given) == len(self._routes.members)
        return everybody and not self._closed and not self._untrue

    def _there(self) -> NDArray[np.bool_]:
        """[n, k + 1], whether the row's member gave a share of the secret in this slot."""
        there = self._owners & self._routes._mask(self._given)[:, None]
        places = self._routes.places
        for holder, owners in self._closed.items():
            closed = self._routes._mask(dict.fromkeys(owners))
            there[places[holder]] &= ~closed[self._routes.holders[places[holder]]]
        there[[places[holder] for holder in self._untrue]] = False
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
        shape = (*self._owners.shape, _SHARE)
        if flat.size == math.prod(shape):
            return flat.reshape(shape)
        table = np.zeros(shape, dtype=np.uint8)
        given = self._owners & self._routes._mask(self._given)[:, None]
        table[given] = flat.reshape(-1, _SHARE)
        return table


def _rows(places: Mapping[int, int], lists: Sequence[Sequence[int]]) -> IntArray:
    return np.array([[places[peer] for peer in row] for row in lists], dtype=np.int64)


def _mirror(table: IntArray) -> IntArray:
    """[n, k] columns: table[table[i, j], mirror[i, j]] == i, for a symmetric, ascending table."""
    n, k = table.shape
    source = np.repeat(np.arange(n), k)
    order = np.lexsort((source, table.reshape(-1)))
    columns = np.empty(n * k, dtype=np.int64)
    columns[order] = np.arange(n * k) % k
    return columns.reshape(n, k)


# What the server does with the shares: restore secrets, check them, and take the masks off.
#
# A restored secret is checked against what its owner published for the round. Where it is another,
# the spare shares correct it and name who gave wrong ones; where they do not suffice, the round is
# void.


_STREAMS_AT_ONCE: Final = 512
"""Ciphers that are open at a time: memory must not grow with the number of pairs."""
_MOST_SUBSETS: Final = 1000
"""Sets of holders that are tried for a secret where a code cannot correct its shares."""


@dataclass(frozen=True, slots=True, eq=False)
class Unmasking:
    """All that ends a round: what its cohort prepared, who survived, the shares that came in.

    liars: the holders of wrong shares, as they are found.
    """

    scope: RoundScope
    group: Group
    prepared: Mapping[int, Prepare] = field(repr=False)
    survivors: tuple[int, ...]
    shares: OpenedShares = field(repr=False)
    liars: set[int] = field(default_factory=set)

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
        owners, alive = sorted(self.prepared), set(self.survivors)
        columns, shares = self.shares.gather(owners, self.group.threshold)
        secrets = {}
        each = np.broadcast_to(columns, (len(owners), columns.shape[1]))  # may be one row for all
        for owner, row, opened in zip(owners, each, shares, strict=True):
            packed = opened.tobytes()
            starts = range(0, len(packed), _SHARE)
            elements = [int.from_bytes(packed[at : at + _SHARE], "big") for at in starts]
            secret = shamir.combine(_weights(row.tobytes()), elements)
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
        """The owner's secret, from all shares of it; who gave a wrong one is not asked again."""
        given = self.shares.of(owner)
        holders = list(given)
        places = [given[holder][0] for holder in holders]
        points, values = [point_of(place) for place in places], [given[k][1] for k in holders]
        least = self.group.threshold
        if self.liars and len(places) >= least:  # the rest is mostly right, and decoding is slow
            first = np.array(places[:least], dtype=np.int64).tobytes()
            secret = shamir.combine(_weights(first), values[:least])
            if self._fits(owner, secret, alive):
                return secret
        found = shamir.correct(points, values, least)
        if found is not None and self._fits(owner, found[0], alive):
            for at in found[1]:
                self.liars.add(holders[at])
                self.shares.distrust(holders[at])
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


@lru_cache(maxsize=256)
def _weights(columns: bytes) -> tuple[int, ...]:
    """The weights at zero of some holders, given by their places among all, 64 bits each.

    Public; where nobody is missing the same for every secret of a session.
    """
    places = np.frombuffer(columns, dtype=np.int64).tolist()
    return shamir.weights_at_zero([point_of(place) for place in places])


# The server in the rounds of a session. Nothing here does input or output: bytes in, bytes out.
#
# Rules:
#  1. A stage takes one message from every client it asked, from nobody else and from nobody twice;
#     the transport vouches for who sent it. Whoever sends something else is out of the round, and
#     the round goes on.
#  2. A stage that is closed goes on with whoever answered, down to the quorum and, until the inputs
#     are in, the floor of their noise; below, the round ends, nothing is unmasked, and
#     MissingClientError says who was missing.
#  3. Inputs are added as they come: the memory is one vector, however many clients there are.
#  4. Every restored secret is checked against what its owner published. A decoded sum must lie in
#     -room .. survivors * bound + room in every lane; otherwise the round is void.
#  5. A client whose shares do not open at more of its holders than may be corrupt, or than there
#     are to spare, has sealed garbage, and is in no later cohort of the set-up. So is whoever gave
#     a wrong share.
#  6. A round's number only grows. A round that ended is over; what clients have prepared for the
#     next one stays.


class ServerState(Enum):
    """Which stage of a round the server is collecting."""

    PREPARE = auto()
    INPUT = auto()
    CONSISTENCY = auto()
    UNMASK = auto()
    DONE = auto()
    ABORTED = auto()


class Enrolled(SecretHolder):
    """What a set-up gave the server. inputs: tags, by client that went on to the end.

    barred: by client that is in no later cohort, what it did.
    """

    __slots__ = ("barred", "inputs", "routes")

    def __init__(self, group: Group, inputs: Mapping[int, Authenticator]) -> None:
        self.routes, self.inputs = Routes(group), inputs
        self.barred: dict[int, str] = {}

    @classmethod
    def of(cls, setup: ServerSetup, key: AgreementKey) -> "Enrolled":
        """key: the server's, that clients authenticate their inputs to."""
        return cls(
            setup.group,
            {
                client: input_authenticator(
                    setup.group, client, key.exchange(setup.authenticator_key(client))
                )
                for client in setup.present
            },
        )


class Server(SecretHolder):
    """A server for a whole session. key: the X25519 key that inputs are authenticated to."""

    __slots__ = ("_enrolled", "_epoch", "_keep", "_key", "_prepared", "_rounds", "session")

    def __init__(
        self,
        session: Session,
        key: AgreementKey,
        keep: Keep | None = None,
        memory: bytes | None = None,
    ) -> None:
        """keep: writes what must outlive this process. memory: what an earlier one kept last."""
        if key.public != session.server:
            raise LocalError("the server's key is not the one that the session pins")
        self.session = session
        self._key = key
        self._rounds = RoundCounter()
        self._enrolled: Enrolled | None = None
        self._epoch: int | None = None
        self._prepared: tuple[int, dict[int, messages.Prepare]] = (0, {})
        self._keep = keep
        if memory is not None:
            self._recall(Memory.decode(memory, session))

    def _recall(self, known: Memory) -> None:
        """Go on where an earlier process stood; clients prepare their next round anew."""
        self._rounds = RoundCounter(known.last)
        if known.group is None:
            return
        inputs = {client: Authenticator(key) for client, key in known.inputs.items()}
        self._enrolled = Enrolled(known.group, inputs)
        self._enrolled.barred = dict.fromkeys(known.barred, "it was barred before a restart")
        self._epoch = known.last // self.session.epoch if known.used else None

    def memory(self) -> bytes:
        """What must outlive this process, for a file that nobody else reads: it holds keys."""
        enrolled = self._enrolled
        known = Memory(
            last=self._rounds.last,
            setups=0,
            used=self._epoch is not None,
            group=None if enrolled is None else enrolled.routes.group,
            inputs={} if enrolled is None else {k: t.key for k, t in enrolled.inputs.items()},
            barred=tuple(self.barred),
        )
        return known.encode(self.session)

    def _write(self) -> None:
        if self._keep is not None:
            self._keep(self.memory())

    def open_setup(self) -> ServerSetup:
        """Begin a set-up."""
        return ServerSetup(self.session)

    @property
    def enrolled(self) -> bool:
        """Whether a set-up is in use."""
        return self._enrolled is not None

    def serves(self, index: int) -> bool:
        """Whether the set-up in use is that of the round's epoch."""
        epoch = index // self.session.epoch
        return self._enrolled is not None and self._epoch in (None, epoch)

    @property
    def barred(self) -> Mapping[int, str]:
        """By client that is in no later cohort of this set-up, what it did."""
        return {} if self._enrolled is None else self._enrolled.barred

    def enrol(self, setup: ServerSetup) -> None:
        """Take a set-up that is DONE into use; what an earlier one had prepared is dropped."""
        self._enrolled, self._prepared = Enrolled.of(setup, self._key), (0, {})
        self._epoch = None
        self._write()

    def open_round(self, terms: RoundTerms) -> "ServerRound":
        """Begin a round; LocalError unless its number is above that of every earlier one.

        LocalError, too, for a round of another epoch than the set-up has served.
        """
        if self._enrolled is None or not self.serves(terms.index):
            raise LocalError(f"there is no set-up to open round {terms.index} in")
        scope = RoundScope(self.session, terms)
        self._rounds.spend(terms.index)
        self._epoch = terms.index // self.session.epoch
        self._write()
        index, came = self._prepared
        prepared = came if index == terms.index else {}
        for client in self._enrolled.barred:
            prepared.pop(client, None)
        following: dict[int, messages.Prepare] = {}
        self._prepared = (terms.index + 1, following)
        return ServerRound(scope, self._enrolled, prepared, following)


class ServerRound:
    """One round of the server: receive a stage's messages, then advance to the next stage.

    prepared: what came with the last round's inputs. following: where to put what comes with
    this round's.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_closed",
        "_cohort_signatures",
        "_enrolled",
        "_following",
        "_form",
        "_group",
        "_prepared",
        "_routes",
        "_shares",
        "_signatures",
        "_spoke",
        "_state",
        "_sum",
        "_total",
        "refused",
        "scope",
        "survivors",
    )

    def __init__(
        self,
        scope: RoundScope,
        enrolled: Enrolled,
        prepared: dict[int, messages.Prepare],
        following: dict[int, messages.Prepare],
    ) -> None:
        self.scope = scope
        self.survivors: tuple[int, ...] = ()
        self.refused: dict[int, str] = {}
        """By client that is out of the round, what it did."""
        self._enrolled = enrolled
        self._routes = enrolled.routes
        self._group = enrolled.routes.group
        self._state = ServerState.PREPARE
        asked = (client for client in enrolled.inputs if client not in enrolled.barred)
        self._asked = dict.fromkeys(asked)
        self._answered: set[int] = set(prepared)
        self._spoke: set[int] = set()
        self._closed: dict[int, tuple[int, ...]] = {}
        self._prepared = prepared
        self._following = following
        self._form = messages.InputForm(scope, self._group.degree)
        self._sum = np.zeros(scope.words, dtype=np.uint64)
        self._cohort_signatures: dict[int, bytes] = {}
        self._signatures: dict[int, bytes] = {}
        self._shares: OpenedShares | None = None
        self._total: UnitArray | None = None

    @property
    def state(self) -> ServerState:
        """Where the round stands; ABORTED never changes again."""
        return self._state

    @property
    def finished(self) -> bool:
        """Whether the sum is there."""
        return self._state is ServerState.DONE

    @property
    def waiting(self) -> tuple[int, ...]:
        """The clients that this stage has asked and that have not answered, ascending."""
        return tuple(
            client
            for client in self._asked
            if client not in self._answered and client not in self.refused
        )

    def waits_for(self, client: int) -> bool:
        """Whether this client is one of `waiting`."""
        asked = client in self._asked and client not in self.refused
        return asked and client not in self._answered

    @property
    def total(self) -> UnitArray:
        """The exact sums [m] over the survivors; LocalError before the round is done.

        int64 where the terms have room for noise, else uint64.
        """
        if self._total is None or not self.finished:
            raise LocalError(f"there is no sum in state {self._state.name}")
        return self._total

    def receive(self, sender: int, data: bytes) -> None:
        """Take one message that the transport says `sender` sent.

        PeerError for any that the stage does not take; whoever sent it is out of the round, but
        for one that it has answered already.
        """
        due = _INBOUND.get(self._state)
        if due is None:
            raise PeerError(f"no message is allowed in state {self._state.name}")
        if sender not in self._asked or sender in self.refused:
            raise PeerError(f"client {sender} was not asked in state {self._state.name}")
        if sender in self._spoke:
            raise PeerError(f"client {sender} sent a second message in one stage")
        kind, take = due
        try:
            if data[2:4] != kind:
                self._refuse(sender, data)
            take(self, sender, data)
        except PeerError as error:
            self.refused[sender] = str(error)
            self._answered.discard(sender)
            raise
        self._answered.add(sender)
        self._spoke.add(sender)

    def _refuse(self, sender: int, data: bytes) -> NoReturn:
        """A message of another type than the stage's."""
        kind = message_type(data, self.scope.place, sender)
        raise PeerError(f"a {kind.name} message is not allowed in state {self._state.name}")

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; what to send to each client, empty once the round is done.

        MissingClientError where fewer answered than the round needs; the round is over then.
        """
        state, self._state = self._state, ServerState.ABORTED
        if state not in _ADVANCE:
            raise LocalError(f"there is no stage to close in state {state.name}")
        present = tuple(client for client in self._asked if client in self._answered)
        self._check_reach(state, present)
        outbound, successor = _ADVANCE[state](self, present)
        self._asked, self._answered, self._spoke = dict.fromkeys(present), set(), set()
        self._state = successor
        return outbound

    def _check_reach(self, state: ServerState, present: tuple[int, ...]) -> None:
        """MissingClientError where too few are left; in the last stage every secret has its own."""
        least = self._group.quorum
        if state in (ServerState.PREPARE, ServerState.INPUT):
            # Who answers later does not change whose noise is in the sum.
            least = max(least, self.scope.terms.noise.survivors)
        if state is ServerState.UNMASK or (len(present) >= least and self._group.reaches(present)):
            return
        raise MissingClientError(
            f"clients {list(self.waiting)} did not answer in round {self.scope.terms.index}; "
            f"the {len(present)} that are left are too few (a sum needs {least}, "
            f"and enough of them around each client), so nothing is revealed"
        )

    def _add_prepare(self, sender: int, data: bytes) -> None:
        degree = self._group.degree
        prepare = messages.decode_prepare(data, self.scope.place, sender, degree)
        # A client that cannot know whether its last input arrived sends the same once more.
        if self._prepared.setdefault(sender, prepare) != prepare:
            raise PeerError(f"client {sender} prepared the round twice, and differently")

    def _add_masked(self, sender: int, data: bytes) -> None:
        inputs = self._enrolled.inputs[sender]
        masked = messages.decode_masked(data, self._form, sender, self._group, inputs)
        self._sum += masked.words
        self._cohort_signatures[sender] = masked.cohort
        self._closed[sender] = masked.closed
        if masked.following is not None:
            self._following[sender] = masked.following

    def _add_consistent(self, sender: int, data: bytes) -> None:
        size = self.scope.session.signature_bytes
        self._signatures[sender] = messages.decode_consistent(data, self.scope.place, sender, size)

    def _add_unmask(self, sender: int, data: bytes) -> None:
        if self._shares is None:
            raise LocalError("shares cannot come in before they were asked for")
        owners = self._shares.asked_of(sender)
        shares = messages.decode_unmask(data, self.scope.place, sender, owners)
        self._shares.add(sender, shares)

    def _close_prepare(self, cohort: tuple[int, ...]) -> "_Step":
        self._prepared = {client: self._prepared[client] for client in cohort}
        there, place = encode_set(cohort, self._group.members), self.scope.place
        outbound = {
            client: messages.encode_cohort(there, relayed, place)
            for client, relayed in self._routes.relay(self._prepared).items()
        }
        return outbound, ServerState.INPUT

    def _close_input(self, survivors: tuple[int, ...]) -> "_Step":
        self._judge_seals(survivors)
        self.survivors = survivors
        there, place = encode_set(survivors, self._group.members), self.scope.place
        if len(survivors) < len(self._prepared):
            message = messages.encode_survivors(there, b"", place)
            return dict.fromkeys(survivors, message), ServerState.CONSISTENCY
        signed = self._listed(self._cohort_signatures)
        message = messages.encode_survivors(there, signed, place)
        return dict.fromkeys(survivors, message), self._ask_shares()

    def _judge_seals(self, survivors: tuple[int, ...]) -> None:
        """Bar who sealed garbage; MissingClientError where too few hold shares of a client."""
        accused = Counter(owner for k in survivors for owner in self._closed[k])
        threshold, lost = self._group.threshold, []
        for owner, accusers in sorted(accused.items()):
            holders = set(self._group.holders(owner))
            # More than may be corrupt, or than there are spare shares: so many could end every
            # round by silence. One complaint alone is one word against another.
            corrupt, spare = 2 * threshold - len(holders) - 1, len(holders) - threshold
            if accusers > max(1, min(corrupt, spare)):
                self._enrolled.barred[owner] = f"{accusers} of its holders could not open its seals"
                self._following.pop(owner, None)
            if len(holders.intersection(survivors)) - accusers < threshold:
                lost.append(owner)
        if lost:
            raise MissingClientError(
                f"the shares of clients {lost} opened at fewer than {threshold} of their holders"
            )

    def _close_consistency(self, signers: tuple[int, ...]) -> "_Step":
        message = messages.encode_signatures(self._listed(self._signatures), self.scope.place)
        return dict.fromkeys(signers, message), self._ask_shares()

    def _listed(self, signatures: Mapping[int, bytes]) -> bytes:
        """The committee's, for everybody the same."""
        signers = (client for client in self._group.committee if client in signatures)
        return b"".join(messages.signature_entry(k, signatures[k]) for k in signers)

    def _ask_shares(self) -> ServerState:
        self._shares = OpenedShares(self._routes, self._prepared, self._closed)
        return ServerState.UNMASK

    def _close_unmask(self, _: tuple[int, ...]) -> "_Step":
        if self._shares is None:
            raise LocalError("a round cannot be unmasked before shares were asked for")
        unmasking = Unmasking(self.scope, self._group, self._prepared, self.survivors, self._shares)
        try:
            unmasking.unmask(self._sum)
            self._total = self._unpacked()
        except MissingClientError:
            raise
        except PeerError as error:
            raise GarbledSumError(f"the round is void: {error}") from error
        finally:
            for liar in sorted(unmasking.liars):
                self._enrolled.barred[liar] = "it gave a wrong share"
                self._following.pop(liar, None)
        return {}, ServerState.DONE

    def _unpacked(self) -> UnitArray:
        terms = self.scope.terms
        limit = len(self.survivors) * terms.bound
        return self.scope.layout.unpack(self._sum, terms.length, limit)


_Step = tuple[Mapping[int, bytes], ServerState]

# Reading: in this state, a message of this type -> what takes it. Any other costs its sender.
_INBOUND: Final[Mapping[ServerState, tuple[bytes, Callable[[ServerRound, int, bytes], None]]]] = {
    state: (kind.to_bytes(2, "big"), take)
    for state, kind, take in (
        (ServerState.PREPARE, MessageType.PREPARE, ServerRound._add_prepare),
        (ServerState.INPUT, MessageType.MASKED, ServerRound._add_masked),
        (ServerState.CONSISTENCY, MessageType.CONSISTENT, ServerRound._add_consistent),
        (ServerState.UNMASK, MessageType.UNMASK, ServerRound._add_unmask),
    )
}

# Reading: closing this stage with these clients -> what is sent, and the state after.
_ADVANCE: Final[Mapping[ServerState, Callable[[ServerRound, tuple[int, ...]], _Step]]] = {
    ServerState.PREPARE: ServerRound._close_prepare,
    ServerState.INPUT: ServerRound._close_input,
    ServerState.CONSISTENCY: ServerRound._close_consistency,
    ServerState.UNMASK: ServerRound._close_unmask,
}
