"""Parties of a federation, the network between them and their files, and what goes wrong there.

Time goes stage by stage. First the clients take what waits for them, then what they answered
travels to the server, then the server closes the stage. Deliveries to different parties commute, so
one order stands for all. Clients are alike until something happens to one, so a first fault touches
the lowest of those that are still alike.

Every local step (state of a party, event) runs once; its outcome is kept. What a party draws
depends on its number, its life and the event: never twice the same in one schedule.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from secure_fd.crypto.keys import seal_capsule
from secure_fd.deployment.recovery import Recovery, StoredSums
from secure_fd.errors import LocalError, PeerError
from secure_fd.protocol.client import Client
from secure_fd.protocol.server import Server
from secure_fd.secagg.machine import Digests, digest, snapshot
from secure_fd.secagg.session import NO_NOISE, MessageType, NoiseTerms
from secure_fd.secure_sum.masked import MaskedClient
from secure_fd.wire import Kind
from tests.drivers.cohort import Cohort
from tests.model import properties
from tests.model.explorer import BrokenError, Choice
from tests.model.roles import KEY, Asker, Voter

SERVER, START = -1, 0
"""Place of the server behind the clients; number of the event with which a client begins."""
ALIKE, TOUCHED, HURT, GONE = range(4)
"""Fates of a client. HURT: it lost something, so a round may go on without it."""
NETWORK = {
    "is lost": (0, False, HURT),
    "is late": (0, True, HURT),
    "comes twice": (2, False, TOUCHED),
    "comes twice, late": (1, True, TOUCHED),
}
"""Fates of a message: copies that come now, whether one is late, fate of the client."""
FAULTS = frozenset({*NETWORK, "client gone", "client killed", "server killed"})
NAMES = {0: "START"} | {kind.value: kind.name for kind in (*MessageType, *Kind)}
Files = tuple[tuple[str, bytes], ...]
Posts = tuple[tuple[int, int], ...]
"""Clients and numbers of messages."""


class Disk:
    """Files of the party at hand. written: its files after each write of a step."""

    def begin(self, files: Files) -> None:
        self.written = [dict(files)]

    def get(self, name: str) -> bytes | None:
        return self.written[-1].get(name)

    def put(self, values: dict[str, bytes], drop: Iterable[str] = ()) -> None:
        gone = set(drop)
        self.written.append({k: v for k, v in self.written[-1].items() if k not in gone} | values)


@dataclass(frozen=True)
class Process:
    """A party. life: processes so far and set-ups that it joined. facts: see properties.py."""

    machine: Any
    files: Files = ()
    life: int = 0
    facts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A local step. written: files after each write. failed: the error with which it ended."""

    after: int
    sent: Posts = ()
    written: tuple[Files, ...] = ()
    failed: str = ""


class Spot(NamedTuple):
    """A global state; parties and messages are numbers.

    index: of the round, -1 in the set-up. stage: 0 where the round is to be opened. queue: to the
    clients. up: from them. inbox: came to the server. late: comes in the next stage, to the server
    or not. shaken: whether the server was started again. over: whether it ended the round.
    """

    index: int
    stage: int
    parties: tuple[int, ...]
    queue: Posts
    fate: tuple[int, ...]
    up: Posts = ()
    inbox: Posts = ()
    late: tuple[tuple[bool, int, int], ...] = ()
    shaken: bool = False
    over: bool = False

    def having(self, k: int, party: int) -> "Spot":
        """The same with another state of a party."""
        parties = list(self.parties)
        parties[k] = party
        return self._replace(parties=tuple(parties))

    def touched(self, k: int, fate: int) -> "Spot":
        """The same with a client of at least this fate."""
        fates = list(self.fate)
        fates[k] = max(fates[k], fate)
        return self._replace(fate=tuple(fates))


class World:
    """An honest server and honest clients of a federation. rounds: in which there are faults.

    allowed: faults, of FAULTS. alike: whether a first fault touches the lowest client only. tail:
    sums that follow without a fault. survey: whether a round has a sum before the counted one.
    """

    corrupt: frozenset[int] = frozenset()

    def __init__(
        self,
        n: int = 4,
        rounds: int = 2,
        *,
        epoch: int = 64,
        hybrid: bool = False,
        survey: bool = False,
        noise: NoiseTerms = NO_NOISE,
        allowed: frozenset[str] = FAULTS,
        alike: bool = True,
        tail: int = 2,
    ) -> None:
        self.cohort = Cohort(n, epoch=epoch, enrolled=False, hybrid=hybrid)
        self.session, self.n, self.rounds, self.tail = self.cohort.session, n, rounds, tail
        self.survey, self.noise, self.allowed, self.alike = survey, noise, allowed, alike
        self.all, self.threshold = frozenset(range(n)), 2 * n // 3 + 1
        self.promised = max(self.threshold, noise.survivors)
        self.processes: list[Process] = []
        self.messages, self._numbers = [b""], {b"": START}
        self.disk, self.seal = Disk(), cache(seal_capsule)
        self._ids: dict[Any, int] = {}
        self._kept: Digests = {}
        self._steps: dict[Any, Outcome] = {}

    # Parties and their steps.

    def draw(self, size: int) -> bytes:
        self._drawn += 1
        return hashlib.shake_256(f"{self._label} {self._drawn}".encode()).digest(size)

    def _act_as(self, files: Files, *label: object) -> None:
        self.disk.begin(files)
        self._label, self._drawn = repr(label), 0

    def sums(self, k: int) -> Any:
        """A client's role in the sum."""
        given = self.cohort.identities[k], self.session, self.draw
        keep, memory = lambda data: self.disk.put({"memory": data}), self.disk.get("memory")
        return MaskedClient(k, *given, keep, memory, seal=self.seal)

    def _party(self, k: int) -> Any:
        """A new process, which reads its files."""
        session, noise = self.session.id, self.noise
        if k != SERVER:
            role = Voter(self.draw, np.int64 if noise.room else np.uint64, survey=self.survey)
            return Client(k, session, KEY.public, role, self.sums(k), noise, self.disk)
        sums = StoredSums(self.session, self.cohort.key, self.disk)
        role = Asker(survey=self.survey)
        server = Server(tuple(sorted(self.all)), session, KEY, role, sums, noise)
        Recovery(server, self.disk).come_back()
        return server

    def put(self, process: Process) -> int:
        """The number of a party's state."""
        kept = process.life, process.facts, process.files
        key = digest(process.machine, self._kept), kept
        if key not in self._ids:
            self._ids[key] = len(self.processes)
            self.processes.append(process)
        return self._ids[key]

    def number(self, data: bytes) -> int:
        """The number of a message."""
        if data not in self._numbers:
            self._numbers[data] = len(self.messages)
            self.messages.append(data)
        return self._numbers[data]

    def _once(self, make: Callable[..., Outcome], k: int, party: int, *event: Any) -> Outcome:
        key = make.__name__, party, event
        if key not in self._steps:
            self._steps[key] = make(k, self.processes[party], *event)
        return self._steps[key]

    def step(self, k: int, party: int, *event: Any) -> Outcome:
        """A party's answer to an event: to a client a message, else what the server does."""
        return self._once(self._run, k, party, *event)

    def reborn(self, k: int, party: int, files: Files, number: int = START) -> Outcome:
        """A new process of a party, which reads these files. number: message that it answered."""
        made = self._once(self._restart, k, party, files, number)
        return made if k == SERVER else self.step(k, made.after, START)

    def ended(self, party: int) -> int:
        """A client that does nothing any more: what it did is left."""
        return self._once(self._end, 0, party).after

    def _run(self, k: int, before: Process, event: Any, *given: Any) -> Outcome:
        machine, sent, failed = snapshot(before.machine), list[tuple[int, bytes]](), ""
        received = b"" if k == SERVER else self.messages[event]
        self._act_as(before.files, k, before.life, received[2:4], received[8:16])
        try:
            if k == SERVER:
                out = self._serve(machine, event, *given)
                sent = [(to, data) for to, parts in out.items() for data in parts]
            else:
                sent = [
                    (k, data)
                    for data in (machine.receive(received) if received else machine.start())
                ]
        except (PeerError, LocalError) as error:
            failed = str(error)
        except Exception as error:
            raise BrokenError(f"(g) party {k} raises {error!r}") from error
        written = tuple(tuple(sorted(files.items())) for files in self.disk.written[1:])
        after = replace(before, machine=machine, files=(before.files, *written)[-1])
        if k == SERVER:
            properties.check_named(set(machine.sums.barred) - self.corrupt)
        else:
            after = properties.noted(k, before, after, received, [data for _, data in sent])
        posts = tuple((to, self.number(data)) for to, data in sent)
        return Outcome(self.put(after), posts, written, failed)

    def _serve(self, server: Server, what: str, given: Posts) -> dict[int, list[bytes]]:
        """given: messages that came; or, for a new round, the broadcasts that clients have read."""
        if what == "close":
            for k, number in given:
                server.receive(k, self.messages[number])
            return server.advance()
        for k, position in given:
            server.returned(k, position)
        Recovery(server, self.disk).note_begun(server.place[0] + 1)
        return server.begin()

    def _restart(self, k: int, before: Process, files: Files, number: int) -> Outcome:
        made = self._new(k, files, before.life + 1, before.facts)
        received = self.messages[number]
        return Outcome(
            self.put(made if k == SERVER else properties.noted(k, before, made, received))
        )

    def _new(self, k: int, files: Files, life: int, facts: tuple[Any, ...] = ()) -> Process:
        self._act_as(files, k, life, "new")
        party = self._party(k)
        return Process(party, tuple(sorted(self.disk.written[-1].items())), life, facts)

    def _end(self, _: int, before: Process) -> Outcome:
        return Outcome(self.put(Process(None, facts=before.facts)))

    # The world.

    def first(self) -> Spot:
        """All clients begin a set-up."""
        parties = tuple(self.put(self._new(k, (), 0)) for k in (*range(self.n), SERVER))
        return Spot(-1, 1, parties, tuple((k, START) for k in range(self.n)), (ALIKE,) * self.n)

    def order(self, spot: Spot) -> int:
        """Round, stage, and how much of the stage is left."""
        left = 64 + len(spot.queue) if spot.queue else len(spot.up)
        return ((spot.index + 1) * 64 + spot.stage) * 128 - left

    def choices(self, spot: Spot, *, faults: bool) -> Iterator[Choice]:
        """The steps from a state."""
        turn = self._pass if spot.queue or spot.up else self._close
        return turn(spot, faults=faults)

    def machine(self, spot: Spot, k: int) -> Any:
        """A party as it is."""
        return self.processes[spot.parties[k]].machine

    def where(self, spot: Spot) -> str:
        return "set-up" if spot.index < 0 else f"round {spot.index}"

    def name(self, number: int) -> str:
        return NAMES[(self.messages[number] or bytes(4))[3]]

    def _pass(self, spot: Spot, *, faults: bool) -> Iterator[Choice]:
        """The first message that is on its way comes, or does not."""
        up = not spot.queue
        k, number = (spot.up if up else spot.queue)[0]
        rest = spot._replace(up=spot.up[1:]) if up else spot._replace(queue=spot.queue[1:])
        yield Choice("", partial(self.arrive, rest, k, number, up=up))
        if not faults or (self.alike and not spot.fate[k] and k != spot.fate.index(ALIKE)):
            return
        where, name = self.where(spot), self.name(number)
        for fault, (copies, late, fate) in NETWORK.items():
            if fault in self.allowed and (number != START or fate != TOUCHED):
                hit = rest.touched(k, fate)
                hit = hit._replace(late=(*hit.late, (up, k, number))) if late else hit
                text = f"{where}: {name} {'of' if up else 'to'} client {k} {fault}"
                yield Choice(text, partial(self.arrive, hit, k, number, up=up, copies=copies))
        if "client gone" in self.allowed:
            text = f"{where}: client {k} is gone before {name}{' leaves' if up else ''}"
            yield Choice(text, partial(self.gone, rest, k))
        if up:
            yield from self.bad(rest, k, number)
        elif "client killed" in self.allowed:
            yield from self.kills(rest.touched(k, HURT), k, number, f"{where}: ", name)

    def bad(self, rest: Spot, k: int, number: int) -> Iterator[Choice]:  # noqa: ARG002
        """Message that a corrupt client sends in place of the honest one."""
        return iter(())

    def arrive(self, spot: Spot, k: int, number: int, *, up: bool = False, copies: int = 1) -> Spot:
        """Copies of a message come to a client or to the server."""
        if up:
            return spot._replace(inbox=spot.inbox + ((k, number),) * copies)
        for _ in range(copies):
            done = self.step(k, spot.parties[k], number)
            if done.failed and not (self.corrupt or spot.shaken or spot.fate[k] == HURT):
                properties.check_refused(self.machine(spot, k), self.messages[number], done.failed)
            spot = self.taken(spot, k, done)
        return spot

    def taken(self, spot: Spot, k: int, *outcomes: Outcome) -> Spot:
        """A client has made these steps."""
        for outcome in outcomes:
            before = self.processes[spot.parties[k]]
            spot = spot.having(k, outcome.after)._replace(up=(*spot.up, *outcome.sent))
            if self.processes[outcome.after].facts != before.facts:
                properties.check_opened(self, spot.parties)
        return spot

    def kills(self, spot: Spot, k: int, number: int, where: str, name: str) -> Iterator[Choice]:
        """A client is killed between any two writes of its answer, or after it."""
        party, what = spot.parties[k], f"{where}client {k} is killed"
        done = self.step(k, party, number)
        for writes, files in enumerate((self.processes[party].files, *done.written)):
            text = f"{what} in its answer to {name}, {writes} writes done"
            yield Choice(text, partial(self.taken, spot, k, self.reborn(k, party, files, number)))
        if done.sent:
            fresh = self.reborn(k, done.after, self.processes[done.after].files)
            text = f"{what} after its answer to {name}"
            yield Choice(text, partial(self.taken, spot, k, done, fresh))

    def gone(self, spot: Spot, k: int) -> Spot:
        """A client does nothing any more."""
        queue, up = ([post for post in posts if post[0] != k] for posts in (spot.queue, spot.up))
        left = spot._replace(queue=tuple(queue), up=tuple(up)).touched(k, GONE)
        return left.having(k, self.ended(spot.parties[k]))

    def _close(self, spot: Spot, *, faults: bool) -> Iterator[Choice]:
        """The server opens the round, or takes what came and closes the stage."""
        if spot.stage == 0 and spot.index == self.rounds:
            properties.check_live(self, spot)
            return
        if spot.over:
            yield Choice("", partial(self._next_round, spot))
            return
        event, what = ("close", spot.inbox), f"as it closes stage {spot.stage}"
        if not spot.stage:
            clients = ((k, self.machine(spot, k)) for k in range(self.n))
            read = tuple((k, client.position) for k, client in clients if client is not None)
            event, what = ("open", read), "as it opens the round"
        party = spot.parties[SERVER]
        taken = self.step(SERVER, party, *event)
        server = self.processes[taken.after].machine
        properties.expect(spot.index < 0 or not taken.failed, f"(g) no round: {taken.failed}")
        if spot.stage:
            properties.check_end(self, spot, server)
        done = spot.having(SERVER, taken.after)._replace(over=not server.busy)
        yield Choice("", partial(self._next_stage, done, taken.sent))
        if not faults or "server killed" not in self.allowed:
            return
        text, shaken = (
            f"{self.where(spot)}: the server is killed {what}",
            spot._replace(shaken=True),
        )
        for writes, files in enumerate((self.processes[party].files, *taken.written)):
            left = shaken.having(SERVER, self.reborn(SERVER, party, files).after)
            yield Choice(f"{text}, {writes} writes done", partial(self._next_round, left))
        fresh = self.reborn(SERVER, taken.after, self.processes[taken.after].files)
        left = shaken.having(SERVER, fresh.after)._replace(over=True)
        asked = sorted({k for k, _ in taken.sent})
        like = [k for k in asked if not spot.fate[k]]
        for some in (
            some for size in range(1, len(asked) + 1) for some in combinations(asked, size)
        ):
            chosen = [k for k in some if not spot.fate[k]]
            if chosen == like[: len(chosen)]:  # of clients that are alike, the lowest
                hit, posts = left, tuple(post for post in taken.sent if post[0] in some)
                for k in some if len(some) < len(asked) else ():
                    hit = hit.touched(k, TOUCHED)
                yield Choice(f"{text}, sent to {list(some)}", partial(self._next_stage, hit, posts))

    def _next_stage(self, spot: Spot, sent: Posts) -> Spot:
        if spot.over and not sent:
            return self._next_round(spot)
        late = [(k, number) for up, k, number in spot.late if not up]
        posts = [post for post in (*late, *sent) if spot.fate[post[0]] < GONE]
        queue = tuple(sorted(posts, key=lambda post: post[0]))
        inbox = tuple((k, number) for up, k, number in spot.late if up)
        return spot._replace(stage=spot.stage + 1, queue=queue, inbox=inbox, late=())

    def _next_round(self, spot: Spot) -> Spot:
        """Messages that came after the server had ended the round come in the next one."""
        late = (*spot.late, *((True, *post) for post in spot.inbox))
        return spot._replace(index=spot.index + 1, stage=0, inbox=(), late=late, over=False)

    def summed_after(self, spot: Spot) -> set[int]:
        """Drive on without a fault; return the clients that are in a sum of the rounds after."""
        there, end = set[int](), self.rounds
        self.rounds += self.tail
        while spot.index < self.rounds:
            [choice] = self.choices(spot, faults=False)
            spot = choice.go()
            result = self.machine(spot, SERVER).last
            there.update(result.survivors if result and spot.index >= end else ())
        self.rounds = end
        return there
