"""The deployment's server and sites on a simulated network and clock, with seeded faults.

    python -m tests.model.flower --seed 7           one schedule, event by event
    python -m tests.model.flower --schedules 10000  many; the first one that breaks a property

Processes are the real `Rounds` and `Site` with their keys, masks, ledgers and journals; a method of
three integers stands for training. A process may be killed before each write and each send.
Messages are lost, late or come twice, and a site may be cut off. After the first rounds nothing
goes wrong any more.
"""

import heapq
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import tyro

from secure_fd.crypto.keys import AgreementKey, IdentityKey, fields
from secure_fd.deployment.envelope import Answer, Push
from secure_fd.deployment.loop import Rounds, Transport
from secure_fd.deployment.site import Site
from secure_fd.privacy.ledger import _ENTRIES, BudgetLedger, Total
from secure_fd.privacy.record import NoisyClassSums, PooledPlan
from secure_fd.protocol import messages
from secure_fd.secagg.session import MessageType, NoiseTerms, PinnedRoster, Session
from secure_fd.wire import Kind, Sum
from tests.model.explorer import BrokenError

SERVER, SITES, PROMISED, CPU = -1, range(4), 3, torch.device("cpu")
HOSTILE, ROUNDS, BACK, EPOCH = 4, 7, 2, 3
"""Rounds with faults; in all, and one more for each time the server is killed; rounds with a sum in
the last of which all sites are back; sums of a set-up."""
DEADLINE, LISTED = 10.0, 20.0
"""Seconds of a stage, and for which a node that is gone is still listed."""
MESSAGES = ("lost", "late", "twice", "cut")
PLAN = PooledPlan(clients=4, honest=2, corrupt=1, entries=3, sums=99, noise=1.0)
NAMES = {kind.value: kind.name for kind in (*MessageType, *Kind)}
NOISE, BOUND = NoiseTerms(PLAN.room(len(SITES)), PLAN.survivors), 7


Action = Callable[[], object]


class Fault(NamedTuple):
    """Fault of a site at its message of this number, or of a party at its write or send.

    seconds: by which a message is late, or after which a site or a process is back.
    """

    who: int
    kind: str
    at: int
    seconds: float


def faults_of(seed: int) -> list[Fault]:
    """Draw up to four faults, in half of the schedules of the server and one site alone."""
    rng, found = random.Random(seed), list[Fault]()  # noqa: S311 - it repeats a schedule
    parties = [SERVER, *SITES] if seed % 2 else [SERVER, rng.choice(SITES)]
    for _ in range(rng.randint(1, 4)):
        who, late = rng.choice(parties), rng.choice((0.0, 1.0, 7.0, 16.0, 40.0))
        kind = "killed" if who == SERVER else rng.choice((*MESSAGES, "killed"))
        found.append(Fault(who, kind, rng.randint(1, 180 if who == SERVER else 60), late))
    return found


class KilledError(BaseException):
    """The process ends here; no handler of the package catches it."""


class Disk(dict[str, bytes]):
    """A state file, or a ledger, that outlives its processes. before: called before a write."""

    def __init__(self, before: Callable[[str], None], **values: bytes) -> None:
        super().__init__(values)
        self._before, self.bodies = before, list[bytes]()

    def put(self, values: Mapping[str, bytes], drop: Iterable[str] = ()) -> None:
        self._before(f"writes {', '.join(values)}")
        self.update(values)
        for name in drop:
            self.pop(name, None)

    def append(self, body: bytes) -> None:
        self._before("writes to its ledger")
        self.bodies.append(body)

    def entries(self) -> list[bytes]:
        return list(self.bodies)


class SiteRole(messages.ClientRole):
    """Releases nothing but noise, and keeps the newest result."""

    def __init__(self, world: "World", k: int, seed: bytes, own: Any) -> None:
        self.learner, self._world, self._k, self.newest = own, world, k, b""
        self._booked = BudgetLedger._read(world.ledgers[k])
        unit = SimpleNamespace(plan=PLAN, session=b"", terms=b"", ledgers={k: self}, name="unit")
        unit.noiseless, unit.shares, unit.random = False, True, os.urandom
        self._guard, self._seed = NoisyClassSums(unit, k), seed

    def begin(self) -> messages.ClientTurn:
        yield from ()

    def announced(self, index: int, digest: bytes) -> None:
        self._place = index, digest
        self._world.agree("(i) the joint seed", 0, self._seed)

    def round(self, announcement: bytes) -> messages.ClientTurn:
        with suppress(messages.RoundAborted):
            for _ in range(announcement[0] if announcement else 0):
                index, digest = self._place
                place = fields(index.to_bytes(8, "big"), digest)
                values = self._guard.release_sums([], (PLAN.entries, 1), announcement, place)
                self._world.loaded[self._k, index] = values, announcement
                self.newest = yield messages.SumInput(values, BOUND, counted=True)

    def release(self, *asked: Any, **given: Any) -> bytes:
        """Stand for its ledger, and check that each draw has a booking of its own on the disk."""

        def drawn() -> bytes:
            self._world.draws[self._k] += 1
            bodies = self._world.ledgers[self._k].bodies
            fine = sum(b"_Booked" in body for body in bodies) >= self._world.draws[self._k]
            self._world.expect(fine, f"(f) site {self._k} draws noise without a booking")
            return asked[-1]()

        return self._booked.release(*asked[:-1], drawn, **given)

    def missed(self, _: bytes, message: bytes | None) -> None:
        self.newest = message or self.newest

    def unopened(self, announcement: bytes) -> None:
        gave = {k for k, of in self._world.opened if of == announcement}
        opened = self._k in gave or len(gave) >= PROMISED
        self._world.expect(not opened, f"(f) site {self._k} takes back a release that was opened")

    def memory(self) -> bytes:
        return self.newest

    def recall(self, memory: bytes) -> None:
        self.newest = memory


class SumsServer(messages.ServerRole):
    """Asks for one or two sums, or for none, and sends what they are. Its state is a counter."""

    checkpointed = ("sums",)

    def __init__(self, world: "World", seed: bytes) -> None:
        self._world, self._seed, self.sums = world, seed, 0

    def round(self, index: int) -> messages.ServerTurn:
        self._world.agree("(i) the joint seed", 0, self._seed)
        if index % 4 == 2:
            return None
        message = bytes([1 + index % 2, index])
        for _ in range(message[0]):
            number, self.sums = self.sums, self.sums + 1
            got = yield messages.SumRequest(message, PLAN.entries, BOUND, counted=True)
            message = self._world.published(number, got)
        return message


def identity(k: int) -> IdentityKey:
    return IdentityKey.generate(lambda _: bytes([k + 2]) * 32)


@cache
def roster_of(hybrid: bool) -> Any:
    members = PinnedRoster({k: identity(k).public.raw for k in SITES})
    key = AgreementKey.derive(bytes(32)).public
    return SimpleNamespace(
        session=Session(members, b"", b"", bytes(32), key, hybrid=hybrid, epoch=EPOCH),
        sites=[SimpleNamespace(name=f"site {k}") for k in SITES],
        terms=SimpleNamespace(deadline=DEADLINE, share_accuracy=False),
        identity=identity(SERVER).public.raw,
        digest=b"",
    )


class World(Transport):
    """One schedule: network, clock, processes, and the properties."""

    def __init__(self, seed: int, faults: Sequence[Fault]) -> None:
        self._rng, self._faults, self._calm = random.Random(seed), faults, False  # noqa: S311
        self._roster, self.lines = roster_of(seed % 8 == 0), list[str]()
        self._seen, self._hit = Counter[object](), set[int]()
        self._clock, self._numbers = 0.0, count()
        self._queue = list[tuple[float, int, Action]]()
        keys = {"identity": bytes([1]) * 32, "agreement": bytes(32)}
        self._disks = {k: Disk(partial(self._acts, k), **keys) for k in (SERVER, *SITES)}
        self.ledgers = {k: Disk(partial(self._acts, k)) for k in SITES}
        self._sites, self._ends = dict[int, Site](), dict[int, object]()
        self._nodes, self._gone = dict[int, int](), dict[int, float]()  # site; since when
        self.loaded, self._masked = dict[Any, Any](), dict[Any, Any]()  # by site and sum
        self.draws, self.opened = Counter[int](), set[tuple[int, bytes]]()
        self._agreed, self._fine, self._since = dict[object, object](), 0, BACK
        for k in SITES:
            self.ledgers[k].bodies += [_ENTRIES.encode(Total("records", float("inf"), 1e-5))]
            self._start(k)

    # Properties

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenError(what)

    def agree(self, what: str, at: object, value: object) -> None:
        """All that is seen under one name is the same."""
        self.expect(self._agreed.setdefault((what, at), value) == value, f"{what} differs at {at}")

    def published(self, number: int, got: Sum) -> bytes:
        """Check a sum, and return the message that carries it."""
        total = sum(self._masked[k, number] for k in got.survivors)
        self.expect(len(got.survivors) >= PROMISED, f"(b) a sum of {got.survivors}")
        self.expect(np.array_equal(got.total, total), f"(b) sum {number} is not of its inputs")
        message = repr((number, got.survivors, got.total.tolist())).encode()
        self.agree("(d) a sum", number, message)
        return message

    def _check(self, k: int, site: Site, parts: Iterable[bytes]) -> None:
        """Check what a site has read, and what leaves it."""
        if site.position:
            self.agree("(d) the log of broadcasts", site.position, site.digest)
            self.agree("(d) the newest result", site.position, site.role.newest)
        for part in self._messages(parts):
            index = int.from_bytes(part[8:16], "big")
            if part[3] == MessageType.MASKED:
                self._masked[k, index], _ = self.loaded[k, index]
                self.agree("(c) a masked input", (k, index), part)
                self.agree("(c) the sum of a release", (k, self._masked[k, index].tobytes()), index)
            elif part[3] == MessageType.UNMASK:
                self.opened.add((k, self.loaded[k, index][1]))

    def _messages(self, parts: Iterable[bytes]) -> list[bytes]:
        """Select the messages of the parties; a greeting is none."""
        return [part for part in parts if part[16:48] == self._roster.session.id]

    def _round(self, aborted: bool, survivors: Sequence[Sequence[int]]) -> None:
        """Check who is in the sums of a round."""
        if not (aborted or survivors):
            return
        there, untouched = set[int]() if aborted else set(survivors[-1]), set(SITES) - self._hit
        self._since, self._fine = self._since + 1, self._fine + self._calm
        if self._since >= BACK and len(untouched) >= PROMISED:
            self.expect(untouched <= there, f"(g) a fault elsewhere costs {untouched - there}")
        if self._fine >= BACK:
            self.expect(there == self._members, f"(j) only {there} are in the sum")

    @property
    def _members(self) -> set[int]:
        """Sites of the first set-up. One that missed it whole takes part in no sum."""
        return set(np.frombuffer(self._disks[SERVER]["set up"], "<u4").tolist())

    # Clock and network

    def _note(self, what: str, parts: Iterable[bytes] = ()) -> None:
        named = (NAMES[part[3]] for part in self._messages(parts))
        self.lines.append(" ".join([f"{self._clock:8.2f} ", what, *named]))

    def now(self) -> float:
        return self._clock

    def _later(self, seconds: float, what: Action) -> None:
        heapq.heappush(self._queue, (self._clock + seconds, next(self._numbers), what))

    def _runs_next(self, until: float) -> bool:
        """Let the next event happen if it is due by then; else it is then."""
        if not self._queue or self._queue[0][0] > until:
            self._clock = max(self._clock, until)
            self.expect(self._clock < 1e5, "(j) the server waits for ever")
            return False
        self._clock, _, what = heapq.heappop(self._queue)
        what()
        return True

    def pause(self, seconds: float) -> None:
        until = self._clock + seconds
        while self._runs_next(until):
            pass

    def nodes(self) -> Sequence[int]:
        return [n for n in self._nodes if self._clock - self._gone.get(n, self._clock) < LISTED]

    def push(self, messages: Mapping[int, bytes], deadline: float) -> Iterator[tuple[int, bytes]]:
        until, waiting, came = self._clock + deadline, set(messages), list[tuple[int, bytes]]()
        for node, data in messages.items():
            sent = Push.decode(data)
            self._acts(SERVER, f"sends {sent.kind.name} to site {self._nodes[node]}", sent.parts)
            arrives = partial(self._arrives, node, data)
            self._travels(self._nodes[node], partial(arrives, came), partial(arrives, []))
        while waiting and (self._runs_next(until) or came):
            while came:
                node, data = came.pop(0)
                if node in waiting:
                    waiting.remove(node)
                    yield node, data

    def _due(self, who: int, kinds: Sequence[str]) -> Fault | None:
        self._seen[who, kinds] += 1
        at = who, self._seen[who, kinds]
        hit = (f for f in self._faults if (f.who, f.at) == at and f.kind in kinds)
        found = None if self._calm else next(hit, None)
        if found is not None and found.kind != "twice":
            self._hit.add(who)
        return found

    def _acts(self, who: int, what: str, parts: Iterable[bytes] = ()) -> None:
        """A process is about to write or send; it is killed instead where a fault says so."""
        fault, name = self._due(who, ("killed",)), "server" if who == SERVER else f"site {who}"
        self._note(f"KILLED: {name} before it {what}" if fault else f"{name} {what}", parts)
        if fault:
            raise KilledError(fault.seconds)

    def _travels(self, k: int, arrives: Action, copy: Action) -> None:
        """A message arrives once and soon, unless a fault hits it. copy: a second one arrives."""
        soon, fault = self._rng.uniform(0.01, 0.5), self._due(k, MESSAGES)
        _, kind, _, seconds = fault or Fault(k, "", 0, 0.0)
        if kind:
            self._note(f"{kind.upper()}: this message, {seconds} s")
        if kind == "cut":
            self._leaves(k, seconds)
        if kind in ("", "late", "twice"):
            self._later(soon + seconds * (kind == "late"), arrives)
        if kind == "twice":
            self._later(soon + seconds, copy)

    def _arrives(self, node: int, data: bytes, came: list[tuple[int, bytes]]) -> None:
        k, got = self._nodes.get(node, SERVER), Push.decode(data)
        if k not in self._sites or node in self._gone:
            return
        try:
            self._note(f"site {k} gets {got.kind.name}", got.parts)
            site = self._sites[k]
            answer = Answer.decode(reply := site.answer(data))
            self._acts(k, "refuses" if answer.refused else "answers", answer.parts)
        except KilledError as killed:
            del self._sites[k]
            self._leaves(k, killed.args[0], partial(self._start, k))
            return
        self._check(k, site, answer.parts)
        arrives = partial(came.append, (node, reply))
        self._travels(k, arrives, arrives)
        if site.done:
            self._ends[k] = site.position, site.digest
            del self._sites[k]

    # Processes

    def _leaves(self, k: int, seconds: float, back: Action | None = None) -> None:
        """The node of a site is gone, and another one comes after `seconds`."""
        self._gone |= {n: self._clock for n, at in self._nodes.items() if at == k}
        self._later(seconds, back or partial(self._connects, k))

    def _connects(self, k: int) -> None:
        self._gone |= {n: self._clock for n, at in self._nodes.items() if at == k}
        if k in self._sites:
            self._nodes[next(self._numbers)] = k

    def _parts(self, k: int) -> Any:
        return SimpleNamespace(
            network=lambda _: torch.nn.Linear(1, 1),
            own=lambda _k, model, _data, _device: SimpleNamespace(model=model, device=CPU),
            setting=lambda seed, _: seed,
            method=SimpleNamespace(
                check=lambda *_: None,
                client=partial(SiteRole, self, k),
                server=lambda seed, _: SumsServer(self, seed),
            ),
            protection=SimpleNamespace(noise_terms=NOISE),
        )

    def _start(self, k: int) -> None:
        """A new process of a site, over the file that the last one left."""
        train = SimpleNamespace(pixels=torch.zeros(1, 1, 1, 1))
        data = SimpleNamespace(train=train, validation=())
        given = self._roster, self._parts(k), k, identity(k), data, self._disks[k], Path()
        self._sites[k] = Site(*given, self.now)
        self._connects(k)

    def play(self) -> None:
        """Run all rounds; BrokenError, with all that happened, where a property does not hold."""
        log = SimpleNamespace(warning=self._note, info=self._note)
        of_site = "secure_fd.deployment.site"
        with (
            patch("secure_fd.deployment.loop.log", log),
            patch(f"{of_site}.log", log),
            patch(f"{of_site}.torch_settings_for", lambda *_: nullcontext()),
            patch.object(Site, "_save", lambda _: None),
            patch.object(Site, "has_network", False),
        ):
            try:
                while not self._serve():
                    pass
            except Exception as error:
                what = error.what if isinstance(error, BrokenError) else f"(g) {error!r}"
                raise BrokenError(what, self.lines) from error

    def _serve(self) -> bool:
        """Run a process of the server; return whether it came to the end of the run."""
        server = Rounds(self._roster, self._parts(SERVER), self, self._disks[SERVER])
        try:
            kills = sum(fault.who == SERVER for fault in self._faults)
            for outcome in server.run(ROUNDS + kills):
                self._note(f"ROUND {outcome.index}: {outcome.survivors} {outcome.why}")
                self._log_of(server)
                self._round(outcome.aborted, outcome.survivors)
                if outcome.index >= HOSTILE - 1:
                    self._calms()
        except KilledError as killed:
            self._note(f"the server ends: {killed}")
            self._since = 0
            self.pause(killed.args[0])
            self._nodes.clear()
            for k in SITES:
                self._later(1.0, partial(self._connects, k))
            return False
        self._calms()
        end = self._log_of(server)
        self.expect(self._ends == dict.fromkeys(self._members, end), f"(j) ends: {self._ends}")
        return True

    def _log_of(self, server: Rounds) -> tuple[int, bytes]:
        at = server.party.count, server.party.digest
        self.agree("(d) the log of broadcasts", *at)
        return at

    def _calms(self) -> None:
        """No fault follows; wait until what was late has come, and all are back."""
        if not self._calm:
            self._calm, self._fine = True, 0
            while self._queue:
                self._runs_next(self._queue[0][0])


def broken(seed: int, faults: Sequence[Fault]) -> BrokenError | None:
    try:
        World(seed, faults).play()
    except BrokenError as error:
        return error
    return None


def main(seed: int | None = None, schedules: int = 1, first: int = 0) -> None:
    """Run one schedule and print it, or run several, from the first seed on."""
    for number in range(first, first + schedules) if seed is None else [seed]:
        faults = faults_of(number)
        for fault in faults_of(number) if broken(number, faults) else ():  # leave out what it can
            fewer = [each for each in faults if each != fault]
            faults = fewer if broken(number, fewer) else faults
        world = World(number, faults)
        try:
            world.play()
        except BrokenError as error:
            raise SystemExit(f"{error}\nseed {number}: {faults}") from None
    print("\n".join(world.lines) if seed is not None else f"{schedules} schedules hold")


if __name__ == "__main__":
    tyro.cli(main)
