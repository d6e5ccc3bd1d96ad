"""The homomorphic sum: what its parties refuse, who can decrypt, and what they are trusted with.

Each refusal stands beside a mutation without it, in which the attack succeeds.
"""

import copy
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import tenseal.sealapi as seal

from secure_fd.crypto.keys import EVERYONE, SERVER, insecure_bytes
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.secagg.session import RoundTerms, encode_set
from secure_fd.secure_sum import homomorphic as he
from secure_fd.secure_sum.homomorphic import DEGREE, PRIMES, HomomorphicSum
from secure_fd.votes.codec import WordArray
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import Kind, Place, Stage, frame
from tests.drivers.summing import Summed, summed
from tests.refusals import refused

N = 5
TERMS = RoundTerms(index=3, length=60, bound=7, subject=b"proxies")
VALUES = np.random.default_rng(3).integers(0, 7, (N, 60), np.uint64, endpoint=True)
TOTAL = VALUES.sum(axis=0)
HEADER = 48
LIMITS = np.array(PRIMES, np.uint64)[:, np.newaxis]
ALL = tuple(range(N))


def added(ciphertexts: Iterable[WordArray]) -> WordArray:
    return sum(ciphertexts, np.zeros(1, np.uint64)) % LIMITS


class Cohort:
    """Five clients with their inputs; the test is the server. Client 0 opens round 3."""

    def __init__(self, terms: RoundTerms = TERMS, seed: int = 1) -> None:
        with patch.object(os, "urandom", insecure_bytes(seed)):
            self.sums = HomomorphicSum(N)
        self.clients = {k: self.sums.client(k) for k in range(N)}
        self.sent = {k: client.load(terms, VALUES[k])[0] for k, client in self.clients.items()}
        self.round = he._Round(self.sums.session, N, TERMS)

    def ciphertext(self, client: int) -> WordArray:
        return he.decode(self.sent[client][HEADER + len(TERMS.subject) :])

    def total(self, clients: Iterable[int]) -> WordArray:
        return added(map(self.ciphertext, clients))

    def made(self, number: int, first: int = 0, tags: Sequence[int] = ()) -> WordArray:
        """A ciphertext of a lying client: its first slot, under these tags of its own."""
        public, keys, _ = self.sums.share(number)
        slots = np.zeros(DEGREE, np.uint64)
        slots[0] = first
        slots[-1] = self.round.tag(slots, keys, tags)
        return he.encrypt(public, slots)

    def ask(self, total: WordArray, survivors: tuple[int, ...] = ALL) -> bytes:
        """Return the question of a server that may lie to a key holder."""
        listed = encode_set(survivors, range(N))
        place = Place(self.sums.session, TERMS.index)
        return frame(Kind.CIPHER, place, SERVER, listed, he.encode(total))

    def opened(
        self, total: WordArray, survivors: tuple[int, ...] = ALL, holder: int = 0
    ) -> list[int]:
        """The values that the holder opens; none where it refuses."""
        (answer,) = self.clients[holder].receive(self.ask(total, survivors))
        if len(answer) == HEADER:
            return []
        slots = np.frombuffer(answer[HEADER:], "<u8").astype(np.uint64)
        return self.round.layout.unpack(slots, 60).tolist()


@pytest.fixture
def play():
    return Cohort()


@pytest.fixture
def server(play):
    """It waits for inputs."""
    made = play.sums.server()
    made.open(TERMS)
    return made


# A server that passes something else for the sum, and a client that lies.

ATTACKS: dict[str, tuple[Callable[[Cohort], WordArray], WordArray]] = {
    "alone": (lambda play: play.ciphertext(4), VALUES[4]),
    "repeated": (lambda play: added([play.ciphertext(4)] * N), N * VALUES[4]),
    "beside zeros of the server": (  # the public key is no secret
        lambda play: added([play.ciphertext(4), play.made(4)]),
        VALUES[4],
    ),
    "beside four inputs of client 3": (
        lambda play: added([play.ciphertext(4), play.made(3, tags=[3] * 4)]),
        VALUES[4],
    ),
    "less one": (lambda play: play.total(ALL[:4]), TOTAL - VALUES[4]),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_holder_opens_nothing_but_the_sum_of_the_survivors(play, attack, monkeypatch):
    lie, wanted = ATTACKS[attack]
    assert play.opened(lie(play)) == []
    monkeypatch.setattr(he._Round, "tag", lambda *_: 0)
    mutant = Cohort()
    assert mutant.opened(lie(mutant)) == wanted.tolist()


def test_a_lane_out_of_range_aborts_the_sum(play, monkeypatch):
    """Client 4 fills the first lane of six bits, beyond 5 * 7, under its right tag."""
    excess = 63 - int(TOTAL[0])
    assert play.opened(added([play.total(ALL), play.made(4, excess)])) == []
    unpack = LaneLayout.unpack
    monkeypatch.setattr(LaneLayout, "unpack", lambda *given: unpack(*given[:3], 63))
    mutant = Cohort()
    found = mutant.opened(added([mutant.total(ALL), mutant.made(4, excess)]))
    assert found == [63, *TOTAL[1:].tolist()]


@pytest.mark.parametrize("hashed", [True, False])
def test_the_tag_covers_every_ciphertext_of_an_input(hashed, monkeypatch):
    """The target's first ciphertext beside the sum of the last ones, where the right tag is.

    The mutation's tag is that of the clients alone and hashes no values.
    """
    if not hashed:
        monkeypatch.setattr(he, "reduce", lambda *_: 0)
    sums, terms = HomomorphicSum(3), RoundTerms(0, 2 * DEGREE, 2**50)
    values = np.random.default_rng(1).integers(0, 2**50, (3, terms.length), np.uint64)
    sent = [sums.client(k).load(terms, values[k])[0][HEADER:] for k in range(3)]
    total = added(map(he.decode, sent))
    total[0] = he.decode(sent[2])[0]
    listed, place = encode_set((0, 1, 2), range(3)), Place(sums.session, 0)
    question = frame(Kind.CIPHER, place, SERVER, listed, he.encode(total))
    (answer,) = sums.client(0).receive(question)
    read = np.frombuffer(answer[HEADER:], "<u8")[:DEGREE]
    assert np.array_equal(read, values[2, :DEGREE]) is not hashed


def test_one_holder_opens_one_sum_a_round(play):
    """Two sums that differ by a client would give its values away."""
    whole, fewer = play.total(ALL), (0, 1, 2, 3)
    first = play.opened(whole)
    for holder in (0, 1, 2):
        with pytest.raises(PeerError, match=f"client {holder} has no sum to open"):
            play.opened(play.total(fewer), fewer, holder)
    play.clients[1]._open[0].holder = 1  # the mutation's second holder does not wait for its turn
    second = play.opened(play.total(fewer), fewer, 1)
    assert np.array_equal(np.subtract(first, second), VALUES[4])


@pytest.mark.parametrize("survivors", [(), (0, 4)])
def test_a_holder_opens_nothing_below_the_quorum(play, survivors):
    with pytest.raises(PeerError, match="too few; 3 are needed"):
        play.opened(play.total(survivors or (4,)), survivors)
    play.clients[0]._open[0].quorum = 0  # the mutation's
    if survivors:
        expected = VALUES[list(survivors)].sum(axis=0).tolist()
        assert play.opened(play.total(survivors), survivors) == expected


@pytest.mark.parametrize("renews", [True, False])
def test_keys_that_refused_a_sum_open_no_other(play, renews, monkeypatch):
    """A refusal depends on the noise under the key. The mutation keeps that key."""
    if not renews:
        monkeypatch.setattr(HomomorphicSum, "rekey", lambda _: None)
    before = play.ciphertext(1)
    assert play.opened(play.ciphertext(4)) == []
    _, _, keys = play.sums.share(0)
    packed = play.round.layout.pack(VALUES[1])
    assert np.array_equal(keys.decrypt(before)[: packed.size], packed) is not renews


# Messages of another form.


def test_the_server_takes_one_input_of_this_round_and_the_sum_of_its_holder(play, server):
    sent = play.sent[1]
    another = Cohort(RoundTerms(TERMS.index, TERMS.length, TERMS.bound, b"another")).sent[1]
    later = Cohort(RoundTerms(2, 60, 7, b"proxies")).sent[1]
    wrong = [(1, Cohort(seed=2).sent[1]), (1, later), (1, another), (2, sent), (9, sent)]
    wrong += [(1, made) for made in (b"", sent[:47], sent[:-1], sent + b"\0")]
    for sender, message in wrong:
        with pytest.raises(PeerError):
            server.receive(sender, message)
    assert server.waiting == set(range(N))
    for k in range(4):
        server.receive(k, play.sent[k])
        with pytest.raises(PeerError):
            server.receive(k, play.sent[k])
    ((holder, question),) = server.advance().items()
    for wrong in (b"", question[:47], question[:-1], question + b"\0"):
        with pytest.raises(PeerError):
            play.clients[holder].receive(wrong)
    (answer,) = play.clients[holder].receive(question)
    high = np.full(len(answer[HEADER:]) // 8, 4 * TERMS.bound + 1, "<u8").tobytes()
    for wrong in (answer[:HEADER] + high, answer[:-8], answer + bytes(8), b""):
        with pytest.raises(PeerError):
            server.receive(holder, wrong)
    server.receive(holder, answer)
    assert server.advance() == {}
    assert np.array_equal(server.result.total, TOTAL - VALUES[4])


@pytest.mark.parametrize("at", [0, 16383])
def test_a_coefficient_that_is_not_below_its_prime_is_refused(play, server, at):
    wrong, prime = play.ciphertext(1), PRIMES[at // DEGREE % 2]
    wrong.reshape(-1)[at] = prime - 1
    assert he.decode(he.encode(wrong)).reshape(-1)[at] == prime - 1
    wrong.reshape(-1)[at] = prime
    message = play.sent[1][: HEADER + len(TERMS.subject)] + he.encode(wrong)
    for receive in (partial(server.receive, 1, message), partial(play.opened, wrong)):
        with pytest.raises(PeerError, match="not below its prime"):
            receive()


# Who holds what.


def test_clients_without_the_key_cannot_decrypt_and_keys_do_not_show(play):
    for k in (3, 4):
        with pytest.raises(PeerError, match=f"client {k} has no sum to open"):
            play.opened(play.ciphertext(0), holder=k)
        context, tags, keys = play.sums.share(k)
        assert (keys, set(tags)) == (None, {k, EVERYONE})
        assert (context.has_public_key(), context.has_secret_key()) == (True, False)
        with pytest.raises(ValueError, match="doesn't support decryption"):
            context.decryptor()
    for secretive in (play.sums, play.clients[0], play.sums._keys):
        assert repr(secretive).endswith(": secret>")
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(LocalError, match="cannot be pickled or copied"):
                attempt(secretive)


def values_of(n: int, length: int, bound: int) -> WordArray:
    drawn = np.random.default_rng(0).integers(0, bound, (n, length), np.uint64, endpoint=True)
    drawn[:, 0] = bound  # the largest sum that can occur
    return drawn


def is_sum_of(result: Summed, values: WordArray, clients: list[int]) -> bool:
    same = np.array_equal(result.total, values[clients].sum(axis=0))
    return same and result.survivors == tuple(clients)


@pytest.mark.parametrize(
    ("n", "length", "bound", "silent"),
    [
        (3, (DEGREE - 1) * 28, 1, {}),  # one ciphertext, full with its tag
        (3, (DEGREE - 1) * 28 + 1, 1, {}),
        (5, DEGREE + 1, 2**56 // 5, {}),  # one lane, of all 56 bits
        (6, 40, 9, {1: Stage.INPUT, 5: Stage.INPUT}),
        (6, 40, 9, {1: Stage.CONSISTENCY, 2: Stage.UNMASK}),
    ],
)
def test_the_sum_is_that_of_the_clients_whose_input_came(n, length, bound, silent):
    values = values_of(n, length, bound)
    result = summed(HomomorphicSum(n), 0, dict(enumerate(values)), bound, dropouts=silent)
    came = [k for k in range(n) if silent.get(k) not in (Stage.PREPARE, Stage.INPUT)]
    assert is_sum_of(result, values, came)
    assert (result.payloads, result.seen.uploads) == ({}, None)


@pytest.mark.parametrize(
    "dropouts", [dict.fromkeys((1, 2, 3), Stage.INPUT), {0: Stage.INPUT}, {0: Stage.UNMASK}]
)
def test_a_round_without_quorum_or_key_holder_is_aborted_and_no_round_comes_twice(dropouts):
    sums, values = HomomorphicSum(5), values_of(5, 8, 3)
    assert summed(sums, 0, dict(enumerate(values)), 3, dropouts=dropouts).aborted
    others = [1, 2, 3, 4]  # client 0 stays away: it is another's turn
    without = {k: values[k] for k in others}
    assert is_sum_of(summed(sums, 1, without, 9, subject=b"x"), values, others)
    with pytest.raises(LocalError, match="round 1 is spent"):
        summed(sums, 1, without, 3)


def test_inputs_that_do_not_fit_are_refused_before_anything_is_sent():
    sums, fits = HomomorphicSum(4), dict(enumerate(values_of(4, 3, 1)))
    long = np.zeros((1024 * DEGREE - 1) * 18 + 1, np.uint64)  # lanes of three bits
    for index, (vectors, bound, kind) in enumerate(
        [
            (fits, 2**54, ConfigurationError),
            (dict.fromkeys(range(4), np.empty(0, np.uint64)), 1, ConfigurationError),
            ({0: long}, 1, ConfigurationError),
            (fits | {2: fits[2] + np.uint64(1)}, 1, LocalError),
            (fits | {3: fits[3][:1]}, 2, LocalError),
        ]
    ):
        with pytest.raises(kind):
            summed(sums, index, vectors, bound)
    assert summed(sums, 5, fits, 1).total.tolist() == sum(fits.values()).tolist()
    for n in (0, 2, 1025):
        with refused("n_clients"):
            HomomorphicSum(n)


def test_parameters_keep_to_the_guidelines_and_leave_noise_for_the_largest_cohort():
    """106 bits at degree 4096; adding one ciphertext to itself is the worst a sum can do."""
    assert (DEGREE, sum(he.PRIME_BITS)) == (4096, 106)
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(DEGREE, list(he.PRIME_BITS)))
    parameters.set_plain_modulus(he.PLAIN_MODULUS)
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    bits = context.key_context_data().total_coeff_modulus_bit_count()
    assert (bits, context.first_context_data().total_coeff_modulus_bit_count()) == (106, 80)
    generator, public, total = seal.KeyGenerator(context), seal.PublicKey(), seal.Ciphertext()
    generator.create_public_key(public)
    seal.Encryptor(context, public).encrypt(seal.Plaintext("1x^4095 + 1"), total)
    decryptor, evaluator = seal.Decryptor(context, generator.secret_key()), seal.Evaluator(context)
    for _ in range(he.MAX_CLIENTS.bit_length() - 1):
        evaluator.add_inplace(total, total)
    assert decryptor.invariant_noise_budget(total) >= 4
