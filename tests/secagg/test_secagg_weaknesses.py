"""Mistakes of a widely used implementation, which this one must refuse.

Found in Flower's SecAgg+ (flwr 1.41), and described beside each test. Three more have files of
their own: masks from short seeds in test_uniform, both shares of one client in test_one_share, and
a round that ends with a client which shares no key in test_masked_sum.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from secure_fd.crypto.keys import SIGNATURE_BYTES, TAG_BYTES, WORD, Keystream, Sealer
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import client as round_module
from secure_fd.secagg import masks as masking
from secure_fd.secagg import messages
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.messages import Masked
from secure_fd.secagg.session import Group, MessageType, RoundScope, RoundTerms, Session
from secure_fd.votes.codec import WordArray
from secure_fd.wire import HEADER_BYTES, frame
from tests.drivers.cohort import (
    ALL,
    ROUND_STATES,
    TERMS,
    Cohort,
    assert_dead,
    inbox,
    random_values,
    reach,
)
from tests.drivers.lying_server import LyingServer, Story

# A message type outside the protocol. There it returns the update in plain text.

KINDS = [0, *MessageType, *range(13, 20), 127, 128, 255, 256, 2**15, 2**16 - 1]
DUE = {
    (ClientState.PREPARED, MessageType.COHORT),
    (ClientState.SENT, MessageType.SURVIVORS),
    (ClientState.SIGNED, MessageType.SIGNATURES),
}


def answers_to_every_other_type(state: ClientState) -> Iterator[bytes]:
    """Answer of a client to each type that is not due, with the body of one that is."""
    bodies = [message[HEADER_BYTES:] for message in inbox(Cohort(4)).values()]
    for kind in KINDS:
        if (state, kind) in DUE:
            continue
        machine = reach(state, Cohort(4))
        header = frame(MessageType.COHORT, machine.scope.place, 2**32 - 2)
        data = header[:2] + kind.to_bytes(2, "big") + header[4:] + bodies[kind % 3]
        try:
            answer = machine.receive(data)
        except PeerError:
            assert_dead(machine)
            continue
        if answer:  # an exact copy of what it accepted has none
            yield answer


@pytest.mark.parametrize("state", ROUND_STATES)
def test_no_other_type_of_message_makes_a_client_speak(state):
    assert list(answers_to_every_other_type(state)) == []


def test_a_client_that_answers_types_it_does_not_know_is_caught(monkeypatch):
    sound = ClientRound.receive

    def obliging(machine: ClientRound, data: bytes) -> bytes:
        held, kind = machine._held, int.from_bytes(data[2:4], "big")
        if held is not None and held.words is not None and kind not in set(MessageType):
            return held.words.tobytes()
        return sound(machine, data)

    monkeypatch.setattr(ClientRound, "receive", obliging)
    answers = list(answers_to_every_other_type(ClientState.PREPARED))
    cohort = Cohort(4)
    layout = RoundScope(cohort.session, TERMS).layout
    plain = layout.pack(random_values(cohort)[0]).tobytes()
    assert set(answers) == {plain}


# Parameters that the server chooses. There a threshold of 1 and a modulus of 2 are accepted; here
# no message carries one.


def test_a_client_with_a_threshold_of_one_is_read_by_one_corrupt_client(monkeypatch):
    monkeypatch.setattr(Session, "threshold_of", lambda *_: 1)
    server = LyingServer(Cohort(4), corrupt=[3])
    server.run(dict.fromkeys(server.honest, Story(ALL, ALL)))
    assert server.both() == (0, 1, 2)
    assert (server.read([0]) == server.values[0]).all()


# Counts and metrics. There they travel in clear beside the masked vector.


def dialogue(values: WordArray) -> list[bytes]:
    """Every message to and from the clients of two rounds, where client 0 has these values; cut
    out are the words, which are masked, and what is made of these alone: the signature of them,
    and the tag of the message.
    """
    cohort = Cohort(4)
    sent: list[bytes] = []
    for index in (3, 4):
        terms = RoundTerms(index, TERMS.length, TERMS.bound)
        current = cohort.open(terms, random_values(cohort) | {0: values})
        outbound = current.start()
        while True:
            sent += outbound.values()
            inbound = current.deliver(outbound, without=(3,) if index == 4 else ())
            sent += inbound.values()
            if not inbound:
                break
            outbound = current.answer(inbound)
    width = current.server.scope.words * WORD.itemsize
    masked = MessageType.MASKED.to_bytes(2, "big")
    return [without_words(m, width) if m[2:4] == masked else m for m in sent]


def without_words(message: bytes, width: int) -> bytes:
    """Cut words out of a MASKED of four clients; keep header, closed seals, cohort, the rest."""
    rest = message[HEADER_BYTES + width :]
    assert len(rest) > 1 + 2 * SIGNATURE_BYTES + TAG_BYTES
    kept = rest[: 1 + SIGNATURE_BYTES] + rest[1 + 2 * SIGNATURE_BYTES : -TAG_BYTES]
    return message[:HEADER_BYTES] + kept


FEW, MANY = np.zeros(40, np.uint64), np.full(40, 4, np.uint64)


def test_no_message_but_the_masked_words_depends_on_the_values():
    few = dialogue(FEW)
    assert few == dialogue(MANY)
    assert len(few) == 40


def test_a_count_beside_the_masked_words_is_caught(monkeypatch):
    mask, encode = masking.mask_input, messages.encode_masked
    counts: list[int] = []

    def counting(
        words: WordArray, client: int, pairs: Mapping[int, Keystream], own: Keystream
    ) -> None:
        counts.append(int(np.count_nonzero(words)))
        mask(words, client, pairs, own)

    def with_count(
        masked: Masked, scope: RoundScope, client: int, group: Group, tags: Sealer
    ) -> bytes:
        if client == 0:
            vault = counts[-1].to_bytes(8, "big") + masked.following.vault[8:]
            masked = replace(masked, following=replace(masked.following, vault=vault))
        return encode(masked, scope, client, group, tags)

    monkeypatch.setattr(round_module, "mask_input", counting)
    monkeypatch.setattr(messages, "encode_masked", with_count)
    assert dialogue(FEW) != dialogue(MANY)


# Overflow. There a value above the range wraps silently.


@pytest.mark.parametrize("value", [5, 16, 2**63, 2**64 - 1])
@pytest.mark.parametrize("at", [0, 39])
def test_a_value_above_the_bound_is_refused_before_anything_is_sent(value, at):
    """And the refusal does not show the value."""
    client, values = Cohort().clients[0], np.zeros(40, np.uint64)
    values[at] = value
    with pytest.raises(LocalError, match=r"^a value exceeds the agreed bound of 4$"):
        client.open_round(TERMS, values)
    with pytest.raises(LocalError, match="is spent"):
        client.open_round(TERMS, np.zeros(40, np.uint64))
