"""The masked sum with a server that lies, and with clients that belong to it.

In each stage every honest client gets one of all messages that the server can make of what it has:
any members, cohorts and survivors, other ones for each client, with whatever signatures fit best,
keys of its own, and the corrupt clients' signatures on all of it. Or it gets nothing. What a client
does depends on its own messages alone, and the server only gains by waiting for more signatures, so
stages in order stand for every order.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

from secure_fd.crypto.keys import SIGNATURE_BYTES, AgreementKey, insecure_bytes
from secure_fd.secagg import messages
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.messages import Relayed, Reveal, SignedJoin
from secure_fd.secagg.session import Group, MessageType, RoundScope
from secure_fd.wire import HEADER_BYTES, Place
from tests.model.explorer import BrokenError, Choice, State
from tests.model.masked import Masked, MaskedWorld, Outcome, Spot
from tests.secagg_cohort import (
    cohort_message,
    sign_story,
    signatures_message,
    survivors_message,
)

Menu = Iterator[tuple[str, bytes]]
SETUP, ROUND = ("MEMBERS", "AGREED"), ("COHORT", "SURVIVORS", "SIGNATURES")
GARBAGE = bytes(range(messages.SEALED_BYTES))
DUE = {
    ClientState.JOINED: "MEMBERS",
    ClientState.REVEALED: "AGREED",
    ClientState.PREPARED: "COHORT",
    ClientState.SENT: "SURVIVORS",
    ClientState.SIGNED: "SIGNATURES",
}


class Lie(NamedTuple):
    """A global state. sent: by honest client, the messages that it sent."""

    stage: int
    at: int
    clients: tuple[int, ...]
    sent: tuple[tuple[int, ...], ...]


class LyingWorld(MaskedWorld):
    """Client n - 1 belongs to the server. setup: whether the server lies there as well.

    cost: of a lie, as a fault. Faults: a client is killed and the round announced to it again, it
    is invited to another set-up, or gets a second message of a stage.
    """

    def __init__(
        self, n: int = 4, *, setup: bool = False, stages: Sequence[str] = ROUND, cost: int = 0
    ) -> None:
        super().__init__(n, rounds=0, tail=0)
        self.cost = cost
        self.stages = (*(SETUP if setup else ()), *stages)
        self.corrupt, self.lies = frozenset({n - 1}), setup
        self.place = Place(self.cohort.session.id, 0)
        self.honest = sorted(self.all - self.corrupt)
        self._own = [AgreementKey.generate(insecure_bytes(seed)) for seed in (7, 8)]
        self._joins = {k: [self._join_of(k, key) for key in self._own] for k in self.corrupt}
        self._groups: dict[int, Group] = {}  # by PREPARE
        self._menus: dict[Any, list[tuple[str, bytes]]] = {}
        start = HEADER_BYTES + 8 * RoundScope(self.cohort.session, self.terms(0)).words + 1
        self._signature = slice(start, start + SIGNATURE_BYTES)  # of the cohort, in MASKED

    def _join_of(self, k: int, key: AgreementKey) -> SignedJoin:
        """A join of a corrupt client: its nonce is its key."""
        identity = self.cohort.identities[k]
        return SignedJoin.signed(self.cohort.session, k, key.public, key.public, identity)

    # The world.

    def first(self) -> State:
        """Clients have joined, or prepared round 0 after a set-up in which nobody lied."""
        spot, sent = Spot._make(super().first()), {k: list[int]() for k in self.all}
        while spot.index < 0:
            for k, number in spot.inbox:
                sent[k] += [number] if number not in sent[k] else []
            if self.lies and spot.at == self.n:
                break
            [choice] = super().choices(spot, faults=False)
            spot = Spot._make(choice.go())
        clients = list(spot.clients)
        for k in self.honest:
            loaded = self.step(k, clients[k], ("load", 0))
            clients[k] = loaded.after
            sent[k] += [number for _, number in loaded.sent]
            if not self.lies:
                self._groups[sent[k][-1]] = self.nodes[clients[k]].machine.group
        return Lie(0, 0, tuple(clients), tuple(tuple(sent[k]) for k in sorted(self.all)))

    def order(self, state: State) -> int:
        lie = Lie._make(state)
        return lie.stage * 8 + lie.at

    def choices(self, state: State, *, faults: bool) -> Iterator[Choice]:
        """What the server may send to the client at hand."""
        lie = Lie._make(state)
        if lie.stage == len(self.stages):
            return
        k, due = self.honest[lie.at], self.stages[lie.stage]
        machine = getattr(self.nodes[lie.clients[k]].machine, "_machine", None)
        state_of = DUE.get(machine.state) if machine is not None else None
        if state_of == due:
            yield from self._told(lie, k, due, faults=faults)
        yield Choice(
            f"{due} to client {k} never comes" if state_of == due else "",
            partial(self._without, lie, k) if state_of == due else partial(self._next, lie),
            cost=self.cost,
        )
        if faults and state_of is not None:
            invited = messages.invitation(self.cohort.session)
            yield Choice(f"{due}: client {k} is invited", partial(self._answer, lie, k, invited))
        if faults and state_of != due and state_of in {"SURVIVORS", "SIGNATURES"}:
            before = self.stages[max(self.stages.index(state_of) - 1, 0)]
            for what, data in self._menu(before, lie, k, machine):
                text = f"{due}: client {k} gets a second {before}, {what}"
                yield Choice(text, partial(self._answer, lie, k, data))

    def _told(self, lie: Lie, k: int, due: str, *, faults: bool) -> Iterator[Choice]:
        machine = self.nodes[lie.clients[k]].machine._machine
        for what, data in self._menu(due, lie, k, machine):
            text = f"{due} to client {k}: {what}" if what else ""
            yield Choice(text, partial(self._answer, lie, k, data), cost=self.cost)
        if not faults:
            return
        _, data = next(self._menu(due, lie, k, machine))
        taken = self.step(k, lie.clients[k], ("receive", self.number(data)))
        for writes in range(len(taken.written) + 1):
            text = f"client {k} is killed in its answer to {due}, {writes} writes done"
            yield Choice(text, partial(self._reborn, lie, k, taken.written[:writes]))
        text = f"client {k} is killed after its answer to {due}"
        yield Choice(text, partial(self._reborn, lie, k, (), taken))

    def _answer(self, lie: Lie, k: int, data: bytes) -> Lie:
        before = self.nodes[lie.clients[k]]
        taken = self.step(k, lie.clients[k], ("receive", self.number(data)))
        client, sent = self.nodes[taken.after].machine, taken.sent
        party = taken.after
        if client._machine is None and client.enrolled:  # the round is announced once more
            loaded = self.step(k, party, ("load", 0))
            party, sent = loaded.after, (*sent, *loaded.sent)
        done = self._next(lie, k, party, sent)
        if self.nodes[taken.after].opened != before.opened:
            self.check_opened(done.clients)
            self._check_read(done.clients)
        return done

    def _without(self, lie: Lie, k: int) -> Lie:
        """A client that waits for a message in vain does nothing any more."""
        return self._next(lie, k, self.ended(lie.clients[k]))

    def _check_read(self, clients: tuple[int, ...]) -> None:
        """(b): the inputs of fewer honest clients than are promised cannot be read together."""
        opened = {of for of, who in self.shares(clients).items() if len(who) >= self.threshold}
        inputs = [(k, each) for k in self.honest for each in self.nodes[clients[k]].masked]
        for size in range(1, self.promised - len(self.corrupt)):
            for chosen in combinations(inputs, size):
                if all(self._is_read(k, each, chosen, opened) for k, each in chosen):
                    raise BrokenError(f"(b) the inputs of {[k for k, _ in chosen]} can be read")

    def _is_read(
        self, k: int, sent: Masked, chosen: Sequence[tuple[int, Masked]], opened: set[Any]
    ) -> bool:
        """Whether no mask of an input is left that the server cannot take off."""
        there = {peer for peer, each in chosen if each.view == sent.view and k in each.cohort}
        left = set(sent.cohort) - there - self.corrupt - {k}
        roots = {owner for view, _, owner, seed in opened if view == sent.view and not seed}
        return (sent.view, sent.index, k, True) in opened and (k in roots or left <= roots)

    def _reborn(
        self, lie: Lie, k: int, files: tuple[bytes, ...], taken: Outcome | None = None
    ) -> Lie:
        """A new process, to which the round is announced once more."""
        party = lie.clients[k] if taken is None else taken.after
        reborn, done = self.killed(k, party, files), () if taken is None else taken.sent
        loaded = self.step(k, reborn.after, ("load", 0))
        return self._next(lie, k, loaded.after, (*done, *reborn.sent, *loaded.sent))

    def _next(
        self, lie: Lie, k: int = 0, party: int = -1, sent: tuple[tuple[int, int], ...] = ()
    ) -> Lie:
        """The turn after this one, in which a client changed and sent something."""
        last, clients, every = lie.at + 1 == len(self.honest), list(lie.clients), list(lie.sent)
        if party >= 0:
            machine = getattr(self.nodes[party].machine, "_machine", None)
            works = machine is not None and machine.state is not ClientState.ABORTED
            clients[k] = party if works else self.ended(party)
            every[k] += tuple(self._kept_of(number) for _, number in sent)
            if works and machine.state is ClientState.PREPARED:
                self._groups.update((number, machine._enrolment.group) for number in every[k][-1:])
        return Lie(lie.stage + last, 0 if last else lie.at + 1, tuple(clients), tuple(every))

    def _kept_of(self, number: int) -> int:
        """What the server needs of a message: of an input, the signature of the cohort."""
        data = self.messages[number]
        if data[3] != MessageType.MASKED:
            return number
        return self.number(data[:HEADER_BYTES] + data[self._signature])

    # What the server can say.

    def _menu(self, due: str, lie: Lie, k: int, machine: Any) -> Menu:
        """All messages of a type to a client, what honest ones would bring about first."""
        made = {
            "MEMBERS": self._members,
            "AGREED": self._agreed,
            "COHORT": self._cohorts,
            "SURVIVORS": self._survivors,
            "SIGNATURES": self._signatures,
        }
        key = (due, lie.clients[k], lie.sent)
        if key not in self._menus:
            self._menus[key] = list(made[due](lie, k, machine))
        return iter(self._menus[key])

    def _newest(self, lie: Lie, k: int, kind: MessageType) -> bytes | None:
        found = (self.messages[number] for number in reversed(lie.sent[k]))
        return next((data for data in found if data[3] == kind), None)

    def _subsets(self, k: int, among: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Those that name the client, the largest first."""
        others = [peer for peer in among if peer != k]
        for size in range(len(others), 0, -1):
            for some in combinations(others, size):
                yield tuple(sorted((k, *some)))

    def _lines(self, lie: Lie) -> dict[int, list[SignedJoin]]:
        """By client, the joins that the server has, its own in the name of others last."""
        lines = dict[int, list[SignedJoin]](self._joins)
        for k in self.honest:
            session, sent = self.cohort.session, [self.messages[at] for at in lie.sent[k][::-1]]
            joins = [data for data in sent if data[3] == MessageType.JOIN]
            true = [messages.decode_join(data, session, k) for data in joins]
            forged = SignedJoin(k, self._own[0].public, messages.commit(session, k, b""), b"")
            lines[k] = [*true, forged]
        return lines

    def _members(self, lie: Lie, k: int, _: Any) -> Menu:
        lines, session = self._lines(lie), self.cohort.session
        for chosen in self._subsets(k, sorted(self.all)):
            whole = len(chosen) == self.n
            base = {peer: lines[peer][0].line for peer in chosen}
            yield (
                "" if whole else f"{list(chosen)}",
                messages.encode_members(base, session),
            )
            for peer in chosen if whole else self.corrupt.intersection(chosen):
                other = base | {peer: lines[peer][-1].line}
                yield (
                    f"{list(chosen)}, another {peer}",
                    messages.encode_members(other, session),
                )

    def _agreed(self, lie: Lie, k: int, machine: Any) -> Menu:
        listed: dict[int, bytes] = machine._held.listed
        joins = {
            peer: next(join for join in self._lines(lie)[peer] if join.line == listed[peer])
            for peer in listed
        }
        for chosen in self._subsets(k, tuple(listed)):
            view = machine._held.view
            reveals = {peer: self._reveal(lie, peer, listed[peer], view) for peer in chosen}
            degree = self.cohort.session.degree_of(len(chosen))
            keys = [joins[peer].keys for peer in chosen if peer != k][:degree]
            data = messages.encode_agreed(reveals, tuple(listed), keys, self.cohort.session)
            yield "" if len(chosen) == len(listed) else f"{list(chosen)}", data

    def _reveal(self, lie: Lie, k: int, line: bytes, view: bytes) -> Reveal:
        """The best reveal of a member for those that saw this list."""
        session = self.cohort.session
        if k in self.corrupt:
            [nonce] = {j.keys for j in self._joins[k] if j.line == line}
            return Reveal.signed(session, k, view, nonce, self.cohort.identities[k])
        sent = [self.messages[number] for number in lie.sent[k]]
        had = [messages.decode_reveal(d, session, k) for d in sent if d[3] == MessageType.REVEAL]
        return had[-1] if had else Reveal(bytes(32), bytes(64))

    def _line(self, lie: Lie, k: int, peer: int) -> Relayed:
        """What the peer prepared for the client, where it did."""
        data = self._newest(lie, peer, MessageType.PREPARE)
        if peer in self.corrupt or data is None or k not in self._groups[self.number(data)].members:
            return Relayed(self._own[0].public, GARBAGE)
        group = self._groups[self.number(data)]
        prepared = messages.decode_prepare(data, self.place, peer, group.degree)
        at = messages.SEALED_BYTES * group.neighbours(peer).index(k)
        return Relayed(prepared.key, prepared.sealed[at : at + messages.SEALED_BYTES])

    def _cohorts(self, lie: Lie, k: int, machine: Any) -> Menu:
        members = machine._enrolment.group.members
        for chosen in self._subsets(k, members):
            whole = chosen == members
            lines = {peer: self._line(lie, k, peer) for peer in chosen if peer != k}
            yield "" if whole else f"{list(chosen)}", cohort_message(lines, chosen, machine)
            for peer in list(lines)[:1] if whole else ():
                forged = lines | {peer: Relayed(self._own[1].public, GARBAGE)}
                yield f"a forged key of {peer}", cohort_message(forged, chosen, machine)

    def _survivors(self, lie: Lie, k: int, machine: Any) -> Menu:
        cohort = machine._held.cohort
        for chosen in self._subsets(k, cohort):
            whole = chosen == cohort
            signed = self._signed(lie, machine, chosen) if whole else {}
            yield "" if whole else f"{list(chosen)}", survivors_message(chosen, signed, machine)

    def _signatures(self, lie: Lie, _: int, machine: Any) -> Menu:
        signed = self._signed(lie, machine, machine._held.survivors)
        yield "", signatures_message(signed, machine)

    def _signed(self, lie: Lie, machine: Any, survivors: tuple[int, ...]) -> dict[int, bytes]:
        """The best signature of each client for this cohort and these survivors."""
        group, cohort, signed = machine._enrolment.group, machine._held.cohort, dict[int, bytes]()
        whole = survivors == cohort
        for k in group.committee:
            if k in self.corrupt:
                identity, scope = self.cohort.identities[k], machine.scope
                signed[k] = sign_story(identity, scope, group, k, cohort, survivors)
                continue
            kind = MessageType.MASKED if whole else MessageType.CONSISTENT
            data = self._newest(lie, k, kind)
            if data is not None:
                signed[k] = data[HEADER_BYTES:]
        return signed
