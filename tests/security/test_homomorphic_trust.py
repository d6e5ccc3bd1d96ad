"""What a lying server, or a curious client, gets out of the homomorphic sum.

Every attack is run twice: against the protocol, which must refuse it, and against a twin without
the check that stops it, where it must give a client away. An attack that fails on the twin as
well would prove nothing.
"""

from collections.abc import Callable

import numpy as np
import pytest

from secure_fd.aggregation.bfv import client as client_module
from secure_fd.aggregation.bfv import messages, scheme, tags
from secure_fd.aggregation.bfv.client import Client, ClientState
from secure_fd.aggregation.bfv.keys import Dealer
from secure_fd.aggregation.bfv.scope import Purpose
from secure_fd.aggregation.homomorphic import HomomorphicSum
from secure_fd.crypto.primitives import IdentityPublic, insecure_bytes
from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.session import RoundTerms
from tests.bfv_cohort import EVERYONE, LONG, TERMS, Cohort, N, Play


@pytest.fixture
def play() -> Play:
    return Play(Cohort())


def without_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin whose key holders decrypt whatever is called the sum."""

    def unchecked(slots: WordArray, _: WordArray, __: WordArray) -> WordArray:
        return slots[:, : tags.DATA_SLOTS]

    monkeypatch.setattr(tags, "detach", unchecked)


def test_an_honest_sum_is_read(play: Play) -> None:
    consents = play.consents(EVERYONE, EVERYONE)
    total = play.read(play.added(EVERYONE), EVERYONE, consents)
    assert np.array_equal(total, play.values.sum(axis=0))
    assert play.rounds[0].state is ClientState.ANSWERED


# A server that offers something else as the sum.


def one_ciphertext(play: Play) -> WordArray:
    return play.inputs[4]


def own_zeros(play: Play) -> WordArray:
    """Client 4's input, and the server's zeros, under the public key, for everyone else."""
    total = play.inputs[4].copy()
    for _ in range(N - 1):
        zeros = np.zeros((len(total), scheme.DEGREE), np.uint64)
        scheme.add(total, play.cohort.clients[4].keys.encryptor.encrypt(zeros))
    return total


def own_tagged_zeros(play: Play) -> WordArray:
    """The same with tags that are right for the weights and pads of another session."""
    dealer = Dealer(play.cohort.session, insecure_bytes(99))
    total = play.inputs[4].copy()
    for k in EVERYONE[:4]:
        keys = dealer.client_keys(k)
        data = np.zeros((len(total), tags.DATA_SLOTS), np.uint64)
        slots = tags.attach(data, keys.weights(play.scope), keys.pads(play.scope, k))
        scheme.add(total, play.cohort.clients[4].keys.encryptor.encrypt(slots))
    return total


REFUSED = "what was decrypted is not the sum of the listed clients' inputs"


@pytest.mark.parametrize("forged", [one_ciphertext, own_zeros, own_tagged_zeros])
def test_one_client_cannot_be_passed_off_as_the_sum(
    play: Play, forged: Callable[[Play], WordArray]
) -> None:
    consents = play.consents(EVERYONE, EVERYONE)
    with pytest.raises(PeerError, match=REFUSED):
        play.read(forged(play), EVERYONE, consents)
    assert play.rounds[0].state is ClientState.ABORTED


@pytest.mark.parametrize("forged", [one_ciphertext, own_zeros, own_tagged_zeros])
def test_without_the_tags_the_server_reads_that_client(
    play: Play, forged: Callable[[Play], WordArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_tags(monkeypatch)
    consents = play.consents(EVERYONE, EVERYONE)
    assert np.array_equal(play.read(forged(play), EVERYONE, consents), play.values[4])


def weighted_twice(play: Play) -> WordArray:
    total = play.added(EVERYONE)
    scheme.add(total, play.inputs[4])
    return total


def left_out(play: Play) -> WordArray:
    return play.added(EVERYONE[:4])


def shifted(play: Play) -> WordArray:
    """One added to the first slot; the public key is enough for that."""
    total = play.added(EVERYONE)
    one = np.zeros((1, scheme.DEGREE), np.uint64)
    one[0, 0] = 1
    scheme.add(total, play.cohort.clients[4].keys.encryptor.encrypt(one))
    return total


def nothing_encrypted(play: Play) -> WordArray:
    return np.zeros_like(play.inputs[0])


def noise(play: Play) -> WordArray:
    rng = np.random.default_rng(0)
    return rng.integers(0, scheme.PRIMES[1], play.inputs[0].shape, np.uint64)


def earlier_round(play: Play) -> WordArray:
    """Client 4 as it was in the last round, in the place of client 4."""
    last = Play(play.cohort, RoundTerms(TERMS.index + 1, TERMS.length, TERMS.bound, TERMS.subject))
    total = play.added(EVERYONE[:4])
    scheme.add(total, last.inputs[4])
    return total


@pytest.mark.parametrize(
    "forged", [weighted_twice, left_out, shifted, nothing_encrypted, noise, earlier_round]
)
def test_nothing_but_the_sum_is_read(play: Play, forged: Callable[[Play], WordArray]) -> None:
    consents = play.consents(EVERYONE, EVERYONE)
    with pytest.raises(PeerError, match=REFUSED):
        play.read(forged(play), EVERYONE, consents)


def test_ciphertexts_of_a_vector_cannot_change_places() -> None:
    play = Play(Cohort(), LONG)
    consents = play.consents(EVERYONE, EVERYONE)
    total = play.added(EVERYONE)
    assert len(total) == 2
    with pytest.raises(PeerError, match=REFUSED):
        play.read(np.ascontiguousarray(total[::-1]), EVERYONE, consents)
    assert np.array_equal(play.read(total, EVERYONE, consents, holder=1), play.values.sum(axis=0))


def test_clients_that_were_given_different_proxies_do_not_sum(play: Play) -> None:
    other = RoundTerms(TERMS.index, TERMS.length, TERMS.bound, b"other proxies")
    keys = play.cohort.clients[4].keys
    misled = Client(4, play.cohort.identities[4], play.cohort.session, keys).open_round(other)
    theirs = messages.decode_input(misled.input(play.values[4]), misled.scope, 4)
    total = play.added(EVERYONE[:4])
    scheme.add(total, theirs)
    with pytest.raises(PeerError, match=REFUSED):
        play.read(total, EVERYONE, play.consents(EVERYONE, EVERYONE))


def test_a_key_holder_throws_its_key_away_after_a_false_sum(play: Play) -> None:
    """One answer, yes or no, is all that a server learns from false ciphertexts of this holder."""
    consents = play.consents(EVERYONE, EVERYONE)
    with pytest.raises(PeerError, match=REFUSED):
        play.read(play.inputs[4], EVERYONE, consents)
    later = Play(play.cohort, LONG)
    consents = later.consents(EVERYONE, EVERYONE)
    assert not later.rounds[0].holds_key
    with pytest.raises(LocalError, match="client 0 holds no decryption key"):
        later.read(later.added(EVERYONE), EVERYONE, consents)
    total = later.read(later.added(EVERYONE), EVERYONE, consents, holder=1)
    assert np.array_equal(total, later.values.sum(axis=0))


def test_another_holder_takes_over_from_one_without_its_key() -> None:
    sums = HomomorphicSum(4)
    sums._clients[0].holder = None
    vectors = {k: np.full(5, k, np.uint64) for k in range(4)}
    result = sums.sum(0, vectors, 3)
    assert result.total.tolist() == [6] * 5
    assert result.traffic.down[1] > 73_728 > result.traffic.down[0]


# A server that asks for two sums of one round, whose difference is one client.


def two_sums(play: Play) -> WordArray:
    """Holder 0 is shown everyone; holder 1 is told that client 4 dropped out."""
    fewer = EVERYONE[:4]
    first = play.consents(EVERYONE, (0, 3, 4))
    second = play.consents(fewer, (1, 2))
    forged = first | second
    whole = play.read(play.added(EVERYONE), EVERYONE, {k: forged[k] for k in (0, 3, 4)})
    rest = play.read(play.added(fewer), fewer, {k: forged[k] for k in (1, 2, 3)}, holder=1)
    return whole - rest


def test_two_lists_of_one_round_never_find_enough_signatures(play: Play) -> None:
    with pytest.raises(PeerError, match="client 3's consent signature for round 3"):
        two_sums(play)


def test_without_the_signatures_the_difference_is_a_client(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IdentityPublic, "verify", lambda *_: None)
    assert np.array_equal(two_sums(play), play.values[4])


def test_without_the_quorum_the_difference_is_a_client(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_check_quorum", lambda *_: None)
    fewer = EVERYONE[:4]
    first = play.consents(EVERYONE, (0, 3, 4))
    second = play.consents(fewer, (1, 2))
    whole = play.read(play.added(EVERYONE), EVERYONE, first)
    rest = play.read(play.added(fewer), fewer, second, holder=1)
    assert np.array_equal(whole - rest, play.values[4])


def test_a_key_holder_answers_once_and_only_where_it_consented(play: Play) -> None:
    fewer = EVERYONE[:4]
    consents = play.consents(EVERYONE, EVERYONE)
    with pytest.raises(PeerError, match=r"\(0, 1, 2, 3\) is offered where \(0, 1, 2, 3, 4\)"):
        play.read(play.added(fewer), fewer, {k: consents[k] for k in fewer}, holder=1)
    play.read(play.added(EVERYONE), EVERYONE, consents)
    with pytest.raises(LocalError, match="client 0 is ANSWERED where CONSENTED is due"):
        play.read(play.added(EVERYONE), EVERYONE, consents)
    later = Play(play.cohort, LONG)
    with pytest.raises(LocalError, match="client 0 is SENT where CONSENTED is due"):
        later.read(later.added(EVERYONE), EVERYONE, consents)


@pytest.mark.parametrize(
    ("signers", "sentence"),
    [((0, 1), "2 signatures are too few; 3 of 5"), ((), "0 signatures are too few")],
)
def test_a_minority_of_signatures_opens_nothing(
    play: Play, signers: tuple[int, ...], sentence: str
) -> None:
    consents = play.consents(EVERYONE, EVERYONE)
    with pytest.raises(PeerError, match=sentence):
        play.read(play.added(EVERYONE), EVERYONE, {k: consents[k] for k in signers})


def test_signatures_are_of_distinct_survivors_and_of_this_round(play: Play) -> None:
    fewer = EVERYONE[:4]
    consents = play.consents(fewer, fewer)
    outsider = play.scope.sign(Purpose.CONSENT, 4, b"\x0f", play.cohort.identities[4])
    with pytest.raises(PeerError, match=r"clients \[4\] consent to a sum that they are not in"):
        play.read(play.added(fewer), fewer, consents | {4: outsider})
    borrowed = {0: consents[0], 1: consents[0], 2: consents[0]}
    with pytest.raises(PeerError, match="client 1's consent signature"):
        play.read(play.added(fewer), fewer, borrowed, holder=1)
    later = Play(play.cohort, LONG)
    later.consents(fewer, fewer)
    with pytest.raises(PeerError, match="client 0's consent signature for round 4"):
        later.read(later.added(fewer), fewer, consents)


@pytest.mark.parametrize(
    ("survivors", "sentence"),
    [((0, 1), "2 survivors are too few; 3 of 5"), ((1, 2, 3), "leave out client 0")],
)
def test_a_client_signs_no_list_that_is_short_or_leaves_it_out(
    play: Play, survivors: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(PeerError, match=sentence):
        play.consents(survivors, (0,))
    assert play.rounds[0].state is ClientState.ABORTED


def test_a_client_signs_one_list_a_round_and_none_without_an_input(play: Play) -> None:
    play.consents(EVERYONE, EVERYONE)
    with pytest.raises(LocalError, match="client 2 is CONSENTED where SENT is due"):
        play.consents(EVERYONE[:4], (2,))
    idle = play.cohort.clients[2].open_round(LONG)
    with pytest.raises(LocalError, match="client 2 is READY where SENT is due"):
        idle.consent(messages.encode_survivors(idle.scope, EVERYONE))


def test_a_client_sends_one_input_a_round(play: Play) -> None:
    with pytest.raises(LocalError, match="client 1 is SENT where READY is due"):
        play.rounds[1].input(play.values[1])
    with pytest.raises(LocalError, match="round 3 is spent"):
        play.cohort.clients[1].open_round(TERMS)
