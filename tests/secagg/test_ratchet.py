"""What a client's memory holds after a round opens no round that was recorded before it.

Whoever records all messages and reads everything that a client keeps after ten rounds tries each
secret that it finds as the chain of each channel, and each sealer, on every round.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from secure_fd.crypto.keys import Sealer
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.channel import STATE_BYTES, Channel
from secure_fd.secagg.masks import _label, open_shares
from secure_fd.secagg.messages import Relayed
from secure_fd.secagg.session import RoundTerms
from secure_fd.wire import Place
from tests.drivers.cohort import Cohort, still

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


def test_twin_whose_chain_does_not_move_opens_all_of_them(monkeypatch):
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
