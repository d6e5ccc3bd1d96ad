"""The last round of an epoch: no channel moves on to a next one, so its keys must go as well."""

from collections.abc import Mapping

import pytest

from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.machine import PartyMemory
from tests.drivers.cohort import ALL, TERMS, Cohort
from tests.drivers.lying_server import LyingServer, Told

VICTIM = 1
LAST = TERMS.index + 1
"""An epoch of so many rounds ends with that of TERMS."""


def recorded(cohort: Cohort) -> LyingServer:
    """A round to its end, of which the server keeps everything."""
    server = LyingServer(cohort, [])
    server.run(dict.fromkeys(ALL, Told(ALL, ALL)))
    return server


def read_with(server: LyingServer, states: Mapping[int, bytes]) -> bool:
    """Whether the victim's input is read with these states of its channels; PeerError if closed."""
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


def test_twin_whose_channels_stay_after_the_last_round_is_read(monkeypatch):
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
