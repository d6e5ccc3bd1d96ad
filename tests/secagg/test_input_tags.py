"""A masked input is its sender's, bit for bit: a tag says so at once, a signature for good."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from secure_fd.crypto.keys import TAG_BYTES, Purpose, Sealer, fields
from secure_fd.errors import GarbledSumError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.session import Group, RoundScope, encode_set
from secure_fd.votes.codec import WordArray
from tests.drivers.cohort import (
    Cohort,
    Round,
    flip,
    read_input,
    round_of,
    verify_input,
    write_input,
)

N, HIT = 5, 2


def inputs(cohort: Cohort | None = None) -> tuple[Round, dict[int, bytes]]:
    current = round_of(cohort or Cohort(N))
    return current, current.masked()


def finish(current: Round, sent: dict[int, bytes]) -> None:
    """Go on with the clients whose input the server accepted."""
    accepted = {k: message for k, message in sent.items() if k in current.server.waiting}
    current.go_on(current.deliver(accepted))


def bits(message: bytes) -> Iterator[int]:
    """Bytes in every part of a MASKED: header, words, set, signatures, what follows, tag."""
    yield from (0, 3, 7, 15, 20, 48, 60, len(message) - 1, len(message) - 16, len(message) - 17)
    yield from range(64, len(message), 37)


def test_one_bit_that_a_relay_alters_is_noticed_at_once():
    """The sender is out, as if it had been silent, and the sum of the others is exact."""
    current, sent = inputs()
    places = list(bits(sent[HIT]))
    assert len(places) > 20
    for at in places:
        current.server.refused.clear()
        with pytest.raises(PeerError):
            current.server.receive(HIT, flip(sent[HIT], at))
    assert set(current.server.refused) == {HIT}
    assert not current.server._sum.any()
    finish(current, sent)
    current.assert_exact(set(range(N)) - {HIT})


def test_mutant_without_the_tag_garbles_the_sum(monkeypatch):
    sound = Sealer.open

    def unchecked(self: Sealer, counter: int, sealed: bytes, context: bytes, what: str) -> bytes:
        return b"" if len(sealed) == TAG_BYTES else sound(self, counter, sealed, context, what)

    monkeypatch.setattr(Sealer, "open", unchecked)
    current, sent = inputs()
    sent[HIT] = flip(sent[HIT], 48)
    try:
        finish(current, sent)
    except GarbledSumError:
        assert current.server.state.name == "ABORTED"
    else:
        with pytest.raises(AssertionError):
            current.assert_exact()


def test_a_tag_is_of_one_client():
    """Those of every client, round and set-up are in tests/vectors."""
    cohort = Cohort(N)
    current, sent = inputs(cohort)
    machine, other = current.clients[HIT], current.clients[HIT + 1]
    masked = read_input(machine, sent[HIT])
    group, tags = cohort.group, Sealer(other._enrolment.authenticator.key)
    forged = messages.encode_masked(masked, machine.scope, HIT, group, tags)
    with pytest.raises(PeerError, match="does not open"):
        current.server.receive(HIT, forged)


# Before an arbiter, who has the session, the group and the message that the server kept.


def judged(current: Round, message: bytes, cohort: tuple[int, ...] = tuple(range(N))) -> bool:
    """Return True if the arbiter finds that client 2 sent these words for this cohort."""
    machine = current.clients[HIT]
    group = machine._enrolment.group
    try:
        verify_input(message, machine.scope, HIT, group, encode_set(cohort, group.members))
    except PeerError:
        return False
    return True


def lying(current: Round, sent: dict[int, bytes]) -> bytes:
    """Client 2 signs and tags words that no honest client would send."""
    machine = current.clients[HIT]
    masked, group = read_input(machine, sent[HIT]), machine._enrolment.group
    words = masked.words + np.uint64(2**62)  # beyond all lanes
    everyone = encode_set(range(N), group.members)
    text = messages.input_text(machine.scope, HIT, group, words, everyone)
    proof = machine._client.sign(text)
    return write_input(machine, replace(masked, words=words, proof=proof))


def test_a_sender_that_aborts_the_round_is_convicted_by_what_it_signed():
    current, sent = inputs()
    sent[HIT] = lying(current, sent)
    with pytest.raises(GarbledSumError):
        finish(current, sent)
    assert judged(current, sent[HIT])


def test_a_sender_whose_words_were_altered_afterwards_is_acquitted():
    """A server cannot blame a client: it has the tag's key, and not the client's identity."""
    current, sent = inputs()
    machine = current.clients[HIT]
    assert judged(current, sent[HIT])
    masked = read_input(machine, sent[HIT])
    altered = write_input(machine, replace(masked, words=masked.words + np.uint64(1)))
    read_input(machine, altered)  # any party that has the key can tag it
    assert not judged(current, altered)
    for other in (sent[HIT + 1], flip(sent[HIT], 49), sent[HIT][:-1], sent[HIT] + b"\0", b""):
        assert not judged(current, other)


def test_a_signature_is_of_one_cohort_round_and_client():
    current, sent = inputs()
    assert not judged(current, sent[HIT], cohort=(0, 1, 2, 3))
    renamed = sent[HIT + 1][:4] + HIT.to_bytes(4, "big") + sent[HIT + 1][8:]
    assert not judged(current, renamed)
    later, others = inputs(Cohort(N, seed=4))
    moved = others[HIT][:48] + sent[HIT][48:]
    assert not judged(later, moved)


def test_mutant_whose_signature_leaves_out_the_words_convicts_the_innocent(monkeypatch):
    def wordless(
        scope: RoundScope, client: int, group: Group, words: WordArray, cohort: bytes
    ) -> bytes:
        digest = hashlib.sha256(bytes(words.size)).digest()
        label = scope.context(Purpose.INPUT, client)
        return label + fields(group.view, cohort, digest)

    monkeypatch.setattr(messages, "input_text", wordless)
    current, sent = inputs()
    machine = current.clients[HIT]
    masked = read_input(machine, sent[HIT])
    altered = write_input(machine, replace(masked, words=masked.words + np.uint64(1)))
    assert judged(current, altered)
