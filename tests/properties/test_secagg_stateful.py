"""Sessions of many rounds over the real machines, with faults and attacks in any order.

The rules, and what must hold, are in tests/secagg_federation.py. Every twin, with one protection
broken, must be caught by them.
"""

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from secure_fd.crypto import shamir
from secure_fd.crypto.primitives import RandomBytes
from secure_fd.errors import PeerError
from secure_fd.secagg.client import ClientRound, _Held
from secure_fd.secagg.masks import RoundSecrets
from secure_fd.secagg.server import Unmasking
from secure_fd.secagg.session import Place
from tests.secagg_federation import Federation, N, clients
from tests.vectors.independent import frame

BOUNDED = settings(
    max_examples=20,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
)


def test_every_rule_in_any_order() -> None:
    Federation.endings.clear()
    run_state_machine_as_test(Federation, settings=settings(BOUNDED, max_examples=25))
    assert set(Federation.endings) == {"sum of all", "sum of some", "void", "struck", "lied to"}


@given(
    lost=st.lists(st.frozensets(clients, max_size=2), min_size=1, max_size=2),
    late=st.frozensets(clients, max_size=1),
    data=st.data(),
)
@settings(BOUNDED, max_examples=40)
def test_a_server_that_lies_about_the_survivors(
    lost: list[frozenset[int]], late: frozenset[int], data: st.DataObject
) -> None:
    """The one rule that most random rounds do not come to, over and over."""
    federation = Federation()
    federation.start(seed=0)
    federation.begin(gap=0, away=frozenset(), faults=1, liar="server")
    federation.close_stage(order=list(range(N)))
    federation.answer()
    for client in late:
        del federation.outbox[client], federation.machines[client]
    federation.close_stage(order=list(range(N)))
    federation.show_different_survivors(lost=lost, data=data)


def keep_state(self: ClientRound) -> object:
    return self._state, self._held


def same_secrets(_: object, place: Place, client: int, random: RandomBytes) -> RoundSecrets:
    return RoundSecrets(place, client, root=client + 1, seed=shamir.draw_element(random))


LEFT_BEHIND = Unmasking._left_behind


def other_sign(*arguments: Any) -> object:  # noqa: ANN401 - whatever the original takes
    return tuple(reversed(LEFT_BEHIND(*arguments)))


def roots_only(self: ClientRound, held: _Held) -> bytes:
    roots = b"".join(held.shares[owner].root for owner in sorted(held.shares))
    place = self.scope.place
    return frame("UNMASK", place.session, place.index, self.number, roots)


TWINS = {
    "a client that goes on after a bad message": (ClientRound, "_take", keep_state),
    "a dropped client's masks taken off with the wrong sign": (
        Unmasking,
        "_left_behind",
        other_sign,
    ),
    "shares of roots, whoever survived": (ClientRound, "_unmask", roots_only),
}


@pytest.mark.parametrize(("holder", "name", "broken"), TWINS.values(), ids=TWINS)
def test_twins_are_caught_by_the_rules(
    holder: type, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, name, broken)
    with pytest.raises((AssertionError, PeerError, pytest.fail.Exception)):
        run_state_machine_as_test(Federation, settings=BOUNDED)


def test_twin_that_repeats_its_secrets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round's number in the context makes the keys differ all the same, so drop it too."""
    monkeypatch.setattr(RoundSecrets, "draw", classmethod(same_secrets))
    monkeypatch.setattr(Place, "context", lambda *_: b"no round")
    with pytest.raises(AssertionError, match="a round key came twice"):
        run_state_machine_as_test(Federation, settings=BOUNDED)


def test_twin_that_checks_no_signatures_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientRound, "_check_signatures", lambda *_: None)
    with pytest.raises(AssertionError, match="two sets of survivors"):
        test_a_server_that_lies_about_the_survivors()
