"""Values kept or opened in one round open no other: ratchet, and secrets of a round.

An attacker that has all messages and all that a client keeps after ten rounds tries each
secret that it finds as the chain of each channel, and each sealer, on every round. Were the secrets
of a round the same in every round, the root of a client that drops out in one round would open the
masks of its input in every other. What clients keep at the end of an epoch is property (k) of
tests/model.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import Purpose, RandomBytes, Sealer, insecure_bytes
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.masks import RoundSecrets, _label, open_shares, open_vault, round_key
from secure_fd.secagg.messages import Relayed
from secure_fd.secagg.session import RoundTerms
from secure_fd.votes.codec import WordArray
from secure_fd.wire import Place
from tests.drivers.cohort import ALL, LATER, Clients, Cohort, Stage, assert_dead, closed_in, still
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


@pytest.mark.parametrize(("index", "why"), [(3, "moved on"), (8, "another epoch"), (7, "served")])
def test_a_channel_goes_to_no_earlier_round_no_other_epoch_and_none_when_closed(index, why):
    session = Cohort(3, epoch=4).session
    channel = Channel.agreed(session, 0, 1, bytes(32), b"view")
    channel.pair_secret(5)
    if index == 7:
        channel.pair_secret(7)
        channel.close()
    for use in (
        lambda: channel.pair_secret(index),
        lambda: channel.seal(index, b"", b""),
        lambda: channel.open(index, bytes(16), b"", "it"),
    ):
        with pytest.raises(LocalError, match=why):
            use()


def test_a_channel_seals_once_a_round_before_a_restart_and_after_it():
    session = Cohort(3, epoch=4).session
    one, other = (Channel.agreed(session, *ends, bytes(32), b"") for ends in ((0, 1), (1, 0)))
    sealed = one.seal(5, b"shares", b"")
    with pytest.raises(LocalError, match="counter"):
        one.seal(5, b"other shares", b"")
    back = Channel.restored(session, 0, 1, one.state())
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
