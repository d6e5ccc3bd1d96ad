"""Federations in which not all are honest: a corrupt client, and a server that lies.

A corrupt client sends each kind of bad message. Its machine is the real one; what it sends is
changed on the way, with its keys where the message is tagged.

A lying server sends every honest client one of all messages that it can make of what it has: other
announcements, members, cohorts and survivors for each client, with whatever signatures fit best,
keys and nonces of its own, and the corrupt client's signatures on all of it. Or it sends nothing.
What a client does depends on its own messages alone, and the server only gains by waiting for more
signatures, so stages in order stand for every order.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from secure_fd.crypto.keys import SIGNATURE_BYTES, TAG_BYTES, AgreementKey, Sealer, insecure_bytes
from secure_fd.protocol.messages import OPENED, UNOPENED
from secure_fd.secagg import messages
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.messages import Relayed, Reveal, SignedJoin
from secure_fd.secagg.session import Group, MessageType, RoundScope, RoundTerms
from secure_fd.wire import HEADER_BYTES, Kind, Place, frame
from tests.drivers import cohort as made
from tests.model import properties
from tests.model.explorer import Choice
from tests.model.roles import BOUND, LENGTH, Opening, broadcast, missed
from tests.model.world import HURT, START, TOUCHED, Outcome, Spot, World

PARTS = {
    "JOIN": {"keys": 0, "commitment": 32, "signature": 64},
    "REVEAL": {"nonce": 0, "signature": 32},
    "PREPARE": {"key": 0, "commitment": 32, "vault": 64, "seals": -1},
    "MASKED": {"words": 0, "complaints": 8, "cohort": 9, "next": 137, "next seals": -17},
    "CONSISTENT": {"signature": 0},
    "UNMASK": {"first share": 31, "last share": -1},
}
"""Begin or end of the body's parts, by type."""


class CorruptWorld(World):
    """Client 0 is corrupt; each of its bad messages is a fault. The others are honest."""

    corrupt = frozenset({0})

    def first(self) -> Spot:
        return super().first().touched(0, TOUCHED)

    def bad(self, rest: Spot, k: int, number: int) -> Iterator[Choice]:
        """Change the corrupt client's message.

        With a bad PREPARE or MASKED it can abort a round and make a sum wrong without being named.
        """
        data, name, sums = self.messages[number], self.name(number), self.machine(rest, k)._sum
        changed = [
            (f"a bad {part}", made.flip(data, at if at < 0 else HEADER_BYTES + at))
            for part, at in PARTS[name].items()
        ]
        if name == "PREPARE":
            low = data[:HEADER_BYTES] + bytes(32) + data[HEADER_BYTES + 32 :]
            changed.append(("a key of low order", low))
        changed += [("a byte less", data[:-1]), ("another type", data[:3] + b"\7" + data[4:])]
        changed += [("another sender", data[:4] + bytes(4) + data[8:])]
        for what, bad in changed if k in self.corrupt else ():
            sent, harmful = bad, name in {"PREPARE", "MASKED"} and what.startswith("a bad")
            if name == "MASKED" and sums.enrolled and len(bad) == len(data):
                tags, index = sums._in_use.authenticator, int.from_bytes(data[8:16], "big")
                sent = bad[:-TAG_BYTES] + Sealer(tags.key).seal(index, b"", bad[:-TAG_BYTES])
            hit = rest.touched(k, HURT)._replace(shaken=rest.shaken or harmful)
            text = f"{self.where(rest)}: client {k} sends {name} with {what}"
            yield Choice(text, partial(self.arrive, hit, k, self.number(sent), up=True))


Menu = Iterator[tuple[str, bytes]]
SETUP, ROUND = ("MEMBERS", "AGREED", "ROUND_START"), ("COHORT", "SURVIVORS", "SIGNATURES")
AGAIN = ("COHORT", "INVITATION", *SETUP, *ROUND)
GARBAGE = bytes(range(messages.SEALED_BYTES))
DUE = {
    ClientState.JOINED: "MEMBERS",
    ClientState.REVEALED: "AGREED",
    ClientState.PREPARED: "COHORT",
    ClientState.SENT: "SURVIVORS",
    ClientState.SIGNED: "SIGNATURES",
}


class LyingWorld(World):
    """Client n - 1 belongs to the server. stages: from MEMBERS on, or after an honest set-up.

    A spot's inbox has all that the honest clients sent. cost: of a lie, as a fault. Faults: a
    client is killed and the round announced to it again, it is invited to another set-up, or gets a
    second message of a stage.
    """

    def __init__(
        self, n: int = 4, *, stages: Sequence[str] = ROUND, cost: int = 0, **options: Any
    ) -> None:
        super().__init__(n, rounds=0, tail=0, **options)
        self.cost, self.stages, self.corrupt = cost, stages, frozenset({n - 1})
        self.honest, self.place = sorted(self.all - self.corrupt), Place(self.session.id, 0)
        self._own = [AgreementKey.generate(insecure_bytes(seed)).public for seed in (7, 8)]
        self._groups: dict[int, Group] = {}  # by PREPARE
        self._menus: dict[Any, list[tuple[str, bytes]]] = {}
        terms = RoundTerms(0, LENGTH, BOUND)
        start = HEADER_BYTES + 8 * RoundScope(self.session, terms).words + 1
        self._signature = slice(start, start + SIGNATURE_BYTES)  # of the cohort, in MASKED

    # The world.

    def first(self) -> Spot:
        """Clients have joined, or are ready for a round after a set-up in which no party lied."""
        spot, sent = super().first(), ()
        while spot.index < 0:
            if not (spot.queue or spot.up):
                sent += spot.inbox
                if self.stages[0] == "MEMBERS":
                    break
            [choice] = super().choices(spot, faults=False)
            spot = choice.go()
        spot = self._settled(Spot(0, -1, spot.parties, (), spot.fate, inbox=sent))
        for k in self.honest if self.stages[0] == "COHORT" else ():
            spot = self.arrive(spot, k, self._announced(self.machine(spot, k)))
        return spot

    def _announced(self, client: Any) -> int:
        return self.number(broadcast(client, Kind.ROUND_START, 0, bytes(1)))

    def choices(self, spot: Spot, *, faults: bool) -> Iterator[Choice]:
        """Messages that the server may send to the client at hand."""
        if not spot.queue:
            return
        (k, _), rest = spot.queue[0], spot._replace(queue=spot.queue[1:])
        due, wanted = self.stages[spot.stage], _wanted(self.machine(spot, k))
        menu = self._menu(due, spot, k) if wanted == due else []
        for what, data in menu:
            text = f"client {k} gets {what}" if what else ""
            yield Choice(text, partial(self.arrive, rest, k, self.number(data)), self.cost)
        left = rest.having(k, self.ended(spot.parties[k])) if menu else rest
        text = f"client {k} never gets {due}" if menu else ""
        yield Choice(text, partial(self._settled, left), self.cost)
        if not faults or wanted is None or not self.allowed:
            return
        more = [(f"an invitation before {due}", messages.invitation(self.session))]
        for what, data in menu:
            yield from self.kills(rest, k, self.number(data), "", what or due)
        if not menu and wanted in {"SURVIVORS", "SIGNATURES"}:
            before = self.stages[max(self.stages.index(wanted) - 1, 0)]
            found = self._menu(before, spot, k)
            more += [(f"a second {what or before} before {due}", data) for what, data in found]
        for what, data in more:
            yield Choice(
                f"client {k} gets {what}", partial(self.arrive, rest, k, self.number(data))
            )

    def reborn(self, k: int, *given: Any) -> Outcome:
        """A new process, to which the round is announced once more."""
        born = super().reborn(k, *given)
        if k < 0:
            return born
        started = self.step(k, born.after, self._announced(self.processes[born.after].machine))
        return Outcome(started.after, (*born.sent, *started.sent))

    def taken(self, spot: Spot, k: int, *outcomes: Outcome) -> Spot:
        """A client that gives up, or lost its round, does nothing any more."""
        done, before = super().taken(spot, k, *outcomes), self.processes[spot.parties[k]]
        if spot.index < 0:
            return done
        after = self.processes[done.parties[k]]
        client, wanted = after.machine._sum, _wanted(after.machine)
        if client.enrolled and not before.machine._sum.enrolled:
            properties.check_group(k, before.machine, after.machine, self._nonces(spot))
        sent = tuple((k, self._kept_of(number)) for _, number in done.up)
        if wanted is None:
            done = done.having(k, self.ended(done.parties[k]))
        elif wanted == "COHORT":
            self._groups.update((number, client.group) for _, number in sent[-1:])
        if after.facts != before.facts:
            properties.check_read(self, done.parties)
        return self._settled(done._replace(up=(), inbox=(*done.inbox, *sent)))

    def _settled(self, spot: Spot) -> Spot:
        """Go on to the next stage where no client is left in this one."""
        if spot.queue or spot.index < 0:
            return spot
        stage, there = spot.stage + 1, [k for k in self.honest if self.machine(spot, k)]
        queue = tuple((k, START) for k in there if stage < len(self.stages))
        return spot._replace(stage=stage, queue=queue)

    def _kept_of(self, number: int) -> int:
        """The part of a message that the server needs: of an input, the signature of the cohort."""
        data = self.messages[number]
        if data[3] != MessageType.MASKED:
            return number
        return self.number(data[:HEADER_BYTES] + data[self._signature])

    # What the server can say.

    def _menu(self, due: str, spot: Spot, k: int) -> list[tuple[str, bytes]]:
        """All messages of a type to a client, what honest ones would bring about first."""
        key = due, spot.parties[k], spot.inbox
        if key not in self._menus:
            make: Any = getattr(self, f"_{due.lower()}")
            made = make(spot, k, self.machine(spot, k))
            self._menus[key] = [(what and f"{due} {what}", data) for what, data in made]
        return self._menus[key]

    def _sent(self, spot: Spot, k: int, kind: MessageType) -> list[bytes]:
        """Messages of a type that a client sent, the newest first."""
        sent = (self.messages[number] for client, number in spot.inbox[::-1] if client == k)
        return [data for data in sent if data[3] == kind]

    def _subsets(self, k: int, among: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Those that name the client, the largest first."""
        others = [peer for peer in among if peer != k]
        for size in range(len(others), 0, -1):
            for some in combinations(others, size):
                yield tuple(sorted((k, *some)))

    def _round_start(self, _: Spot, __: int, client: Any) -> Menu:
        for what, body in (("", bytes(1)), ("of another round", b"\1")):
            yield what, broadcast(client, Kind.ROUND_START, 0, body)

    def _joins(self, spot: Spot, k: int) -> list[SignedJoin]:
        """The joins of a client that the server has, its own in the client's name last.

        The nonce of a corrupt client is its key.
        """
        session, own = self.session, self._own
        if k in self.corrupt:
            identity = self.cohort.identities[k]
            return [SignedJoin.signed(session, k, key, key, identity) for key in own]
        joins = self._sent(spot, k, MessageType.JOIN)
        true = [messages.decode_join(data, session, k) for data in joins]
        return [*true, SignedJoin(k, own[0], messages.commit(session, k, bytes(32)), b"")]

    def _nonces(self, spot: Spot) -> dict[bytes, bytes]:
        """Nonces that a member committed to, by line that it sent."""
        session, found = self.session, dict[bytes, bytes]()
        for k in self.all:
            reveals = self._sent(spot, k, MessageType.REVEAL)
            nonces = [messages.decode_reveal(data, session, k).nonce for data in reveals]
            for nonce in self._own if k in self.corrupt else nonces:
                joins = (join for join in self._joins(spot, k) if join.signature)
                seal = messages.commit(session, k, nonce)
                found |= {join.line: nonce for join in joins if join.commitment == seal}
        return found

    def _members(self, spot: Spot, k: int, _: Any) -> Menu:
        lines = {peer: [join.line for join in self._joins(spot, peer)] for peer in self.all}
        for chosen in self._subsets(k, sorted(self.all)):
            whole = len(chosen) == self.n
            base = {peer: lines[peer][0] for peer in chosen}
            lists = {"" if whole else f"{list(chosen)}": base}
            for peer in chosen if whole else self.corrupt.intersection(chosen):
                lists[f"{list(chosen)}, another {peer}"] = base | {peer: lines[peer][-1]}
            for what, listed in lists.items():
                yield what, messages.encode_members(listed, self.session)

    def _agreed(self, spot: Spot, k: int, client: Any) -> Menu:
        held, session = client._sum._machine._held, self.session
        listed, joins = tuple(held.listed), dict[int, SignedJoin]()
        for peer, line in held.listed.items():
            joins[peer] = next(join for join in self._joins(spot, peer) if join.line == line)
        for chosen in self._subsets(k, listed):
            reveals = {peer: self._reveal(spot, joins[peer], held.view) for peer in chosen}
            shown = {"" if chosen == listed else f"{list(chosen)}": reveals}
            for peer in self.corrupt.intersection(chosen):
                given = held.view, bytes(32), self.cohort.identities[peer]
                late = Reveal.signed(session, peer, *given)
                shown[f"{list(chosen)}, another nonce of {peer}"] = reveals | {peer: late}
            keys = [joins[peer].keys for peer in chosen if peer != k]
            for what, some in shown.items():
                yield what, messages.encode_agreed(some, listed, keys, session)

    def _reveal(self, spot: Spot, join: SignedJoin, view: bytes) -> Reveal:
        """The best reveal of a member for those that saw this list."""
        k, session = join.client, self.session
        if k in self.corrupt:
            return Reveal.signed(session, k, view, join.keys, self.cohort.identities[k])
        had = self._sent(spot, k, MessageType.REVEAL) if join.signature else []
        return messages.decode_reveal(had[0], session, k) if had else Reveal(bytes(32), bytes(64))

    def _line(self, spot: Spot, k: int, peer: int) -> Relayed:
        """The line that the peer prepared for the client, if any."""
        had = self._sent(spot, peer, MessageType.PREPARE)
        group = self._groups[self.number(had[0])] if had else None
        if group is None or k not in group.members:
            return Relayed(self._own[0], GARBAGE)
        prepared = messages.decode_prepare(had[0], self.place, peer, group.degree)
        return made.line({peer: prepared}, group, k, peer)

    def _cohort(self, spot: Spot, k: int, client: Any) -> Menu:
        machine = client._sum._machine
        for chosen in self._subsets(k, machine._enrolment.group.members):
            whole = chosen == machine._enrolment.group.members
            lines = {peer: self._line(spot, k, peer) for peer in chosen if peer != k}
            yield "" if whole else f"{list(chosen)}", made.cohort_message(lines, chosen, machine)
            for peer in list(lines)[:1] if whole else ():
                forged = lines | {peer: Relayed(self._own[1], GARBAGE)}
                yield f"with a key of {peer} forged", made.cohort_message(forged, chosen, machine)

    def _survivors(self, spot: Spot, k: int, client: Any) -> Menu:
        machine = client._sum._machine
        for chosen in self._subsets(k, machine._held.cohort):
            whole = chosen == machine._held.cohort
            signed = self._signed(spot, machine, chosen) if whole else {}
            text = "" if whole else f"{list(chosen)}"
            yield text, made.survivors_message(chosen, signed, machine)

    def _signatures(self, spot: Spot, _: int, client: Any) -> Menu:
        machine = client._sum._machine
        signed = self._signed(spot, machine, machine._held.survivors)
        yield "", made.signatures_message(signed, machine)

    def _signed(self, spot: Spot, machine: Any, survivors: tuple[int, ...]) -> dict[int, bytes]:
        """The best signature of each client for this cohort and these survivors."""
        group, cohort, signed = machine._enrolment.group, machine._held.cohort, dict[int, bytes]()
        kind = MessageType.MASKED if survivors == cohort else MessageType.CONSISTENT
        for k in group.committee:
            if k in self.corrupt:
                story = machine.scope, group, k, cohort, survivors
                signed[k] = made.sign_story(self.cohort.identities[k], *story)
            elif had := self._sent(spot, k, kind):
                signed[k] = had[0][HEADER_BYTES:]
        return signed


def _wanted(client: Any) -> str | None:
    """Messages that a client waits for."""
    if client is None:
        return None
    if client._sum._machine is None:
        return "ROUND_START" if client._sum.enrolled else None
    return DUE.get(client._sum._machine.state)


class StoryWorld(LyingWorld):
    """One client, and a server that broadcasts what it likes and asks for shares at any time.

    It signs announcements, results and aborts with the number of this sum or of the next one, as
    they happen or as missed ones. The sum has two messages: the input, and what opens it.
    """

    def __init__(self, length: int = 3, *, survey: bool = False) -> None:
        super().__init__(3, stages=("ROUND_START",) * length, survey=survey)
        self.honest = [0]

    def sums(self, k: int) -> Opening:  # noqa: ARG002
        return Opening(self.session.id)

    def reborn(self, k: int, *given: Any) -> Outcome:
        """A new process, to which the server says nothing of itself."""
        return World.reborn(self, k, *given)

    def _menu(self, _: str, spot: Spot, k: int) -> list[tuple[str, bytes]]:
        client, at = self.machine(spot, k), Place(self.session.id, 0)
        here, start = max(client._index, 0), bytes([client.position])
        menu = [(f"SURVIVORS of sum {here}", frame(MessageType.SURVIVORS, at, made.SERVER))]
        bodies = [(Kind.ROUND_START, start), (Kind.RESULT, b"x"), (Kind.RESULT, b"y")]
        bodies += [(Kind.ABORTED, OPENED), (Kind.ABORTED, UNOPENED)]
        for index in (here, client._index + 1):
            for kind, body in bodies:
                text, data = (
                    f"{kind.name} {body!r} of sum {index}",
                    broadcast(client, kind, index, body),
                )
                menu += [(text, data), (f"{text}, missed", missed(client, data))]
        return menu
