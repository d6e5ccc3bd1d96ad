"""Wrong shares of a few holders: the sum is exact all the same, and who gave them is named.

Of h holders that answered, of which t open a secret, up to (h - t) / 2 liars are corrected and
barred from later rounds. With more, up to all spare ones, a set of t that fits what the owner
published is looked for among a thousand, and nobody is named: liars that conspire could make it
look as if others had lied.
"""

from collections.abc import Collection
from random import Random

import pytest

from secure_fd.crypto import shamir
from secure_fd.errors import GarbledSumError
from secure_fd.secagg.machine import ServerState
from secure_fd.secagg.session import RoundTerms
from secure_fd.secagg.unmasking import Unmasking
from secure_fd.wire import HEADER_BYTES
from tests.drivers.cohort import Cohort, Round

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
    inbound = current.deliver(current.masked(), without=lost)
    while current.server.state is not ServerState.UNMASK:
        inbound = current.deliver(current.answer(inbound))
    rng, shares = Random(index), current.answer(inbound)  # noqa: S311 - chooses tests, not keys
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
    assert cohort.server.barred == dict.fromkeys(liars, "it gave wrong shares")
    honest = [k for k in range(n) if k not in liars]
    following = cohort.draw(terms(2), honest)
    assert following.finish().size == 8
    following.assert_exact(honest)


@pytest.mark.parametrize("owners", [[8], [7, 8, 9]])
def test_wrong_shares_of_as_many_as_may_be_corrupt_bar_nobody(owners):
    """These may have been dealt wrong: three of ten dealers could frame an honest holder."""
    cohort = Cohort(10)
    run(cohort, [3], owners=owners).assert_exact()
    assert not cohort.server.barred


def test_one_more_is_the_holders_own_fault():
    cohort = Cohort(10)
    run(cohort, [3], owners=[6, 7, 8, 9]).assert_exact()
    assert set(cohort.server.barred) == {3}


def test_twin_that_believes_one_dealer_bars_who_was_framed(monkeypatch):
    framed = property(lambda self: tuple(self.wrong))
    monkeypatch.setattr(Unmasking, "liars", framed)
    cohort = Cohort(10)
    run(cohort, [3], owners=[8]).assert_exact()
    assert set(cohort.server.barred) == {3}


def test_a_wrong_share_of_a_lost_clients_root_is_corrected():
    """Nine holders are left of ten, and seven open the root: one liar is found."""
    cohort = Cohort(10)
    left = [k for k in range(10) if k != 5]
    run(cohort, [0], lost=[5], owners=[5]).assert_exact(left)


@pytest.mark.parametrize("liars", [[0, 1], [2, 5], [0, 1, 2], [1, 3, 6]])
def test_up_to_all_spare_shares_may_be_wrong_and_then_nobody_is_named(liars):
    cohort = Cohort(10)
    run(cohort, liars).assert_exact()
    assert not cohort.server.barred


def test_more_wrong_shares_than_spare_ones_void_the_round_and_not_the_next():
    cohort = Cohort(10)
    with pytest.raises(GarbledSumError, match="client 0's secret restore another one"):
        run(cohort, [0, 1, 2, 3])
    assert not cohort.server.barred
    run(cohort, [], index=3).assert_exact()


def test_wrong_shares_that_are_not_needed_are_not_looked_at():
    cohort = Cohort(10)
    run(cohort, [9]).assert_exact()
    assert not cohort.server.barred


@pytest.mark.parametrize("n", [10, 30])
def test_twin_without_correction_is_void(n, monkeypatch):
    """What one client could do before: end any round that it was in."""

    def void(*_: object) -> int:
        raise GarbledSumError("another secret")

    monkeypatch.setattr(Unmasking, "_corrected", void)
    cohort = Cohort(n)
    with pytest.raises(GarbledSumError):
        run(cohort, [0])
    assert not cohort.server.barred


def test_a_liar_is_decoded_until_it_is_known_and_then_left_out(monkeypatch):
    """Not for every secret of the round: as often as there may be corrupt dealers, and once."""
    decoded = []
    correct = shamir.correct
    monkeypatch.setattr(shamir, "correct", lambda *given: decoded.append(given) or correct(*given))
    cohort = Cohort(30)
    run(cohort, [0, 1]).assert_exact()
    assert len(decoded) == cohort.group.tolerated + 1 < 30
