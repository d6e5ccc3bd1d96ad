"""The homomorphic sum: what its parties refuse, who can decrypt, and what they are trusted with.

Each refusal stands beside a twin without it, in which the attack succeeds.
"""

import copy
import pickle
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import tenseal

from secure_fd.aggregation import homomorphic as he
from secure_fd.aggregation.homomorphic import CIPHER_BYTES, DEGREE, PRIMES, HomomorphicSum
from secure_fd.crypto.primitives import EVERYONE, SERVER, insecure_bytes
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.exchange import Kind
from secure_fd.knowledge import LaneLayout, WordArray
from secure_fd.secagg.session import Place, RoundTerms, encode_set, frame
from tests.small_federation import federation

N = 5
TERMS = RoundTerms(index=3, length=60, bound=7, subject=b"proxies")
VALUES = np.random.default_rng(3).integers(0, 7, (N, 60), np.uint64, endpoint=True)
HEADER = 48
LIMITS = np.array(PRIMES, np.uint64)[:, np.newaxis]
EVERYBODY = tuple(range(N))


def cheat(
    sums: HomomorphicSum, number: int, terms: RoundTerms, change: Callable[[WordArray], None]
) -> bytes:
    """The input of a client that changes its slots, and its tag with them, at will."""
    opened = he._Round(sums.session, N, terms)
    public, tags, _ = sums.share(number, terms.index)
    slots = np.zeros(DEGREE, np.uint64)
    slots[: opened.slots] = opened.layout.pack(VALUES[number])
    slots[-1] = opened.tag(slots, tags, (number,))
    change(slots)
    return opened.message(number, terms.subject, he.encode(he.encrypt(public, slots)))


def tagged(sums: HomomorphicSum, number: int, slots: WordArray) -> int:
    _, tags, _ = sums.share(number, TERMS.index)
    return he._Round(sums.session, N, TERMS).tag(slots, tags, (number,))


class Cohort:
    """Five clients with their inputs; the test is the server. Client 0 opens round 3."""

    def __init__(self, terms: RoundTerms = TERMS, seed: int = 1) -> None:
        self.sums, self.terms = HomomorphicSum(N, random=insecure_bytes(seed)), terms
        self.clients = {k: self.sums.client(k) for k in range(N)}
        self.sent = {k: client.load(terms, VALUES[k])[0] for k, client in self.clients.items()}

    def ciphertext(self, client: int) -> WordArray:
        return he.decode(self.sent[client][HEADER + len(TERMS.subject) :])

    def total(self, clients: Iterable[int]) -> WordArray:
        return sum((self.ciphertext(k) for k in clients), np.zeros(1, np.uint64)) % LIMITS

    def ask(self, total: WordArray, survivors: tuple[int, ...] = EVERYBODY) -> bytes:
        """What a server that may lie sends to a key holder."""
        listed = encode_set(survivors, range(N))
        place = Place(self.sums.session, TERMS.index)
        return frame(Kind.CIPHER, place, SERVER, listed, he.encode(total))

    def opened(self, total: WordArray, survivors: tuple[int, ...] = EVERYBODY) -> list[int]:
        """The values that the holder opens; none where it refuses."""
        (answer,) = self.clients[0].receive(self.ask(total, survivors))
        if len(answer) == HEADER:
            return []
        slots = np.frombuffer(answer[HEADER:], "<u8").astype(np.uint64)
        return he._Round(self.sums.session, N, TERMS).layout.unpack(slots, 60).tolist()

    def close(self) -> WordArray:
        """A whole round over what was sent, with an honest server."""
        server = self.sums.server()
        server.open(self.terms)
        for k, message in self.sent.items():
            server.receive(k, message)
        for holder, question in server.advance().items():
            for answer in self.clients[holder].receive(question):
                server.receive(holder, answer)
        server.advance()
        assert server.result is not None
        return server.result.total.view(np.uint64)


@pytest.fixture(scope="module")
def play():
    return Cohort()


# A server that passes something else for the sum.


def alone(play: Cohort) -> WordArray:
    return play.ciphertext(4)


def repeated(play: Cohort) -> WordArray:
    return play.ciphertext(4) * np.uint64(N) % LIMITS


def filled_up(play: Cohort) -> WordArray:
    """The target beside zeros that the server encrypts: the public key is no secret."""
    zeros = he.encrypt(play.sums.share(4, TERMS.index)[0], np.zeros(DEGREE, np.uint64))
    return (play.ciphertext(4) + zeros) % LIMITS


def conspired(play: Cohort) -> WordArray:
    """With client 3, which makes four inputs of its own under its own tag keys."""
    slots = np.zeros(DEGREE, np.uint64)
    slots[-1] = 4 * tagged(play.sums, 3, slots) % he.PLAIN_MODULUS
    made = he.encrypt(play.sums.share(3, TERMS.index)[0], slots)
    return (play.ciphertext(4) + made) % LIMITS


def less_one(play: Cohort) -> WordArray:
    return play.total((0, 1, 2, 3))


@pytest.mark.parametrize("attack", [alone, repeated, filled_up, conspired, less_one])
def test_a_holder_opens_nothing_but_the_sum_of_the_survivors(attack, monkeypatch):
    play = Cohort()
    assert play.opened(attack(play)) == []
    monkeypatch.setattr(he._Round, "tag", lambda *_: 0)
    twin = Cohort()
    read = np.array(twin.opened(attack(twin)), np.int64)
    everybody = VALUES.sum(axis=0).astype(np.int64)
    wanted = {repeated: N * VALUES[4], less_one: everybody - VALUES[4].astype(np.int64)}
    assert np.array_equal(read, wanted.get(attack, VALUES[4]))


@pytest.mark.parametrize("hashed", [True, False])
def test_the_tag_covers_every_ciphertext_of_an_input(hashed, monkeypatch):
    """The target's first ciphertext beside the sum of the last ones, where the right tag is.

    The twin's tag is that of the clients alone and hashes no values.
    """
    if not hashed:
        monkeypatch.setattr(he, "reduce", lambda *_: 0)
    sums, terms = HomomorphicSum(3), RoundTerms(0, 2 * DEGREE, 2**50)
    values = np.random.default_rng(1).integers(0, 2**50, (3, terms.length), np.uint64)
    sent = [sums.client(k).load(terms, values[k])[0][HEADER:] for k in range(3)]
    total = sum(map(he.decode, sent), np.zeros(1, np.uint64)) % LIMITS
    total[0] = he.decode(sent[2])[0]
    listed, place = encode_set((0, 1, 2), range(3)), Place(sums.session, 0)
    question = frame(Kind.CIPHER, place, SERVER, listed, he.encode(total))
    (answer,) = sums.client(0).receive(question)
    read = np.frombuffer(answer[HEADER:], "<u8")[:DEGREE]
    assert np.array_equal(read, values[2, :DEGREE]) is not hashed


def test_one_holder_opens_one_sum_a_round():
    """Two sums that differ by a client would give its values away."""
    play, fewer = Cohort(), (0, 1, 2, 3)
    everybody, question = play.total(EVERYBODY), play.ask(play.total(fewer), fewer)
    play.opened(everybody)
    for holder in (0, 1, 2):
        with pytest.raises(PeerError, match=f"client {holder} has no sum to open"):
            play.clients[holder].receive(question)
    twin = Cohort()
    first = np.array(twin.opened(twin.total(EVERYBODY)))
    kept = twin.clients[1]._open
    assert kept is not None
    kept[0].holder = 1  # the twin's second holder does not wait for its turn
    (answer,) = twin.clients[1].receive(twin.ask(twin.total(fewer), fewer))
    second = kept[0].read(np.frombuffer(answer[HEADER:], "<u8").astype(np.uint64), fewer)
    assert np.array_equal(first - second.astype(np.int64), VALUES[4].astype(np.int64))


@pytest.mark.parametrize("survivors", [(), (0, 4)])
def test_a_holder_opens_nothing_below_the_quorum(survivors):
    play = Cohort()
    with pytest.raises(PeerError, match="too few; 3 are needed"):
        play.opened(play.total(survivors or (4,)), survivors)
    kept = play.clients[0]._open
    assert kept is not None
    kept[0].quorum = 0  # the twin's
    if survivors:
        expected = VALUES[list(survivors)].sum(axis=0).tolist()
        assert play.opened(play.total(survivors), survivors) == expected


# A client that lies.


def test_a_lane_out_of_range_voids_the_sum(monkeypatch):
    """Client 4 fills the first lane of six bits, beyond 5 * 7, under its right tag."""

    def far_too_much(sums: HomomorphicSum) -> Callable[[WordArray], None]:
        def change(slots: WordArray) -> None:
            slots[0] += np.uint64(63) - VALUES[:, 0].sum()
            slots[-1] = tagged(sums, 4, slots)

        return change

    play = Cohort()
    play.sent[4] = cheat(play.sums, 4, TERMS, far_too_much(play.sums))
    with pytest.raises(MissingClientError, match="key holder 0 opened no sum"):
        play.close()
    twin = Cohort()
    twin.sent[4] = cheat(twin.sums, 4, TERMS, far_too_much(twin.sums))
    monkeypatch.setattr(LaneLayout, "_check", lambda *_: None)
    assert not np.array_equal(twin.close(), VALUES.sum(axis=0))


@pytest.mark.parametrize("renews", [True, False])
def test_keys_that_refused_a_sum_open_no_other(renews, monkeypatch):
    """What a holder refuses tells of the noise under its key. The twin goes on under that key."""
    if not renews:
        monkeypatch.setattr(HomomorphicSum, "rekey", lambda _: None)
    play = Cohort()
    before = play.ciphertext(1)
    assert play.opened(alone(play)) == []
    _, _, keys = play.sums.share(0, TERMS.index + 1)
    assert keys is not None
    slots = keys.decrypt(before)[:5]
    packed = he._Round(play.sums.session, N, TERMS).layout.pack(VALUES[1])[:5]
    assert np.array_equal(slots, packed) is not renews


def test_a_run_goes_on_where_one_client_garbles_its_tags(digits, monkeypatch):
    sums, honest = HomomorphicSum(4), he._Round.tag

    def garbled(
        opened: he._Round, slots: WordArray, keys: dict[int, bytes], clients: tuple[int, ...]
    ) -> int:
        return honest(opened, slots, keys, clients) ^ (clients == (3,) and opened.terms.index < 3)

    monkeypatch.setattr(he._Round, "tag", garbled)
    reports = federation(digits, aggregation=sums).fit(5)
    assert [report.void for report in reports] == [True, True, True, False, False]
    assert reports[-1].survivors == (0, 1, 2, 3)


# Messages of another form.


def test_the_server_takes_inputs_of_this_round_once():
    play = Cohort()
    honest = play.sent[1]
    other = RoundTerms(TERMS.index, TERMS.length, TERMS.bound, b"another")
    cases = [
        (1, Cohort(seed=2).sent[1], "this session"),
        (1, Cohort(RoundTerms(2, 60, 7, b"proxies")).sent[1], "does not ask for"),
        (1, Cohort(other).sent[1], "this session|told something else"),
        (2, honest, "party 2"),
        (9, honest, "client 9 was not asked"),
    ]
    server = play.sums.server()
    server.open(TERMS)
    for sender, message, sentence in cases:
        with pytest.raises(PeerError, match=sentence):
            server.receive(sender, message)
    assert server.waiting == set(range(N))
    server.receive(1, honest)
    with pytest.raises(PeerError, match="client 1 was not asked"):
        server.receive(1, honest)


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 16383])
def test_a_coefficient_that_is_not_below_its_prime_is_refused(play, at):
    wrong, prime = play.ciphertext(1), PRIMES[at // DEGREE % 2]
    wrong.reshape(-1)[at] = prime - 1
    assert he.decode(he.encode(wrong)).reshape(-1)[at] == prime - 1
    wrong.reshape(-1)[at] = prime
    server = Cohort().sums.server()
    server.open(TERMS)
    message = frame(Kind.CIPHER, Place(server._session, 3), 1, TERMS.subject, he.encode(wrong))
    with pytest.raises(PeerError, match="not below its prime"):
        server.receive(1, message)
    with pytest.raises(PeerError, match="not below its prime"):
        play.clients[0].receive(play.ask(wrong))


def resized(message: bytes, size: int) -> bytes:
    return (message + bytes(size))[:size]


SIZES = (0, 47, 48, 49, 55, 48 + 7 + CIPHER_BYTES - 1, 48 + 2 * CIPHER_BYTES)


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_another_length_are_refused(play, size, monkeypatch):
    """The twin does not look at the length, and fails with something else than a PeerError."""
    server = play.sums.server()
    server.open(TERMS)
    question = play.ask(play.total(EVERYBODY))
    with pytest.raises(PeerError):
        server.receive(1, resized(play.sent[1], size))
    with pytest.raises(PeerError):
        play.clients[0].receive(resized(question, size))
    assert server.waiting == set(range(N))
    if size > HEADER + len(TERMS.subject):
        monkeypatch.setattr(he._Round, "body", lambda _, data, *__: data[HEADER:])
        with pytest.raises(ValueError, match="reshape"):
            server.receive(1, resized(play.sent[1], size))


def test_the_server_checks_what_a_key_holder_hands_back():
    play = Cohort()
    server = play.sums.server()
    server.open(TERMS)
    for k in range(4):
        server.receive(k, play.sent[k])
    ((holder, question),) = server.advance().items()
    (answer,) = play.clients[holder].receive(question)
    high = np.full(len(answer[HEADER:]) // 8, 4 * TERMS.bound + 1, "<u8").tobytes()
    for wrong in (answer[:HEADER] + high, answer[:-8], answer + bytes(8), b""):
        with pytest.raises(PeerError):
            server.receive(holder, wrong)
    server.receive(holder, answer)
    assert server.advance() == {}
    assert server.result is not None
    assert np.array_equal(server.result.total, VALUES[:4].sum(axis=0))


# Who holds what.


def test_clients_without_the_key_cannot_decrypt(play):
    for k in (3, 4):
        with pytest.raises(PeerError, match=f"client {k} has no sum to open"):
            play.clients[k].receive(play.ask(play.ciphertext(0)))
        context, tags, keys = play.sums.share(k, TERMS.index)
        assert (keys, set(tags)) == (None, {k, EVERYONE})
        assert (context.has_public_key(), context.has_secret_key()) == (True, False)
        with pytest.raises(ValueError, match="doesn't support decryption"):
            context.decryptor()
        with pytest.raises(ValueError, match="secret_key"):
            tenseal.bfv_vector(context, [0] * DEGREE).decrypt()


def test_the_server_with_one_holder_reads_everybody(play):
    """The guarantee says so."""
    _, _, keys = play.sums.share(1, TERMS.index)
    assert keys is not None
    opened = he._Round(play.sums.session, N, TERMS)
    for k in EVERYBODY:
        slots = keys.decrypt(play.ciphertext(k))
        assert np.array_equal(opened.read(slots, (k,)), VALUES[k])
    assert "any one holder" in HomomorphicSum.guarantee


def test_secrets_are_in_no_text_and_no_pickle(play):
    for secretive in (play.sums, play.clients[0], play.sums._keys):
        assert repr(secretive).endswith(": secret>")
        assert not hasattr(secretive, "__dict__")
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(LocalError, match="cannot be pickled or copied"):
                attempt(secretive)


def test_the_session_id_covers_what_was_agreed():
    def id_of(n: int, configuration: bytes, proxies: bytes, seed: int) -> bytes:
        random = insecure_bytes(seed)
        made = HomomorphicSum(n, random=random, configuration=configuration, proxies=proxies)
        return made.session

    base = (3, b"c", b"p", 1)
    ids = {id_of(*agreed) for agreed in (base, (4, b"c", b"p", 1), (3, b"x", b"p", 1))}
    ids |= {id_of(*agreed) for agreed in ((3, b"c", b"x", 1), (3, b"c", b"p", 2), base)}
    assert len(ids) == 5
