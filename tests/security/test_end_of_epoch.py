"""The last round of an epoch: no channel moves on to a next one, so its keys must go as well."""

from collections.abc import Mapping

import numpy as np
import pytest

from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.memory import Memory
from secure_fd.secagg.messages import Prepare
from tests.recorded_round import read_recorded
from tests.secagg_cohort import TERMS, Cohort, Round, random_values, take_prepare

VICTIM = 1
LAST = TERMS.index + 1
"""An epoch of so many rounds ends with that of TERMS."""


def recorded(cohort: Cohort) -> tuple[Round, Mapping[int, Prepare], bytes, WordArray]:
    """A round to its end: all that travelled of the victim, and its words as they were."""
    current = cohort.open(TERMS, random_values(cohort))
    machine = current.clients[VICTIM]
    assert machine._held is not None
    assert machine._held.words is not None
    truth = machine._held.words.copy()
    prepared = {k: take_prepare(client) for k, client in current.clients.items()}
    for k, sent in prepared.items():
        current.server.receive(k, messages.encode_prepare(sent, machine.scope.place, k))
    masked = current.answer(dict(current.server.advance()))
    inbound = current.deliver(masked)
    while not current.server.finished:
        inbound = current.deliver(current.answer(inbound))
    return current, prepared, masked[VICTIM], truth


def read_from_memory(cohort: Cohort) -> tuple[WordArray, WordArray]:
    """What the victim sent, and what its channels, read after the round, make of the recording."""
    current, prepared, masked, truth = recorded(cohort)
    machine = current.clients[VICTIM]
    channels = machine._enrolment.channels
    ends = {
        peer: Channel.restored(cohort.session, peer, VICTIM, channel.state())
        for peer, channel in channels.items()
    }
    return truth, read_recorded(cohort.group, machine.scope, VICTIM, ends, prepared, masked)


def test_nor_does_the_file_that_is_kept_open_anything_of_it():
    cohort, kept = Cohort(4, epoch=LAST), list[bytes]()
    cohort.clients[VICTIM]._keep = kept.append
    current, prepared, masked, _ = recorded(cohort)
    states = Memory.decode(kept[-1], cohort.session).channels
    ends = {
        peer: Channel.restored(cohort.session, peer, VICTIM, state)
        for peer, state in states.items()
    }
    assert sorted(ends) == [0, 2, 3]
    scope = current.clients[VICTIM].scope
    with pytest.raises(PeerError, match="does not open"):
        read_recorded(cohort.group, scope, VICTIM, ends, prepared, masked)
    first = Memory.decode(kept[0], cohort.session).channels  # the round's own, before it was masked
    ends = {
        peer: Channel.restored(cohort.session, peer, VICTIM, state) for peer, state in first.items()
    }
    assert read_recorded(cohort.group, scope, VICTIM, ends, prepared, masked).size == scope.words


def test_a_memory_read_after_the_last_round_of_an_epoch_opens_nothing_of_it():
    with pytest.raises(PeerError, match="does not open"):
        read_from_memory(Cohort(4, epoch=LAST))


def test_nor_does_one_read_after_any_other_round():
    with pytest.raises(LocalError, match="has moved on"):
        read_from_memory(Cohort(4, epoch=LAST + 1))


def test_twin_whose_channels_stay_after_the_last_round_is_read(monkeypatch):
    monkeypatch.setattr(Channel, "close", lambda _: None)
    truth, read = read_from_memory(Cohort(4, epoch=LAST))
    np.testing.assert_array_equal(read, truth)


def test_a_channel_that_was_closed_gives_no_key_any_more():
    cohort = Cohort(4, epoch=LAST)
    current = recorded(cohort)[0]
    channel = current.clients[VICTIM]._enrolment.channels[0]
    for use in (
        lambda: channel.pair_secret(TERMS.index),
        lambda: channel.seal(TERMS.index, b"", b""),
        lambda: channel.open(TERMS.index, bytes(16), b"", "it"),
    ):
        with pytest.raises(LocalError, match="served its epoch"):
            use()
