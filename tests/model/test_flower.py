"""Seeded schedules of the deployment's server and sites, and mutants that they catch."""

from collections.abc import Callable
from typing import Any

import pytest

from secure_fd.deployment import loop
from secure_fd.deployment.envelope import Push, PushKind
from secure_fd.deployment.recovery import Recovery, RepeatedSums, StoredSums
from secure_fd.deployment.site import Site
from secure_fd.errors import PeerError
from secure_fd.privacy.ledger import BudgetLedger, Ledger
from secure_fd.protocol.client import Client
from secure_fd.protocol.server import Server
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.machine import Accepted
from tests.model.flower import SERVER, Fault, World, broken, faults_of


def test_every_property_holds_in_thirty_schedules():
    assert [str(found) for seed in range(30) if (found := broken(seed, faults_of(seed)))] == []


@pytest.mark.parametrize("seed", [1188, 1628, 1645, 2760, 6018])
def test_a_schedule_that_broke_a_property_holds(seed):
    """1188: a site that missed the end of the accepted set-up drew from the seed of another one.

    1628: the server forgot a site that asked for a set-up, as one in mid-round left it out.

    1645: AGREED came a second time, within the next set-up.

    2760: an invitation to the first set-up came after the second, and took its site out of it.

    6018: ALONE came late, or a second time, within a round: the site read a result that its role
    never took, or left the round.
    """
    assert broken(seed, faults_of(seed)) is None


def test_a_server_that_is_killed_costs_no_site_two_rounds(monkeypatch):
    """It ended once SURVIVORS had reached site 0, which took its next PREPARE for confirmed."""
    killed = [Fault(SERVER, "killed", 46, 1.0)]
    assert broken(1, killed) is None
    monkeypatch.setattr(MaskingClient, "greeted", nothing)
    assert broken(1, killed)


def test_a_seed_repeats_its_schedule():
    first, again = (World(7, faults_of(7)) for _ in range(2))
    first.play()
    again.play()
    assert first.lines == again.lines


def nothing(*_: object) -> None:
    pass


def never(*_: object) -> bool:
    return False


def no_repetition(recovery: Any) -> int:
    return int.from_bytes(recovery._file.get("begun") or b"", "big")


def unopened(repeated: Any) -> Any:
    try:
        return ADVANCE(repeated)
    except PeerError:
        repeated.opened = False
        raise


def all_have_read(recovery: Any, _: int) -> None:
    NOTE_ENDED(recovery, 10**9)


def of_any_round(kind: PushKind, parts: tuple[bytes, ...] = (), position: int = 0) -> Push:
    return Push(kind, parts, 2**31 if kind is PushKind.ALONE else position)


def drawn_first(ledger: Any, booking: Any, key: bytes, draw: Any, unmet: Any) -> bytes:
    answer: bytes = draw()
    ledger._pay(booking, key, unmet)
    return answer


def joins_any_time(site: Any, _: Push, sent: list[bytes]) -> None:
    site._file.put({"seed": b""})
    site._client = None
    sent.extend(site._sums.join())


def newest_seed(_: object, member: Any) -> bytes:
    seed: bytes = member.group.seed
    return seed


ADVANCE, NOTE_ENDED = RepeatedSums.advance, Recovery.note_ended
MUTANTS: dict[str, tuple[Any, str, Callable[..., Any], int]] = {
    "a sum leaves before it is on disk": (StoredSums, "_record", nothing, 2),
    "a round is not noted before it begins": (Recovery, "note_begun", nothing, 2),
    "a server repeats no rounds": (Recovery, "come_back", no_repetition, 2),
    "a sum that was open counts as unopened": (RepeatedSums, "advance", unopened, 38),
    "broadcasts are dropped unread": (Recovery, "note_ended", all_have_read, 9),
    "a site is not sent what it missed": (Server, "returned", nothing, 2),
    "a site does not write what it read": (Client, "_remember", nothing, 17),
    "ALONE counts in any round": (loop, "Push", of_any_round, 6018),
    "a message counts twice": (Accepted, "has", never, 979),
    "a site joins after the first round": (Site, "_join", joins_any_time, 2760),
    "a server draws from its newest seed": (loop, "kept_seed", newest_seed, 14),
    "noise is drawn before it is booked": (BudgetLedger, "_answer", drawn_first, 1),
    "a booking is in memory only": (BudgetLedger, "_pay", Ledger._pay, 1),
}
"""Place of the removed rule, its replacement, and a seed that catches it."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, monkeypatch):
    where, attribute, mutated, seed = MUTANTS[name]
    monkeypatch.setattr(where, attribute, mutated)
    assert broken(seed, faults_of(seed))
