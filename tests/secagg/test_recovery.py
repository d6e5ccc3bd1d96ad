"""Wrong shares of a few holders: the sum is exact all the same, and who gave them is named.

Of h holders that answered, of which t open a secret, up to (h - t) / 2 liars are corrected and
barred from later rounds. With more, up to all spare ones, a set of t that fits what the owner
published is looked for among a thousand, and no client is named: liars that conspire could make
others look like liars. With more than spare ones the round is aborted, and the next one goes on.

A client that seals garbage costs itself: its victims name it, give no share of it and stay. The
round goes on while enough others hold shares, and is aborted otherwise. A false complaint bars no
client: it takes more of them than may be corrupt, or than the shares that a secret has to spare.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from secure_fd.crypto import shamir
from secure_fd.errors import GarbledSumError, MissingClientError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import ClientState, ServerState
from secure_fd.secagg.messages import SEALED_BYTES
from secure_fd.secagg.server import ServerRound
from secure_fd.secagg.session import RoundTerms
from secure_fd.secagg.unmasking import Unmasking
from secure_fd.wire import HEADER_BYTES
from tests.drivers.cohort import Cohort, Round, flip, read_input, round_of, write_input

SHARE = shamir.ELEMENT_BYTES


def terms(index: int) -> RoundTerms:
    return RoundTerms(index, 8, 4)


def forged(message: bytes, rng: Random, owners: Collection[int] | None = None) -> bytes:
    """UNMASK, with other elements in the place of all shares, or of those at these places."""
    body = message[HEADER_BYTES:]
    pieces = [body[at : at + SHARE] for at in range(0, len(body), SHARE)]
    for at in range(len(pieces)) if owners is None else owners:
        pieces[at] = shamir.encode(rng.randrange(shamir.PRIME))
    return message[:HEADER_BYTES] + b"".join(pieces)


def run(
    cohort: Cohort,
    liars: Collection[int],
    index: int = 1,
    lost: Collection[int] = (),
    owners: Collection[int] | None = None,
) -> Round:
    """A round in which these holders give wrong shares."""
    current = cohort.draw(terms(index))
    rng, shares = Random(index), current.shares(lost)  # noqa: S311 - chooses tests, not keys
    for liar in liars:
        shares[liar] = forged(shares[liar], rng, owners)
    current.deliver(shares)
    return current


@pytest.mark.parametrize(
    ("n", "liars"), [(5, []), (7, [2]), (10, [0]), (10, [6]), (30, [0, 1, 2, 3]), (30, [4, 20])]
)
def test_liars_are_corrected_named_and_barred(n, liars):
    cohort = Cohort(n)
    run(cohort, liars).assert_exact()
    assert set(cohort.server.barred) == set(liars)
    honest = [k for k in range(n) if k not in liars]
    following = cohort.draw(terms(2), honest)
    following.finish()
    following.assert_exact(honest)


@pytest.mark.parametrize(
    ("owners", "barred"), [([8], set()), ([7, 8, 9], set()), ([6, 7, 8, 9], {3})]
)
def test_wrong_shares_of_as_many_as_may_be_corrupt_bar_no_client(owners, barred):
    """These may have been dealt wrong: three of ten dealers could frame an honest holder."""
    cohort = Cohort(10)
    run(cohort, [3], owners=owners).assert_exact()
    assert set(cohort.server.barred) == barred


def test_mutant_that_believes_one_dealer_bars_who_was_framed(monkeypatch):
    framed = property(lambda self: tuple(self.wrong))
    monkeypatch.setattr(Unmasking, "liars", framed)
    cohort = Cohort(10)
    run(cohort, [3], owners=[8]).assert_exact()
    assert set(cohort.server.barred) == {3}


def test_a_wrong_share_of_a_lost_clients_root_is_corrected():
    """Nine holders are left of ten, and seven open the root: one liar is found."""
    left = [k for k in range(10) if k != 5]
    run(Cohort(10), [0], lost=[5], owners=[5]).assert_exact(left)


@pytest.mark.parametrize("liars", [[9], [0, 1], [2, 5], [0, 1, 2], [1, 3, 6]])
def test_up_to_all_spare_shares_may_be_wrong_and_then_no_client_is_named(liars):
    """Nor is a liar whose shares are not needed."""
    cohort = Cohort(10)
    run(cohort, liars).assert_exact()
    assert not cohort.server.barred


def test_more_wrong_shares_than_spare_ones_abort_the_round_and_not_the_next():
    cohort = Cohort(10)
    with pytest.raises(GarbledSumError):
        run(cohort, [0, 1, 2, 3])
    assert not cohort.server.barred
    run(cohort, [], index=3).assert_exact()


@pytest.mark.parametrize("n", [10, 30])
def test_mutant_without_correction_is_aborted(n, monkeypatch):
    """Without correction, one client can end any round that it is in."""

    def refuse(*_: object) -> int:
        raise GarbledSumError("another secret")

    monkeypatch.setattr(Unmasking, "_corrected", refuse)
    cohort = Cohort(n)
    with pytest.raises(GarbledSumError):
        run(cohort, [0])
    assert not cohort.server.barred


@pytest.mark.parametrize(
    ("client", "at"),
    [(3, 0), (0, 32), (3, 64), (3, 64 + 3 * 32 + 15)],
    ids=["round key", "commitment", "vault", "vault's tag"],
)
def test_what_was_published_and_what_is_restored_must_fit(client, at):
    cohort = Cohort(4)
    current = round_of(cohort)
    inbound = current.prepare()
    sent = current.server._prepared[client]
    body, ends = flip(sent.encode(), at), (0, 32, 64, 64 + 3 * 32 + 16, None)
    parts = [body[start:end] for start, end in pairwise(ends)]
    current.server._prepared[client] = messages.Prepare(*parts)
    inbound = current.deliver(current.answer(inbound), without=(3,))
    shares = current.answer(current.deliver(current.answer(inbound)))
    with pytest.raises(GarbledSumError, match=f"client {client}'s"):
        current.deliver(shares)
    assert current.server.state is ServerState.ABORTED


# Seals that do not open, and complaints about them.

SEALER = 1


def seal_garbage(cohort: Cohort, message: bytes, victims: Collection[int]) -> bytes:
    """The sealer's PREPARE, with zeros in the place of what it seals for these."""
    k, near = cohort.group.degree, cohort.group.neighbours(SEALER)
    changed = bytearray(message)
    start = HEADER_BYTES + 64 + 32 * k + 16
    for victim in victims:
        at = start + SEALED_BYTES * near.index(victim)
        changed[at : at + SEALED_BYTES] = bytes(SEALED_BYTES)
    return bytes(changed)


def attacked(cohort: Cohort, victims: Collection[int], index: int = 1) -> Round:
    """A round whose inputs are in: the sealer has sealed garbage to these."""
    current = cohort.draw(terms(index))
    outbound = current.start()
    outbound[SEALER] = seal_garbage(cohort, outbound[SEALER], victims)
    for k, message in current.answer(current.deliver(outbound)).items():
        current.server.receive(k, message)
    return current


def others(n: int) -> list[int]:
    return [k for k in range(n) if k != SEALER]


@pytest.mark.parametrize(("n", "count"), [(4, 1), (7, 1), (7, 2), (10, 3), (30, 9)])
def test_the_round_goes_on_while_enough_shares_are_left(n, count):
    cohort = Cohort(n)
    victims = others(n)[:count]
    current = attacked(cohort, victims)
    current.go_on(current.server.advance())
    current.assert_exact()
    assert {machine.state for machine in current.clients.values()} == {ClientState.DONE}
    assert not cohort.server.barred


@pytest.mark.parametrize(("n", "count"), [(4, 2), (4, 3), (7, 3), (7, 6), (10, 4), (30, 10)])
def test_else_it_is_aborted_and_the_next_goes_on_without_the_sealer(n, count):
    cohort = Cohort(n)
    current = attacked(cohort, others(n)[-count:])
    with pytest.raises(MissingClientError, match="opened at fewer"):
        current.server.advance()
    assert set(cohort.server.barred) == {SEALER}
    assert {machine.state for machine in current.clients.values()} == {ClientState.SENT}
    following = cohort.draw(terms(2))
    outbound = following.start()  # the same again: it ended badly
    with pytest.raises(PeerError, match=f"client {SEALER} was not asked"):
        following.server.receive(SEALER, outbound[SEALER])
    inbound = following.deliver(outbound, without=[SEALER])
    assert sorted(inbound) == others(n)
    following.go_on(inbound)
    following.assert_exact(others(n))


def test_mutant_whose_clients_abort_loses_every_victim(monkeypatch):
    """Without the judgement, one client can remove any other."""

    def aborting(machine: ClientRound, *given: object) -> bytes:
        closed = OPEN_ALL(machine, *given)
        if any(closed):
            raise PeerError("a seal does not open")
        return closed

    monkeypatch.setattr(ClientRound, "_open_all", aborting)
    with pytest.raises(PeerError, match="a seal does not open"):
        attacked(Cohort(7), [0, 2])


OPEN_ALL = ClientRound._open_all


def test_mutant_that_judges_no_seal_aborts_round_after_round(monkeypatch):
    monkeypatch.setattr(ServerRound, "_judge_seals", lambda *_: None)
    cohort = Cohort(7)
    for index in (1, 3, 5):
        current = attacked(cohort, others(7)[:3], index)
        with pytest.raises(MissingClientError):
            current.go_on(current.server.advance())
    assert not cohort.server.barred


# Complaints that are not true.


def complaining(cohort: Cohort, liars: Collection[int], about: Collection[int]) -> Round:
    """A round in which these say of those that their seals did not open."""
    current = cohort.draw(terms(1))
    inputs = current.masked()
    for liar in liars:
        near = cohort.group.neighbours(liar)
        closed = tuple(k for k in near if k in about)
        masked = replace(read_input(current.clients[liar], inputs[liar]), closed=closed)
        inputs[liar] = write_input(current.clients[liar], masked)
    for k, message in inputs.items():
        current.server.receive(k, message)
    return current


@pytest.mark.parametrize(
    ("n", "liars", "about"),
    [
        (4, [0], [1, 2]),
        (7, [0], [1, 2]),
        (7, [0, 6], [1, 2]),
        (10, [3, 4, 5], [1, 2]),
        (10, [0], range(10)),
    ],
)
def test_false_complaints_of_a_few_bar_no_client(n, liars, about):
    cohort = Cohort(n)
    current = complaining(cohort, liars, about)
    current.go_on(current.server.advance())
    current.assert_exact()
    assert not cohort.server.barred


def test_of_three_one_complaint_aborts_the_round_and_bars_no_client():
    """Every share is needed there, and it is one word against another."""
    cohort = Cohort(3)
    current = complaining(cohort, [0], about=[1])
    with pytest.raises(MissingClientError, match="opened at fewer"):
        current.server.advance()
    assert not cohort.server.barred
