"""The homomorphic sum: what its parties refuse, who can decrypt, and what nothing prevents."""

import copy
import pickle

import numpy as np
import pytest

from secure_fd.aggregation import bfv
from secure_fd.aggregation.homomorphic import EncryptedClient, EncryptedServer, HomomorphicSum
from secure_fd.crypto.primitives import SERVER, insecure_bytes
from secure_fd.errors import LocalError, PeerError
from secure_fd.exchange import Kind
from secure_fd.secagg.session import Place, RoundTerms, encode_set, frame

N = 5
TERMS = RoundTerms(index=3, length=60, bound=7, subject=b"proxies")
VALUES = np.random.default_rng(3).integers(0, 7, (N, 60), np.uint64, endpoint=True)
HEADER = 48


class Cohort:
    """Five clients with their inputs; the test is the server."""

    def __init__(self, terms: RoundTerms = TERMS, seed: int = 1) -> None:
        self.sums = HomomorphicSum(N, random=insecure_bytes(seed))
        self.clients: dict[int, EncryptedClient] = {k: self.sums.client(k) for k in range(N)}
        self.sent = {k: client.load(terms, VALUES[k])[0] for k, client in self.clients.items()}

    def server(self, terms: RoundTerms = TERMS) -> EncryptedServer:
        opened = self.sums.server()
        opened.open(terms)
        return opened

    def ask(self, ciphertexts: bytes, survivors: tuple[int, ...] = tuple(range(N))) -> bytes:
        """What a server that may lie sends to a key holder."""
        listed = encode_set(survivors, range(N))
        place = Place(self.sums.session, TERMS.index)
        return frame(Kind.CIPHER, place, SERVER, listed, ciphertexts)

    def ciphertexts(self, client: int) -> bytes:
        return self.sent[client][HEADER + len(TERMS.subject) :]


@pytest.fixture(scope="module")
def play() -> Cohort:
    return Cohort()


def test_the_server_takes_inputs_of_this_round_once() -> None:
    play = Cohort()
    honest = play.sent[1]
    other = RoundTerms(TERMS.index, TERMS.length, TERMS.bound, b"another")
    cases = [
        (1, Cohort(seed=2).sent[1], "this session"),
        (1, Cohort(RoundTerms(2, 60, 7, b"proxies")).sent[1], "else than this sum"),
        (1, Cohort(other).sent[1], "client 1 was told something else"),
        (2, honest, "party 2"),
        (1, honest[:-1], "bytes, not"),
        (1, honest + b"\0", "bytes, not"),
        (1, b"", "bytes"),
        (9, honest, "client 9 was not asked"),
    ]
    server = play.server()
    for sender, message, sentence in cases:
        with pytest.raises(PeerError, match=sentence):
            server.receive(sender, message)
    assert server.waiting == set(range(N))
    server.receive(1, honest)
    with pytest.raises(PeerError, match="client 1 was not asked"):
        server.receive(1, honest)


def test_a_coefficient_out_of_range_is_refused(play: Cohort) -> None:
    wrong = bfv.decode(play.ciphertexts(1), 1)
    wrong[0, 1, 0, 7] = bfv.PRIMES[0]
    message = play.sent[1][: HEADER + len(TERMS.subject)] + bfv.encode(wrong)
    with pytest.raises(PeerError, match="not below its prime"):
        Cohort().server().receive(1, message)


def test_a_sum_that_no_honest_inputs_reach_is_not_handed_back() -> None:
    play = Cohort()
    slots = np.zeros((1, bfv.DEGREE), np.uint64)
    slots[0, 0] = 4 * TERMS.bound + 1
    total = play.clients[4]._encryptor.encrypt(slots)
    with pytest.raises(PeerError, match="exceeds 28, survivors times bound"):
        play.clients[0].receive(play.ask(bfv.encode(total), (0, 1, 2, 4)))


@pytest.mark.parametrize("survivors", [(), (0, 1)])
def test_a_key_holder_opens_nothing_below_the_quorum(survivors: tuple[int, ...]) -> None:
    play = Cohort()
    with pytest.raises(PeerError, match="too few; 3 are needed"):
        play.clients[0].receive(play.ask(play.ciphertexts(4), survivors))


def test_a_key_holder_opens_once_a_round() -> None:
    play = Cohort()
    message = play.ask(play.ciphertexts(4))
    play.clients[0].receive(message)
    with pytest.raises(PeerError, match="where none is open"):
        play.clients[0].receive(message)


@pytest.mark.parametrize("size", [0, 47, 48, 49, 178, 73_776])
def test_a_question_of_another_length_is_refused(play: Cohort, size: int) -> None:
    message = play.ask(play.ciphertexts(4))
    for wrong in (message[:size], message + bytes(size + 1)):
        with pytest.raises(PeerError):
            play.clients[1].receive(wrong)


def test_the_server_checks_what_a_key_holder_hands_back() -> None:
    play = Cohort()
    server = play.server()
    for k in range(4):
        server.receive(k, play.sent[k])
    (question,) = server.advance().values()
    (answer,) = play.clients[0].receive(question)
    high = np.full(len(answer[HEADER:]) // 8, 4 * TERMS.bound + 1, "<u8").tobytes()
    for wrong in (answer[:HEADER] + high, answer[:-8], b""):
        with pytest.raises(PeerError):
            server.receive(0, wrong)
    server.receive(0, answer)
    assert server.advance() == {}
    assert server.result is not None
    assert np.array_equal(server.result.total, VALUES[:4].sum(axis=0))


def test_nothing_stops_a_lying_server() -> None:
    """The guarantee says so: one client's ciphertext passes for the sum, and a repeated one."""
    play = Cohort()
    server = play.server()
    for k in range(N):
        server.receive(k, play.sent[k])
    server.advance()
    (answer,) = play.clients[0].receive(play.ask(play.ciphertexts(4)))
    server.receive(0, answer)
    assert server.result is not None
    assert np.array_equal(server.result.total, VALUES[4])
    assert "Nothing holds against a server that lies" in HomomorphicSum.guarantee


# Who holds what.


def test_clients_without_the_key_cannot_decrypt(play: Cohort) -> None:
    for k in (3, 4):
        with pytest.raises(PeerError, match=f"client {k} holds no decryption key"):
            play.clients[k].receive(play.ask(play.ciphertexts(0)))
        encryptor = play.clients[k]._encryptor
        context = encryptor._context
        assert (context.has_public_key(), context.has_secret_key()) == (True, False)
        with pytest.raises(ValueError, match="doesn't support decryption"):
            context.decryptor()
        with pytest.raises(ValueError, match="secret_key"):
            encryptor._encrypt(np.zeros(bfv.DEGREE, np.uint64)).decrypt()


def test_tenseals_make_context_public_keeps_what_decrypts() -> None:
    """Why the public half is written out and read back instead."""
    context = bfv.DecryptionKey.generate()._context.copy()
    context.make_context_public()
    assert not context.has_secret_key()
    assert context.decryptor() is not None


def test_secrets_are_in_no_text_and_no_pickle(play: Cohort) -> None:
    for secretive in (play.sums, play.clients[0], play.clients[0]._key):
        assert repr(secretive).endswith(": secret>")
        assert not hasattr(secretive, "__dict__")
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(LocalError, match="cannot be pickled or copied"):
                attempt(secretive)


def test_the_session_id_covers_what_was_agreed() -> None:
    def id_of(n: int, configuration: bytes, proxies: bytes, seed: int) -> bytes:
        random = insecure_bytes(seed)
        made = HomomorphicSum(n, random=random, configuration=configuration, proxies=proxies)
        return made.session

    base = (3, b"c", b"p", 1)
    ids = {id_of(*agreed) for agreed in (base, (4, b"c", b"p", 1), (3, b"x", b"p", 1))}
    ids |= {id_of(*agreed) for agreed in ((3, b"c", b"x", 1), (3, b"c", b"p", 2), base)}
    assert len(ids) == 5
