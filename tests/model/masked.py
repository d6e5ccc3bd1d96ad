"""The masked sum under every schedule: real parties of a federation on a network with faults.

The network delivers stage by stage. In each stage clients act in turn: each takes the messages that
wait for it, and then what it answers travels to the server, which closes the stage. Deliveries to
different parties commute, so one order stands for all. Clients are alike until something happens to
one, so a first fault touches the lowest of those that are still alike.

Every local step (a party's state, an event) runs once. Its result is kept: the state after, what it
sent, and what it wrote. What a party draws depends on its number, on how often it was started, on
how often it joined, and on the event: never twice the same in one schedule.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from secure_fd.crypto import shamir
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import Digests, digest, snapshot
from secure_fd.secagg.session import NO_NOISE, MessageType, NoiseTerms, RoundTerms
from secure_fd.secure_sum.masked import MaskedClient, MaskedServer
from secure_fd.wire import HEADER_BYTES
from tests.model.explorer import BrokenError, Choice, State
from tests.secagg_cohort import Cohort

LENGTH, BOUND = 2, 2**16 - 1
Event = tuple[Any, ...]


class Masked(NamedTuple):
    """An input that a client sent. life: of the process that loaded it."""

    index: int
    mask: bytes
    life: int
    view: bytes
    cohort: tuple[int, ...]


class Opened(NamedTuple):
    """Shares that a client gave. shares: by owner, whether it is that of the seed."""

    index: int
    view: bytes
    cohort: tuple[int, ...]
    survivors: tuple[int, ...]
    shares: tuple[tuple[int, bool], ...]


@dataclass(frozen=True)
class Node:
    """A party with its file, and what it did that properties speak of.

    life: processes of it so far. joins: set-ups that it joined.
    """

    machine: Any
    disk: bytes | None = None
    life: int = 0
    joins: int = 0
    masked: tuple[Masked, ...] = ()
    opened: tuple[Opened, ...] = ()

    def key(self, kept: Digests) -> bytes:
        told = repr((self.life, self.joins, self.masked, self.opened)).encode()
        return digest(self.machine, kept) + told + (self.disk or b"")

    def since(self, index: int) -> "Node":
        """The same without what it did in rounds before this one."""
        masked = tuple(each for each in self.masked if each.index >= index)
        opened = tuple(each for each in self.opened if each.index >= index)
        return replace(self, masked=masked, opened=opened)


@dataclass(frozen=True)
class Outcome:
    """A local step. sent: receiver and number of a message. written: files in their order.

    failed: the error with which it ended. result: of a server that has a sum: survivors, total.
    """

    after: int
    sent: tuple[tuple[int, int], ...] = ()
    written: tuple[bytes, ...] = ()
    failed: str = ""
    busy: bool = False
    result: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    refused: frozenset[int] = frozenset()


class Spot(NamedTuple):
    """A global state. Parties and messages are numbers.

    index: of the round, -1 in the set-up. stage: 0 where the round is to be opened. at: client
    whose turn it is, behind the last one the server. queue: by client, what waits for it. up: what
    the client at hand sent. inbox: what came to the server. late: for the next stage. silent:
    clients that are gone. apart: clients that are not alike any more. hurt: that lost something.
    shaken: whether the server was started again. over: whether
    the server takes nothing more in this round.
    """

    index: int
    stage: int
    at: int
    server: int
    clients: tuple[int, ...]
    queue: tuple[tuple[Event, ...], ...]
    up: tuple[int, ...] = ()
    inbox: tuple[tuple[int, int], ...] = ()
    late: tuple[tuple[int, Event], ...] = ()
    silent: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()
    hurt: frozenset[int] = frozenset()
    shaken: bool = False
    over: bool = False


SERVER = -1
ALL_FAULTS = frozenset({"lost", "late", "twice", "again", "silent", "killed", "server"})


class MaskedWorld:
    """An honest server and honest clients. rounds: in which there are faults."""

    def __init__(
        self,
        n: int = 4,
        rounds: int = 2,
        *,
        epoch: int = 64,
        noise: NoiseTerms = NO_NOISE,
        allowed: frozenset[str] = ALL_FAULTS,
        alike: bool = True,
        tail: int = 2,
    ) -> None:
        self.cohort = Cohort(n, epoch=epoch, enrolled=False)
        self.n, self.rounds, self.noise, self.allowed = n, rounds, noise, allowed
        self.alike, self.tail = alike, tail
        self.all = frozenset(range(n))
        self.promised = max(2 * n // 3 + 1, noise.survivors)
        self.nodes: list[Node] = []
        self._ids: dict[bytes, int] = {}
        self._kept: Digests = {}
        self.messages: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._steps: dict[tuple[int, Event], Outcome] = {}
        self._summed: dict[State, frozenset[int]] = {}
        self._written: list[bytes] = []
        self._label, self._drawn = "", 0

    # Parties and their steps.

    def _random(self, size: int) -> bytes:
        self._drawn += 1
        return hashlib.shake_256(f"{self._label} {self._drawn}".encode()).digest(size)

    def _draw_for(self, *label: object) -> None:
        self._label, self._drawn = repr(label), 0
        self._written.clear()

    def party(self, k: int, disk: bytes | None) -> Any:
        """A new process of a client or the server."""
        session, keep = self.cohort.session, self._written.append
        if k == SERVER:
            return MaskedServer(session, self.cohort.key, keep, disk)
        return MaskedClient(k, self.cohort.identities[k], session, self._random, keep, disk)

    def put(self, node: Node) -> int:
        """The number of a party's state."""
        key = node.key(self._kept)
        if key not in self._ids:
            self._ids[key] = len(self.nodes)
            self.nodes.append(node)
        return self._ids[key]

    def number(self, data: bytes) -> int:
        """The number of a message."""
        if data not in self._numbers:
            self._numbers[data] = len(self.messages)
            self.messages.append(data)
        return self._numbers[data]

    def terms(self, index: int) -> RoundTerms:
        return RoundTerms(index, LENGTH, BOUND, noise=self.noise)

    def values(self, k: int, index: int, life: int) -> np.ndarray:
        """What a process of a client puts into a round: another one each time."""
        drawn = hashlib.shake_256(repr((k, index, life)).encode()).digest(2 * LENGTH)
        return np.frombuffer(drawn, "<u2").astype(np.int64 if self.noise.room else np.uint64)

    def step(self, k: int, party: int, event: Event) -> Outcome:
        """A party's answer to an event, which runs once."""
        found = self._steps.get((party, event))
        if found is None:
            act = self._server_step if k == SERVER else self._client_step
            found = self._steps[party, event] = act(k, self.nodes[party], event)
        return found

    def _client_step(self, k: int, before: Node, event: Event) -> Outcome:
        name, *given = event
        machine, sent, failed = snapshot(before.machine), list[bytes](), ""
        told = self.messages[given[0]] if name == "receive" else b""
        index = given[0] if name == "load" else machine._rounds.last
        self._draw_for(k, before.life, before.joins, name, told[2:4], index)
        try:
            if name == "receive":
                sent = machine.receive(told)
            elif name == "load":
                values = self.values(k, index, before.life)
                sent = machine.load(self.terms(index), values)
            else:
                sent = machine.start()
        except (PeerError, LocalError) as error:
            failed = str(error)
        except Exception as error:
            raise BrokenError(f"(g) client {k} raises {error!r}") from error
        after = replace(before, machine=machine, disk=([before.disk, *self._written])[-1])
        for data in sent:
            if data[3] == MessageType.JOIN:
                after = replace(after, joins=after.joins + 1)
            elif data[3] == MessageType.MASKED:
                after = replace(after, masked=(*after.masked, self._masked(before, told, k, data)))
                self._check_masks(k, after.masked)
            elif data[3] == MessageType.UNMASK:
                after = replace(after, opened=(*after.opened, self._opened(before, told, data)))
        listed = tuple((k, self.number(data)) for data in sent)
        return Outcome(self.put(after), listed, tuple(self._written), failed)

    def _masked(self, before: Node, told: bytes, k: int, data: bytes) -> Masked:
        """The words minus the values are the mask."""
        machine: ClientRound = before.machine._machine
        scope, group = machine.scope, machine._enrolment.group
        cohort, _ = messages.decode_cohort(told, group, machine.place, k)
        words = np.frombuffer(data, "<u8", scope.words, HEADER_BYTES)
        values = scope.layout.pack(self.values(k, scope.terms.index, before.life))
        mask = (words - values).tobytes()
        return Masked(scope.terms.index, mask, before.life, group.view, cohort)

    def _check_masks(self, k: int, masked: Sequence[Masked]) -> None:
        if max(Counter(each.mask for each in masked).values()) > 1:
            raise BrokenError(f"(c) client {k} uses one set of masks for two inputs")
        if max(Counter(each.index for each in masked).values()) > 1:
            raise BrokenError(f"(c) client {k} masks two inputs of one round")

    def _opened(self, before: Node, told: bytes, data: bytes) -> Opened:
        """Which share a client gave of each owner: compared with those that it held."""
        machine: ClientRound = before.machine._machine
        held, group, size = machine._held, machine._enrolment.group, shamir.ELEMENT_BYTES
        survivors = held.survivors
        if told[3] == MessageType.SURVIVORS:
            survivors, _ = messages.decode_survivors(told, group, machine.place)
        given = data[HEADER_BYTES:]
        shares = []
        for at, owner in enumerate(sorted(held.shares)):
            share = given[size * at : size * (at + 1)]
            for kind, of in ((True, held.shares[owner].seed), (False, held.shares[owner].root)):
                if share == of and any(share):  # zeros where its seal did not open
                    shares.append((owner, kind))
        index = machine.scope.terms.index
        return Opened(index, group.view, held.cohort, survivors, tuple(shares))

    def _server_step(self, _: int, before: Node, event: Event) -> Outcome:
        name, given = event
        machine: MaskedServer = snapshot(before.machine)
        self._draw_for(SERVER, before.life)
        sent, failed, refused = dict[int, bytes](), "", set[int]()
        try:
            if name == "open":
                sent = dict(machine.open(self.terms(given)))
            else:
                for k, number in given:
                    try:
                        machine.receive(k, self.messages[number])
                    except PeerError:
                        refused.add(k)
                sent = dict(machine.advance())
        except PeerError as error:
            failed = str(error)
        except Exception as error:
            raise BrokenError(f"(g) the server raises {error!r}") from error
        after = replace(before, machine=machine, disk=([before.disk, *self._written])[-1])
        listed = tuple((k, self.number(data)) for k, data in sent.items())
        result, busy = None, machine.busy
        if name == "close" and not failed and machine.result is not None:
            total = tuple(int(each) for each in machine.result.total)
            result = (machine.result.survivors, total)
        if guilty := set(machine.barred) - self.corrupt:
            raise BrokenError(f"(h) clients {sorted(guilty)} are named, and did nothing")
        written = tuple(self._written)
        return Outcome(self.put(after), listed, written, failed, busy, result, frozenset(refused))

    corrupt: frozenset[int] = frozenset()

    def killed(self, k: int, party: int, files: tuple[bytes, ...]) -> Outcome:
        """A new process of a party, after so many of its last writes."""
        event = ("restart", *files[-1:])
        if (party, event) not in self._steps:
            before = self.nodes[party]
            disk, life = ([before.disk, *files])[-1], before.life + 1
            self._draw_for(k, life, "start")
            fresh = replace(before, machine=self.party(k, disk), disk=disk, life=life)
            outcome = Outcome(self.put(fresh))
            if k != SERVER:
                outcome = self.step(k, outcome.after, ("start",))
            self._steps[party, event] = outcome
        return self._steps[party, event]

    # The world.

    def first(self) -> State:
        """All clients begin a set-up."""
        clients = tuple(self.put(Node(self.party(k, None))) for k in range(self.n))
        queue = ((("start",),),) * self.n
        return Spot(-1, 1, 0, self.put(Node(self.party(SERVER, None))), clients, queue)

    def order(self, state: State) -> int:
        """Round, stage, turn, and how much of the turn is left."""
        spot = Spot._make(state)
        at, up = spot.at, 8 - len(spot.up)
        waits = 8 - len(spot.queue[at]) if at < self.n else 0
        return (((spot.index + 1) * 32 + spot.stage) * 8 + at) * 128 + waits * 9 + up

    def choices(self, state: State, *, faults: bool) -> Iterator[Choice]:
        """The steps from a state."""
        spot = Spot._make(state)
        if spot.index == self.rounds and spot.stage == 0:
            self._check_live(spot)
            return iter(())
        if spot.stage == 0:
            return self._open(spot, faults=faults)
        if spot.at == self.n:
            return self._close(spot, faults=faults)
        if spot.queue[spot.at]:
            return self._deliver(spot, faults=faults)
        return self._send(spot, faults=faults)

    def _where(self, spot: Spot) -> str:
        return "set-up" if spot.index < 0 else f"round {spot.index}"

    def _name(self, event: Event) -> str:
        if event[0] == "receive":
            return MessageType(self.messages[event[1]][3]).name
        return "START" if event[0] == "start" else "ROUND"

    def _may_fail(self, k: int, spot: Spot) -> bool:
        """Whether a fault may touch this client: of clients that are alike, the lowest."""
        return k in spot.apart or not self.alike or k == min(self.all - spot.apart)

    def _settled(self, spot: Spot) -> Spot:
        """Go on to the next turn in which something is to be done."""
        at = spot.at
        while at < self.n and not spot.up and (not spot.queue[at] or at in spot.silent):
            at += 1
        return spot if at == spot.at else spot._replace(at=at)

    def _after(self, spot: Spot, k: int, *outcomes: Outcome) -> Spot:
        """A client has made these steps."""
        clients, sent = list(spot.clients), spot.up
        for outcome in outcomes:
            clients[k] = outcome.after
            sent += tuple(number for _, number in outcome.sent)
        done = spot._replace(clients=tuple(clients), up=sent)
        for outcome in outcomes:
            if self.nodes[outcome.after].opened != self.nodes[spot.clients[k]].opened:
                self.check_opened(done.clients)
        return done

    def _deliver(self, spot: Spot, *, faults: bool) -> Iterator[Choice]:
        """The client at hand takes the first message that waits for it."""
        k, event = spot.at, spot.queue[spot.at][0]
        queue = (*spot.queue[:k], spot.queue[k][1:], *spot.queue[k + 1 :])
        rest = spot._replace(queue=queue)
        taken = self.step(k, spot.clients[k], event)
        yield self._choice("", self._after, rest, k, taken)
        if not faults or not self._may_fail(k, spot):
            return
        where, name = self._where(spot), self._name(event)
        message, apart = f"{where}: {name} to client {k}", spot.apart | {k}
        same = rest._replace(apart=apart)
        hurt, later = same._replace(hurt=spot.hurt | {k}), (*spot.late, (k, event))
        if "lost" in self.allowed:
            yield self._choice(f"{message} is lost", hurt._replace)
        if "late" in self.allowed:
            yield self._choice(f"{message} is late", partial(hurt._replace, late=later))
        if "twice" in self.allowed and event[0] == "receive":
            copied = self.step(k, taken.after, event)
            yield self._choice(f"{message} comes twice", self._after, same, k, taken, copied)
        if "again" in self.allowed and event[0] == "receive":
            again = same._replace(late=later)
            yield self._choice(f"{message} comes twice, late", self._after, again, k, taken)
        if "silent" in self.allowed:
            yield self._choice(f"{where}: client {k} is gone before {name}", self._gone, hurt, k)
        if "killed" not in self.allowed:
            return
        for writes in range(len(taken.written) + 1):
            reborn = self.killed(k, spot.clients[k], taken.written[:writes])
            what = f"{where}: client {k} is killed in its answer to {name}, {writes} writes done"
            yield self._choice(what, self._after, hurt, k, reborn)
        if taken.sent:
            what, reborn = f"after its answer to {name}", self.killed(k, taken.after, ())
            yield self._choice(
                f"{where}: client {k} is killed {what}", self._after, hurt, k, taken, reborn
            )

    def _choice(self, fault: str, go: Callable[..., Spot], *given: Any) -> Choice:
        return Choice(fault, lambda: self._settled(go(*given)))

    def _send(self, spot: Spot, *, faults: bool) -> Iterator[Choice]:
        """The first message of the client at hand travels to the server."""
        k, number = spot.at, spot.up[0]
        sent, event = (k, number), ("receive", number)
        rest = spot._replace(up=spot.up[1:])
        there = (*spot.inbox, sent)
        yield self._choice("", partial(rest._replace, inbox=there))
        if not faults or not self._may_fail(k, spot):
            return
        where, name = self._where(spot), self._name(event)
        message, same = f"{where}: {name} of client {k}", rest._replace(apart=spot.apart | {k})
        hurt, later = same._replace(hurt=spot.hurt | {k}), (*spot.late, (-1 - k, event))
        if "lost" in self.allowed:
            yield self._choice(f"{message} is lost", hurt._replace)
        if "late" in self.allowed:
            yield self._choice(f"{message} is late", partial(hurt._replace, late=later))
        if "twice" in self.allowed:
            twice = partial(same._replace, inbox=(*there, sent))
            yield self._choice(f"{message} comes twice", twice)
        if "again" in self.allowed:
            again = partial(same._replace, inbox=there, late=later)
            yield self._choice(f"{message} comes twice, late", again)
        if "silent" in self.allowed:
            what = f"{where}: client {k} is gone before {name} leaves"
            yield self._choice(what, self._gone, hurt, k)

    def _open(self, spot: Spot, *, faults: bool) -> Iterator[Choice]:
        """The server opens the round, of which clients hear first."""
        opened = self.step(SERVER, spot.server, ("open", spot.index))
        yield from self._server_turn(spot, opened, "as it opens the round", faults=faults)

    def _close(self, spot: Spot, *, faults: bool) -> Iterator[Choice]:
        """The server takes what came, and closes the stage."""
        if spot.over:
            yield self._choice("", self._next_round, spot)
            return
        closed = self.step(SERVER, spot.server, ("close", spot.inbox))
        if accused := closed.refused - spot.hurt:
            raise BrokenError(f"(h) the server refuses clients {sorted(accused)}")
        what = f"as it closes stage {spot.stage}"
        yield from self._server_turn(spot, closed, what, faults=faults)

    def _server_turn(
        self, spot: Spot, taken: Outcome, what: str, *, faults: bool
    ) -> Iterator[Choice]:
        done, sent = spot._replace(server=taken.after, over=not taken.busy), dict(taken.sent)
        if spot.stage > 0 and not taken.busy:
            self._check_end(spot, taken)
        if taken.busy or sent:
            yield self._choice("", self._next_stage, done, sent)
        else:
            yield self._choice("", self._next_round, done)
        if not faults or "server" not in self.allowed:
            return
        name = f"{self._where(spot)}: the server is killed {what}"
        for writes in range(len(taken.written) + 1):
            reborn = self.killed(SERVER, spot.server, taken.written[:writes])
            gone = spot._replace(server=reborn.after, shaken=True)
            yield self._choice(f"{name}, {writes} writes done", self._next_round, gone)
        reborn = self.killed(SERVER, taken.after, ())
        for reached in self._reached(sent, spot.apart):
            apart = spot.apart if reached == sent.keys() else spot.apart | reached
            gone = spot._replace(server=reborn.after, shaken=True, over=True, apart=apart)
            told = {k: sent[k] for k in sorted(reached)}
            yield self._choice(f"{name}, sent to {list(told)}", self._next_stage, gone, told)

    def _reached(self, sent: Mapping[int, int], apart: frozenset[int]) -> Iterator[frozenset[int]]:
        """Clients to which a server may have sent before it was killed: of those that are alike,
        any number."""
        known, like = sorted(sent.keys() & apart), sorted(sent.keys() - apart)
        for size in range(len(known) + 1):
            for some in combinations(known, size):
                for more in range(len(like) + 1):
                    if some or more:
                        yield frozenset((*some, *like[:more]))

    def _next_stage(self, spot: Spot, sent: dict[int, int]) -> Spot:
        late: dict[int, list[Event]] = {k: [] for k in range(-self.n, self.n)}
        for k, event in spot.late:
            late[k].append(event)
        begins = (("load", spot.index),) if spot.stage == 0 else ()
        queue = tuple(
            ()
            if k in spot.silent
            else (*late[k], *begins, *([("receive", sent[k])] if k in sent else ()))
            for k in range(self.n)
        )
        inbox = tuple((-1 - k, event[1]) for k in range(-self.n, 0) for event in late[k])
        return spot._replace(stage=spot.stage + 1, at=0, queue=queue, up=(), inbox=inbox, late=())

    def _next_round(self, spot: Spot) -> Spot:
        """The next round is to be opened. What was done before the last one is dropped."""
        index, empty = spot.index + 1, ((),) * self.n
        clients = tuple(self._since(party, index - 1) for party in spot.clients)
        return spot._replace(
            **{"index": index, "stage": 0, "at": 0, "clients": clients},
            **{"queue": empty, "up": (), "inbox": (), "over": False},
        )

    def _since(self, party: int, index: int) -> int:
        node = self.nodes[party]
        done = (*node.masked, *node.opened)
        if all(each.index >= index for each in done):
            return party
        event = ("since", index)
        if (party, event) not in self._steps:
            self._steps[party, event] = Outcome(self.put(node.since(index)))
        return self._steps[party, event].after

    def _gone(self, spot: Spot, k: int) -> Spot:
        """A client does nothing any more: what it knows does not matter."""
        clients = (*spot.clients[:k], self.ended(spot.clients[k]), *spot.clients[k + 1 :])
        return spot._replace(silent=spot.silent | {k}, clients=clients, up=())

    def ended(self, party: int) -> int:
        """A client that does nothing any more: what it did is left."""
        if (party, ("ended",)) not in self._steps:
            node = replace(self.nodes[party], machine=None, disk=None, joins=0)
            self._steps[party, ("ended",)] = Outcome(self.put(node))
        return self._steps[party, ("ended",)].after

    # Properties.

    def check_opened(self, clients: tuple[int, ...]) -> None:
        """(a) and (i), when a client has given shares."""
        given = [(k, each) for k, party in enumerate(clients) for each in self.nodes[party].opened]
        last = max(each.index for _, each in given)
        newest = [each for _, each in given if each.index == last]
        partial_sums = {each.survivors for each in newest if each.survivors != each.cohort}
        if len({(each.view, each.cohort) for each in newest}) > 1 or len(partial_sums) > 1:
            raise BrokenError(f"(i) clients do not agree on what they open in round {last}")
        shares = self.shares(clients)
        for view, index, owner, seed in shares:
            other = shares.get((view, index, owner, not seed), self.corrupt)
            fewest = min(len(shares[view, index, owner, seed]), len(other))
            if fewest >= self.threshold and owner not in self.corrupt:
                raise BrokenError(f"(a) both secrets of client {owner} can be opened")

    def shares(self, clients: tuple[int, ...]) -> dict[tuple[bytes, int, int, bool], set[int]]:
        """By view, round, owner and whether of its seed: who gave a share, or is corrupt."""
        found: dict[tuple[bytes, int, int, bool], set[int]] = {}
        for k, party in enumerate(clients):
            for each in self.nodes[party].opened:
                for owner, seed in each.shares:
                    of = (each.view, each.index, owner, seed)
                    found.setdefault(of, set(self.corrupt)).add(k)
        return found

    @property
    def threshold(self) -> int:
        return 2 * self.n // 3 + 1

    def _check_end(self, spot: Spot, taken: Outcome) -> None:
        """(b), (e) and (g), when a round has ended."""
        good = self.all - spot.hurt
        if taken.result is None:
            if spot.index >= 0 and len(good) >= self.promised and not spot.shaken:
                raise BrokenError(
                    f"(g) round {spot.index} is aborted, {sorted(good)} were there: {taken.failed}"
                )
            return
        survivors, total = taken.result
        if len(survivors) < self.promised:
            raise BrokenError(f"(b) a sum of {survivors}: {self.promised} are promised")
        expected = np.zeros(LENGTH, dtype=np.int64)
        for k in survivors:
            node = self.nodes[spot.clients[k]]
            [life] = [each.life for each in node.masked if each.index == spot.index]
            expected += self.values(k, spot.index, life).astype(np.int64)
        if total != tuple(expected.tolist()):
            raise BrokenError(f"(b) the sum of {survivors} is {total}, not {tuple(expected)}")
        if not spot.shaken and not good <= set(survivors):
            raise BrokenError(f"(g) {sorted(good)} were there, and {survivors} are in the sum")

    def _check_live(self, spot: Spot) -> None:
        """(j): without more faults all clients that are up are in one of the next sums."""
        up = self.all - spot.silent - self.corrupt
        if len(up) < self.promised or not self.tail:
            return
        clients = tuple(self._since(party, self.rounds) for party in spot.clients)
        fresh = spot._replace(clients=clients, hurt=self.all, apart=self.all, shaken=True)
        if lost := up - self._summed_after(fresh):
            raise BrokenError(f"(j) clients {sorted(lost)} are in none of {self.tail} sums")

    def _summed_after(self, state: State) -> frozenset[int]:
        """Drive on without a fault; clients that are in a sum of the rounds that follow."""
        end, passed, there = self.rounds, list[tuple[State, frozenset[int]]](), frozenset[int]()
        self.rounds += self.tail
        while (spot := Spot._make(state)).index < self.rounds:
            if state in self._summed:
                there = self._summed[state]
                break
            if spot.at == self.n and spot.stage and not spot.over:
                result = self.step(SERVER, spot.server, ("close", spot.inbox)).result
                passed.append((state, frozenset(result[0] if result else ())))
            [choice] = self.choices(state, faults=False)
            state = choice.go()
        self.rounds = end
        for state, summed in reversed(passed):
            there = self._summed[state] = there | summed
        return there
