"""Properties of every state, checked on the facts: what each party did.

Letters: (a) both secrets of one client never reach a threshold of shares. (b) A published sum is
that of the inputs of the clients that it names, at least as many as promised. (c) No masks serve
two inputs, no round has two inputs of one client. (d) No client takes two results of a sum. (e) As
many inputs as the noise needs. (f) The ledger has every vote that was opened. (g) No error but the
package's own, and one message never ends a round. (h) Who is named is guilty. (i) All that open a
sum agree on terms, members, cohort and survivors. (j) Clients that are up are in a sum again.
(k) What a client keeps derives no mask that it used. (l) A group has the keys that its members
sent, and the seed that they committed to.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from secure_fd.crypto.keys import SERVER
from secure_fd.crypto.public_draws import joint_seed
from secure_fd.crypto.shamir import ELEMENT_BYTES
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.client import ClientRound, MaskingClient
from secure_fd.secagg.machine import PartyMemory, snapshot
from secure_fd.secagg.session import MessageType
from secure_fd.wire import HEADER_BYTES, Kind, read_header
from tests.model.explorer import BrokenError

Share = tuple[bytes, int, int, str]
"""Group, round, owner, and which of its two secrets."""


class Masked(NamedTuple):
    """An input that a client sent. words: what it masked."""

    index: int
    mask: bytes
    words: bytes
    view: bytes
    cohort: tuple[int, ...]


class Opened(NamedTuple):
    """Shares that a client gave. agreed: what all that open the sum have to agree on.

    vote: the round that it gave its vote for, None without a ledger.
    """

    index: int
    agreed: tuple[Any, ...] = ()
    survivors: tuple[int, ...] | None = None
    shares: frozenset[Share] = frozenset()
    vote: int | None = None


class Read(NamedTuple):
    """The newest broadcast that a client read. awaited: whether its sum has no result yet."""

    index: int
    awaited: bool


def expect(fine: object, what: str) -> None:
    """Raise where a property does not hold."""
    if not fine:
        raise BrokenError(what)


# Of one client, when it made a step.


def noted(k: int, before: Any, after: Any, received: bytes, sent: Sequence[bytes] = ()) -> Any:
    """The process after a step, with what it did in it."""
    sums, facts, life = before.machine._sum, list(before.facts), after.life
    if after.machine.position > before.machine.position:
        facts = [_read(facts, received), *(fact for fact in facts if not isinstance(fact, Read))]
    if received[3:4] == bytes([Kind.ROUND_START]) and isinstance(sums, MaskingClient):
        oldest = int.from_bytes(received[8:16], "big") - 1
        facts = [fact for fact in facts if isinstance(fact, Read) or fact.index >= oldest]
    for data in sent:
        life += data[3] == MessageType.JOIN
        if data[3] == MessageType.MASKED:
            facts.append(_masked(k, before, after, received, data))
        elif data[3] == MessageType.UNMASK:
            facts.append(_opened(before, received, data))
    check_masks(k, [fact for fact in facts if isinstance(fact, Masked)])
    votes = {fact.vote for fact in facts if isinstance(fact, Opened)} - {None}
    unbooked = votes - after.machine.role.spent
    expect(not unbooked, f"(f) votes of the rounds at {unbooked} are opened and not booked")
    return replace(after, life=life, facts=tuple(dict.fromkeys(facts)))


def _read(facts: Iterable[Any], received: bytes) -> Read:
    start = HEADER_BYTES if received[3] == Kind.CATCH_UP else 0
    kind, index, _ = read_header(received[start:], received[16:HEADER_BYTES], SERVER)
    [last] = [fact for fact in facts if isinstance(fact, Read)] or [Read(-1, awaited=False)]
    expect(kind == Kind.ROUND_START or last.awaited, f"(d) sum {last.index} has two results")
    return Read(index, kind == Kind.ROUND_START or index > last.index)


def _masked(k: int, before: Any, after: Any, received: bytes, data: bytes) -> Masked:
    machine: ClientRound = before.machine._sum._machine
    scope, group = machine.scope, machine._enrolment.group
    cohort, _ = messages.decode_cohort(received, group, machine.place, k)
    words = machine._held.words
    mask = np.frombuffer(data, "<u8", scope.words, HEADER_BYTES) - words
    index, session, kept = scope.terms.index, scope.session, after.machine._sum
    memory = dict(after.files).get("memory")
    on_disk = PartyMemory.decode(memory, session).channels if memory else {}
    for peer, channel in machine._enrolment.channels.items():
        used = snapshot(channel).pair_secret(index)
        in_memory = kept._enrolment.channels[peer].state()
        for state in (in_memory, on_disk.get(peer, in_memory)):
            stolen = (index + 1).to_bytes(8, "big") + state[8:]
            found = Channel.restored(session, k, peer, stolen).pair_secret(index)
            expect(found != used, f"(k) what client {k} keeps derives a mask of round {index}")
    return Masked(index, mask.tobytes(), words.tobytes(), group.view, cohort)


def _opened(before: Any, received: bytes, data: bytes) -> Opened:
    """Which share a client gave of each owner: compared with those that it held."""
    machine, vote = before.machine._sum._machine, before.machine.role.vote
    if not isinstance(machine, ClientRound):
        return Opened(int.from_bytes(data[8:16], "big"), vote=vote)
    held, group, terms = machine._held, machine._enrolment.group, machine.scope.terms
    survivors, shares, size = held.survivors, set[Share](), ELEMENT_BYTES
    if received[3] == MessageType.SURVIVORS:
        survivors, _ = messages.decode_survivors(received, group, machine.place)
    for at, owner in enumerate(sorted(held.shares)):
        share = data[HEADER_BYTES + size * at :][:size]
        for kind in ("seed", "root"):
            if share == getattr(held.shares[owner], kind) != bytes(size):
                shares.add((group.view, terms.index, owner, kind))
    agreed = terms.subject, group.view, group.members, held.cohort
    named = None if survivors == held.cohort else survivors
    return Opened(terms.index, agreed, named, frozenset(shares), vote)


def check_refused(client: Any, received: bytes, why: str) -> None:
    """(g): a client takes what comes in the sum that it belongs to, how often it may come."""
    current = client._awaited and received[8:16] == client._index.to_bytes(8, "big")
    expect(not current, f"(g) client {client.number} refuses a message: {why}")


def check_masks(k: int, masked: Sequence[Masked]) -> None:
    """(c)"""
    for what in ("mask", "index"):
        most = max(Counter(getattr(fact, what) for fact in masked).values(), default=0)
        expect(most < 2, f"(c) client {k} masks two inputs of one {what}")


# Of all clients together.


def facts_of(world: Any, parties: Sequence[int], kind: type) -> list[tuple[int, Any]]:
    """Facts of one kind, by client."""
    clients = enumerate(world.processes[party] for party in parties[: world.n])
    return [(k, fact) for k, client in clients for fact in client.facts if isinstance(fact, kind)]


def check_opened(world: Any, parties: Sequence[int]) -> None:
    """(a) and (i), when a client did something."""
    given = [fact for _, fact in facts_of(world, parties, Opened)]
    last = max((fact.index for fact in given), default=0)
    agreed = {fact.agreed for fact in given if fact.index == last}
    partial_sums = {fact.survivors for fact in given if fact.index == last} - {None}
    if len(agreed) > 1 or len(partial_sums) > 1:
        raise BrokenError(f"(i) clients do not agree on what they open in round {last}")
    opened = opened_shares(world, parties)
    for view, index, owner, kind in opened:
        both = kind == "seed" and (view, index, owner, "root") in opened
        expect(
            not both or owner in world.corrupt, f"(a) both secrets of client {owner} can be opened"
        )


def opened_shares(world: Any, parties: Sequence[int]) -> set[Share]:
    """Secrets of which a threshold of shares was given, those of corrupt clients with them."""
    holders: dict[Share, set[int]] = {}
    for k, fact in facts_of(world, parties, Opened):
        for share in fact.shares:
            holders.setdefault(share, set(world.corrupt)).add(k)
    return {share for share, who in holders.items() if len(who) >= world.threshold}


def check_read(world: Any, parties: Sequence[int]) -> None:
    """(b): the inputs of fewer honest clients than are promised cannot be read together."""
    opened, inputs = opened_shares(world, parties), facts_of(world, parties, Masked)
    for size in range(1, world.promised - len(world.corrupt)):
        for chosen in combinations(inputs, size):
            if all(_is_read(world, k, fact, chosen, opened) for k, fact in chosen):
                raise BrokenError(f"(b) the inputs of {[k for k, _ in chosen]} can be read")


def _is_read(
    world: Any, k: int, sent: Masked, chosen: Iterable[tuple[int, Masked]], opened: set[Share]
) -> bool:
    """Check that the server can remove every mask of an input."""
    there = {peer for peer, fact in chosen if fact.view == sent.view and k in fact.cohort}
    left = set(sent.cohort) - there - world.corrupt - {k}
    roots = {owner for view, _, owner, kind in opened if view == sent.view and kind == "root"}
    seed = (sent.view, sent.index, k, "seed")
    return seed in opened and (k in roots or left <= roots)


def check_group(k: int, before: Any, after: Any, nonces: Mapping[bytes, bytes]) -> None:
    """(l), when a client has enrolled. nonces: behind each line that a member sent."""
    listed, group = before._sum._machine._held.listed, after._sum.group
    lines = [listed[peer] for peer in group.members]
    expect(nonces.keys() >= set(lines), f"(l) client {k} enrols with keys that no member sent")
    seed = joint_seed([nonces[line] for line in lines])
    expect(group.seed == seed, f"(l) client {k} takes a seed that was chosen late")


# Of the server, when it closed a stage.


def check_named(guilty: set[int]) -> None:
    """(h)"""
    expect(not guilty, f"(h) clients {sorted(guilty)} are named, and did nothing")


def check_end(world: Any, spot: Any, server: Any) -> None:
    """(h) of a message, then (b), (e) and (g) where the round has ended."""
    good = {k for k in world.all if spot.fate[k] < 2 and k not in world.corrupt}
    honest = {k for k in world.all if spot.fate[k] < 2}
    accused = sorted(honest.intersection(server.refused))
    expect(not accused, f"(h) the server refuses clients {accused}")
    if server.busy or spot.index < 0:
        return
    if server.last is None:
        fine = spot.shaken or len(good) < world.promised
        expect(fine, f"(g) round {spot.index} is aborted, {sorted(good)} were there: {server.why}")
        return
    total, survivors = server.last.total, server.last.survivors
    few = f"(b) a sum of {survivors}: {world.promised} are promised"
    expect(len(survivors) >= world.promised, few)
    there = spot.shaken or good <= set(survivors)
    expect(there, f"(g) {sorted(good)} were there, and {survivors} are in the sum")
    if world.corrupt.intersection(survivors) and spot.shaken:
        return
    inputs = {
        k: fact.words
        for k, fact in facts_of(world, spot.parties, Masked)
        if fact.index == server.terms.index and k in survivors
    }
    words = sum(np.frombuffer(inputs[k], np.uint64) for k in survivors)
    scope = server.sums._round.scope
    expected = scope.layout.unpack(words, len(total), len(survivors) * scope.terms.bound)
    same = total.tolist() == expected.tolist()
    expect(same, f"(b) the sum of {survivors} is {total}, not {expected}")


def check_live(world: Any, spot: Any) -> None:
    """(j): without more faults all clients that are up are in one of the next sums."""
    up = {k for k in world.all - world.corrupt if spot.fate[k] < 3}
    if len(up) >= world.promised and world.tail:
        fresh = spot._replace(fate=tuple(max(2, fate) for fate in spot.fate), shaken=True)
        lost = sorted(up - world.summed_after(fresh))
        expect(not lost, f"(j) clients {lost} are in none of {world.tail} sums")
