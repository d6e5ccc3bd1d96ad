"""Attacks on sums against the real protections, and against twins in which one is broken.

False-alarm rates are stated where a test could fail by chance; noise and keys are not seeded.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch import nn

from attacks.core.base import ABSTAIN, NEVER, AttackResult, FloatArray
from attacks.core.run import attack_view, histograms, public_of
from attacks.core.view import Public, server_view
from attacks.server.differencing import Differencing
from attacks.server.label_distribution import Distributions, LabelDistribution, Participation
from attacks.server.votes import WHOLE, Said, named, record
from secure_fd.data.federated import FederatedData
from secure_fd.errors import MissingCapabilityError, MissingClientError, PeerError
from secure_fd.privacy.label import LabelUnit
from secure_fd.protocol.transcript import Transcript
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Dropouts, Federation
from secure_fd.votes.codec import (
    Contribution,
    IntArray,
    KnowledgeCodec,
    Released,
    UnitArray,
    WordArray,
    one_hot,
)
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import Stage
from tests.attack_games import add_round, client_view
from tests.drivers.cohort import Cohort
from tests.drivers.summing import summed
from tests.small_federation import BRIEF, faults, federation, run

K, C, M = 4, 4, 12


def public() -> Public:
    return Public(torch.zeros(M, 1, 4, 4), K, C, lambda _: nn.Linear(1, 1))


SESSIONS = 60


def class_totals(words: WordArray) -> FloatArray:
    """[C] totals of a payload's lanes by class, read as if no mask covered them."""
    layout = LaneLayout(K, 1)
    shifts = np.arange(layout.lanes, dtype=np.uint64) * np.uint64(layout.bits)
    lanes = ((words >> shifts[:, None]) & np.uint64((1 << layout.bits) - 1)).reshape(-1)
    return np.asarray(lanes[: M * C].reshape(M, C).astype(np.float64).sum(axis=0))


def right_clients() -> int:
    """Over many sessions, the clients whose one class a server finds from its masked payloads."""
    codec, right = KnowledgeCodec(C, 1), 0
    vectors = {k: codec.encode(Released(np.ones(M), one_hot([k] * M, C))) for k in range(K)}
    for _ in range(SESSIONS):
        sent = summed(MaskedSum(K, hybrid=False), 0, vectors, 1)
        right += sum(int(class_totals(sent.payloads[k]).argmax()) == k for k in range(K))
    return right


def test_masks_leave_the_authors_of_votes_to_chance():
    # A guess is right with chance 1 / K. A normal law gives four deviations a chance of 6e-5.
    assert abs(right_clients() - SESSIONS) < 4 * (SESSIONS * (1 - 1 / K)) ** 0.5


def test_authors_are_found_where_masks_are_off(monkeypatch):
    monkeypatch.setattr("secure_fd.secagg.client.mask_input", lambda *_: None)
    monkeypatch.setattr("secure_fd.secagg.unmasking.mask_words", lambda *_: None)
    assert right_clients() == K * SESSIONS


def kept(made: Federation, rounds: int = 2) -> list[Said]:
    """Run rounds; the votes of every sum."""
    said: list[Said] = []
    for _ in made.rounds(rounds):
        record(made, said)
    return said


def differenced(data: FederatedData, **chosen: Any) -> tuple[Distributions, AttackResult]:
    """Client 2 is away from the second of two masked rounds; what is found, and its score."""
    sums, missing = MaskedSum(K, public_seed=0, hybrid=False), faults({1: {2: Stage.PREPARE}})
    made = federation(data, aggregation=sums, dropouts=missing, **chosen)
    said, attack = kept(made), Differencing()
    estimate = attack.estimate(server_view(made.transcript, public_of(data)), 0)
    return estimate, attack.with_truth(said).score(estimate, 0)


def subtracted(data: FederatedData, limit: int | None, per_round: int) -> AttackResult:
    schedule = replace(BRIEF, proxies_per_round=per_round)
    return differenced(data, schedule=schedule, releases_per_pair=limit)[1]


def test_one_release_a_pair_leaves_nothing_to_subtract(digits):
    result = subtracted(digits, limit=1, per_round=100)
    assert result.details["pairs_of_rounds"] == 1, "the two rounds do differ by one client"
    assert result.details["differences"] == 0
    assert result.figure == result.control


def test_without_the_ledger_a_clients_votes_are_the_difference(digits):
    result = subtracted(digits, limit=None, per_round=len(digits.proxies))
    assert result.details["differences"] == len(digits.proxies)
    assert result.details["shown_precision"] > 0.95
    assert result.details["shown_votes"] > 10
    assert result.figure > result.control + 0.1


# Sums that are written down.

EVERY, ALL = np.arange(M), tuple(range(K))
Votes = Mapping[int, IntArray]
"""By client of a sum, the class [M] that it names, or ABSTAIN."""


def written(*rounds: Votes) -> Transcript:
    """Hard votes about every proxy."""
    history = Transcript(K)
    for said in rounds:
        votes = [one_hot(np.maximum(c, 0), C) * (c >= 0)[:, None] for c in said.values()]
        total = np.sum(votes, axis=0).reshape(-1).astype(np.uint64)
        add_round(history, total, C, survivors=tuple(said))
    return history


def differing(*rounds: Votes) -> tuple[Distributions, AttackResult]:
    """What the attack finds, and its score."""
    attack = Differencing()
    estimate = attack.estimate(server_view(written(*rounds), public()), 0)
    return estimate, attack.with_truth([Said(EVERY, said, said) for said in rounds]).score(
        estimate, 0
    )


def test_the_difference_of_two_sums_is_the_vote_of_the_client_between_them():
    rng = np.random.default_rng(0)
    said = {k: rng.integers(ABSTAIN, C, M) for k in ALL}
    estimate, result = differing(said, {k: said[k] for k in ALL if k != 2})
    np.testing.assert_array_equal(estimate.others["shown"].rows[2], said[2])
    assert (estimate.others["shown"].rows[[0, 1, 3]] == NEVER).all()
    assert result.details["shown_precision"] == 1.0
    assert result.figure > result.control


@pytest.mark.parametrize("second", [ALL, (0, 1)], ids=["none", "two"])
def test_rounds_that_do_not_differ_by_one_client_leave_the_guess(second):
    _, result = differing(dict.fromkeys(ALL, EVERY % C), dict.fromkeys(second, EVERY % C))
    assert result.figure == result.control
    assert any("nothing to subtract" in words for words in result.caveats)


@pytest.mark.parametrize("attack", [Differencing(), Participation(), LabelDistribution()])
def test_a_client_can_run_none_of_them(attack):
    with pytest.raises(MissingCapabilityError):
        attack.estimate(client_view(written(dict.fromkeys(ALL, EVERY % C)), public()), 0)


# Clients that are shown different proxies.


def ask(
    cohort: Cohort,
    index: int,
    vectors: Mapping[int, WordArray],
    shown: Mapping[int, bytes],
    own: bytes,
) -> UnitArray | None:
    """A round of clients that are shown different things: the sum, or None where it did not open.

    shown: by client the digest of it. own: of what the server claims. It follows the protocol but
    for what it shows, goes on with those that answer, and tries to open what it has.
    """
    length = len(vectors[0])
    machines = {
        k: client.open_round(RoundTerms(index, length, K, shown[k]), vectors[k])
        for k, client in cohort.clients.items()
    }
    cohort.server.barred.clear()  # a liar bars nobody
    server = cohort.server.open_round(RoundTerms(index, length, K, own))
    for k, machine in machines.items():
        message = machine.start()
        if message is not None:
            server.receive(k, message)
    with suppress(MissingClientError, PeerError):
        while not server.finished:
            for k, question in server.advance().items():
                with suppress(PeerError):
                    server.receive(k, machines[k].receive(question))
        return server.total
    return None


def isolated(*, binding: bool) -> list[bool]:
    """Whether the sum is client k's vote, when it alone is shown what others know nothing about.

    binding: whether masks are bound to what a client was shown.
    """
    cohort, found = Cohort(K), []
    for k in range(K):
        vote = one_hot([k] * M, C).reshape(-1).astype(np.uint64)
        vectors = {**dict.fromkeys(range(K), np.zeros_like(vote)), k: vote}
        shown = {**dict.fromkeys(range(K), b"decoy"), k: b"image" if binding else b"decoy"}
        total = ask(cohort, 2 * k + 1, vectors, shown, b"decoy")
        found.append(total is not None and np.array_equal(total, vote))
    return found


def test_clients_that_are_shown_different_proxies_do_not_sum():
    assert isolated(binding=True) == [False] * K


def test_without_that_binding_every_vote_is_isolated():
    """The twin."""
    assert isolated(binding=False) == [True] * K


def test_the_same_proxies_for_all_do_sum():
    vectors = {k: np.full(8, k, np.uint64) for k in range(K)}
    total = ask(Cohort(K), 1, vectors, dict.fromkeys(range(K), b"x"), b"x")
    assert total is not None
    assert total.tolist() == [6] * 8


@pytest.mark.parametrize("claimed", [b"x", b"decoy"])
def test_a_lying_server_gains_nothing_by_either_claim(claimed):
    vectors = {k: np.full(64, int(k == 0), np.uint64) for k in range(K)}
    subjects = {0: b"x", 1: b"decoy", 2: b"decoy", 3: b"decoy"}
    assert ask(Cohort(K), 1, vectors, subjects, claimed) is None


EPSILON, PROXIES = 1.0, 6000


def least_odds(epsilon: float) -> float:
    """How much likelier at least, at 1e-4, reading a vote makes it: a lower limit of the factor.

    The client votes for class 0 about half of the proxies, and abstains about the other half, so
    that the odds beforehand are 1. It is alone in its sum, which hides nothing.
    """
    rng = np.random.default_rng(0)
    meant = np.where(rng.random(PROXIES) < 0.5, 0, ABSTAIN)
    unit = LabelUnit(epsilon, 1e-5)
    unit.agree(PROXIES, C)
    unit.client(0)

    def answer(indices: IntArray) -> Contribution:
        cast = meant[indices] >= 0
        return Contribution(cast.astype(float), one_hot(np.zeros(len(indices), np.int64), C))

    units = KnowledgeCodec(C, 1).encode(unit.parts[0].release(np.arange(PROXIES), answer))
    votes = units.reshape(PROXIES, C).astype(np.float64)  # in hard units, a vote is 1
    read = (votes.sum(axis=1) <= WHOLE) & (named(votes) == 0)
    true, false = int((read & (meant == 0)).sum()), int((read & (meant == ABSTAIN)).sum())
    least = beta.ppf(1e-4, true, false + 1)  # Clopper and Pearson's lower limit of true / both
    return float(least / (1 - least))


def test_a_vote_that_stands_alone_is_deniable_up_to_e_to_the_epsilon():
    # False alarms: below 1e-4.
    assert least_odds(EPSILON) <= exp(EPSILON)


@pytest.mark.parametrize("broken", [40.0, 2 * EPSILON], ids=["hardly any noise", "half the noise"])
def test_too_little_noise_is_caught(broken):
    assert least_odds(broken) > exp(EPSILON)


def disaggregated(data: FederatedData, drop: float, *, mixed: bool = False) -> AttackResult:
    """mixed: the attack is told the participants of other rounds."""
    aggregation = MaskedSum(K, public_seed=0, hybrid=False)
    made = run(federation(data, aggregation=aggregation, dropouts=Dropouts(drop, seed=3)), 30)
    rounds = made.transcript.distillation
    if mixed:
        order = np.random.default_rng(1).permutation(len(rounds))
        present = [rounds[other].survivors for other in order]
        rounds[:] = [replace(r, survivors=who) for r, who in zip(rounds, present, strict=True)]
    attack = Participation(truth=histograms(data))
    return attack_view(attack, server_view(made.transcript, public_of(data)), 0)


def test_masks_do_not_hide_labels_from_who_took_part(digits):
    result = disaggregated(digits, drop=0.25)
    assert result.details["clients_told_apart"] == K
    assert result.figure < result.control - 0.4
    wrong = disaggregated(digits, drop=0.25, mixed=True)
    assert wrong.figure > wrong.control - 0.2


def test_without_dropouts_sums_tell_no_client_from_another(digits):
    result = disaggregated(digits, drop=0.0)
    assert result.details["clients_told_apart"] == 0
    assert result.figure == pytest.approx(result.control, abs=0.01)


def test_what_is_kept_is_what_a_readable_run_shows(digits):
    """Dropouts on the way, and an aborted round between two that gave sums."""
    plan = faults({1: dict.fromkeys(range(4), Stage.INPUT), 2: {1: Stage.INPUT}})
    made = federation(digits, dropouts=plan)
    said, records = kept(made, rounds=3), made.transcript.distillation
    assert [seen.index for seen in records] == [0, 2]
    for seen, own in zip(records, said, strict=True):
        assert seen.uploads is not None
        assert own.sent.keys() == own.meant.keys() == seen.uploads.keys()
        for k, words in seen.uploads.items():
            np.testing.assert_array_equal(own.sent[k], named(words.reshape(-1, 10) * 1.0))
