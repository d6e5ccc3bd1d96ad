"""What the parties of the homomorphic sum refuse to read, and what they never give away."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from secure_fd.aggregation.bfv import messages, scheme, tags
from secure_fd.aggregation.bfv.messages import Opening
from secure_fd.aggregation.bfv.scope import Scope, Session
from secure_fd.aggregation.bfv.server import Server, ServerRound, ServerState
from secure_fd.aggregation.homomorphic import HomomorphicSum
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg.session import RoundTerms
from tests.bfv_cohort import EVERYONE, TERMS, Cohort, N, Play


@pytest.fixture
def play() -> Play:
    return Play(Cohort())


# Clients that lie, and what reaches the server.


def test_the_server_takes_signed_inputs_of_this_round_once(play: Play) -> None:
    def receive(client: int, message: bytes, sentence: str) -> None:
        cohort = Cohort()
        machine = cohort.server.open_round(TERMS)
        with pytest.raises(PeerError, match=sentence):
            machine.receive_input(client, message)
        assert machine.state is ServerState.ABORTED

    honest = play.sent[1]
    forged = bytearray(honest)
    forged[100] ^= 1
    earlier = Play(Cohort(), RoundTerms(2, TERMS.length, TERMS.bound, TERMS.subject)).sent[1]
    elsewhere = Play(Cohort(nonce=b"m")).sent[1]
    relabelled = honest[:48] + earlier[48:]
    subject = Play(Cohort(), RoundTerms(TERMS.index, TERMS.length, TERMS.bound, b"other")).sent[1]
    receive(1, bytes(forged), "client 1's input signature for round 3")
    receive(1, earlier, "not party 1's INPUT for round 3")
    receive(1, elsewhere, "not party 1's INPUT for round 3 of this session")
    receive(1, relabelled, "client 1's input signature for round 3")
    receive(1, subject, "client 1's input signature for round 3")
    receive(2, honest, "not party 2's INPUT")
    receive(1, honest[:-1], "has 73791 bytes, not 73792")
    receive(1, honest + b"\0", "has 73793 bytes, not 73792")
    receive(1, b"", "not party 1's INPUT")
    machine = Cohort().server.open_round(TERMS)
    machine.receive_input(1, honest)
    with pytest.raises(PeerError, match="client 1 sent a second input"):
        machine.receive_input(1, honest)


def test_a_coefficient_out_of_range_is_refused_though_its_client_signed_it(play: Play) -> None:
    wrong = play.inputs[1].copy()
    wrong[0, 1, 0, 7] = scheme.PRIMES[0]
    message = messages.encode_input(play.scope, 1, wrong, play.cohort.identities[1])
    with pytest.raises(PeerError, match="not below its prime"):
        Cohort().server.open_round(TERMS).receive_input(1, message)


def test_a_client_above_the_bound_voids_the_round_and_costs_no_key(play: Play) -> None:
    consents = play.consents(EVERYONE, EVERYONE)
    liar = play.cohort.clients[4]
    data = np.zeros((1, tags.DATA_SLOTS), np.uint64)
    data[0, 0] = N * TERMS.bound + 1
    slots = tags.attach(data, liar.keys.weights(play.scope), liar.keys.pads(play.scope, 4))
    total = play.added(EVERYONE[:4])
    scheme.add(total, liar.keys.encryptor.encrypt(slots))
    opening = messages.encode_open(play.scope, Opening(EVERYONE, consents, total))
    with pytest.raises(PeerError, match="exceeds 35"):
        play.rounds[0].open(opening)
    assert play.rounds[0].holds_key


def test_fewer_survivors_have_a_lower_limit() -> None:
    scope = Scope(Cohort().session, TERMS)
    slots = np.zeros(scope.slots, np.uint64)
    slots[5] = 3 * TERMS.bound + 1
    assert scope.unpack(slots, (0, 1, 2, 3))[5] == 22
    with pytest.raises(PeerError, match="exceeds 21, survivors times bound"):
        scope.unpack(slots, (0, 1, 2))


FEWER = EVERYONE[:4]


def asked(play: Play) -> tuple[ServerRound, bytes]:
    """A server that has four inputs and asked client 0 to decrypt, and what it sent."""
    machine = Server(play.cohort.session).open_round(TERMS)
    for k in FEWER:
        machine.receive_input(k, play.sent[k])
    listed = machine.survivors()
    for k in FEWER:
        machine.receive_consent(k, play.rounds[k].consent(listed))
    return machine, machine.opening()


def too_high(play: Play, _: bytes) -> bytes:
    """What five clients could reach, and four cannot."""
    slots = np.full(play.scope.slots, 4 * TERMS.bound + 1, np.uint64)
    return messages.encode_total(play.scope, 0, slots, play.cohort.identities[0])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (too_high, "exceeds 28, survivors times bound"),
        (lambda _, answer: answer[:-1] + bytes([answer[-1] ^ 1]), "client 0's total signature"),
        (lambda _, answer: answer[:60] + answer[68:], "a TOTAL body has"),
    ],
)
def test_the_server_checks_the_key_holders_answer(
    play: Play, changed: Callable[[Play, bytes], bytes], sentence: str
) -> None:
    machine, opening = asked(play)
    answer = play.rounds[0].open(opening)
    with pytest.raises(PeerError, match=sentence):
        machine.receive_total(0, changed(play, answer))
    assert machine.state is ServerState.ABORTED


def test_the_server_reads_the_honest_answer(play: Play) -> None:
    machine, opening = asked(play)
    total = machine.receive_total(0, play.rounds[0].open(opening))
    assert np.array_equal(total, play.values[:4].sum(axis=0))
    assert machine.state is ServerState.FINISHED


def test_the_server_offers_nothing_below_the_quorum(play: Play) -> None:
    machine = play.cohort.server.open_round(TERMS)
    for k in (0, 1):
        machine.receive_input(k, play.sent[k])
    with pytest.raises(LocalError, match="2 inputs are below the quorum 3"):
        machine.survivors()
    with pytest.raises(LocalError, match="the server is ABORTED where INPUTS is due"):
        machine.receive_input(2, play.sent[2])


@pytest.mark.parametrize("size", [0, 47, 48, 49, 50, 178, 73_777])
def test_an_opening_of_another_length_is_refused(play: Play, size: int) -> None:
    consents = play.consents(EVERYONE, EVERYONE)
    opening = Opening(EVERYONE, consents, play.added(EVERYONE))
    message = messages.encode_open(play.scope, opening)
    with pytest.raises(PeerError):
        play.rounds[0].open(message[:size])
    with pytest.raises(PeerError):
        play.rounds[1].open(message + bytes(size + 1))
    assert play.rounds[0].holds_key


# Who holds what.


def test_clients_without_the_key_cannot_decrypt(play: Play) -> None:
    consents = play.consents(EVERYONE, EVERYONE)
    for k in (3, 4):
        assert not play.rounds[k].holds_key
        with pytest.raises(LocalError, match=f"client {k} holds no decryption key"):
            play.read(play.added(EVERYONE), EVERYONE, consents, holder=k)
        encryptor = play.cohort.clients[k].keys.encryptor
        context = encryptor._context
        assert (context.has_public_key(), context.has_secret_key()) == (True, False)
        with pytest.raises(ValueError, match="doesn't support decryption"):
            context.decryptor()
        with pytest.raises(ValueError, match="secret_key"):
            encryptor._encrypt(np.zeros(scheme.DEGREE, np.uint64)).decrypt()


def test_tenseals_make_context_public_keeps_what_decrypts() -> None:
    """Why the public half is written out and read back instead."""
    context = scheme.DecryptionKey.generate()._context.copy()
    context.make_context_public()
    assert not context.has_secret_key()
    assert context.decryptor() is not None


def test_secrets_are_in_no_message_no_text_and_no_pickle(play: Play) -> None:
    cohort = play.cohort
    consents = play.consents(EVERYONE, EVERYONE)
    opening = messages.encode_open(play.scope, Opening(EVERYONE, consents, play.added(EVERYONE)))
    wire = [*play.sent.values(), *consents.values(), opening, play.rounds[0].open(opening)]
    holder = cohort.clients[0].holder
    assert holder is not None
    keys = [cohort.clients[0].keys._weight_key, holder._pad_root]
    keys += [client.keys._pad_key for client in cohort.clients.values()]
    text = repr([cohort.clients, play.rounds, cohort.server, holder, holder.decryption, keys[:0]])
    for secret in keys:
        assert len(secret) == 32
        assert not any(secret in message for message in wire)
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text
    assert len(set(keys)) == len(keys)
    sums = HomomorphicSum(3)
    for secretive in (
        sums,
        cohort.clients[0],
        play.rounds[0],
        holder,
        holder.decryption,
        cohort.clients[1].keys,
    ):
        assert not hasattr(secretive, "__dict__")
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(LocalError, match="cannot be pickled or copied"):
                attempt(secretive)


def test_the_session_id_covers_what_was_agreed() -> None:
    cohort = Cohort(3)
    roster, nonce = cohort.session.roster, b"n"
    ids = {
        Session(roster, b"configuration", b"proxies", nonce).id,
        Session(roster, b"other", b"proxies", nonce).id,
        Session(roster, b"configuration", b"other", nonce).id,
        Session(roster, b"configuration", b"proxies", b"m").id,
        Session(Cohort(4).session.roster, b"configuration", b"proxies", nonce).id,
    }
    assert cohort.session.id in ids
    assert len(ids) == 5
