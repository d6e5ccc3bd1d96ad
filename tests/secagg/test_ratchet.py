"""Values kept or opened in one round open no other: ratchet, secrets of a round, end of epoch.

An attacker that has all messages and all that a client keeps after ten rounds tries each
secret that it finds as the chain of each channel, and each sealer, on every round. Were the secrets
of a round the same in every round, the root of a client that drops out in one round would open the
masks of its input in every other. No channel moves on from the last round of an epoch, so its keys
must go as well.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import Purpose, RandomBytes, Sealer, insecure_bytes
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.channel import STATE_BYTES, Channel
from secure_fd.secagg.machine import PartyMemory
from secure_fd.secagg.masks import RoundSecrets, _label, open_shares, open_vault, round_key
from secure_fd.secagg.messages import Relayed
from secure_fd.secagg.session import RoundTerms
from secure_fd.votes.codec import WordArray
from secure_fd.wire import Place
from tests.drivers.cohort import (
    ALL,
    LATER,
    TERMS,
    Clients,
    Cohort,
    Stage,
    assert_dead,
    closed_in,
    still,
)
from tests.drivers.lying_server import LyingServer, Story

ROUNDS = range(10)
READER = 0


@dataclass
class Recorded:
    """Ten rounds. relayed: by round what client 0 was sent; pairs: its pair secrets then."""

    cohort: Cohort
    relayed: dict[int, Mapping[int, Relayed]] = field(default_factory=dict)
    pairs: dict[int, dict[int, bytes]] = field(default_factory=dict)

    @classmethod
    def run(cls) -> "Recorded":
        made = cls(Cohort(4))
        for index in ROUNDS:
            current = made.cohort.open(RoundTerms(index, 4, 4))
            inbound = current.prepare()  # sent already, but for the first round
            machine = current.clients[READER]
            channels = machine._enrolment.channels
            made.pairs[index] = {peer: end.pair_secret(index) for peer, end in channels.items()}
            group, place = made.cohort.group, machine.scope.place
            made.relayed[index] = messages.decode_cohort(inbound[READER], group, place, READER)[1]
            current.go_on(inbound)
        return made

    def place(self, index: int) -> Place:
        return Place(self.cohort.session.id, index)

    def opened(self) -> set[int]:
        """The rounds of which anything opens with what client 0's memory holds."""
        found = list(memory(self.cohort.clients[READER]))
        chains = {one for one in found if isinstance(one, bytes) and len(one) == 32}
        sealers = [one for one in found if isinstance(one, Sealer)]
        assert len(chains) > 3
        assert len(sealers) >= 6
        return {
            index
            for index in ROUNDS
            for peer in self.relayed[index]
            if any(self._with_chain(index, peer, chain) for chain in chains)
            or any(self._with_sealer(index, peer, sealer) for sealer in sealers)
            or self.pairs[index][peer] in chains
        }

    def _with_chain(self, index: int, peer: int, chain: bytes) -> bool:
        end, sent = Channel(self.cohort.session, READER, peer, chain, index), self.relayed[index]
        if end.pair_secret(index) == self.pairs[index][peer]:
            return True
        try:
            open_shares(self.place(index), READER, peer, end, sent[peer].key, sent[peer].sealed)
        except PeerError:
            return False
        return True

    def _with_sealer(self, index: int, peer: int, sealer: Sealer) -> bool:
        sent = self.relayed[index][peer]
        label = _label(self.place(index), peer, READER, sent.key)
        try:
            sealer.open(index, sent.sealed, label, "it")
        except PeerError:
            return False
        return True


def memory(root: object) -> Iterator[object]:
    """Everything that an object holds, and all that this holds."""
    seen, left = set(), [root]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
        else:
            names = {name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())}
            held = (getattr(one, name, None) for name in names if isinstance(name, str))
            left += [*held, *getattr(one, "__dict__", {}).values()]


def test_memory_after_round_nine_opens_none_of_ten_recorded_rounds():
    assert Recorded.run().opened() == set()


def test_mutant_whose_chain_does_not_move_opens_all_of_them(monkeypatch):
    monkeypatch.setattr(Channel, "_move", still)
    assert Recorded.run().opened() == set(ROUNDS)


# A channel moves forward, within its epoch.


def ends(epoch: int = 4) -> tuple[Channel, Channel]:
    session = Cohort(3, epoch=epoch).session
    secret, bound = bytes(32), b"view"
    return (
        Channel.agreed(session, 0, 1, secret, bound),
        Channel.agreed(session, 1, 0, secret, bound),
    )


def test_both_ends_agree_whatever_rounds_each_has_seen():
    one, other = ends()
    seen = [one.pair_secret(index) for index in (4, 5, 7)]
    assert other.pair_secret(7) == seen[-1]
    assert len(set(seen)) == 3
    assert one.open(7, other.seal(7, b"shares", b"c"), b"c", "it") == b"shares"


@pytest.mark.parametrize("index", [0, 3, 4])
def test_a_channel_goes_back_to_no_round(index):
    one, _ = ends(epoch=8)
    one.pair_secret(5)
    for attempt in (
        lambda: one.pair_secret(index),
        lambda: one.seal(index, b"", b""),
        lambda: one.open(index, bytes(16), b"", "it"),
    ):
        with pytest.raises(LocalError, match="moved on"):
            attempt()


@pytest.mark.parametrize("index", [8, 9, 400])
def test_a_channel_serves_one_epoch(index):
    one, _ = ends()
    one.pair_secret(5)
    with pytest.raises(LocalError, match="another epoch"):
        one.pair_secret(index)
    assert one.pair_secret(7)


def test_two_epochs_of_one_secret_have_nothing_in_common():
    """A restart that brought an old set-up back would still not repeat a key."""
    first, again = ends()
    assert first.pair_secret(0) != again.pair_secret(4)


def test_a_channel_seals_once_a_round_before_a_restart_and_after_it():
    one, other = ends()
    sealed = one.seal(5, b"shares", b"")
    with pytest.raises(LocalError, match="counter"):
        one.seal(5, b"other shares", b"")
    back = Channel.restored(one._session, 0, 1, one.state())
    assert len(one.state()) == STATE_BYTES
    with pytest.raises(LocalError, match="before the restart"):
        back.seal(5, b"other shares", b"")
    assert back.pair_secret(5) == other.pair_secret(5)
    assert other.open(5, sealed, b"", "it") == b"shares"
    assert other.open(6, back.seal(6, b"next", b""), b"", "it") == b"next"


# A server that has the secrets that a later round opened, or another set-up.

VICTIM = 1


def two_rounds(cohort: Cohort) -> tuple[LyingServer, LyingServer]:
    """A complete round, and one in which the victim drops out: what the server has of both."""
    first = LyingServer(cohort, [], RoundTerms(3, 40, 4))
    first.run(dict.fromkeys(ALL, Story(ALL, ALL)))
    second = LyingServer(cohort, [], RoundTerms(5, 40, 4))
    left: Clients = tuple(k for k in ALL if k != VICTIM)
    second.run(dict.fromkeys(left, Story(ALL, left)))
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


# The last round of an epoch.

LAST = TERMS.index + 1
"""Rounds of an epoch that ends with the round of TERMS."""


def recorded(cohort: Cohort) -> LyingServer:
    """A round to its end, of which the server keeps everything."""
    server = LyingServer(cohort, [])
    server.run(dict.fromkeys(ALL, Story(ALL, ALL)))
    return server


def read_with(server: LyingServer, states: Mapping[int, bytes]) -> bool:
    """Return True if the victim's input is read with these channel states; PeerError if closed."""
    for peer, state in states.items():
        end = Channel.restored(server.cohort.session, peer, VICTIM, state)
        server.open_box(VICTIM, peer, end)
    return bool((server.read([VICTIM]) == server.values[VICTIM]).all())


def read_from_memory(cohort: Cohort) -> bool:
    """The same with the victim's channels, read after the round."""
    server = recorded(cohort)
    channels = server.machines[VICTIM]._enrolment.channels
    return read_with(server, {peer: channel.state() for peer, channel in channels.items()})


def test_nor_does_the_file_that_is_kept_open_anything_of_it():
    cohort, kept = Cohort(4, epoch=LAST), list[bytes]()
    cohort.clients[VICTIM]._keep = kept.append
    server = recorded(cohort)
    states = [PartyMemory.decode(memory, cohort.session).channels for memory in (kept[0], kept[-1])]
    assert sorted(states[1]) == [0, 2, 3]
    with pytest.raises(PeerError, match="does not open"):
        read_with(server, states[1])
    assert read_with(server, states[0])  # the round's own, before it was masked


def test_a_memory_read_after_the_last_round_of_an_epoch_opens_nothing_of_it():
    with pytest.raises(PeerError, match="does not open"):
        read_from_memory(Cohort(4, epoch=LAST))


def test_nor_does_one_read_after_any_other_round():
    with pytest.raises(LocalError, match="has moved on"):
        read_from_memory(Cohort(4, epoch=LAST + 1))


def test_mutant_whose_channels_stay_after_the_last_round_is_read(monkeypatch):
    monkeypatch.setattr(Channel, "close", lambda _: None)
    assert read_from_memory(Cohort(4, epoch=LAST))


def test_a_channel_that_was_closed_gives_no_key_any_more():
    channel = recorded(Cohort(4, epoch=LAST)).machines[VICTIM]._enrolment.channels[0]
    for use in (
        lambda: channel.pair_secret(TERMS.index),
        lambda: channel.seal(TERMS.index, b"", b""),
        lambda: channel.open(TERMS.index, bytes(16), b"", "it"),
    ):
        with pytest.raises(LocalError, match="served its epoch"):
            use()
