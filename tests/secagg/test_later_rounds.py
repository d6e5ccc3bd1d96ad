"""Nothing that a later round opens helps with an earlier one, nor does an old set-up with a new.

The trap: were the round's secrets the same in every round, with only the round's number in the
key derivation, then the root of a client that drops out in one round would open the masks of
its input in every other.
"""

from collections.abc import Collection

import pytest

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import Purpose, RandomBytes, insecure_bytes
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.masks import RoundSecrets, open_vault, round_key
from secure_fd.secagg.session import RoundTerms
from secure_fd.votes.codec import WordArray
from secure_fd.wire import Place
from tests.drivers.cohort import ALL, LATER, Clients, Cohort, Stage, assert_dead, closed_in, still
from tests.drivers.lying_server import LyingServer, Told

VICTIM = 1


def two_rounds(cohort: Cohort) -> tuple[LyingServer, LyingServer]:
    """A complete round, and one in which the victim drops out: what the server has of both."""
    first = LyingServer(cohort, [], RoundTerms(3, 40, 4))
    first.run(dict.fromkeys(ALL, Told(ALL, ALL)))
    second = LyingServer(cohort, [], RoundTerms(5, 40, 4))
    left: Clients = tuple(k for k in ALL if k != VICTIM)
    second.run(dict.fromkeys(left, Told(ALL, left)))
    assert VICTIM in first.seeds.known
    assert VICTIM in second.roots.known
    assert VICTIM not in first.roots.known
    return first, second


def with_later(first: LyingServer, second: LyingServer, taken: Collection[str]) -> WordArray:
    """Take the later root for the earlier one.

    taken: what else is used in the place of what was not opened: the pair secrets out of the later
    vault, the later round key itself.
    """
    root, place = second.roots.known[VICTIM], second.scope.place
    first.roots.known[VICTIM] = root
    secrets = open_vault(second.group, place, VICTIM, root, second.prepared[VICTIM].vault)
    later = {"open_vault": secrets, "round_key": round_key(place, VICTIM, root)}
    with pytest.MonkeyPatch.context() as patch:
        for name in taken:
            patch.setattr(f"tests.drivers.lying_server.{name}", lambda *_, name=name: later[name])
        return first.read([VICTIM])


@pytest.mark.parametrize("taken", [[], ["open_vault"], ["open_vault", "round_key"]])
def test_a_root_of_a_later_round_opens_no_input_of_an_earlier_one(taken):
    first, second = two_rounds(Cohort(4))
    with pytest.raises(PeerError, match=r"does not open|exceeds"):
        with_later(first, second, taken)


def repeated(place: Place, client: int, random: RandomBytes) -> RoundSecrets:
    root = shamir.draw_element(insecure_bytes(client))
    return RoundSecrets(place, client, root, shamir.draw_element(random))


def test_a_root_drawn_once_for_all_rounds_opens_the_earlier_input_bit_for_bit(monkeypatch):
    monkeypatch.setattr(RoundSecrets, "draw", repeated)
    first, second = two_rounds(Cohort(4))
    assert (with_later(first, second, []) == first.values[VICTIM]).all()


@pytest.mark.parametrize("taken", [["open_vault"], ["open_vault", "round_key"]])
def test_keys_bound_to_no_round_open_the_earlier_input_bit_for_bit(taken, monkeypatch):
    """The same secrets in every round, channels that stand still, and nothing but the mask key
    under the round's terms."""
    bound = Place.context

    def unbound(place: Place, purpose: Purpose, sender: int, receiver: int) -> bytes:
        return bound(Place(place.session), purpose, sender, receiver)

    monkeypatch.setattr(RoundSecrets, "draw", repeated)
    monkeypatch.setattr(Place, "context", unbound)
    monkeypatch.setattr(Channel, "_move", still)
    first, second = two_rounds(Cohort(4))
    assert (with_later(first, second, taken) == first.values[VICTIM]).all()


def test_no_secret_of_a_round_comes_back_in_another():
    cohort = Cohort(4)
    seen: list[object] = []
    for index in (3, 5, 6):
        stage = Stage.opened(cohort, RoundTerms(index, 4, 4))
        for k, machine in stage.machines.items():
            secrets = machine._held.prepared.secrets
            channels = machine._enrolment.channels.items()
            seen += [secrets.root, secrets.seed, secrets.key.public, stage.prepared[k].commitment]
            seen += [channel.pair_secret(index) for peer, channel in channels if k < peer]
    assert len(set(seen)) == len(seen) == 3 * (4 * 4 + 6)


# New channels.


def test_a_new_set_up_takes_nothing_that_an_earlier_one_sealed():
    """Shares for the next round, sealed on the old channels, come with this round's input."""
    cohort = Cohort(4)
    old = Stage.opened(cohort)
    old_shares = old.relayed()
    cohort.enrol()
    stage = Stage.opened(cohort, LATER)
    answer = stage.tell(stage.relayed() | {1: old_shares[1]})
    assert closed_in(stage.machines[0], answer) == (1,)


def test_a_round_of_an_earlier_set_up_ends_where_a_new_one_is_in_use():
    cohort = Cohort(4)
    stage = Stage.opened(cohort)
    cohort.enrol()
    with pytest.raises(LocalError, match="client 0 left"):
        stage.tell(stage.relayed())
    assert_dead(stage.machines[0])
    assert cohort.clients[0]._enrolment.prepared is None


def test_what_was_prepared_is_dropped_with_its_set_up():
    cohort = Cohort(4)
    cohort.open(RoundTerms(3, 4, 4)).finish()
    kept = [client._enrolment.prepared for client in cohort.clients.values()]
    assert all(prepared is not None and prepared.index == 4 for prepared in kept)
    cohort.enrol()
    assert all(client._enrolment.prepared is None for client in cohort.clients.values())
    assert (cohort.open(RoundTerms(4, 4, 4)).finish() == 0).all()
