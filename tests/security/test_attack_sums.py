"""Attacks on sums against the real protections, and against twins in which one is broken.

False-alarm rates are stated where a test could fail by chance; noise and keys are not seeded.
"""

from dataclasses import replace
from math import exp

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch import Tensor, nn

from attacks.base import ABSTAIN, NEVER, AttackResult
from attacks.rounds import Differencing, InconsistentProxies, SplitCohort, SplitViews
from attacks.view import Capability, Oracle, Public, server_view
from attacks.votes import (
    Attribution,
    Holders,
    RecordedClear,
    RecordedLabels,
    Said,
    SingleContributor,
    statements,
)
from secure_fd.aggregation.base import Stage
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.knowledge import (
    Contribution,
    IntArray,
    KnowledgeCodec,
    Released,
    one_hot,
)
from secure_fd.protection.label import LabelUnit
from secure_fd.transcript import Transcript
from tests.attack_games import add_round
from tests.small_federation import BRIEF, all_proxies, faults, federation, run
from tests.summing import summed

K, C, M = 4, 4, 12


def public(n_proxies: int = M, n_clients: int = K, n_classes: int = C) -> Public:
    shape = (n_proxies, 1, 4, 4)
    return Public(torch.zeros(shape), n_clients, n_classes, lambda _: nn.Linear(1, 1))


def public_of(data: FederatedData) -> Public:
    architecture = nn.Linear(1, 1)
    return Public(data.proxies.pixels, len(data.clients), data.n_classes, lambda _: architecture)


# Authors.

SESSIONS = 60


def right_clients() -> int:
    """Over many sessions, the clients whose one class a server finds from its masked payloads."""
    codec, right = KnowledgeCodec(C, 1), 0
    vectors = {k: codec.encode(Released(np.ones(M), one_hot([k] * M, C))) for k in range(K)}
    said = (Said(np.arange(M), *[{k: np.full(M, k) for k in range(K)}] * 2),)
    for session in range(SESSIONS):
        sent = summed(MaskedSum(K, hybrid=False), 0, vectors, 1)
        seen = {"payloads": sent.payloads, "survivors": sent.survivors}
        history = add_round(Transcript(K), sent.total, C, **seen)
        estimate = Attribution().run(server_view(history, public()), session)
        right += round(K * Attribution().score(estimate, Holders(np.eye(K), said), session).figure)
    return right


def test_masks_leave_the_authors_of_votes_to_chance() -> None:
    # A random order has one client right on average, with variance 1. A normal law gives four
    # deviations a chance of 6e-5.
    assert abs(right_clients() - SESSIONS) < 4 * SESSIONS**0.5


def test_authors_are_found_where_masks_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secure_fd.secagg.client.mask_input", lambda *_: None)
    monkeypatch.setattr("secure_fd.secagg.server.mask_words", lambda *_: None)
    assert right_clients() == K * SESSIONS


# Differences of two sums.


def subtracted(data: FederatedData, limit: int | None, per_round: int) -> AttackResult:
    """Client 2 is away from the second of two masked rounds."""
    recorder = RecordedClear()
    made = run(
        federation(
            data,
            aggregation=MaskedSum(K, public_seed=0, hybrid=False),
            protection=recorder,
            schedule=replace(BRIEF, proxies_per_round=per_round),
            dropouts=faults({1: {2: Stage.PREPARE}}),
            releases_per_pair=limit,
        )
    )
    attack, view = Differencing(), server_view(made.transcript, public_of(data))
    estimate = attack.run(view, 0)
    return attack.score(estimate, statements(recorder, made.transcript), 0)


def test_one_release_a_pair_leaves_nothing_to_subtract(digits: FederatedData) -> None:
    result = subtracted(digits, limit=1, per_round=100)
    assert result.details["pairs_of_rounds"] == 1, "the two rounds do differ by one client"
    assert result.details["differences"] == 0
    assert result.figure == result.control


def test_without_the_ledger_a_clients_votes_are_the_difference(digits: FederatedData) -> None:
    result = subtracted(digits, limit=None, per_round=len(digits.proxies))
    assert result.details["differences"] == len(digits.proxies)
    assert result.details["shown_precision"] > 0.95
    assert result.details["shown_votes"] > 10
    assert result.figure > result.control + 0.1


# Different proxies to different clients.


def named_by(images: Tensor) -> Tensor:
    """[N, K, C] votes: client k names class k about bright images, nothing about black ones."""
    bright = (images.amax(dim=(1, 2, 3)) > 0).double()
    return bright[:, None, None] * torch.eye(K, C, dtype=torch.float64)


def isolated(*, binding: bool) -> AttackResult:
    lying = SplitViews(named_by, 1, torch.zeros(1, 4, 4), SplitCohort(K), binding)
    bright = replace(public(), proxies=torch.rand(M, 1, 4, 4) * 0.9 + 0.1)
    oracles = {Capability.SPLIT_VIEWS: Oracle(lying, M)}
    attack = InconsistentProxies(probes=M)
    estimate = attack.run(server_view(Transcript(K), bright, oracles), 0)
    return attack.score(estimate, np.repeat(np.arange(K)[:, None], M, axis=1), 0)


def test_clients_that_are_shown_different_proxies_do_not_sum() -> None:
    # 48 lanes of a void sum pass for votes with chance below 1e-10.
    result = isolated(binding=False), isolated(binding=True)
    assert [r.figure for r in result] == [1.0, 0.0]
    assert [r.details["void_rounds"] for r in result] == [0.0, 1.0]


def test_the_same_proxies_for_all_do_sum() -> None:
    cohort, vectors = SplitCohort(K), {k: np.full(8, k, np.uint64) for k in range(K)}
    total = cohort.ask(vectors, dict.fromkeys(range(K), b"x"), K, b"x")
    assert total is not None
    assert total.tolist() == [6] * 8


@pytest.mark.parametrize("claimed", [b"x", b"decoy"])
def test_a_lying_server_gains_nothing_by_either_claim(claimed: bytes) -> None:
    vectors = {k: np.full(64, int(k == 0), np.uint64) for k in range(K)}
    subjects = {0: b"x", 1: b"decoy", 2: b"decoy", 3: b"decoy"}
    assert SplitCohort(K).ask(vectors, subjects, 1, claimed) is None


# The label unit: a vote that stands alone is deniable.

EPSILON, PROXIES = 1.0, 6000


def least_odds(epsilon: float) -> float:
    """How much likelier at least, at 1e-4, reading a vote makes it: a lower limit of the factor.

    The client votes for class 0 about half of the proxies, and abstains about the other half, so
    that the odds beforehand are 1. It is alone in its sum, which hides nothing.
    """
    rng = np.random.default_rng(0)
    meant = np.where(rng.random(PROXIES) < 0.5, 0, ABSTAIN)
    unit = LabelUnit(epsilon, 1e-5)
    unit.prepare(torch.zeros(PROXIES, 1, 1, 1), C, [_record()])

    def answer(indices: IntArray) -> Contribution:
        cast = meant[indices] >= 0
        return Contribution(cast.astype(float), one_hot(np.zeros(len(indices), np.int64), C))

    units = KnowledgeCodec(C, 1).encode(unit.parts[0].release(np.arange(PROXIES), answer))
    estimate = SingleContributor().run(
        server_view(add_round(Transcript(1), units, C, survivors=(0,)), public(PROXIES, 1)), 0
    )
    read = estimate.rows[0] == 0
    true, false = int((read & (meant == 0)).sum()), int((read & (meant == ABSTAIN)).sum())
    least = beta.ppf(1e-4, true, false + 1)  # Clopper and Pearson's lower limit of true / both
    return float(least / (1 - least))


def _record() -> Images:
    return Images(torch.zeros(1, 1, 1, 1), torch.zeros(1, dtype=torch.int64))


def test_a_vote_that_stands_alone_is_deniable_up_to_e_to_the_epsilon() -> None:
    # False alarms: below 1e-4.
    assert least_odds(EPSILON) <= exp(EPSILON)


@pytest.mark.parametrize("broken", [float("inf"), 2 * EPSILON], ids=["no noise", "half the noise"])
def test_too_little_noise_is_caught(broken: float) -> None:
    assert least_odds(broken) > exp(EPSILON)


def test_the_label_units_noisy_vote_is_read_but_not_what_was_meant(digits: FederatedData) -> None:
    """Differences show an answer exactly, noise and all; at epsilon 1 most are noise."""
    recorder = RecordedLabels(1.0, 1e-5)
    made = run(
        federation(
            digits,
            aggregation=MaskedSum(K, public_seed=0, hybrid=False),
            protection=recorder,
            schedule=all_proxies(digits),
            dropouts=faults({1: {2: Stage.PREPARE}}),
        )
    )
    attack = Differencing()
    estimate = attack.run(server_view(made.transcript, public_of(digits)), 0)
    result = attack.score(estimate, statements(recorder, made.transcript), 0)
    assert (estimate.others["shown"].rows[2] != NEVER).all()
    assert result.details["shown_precision_against_uploads"] == 1.0
    # 200 answers; a class is named truly with chance e / (e + 10) = .21 where it was meant.
    assert result.details["shown_precision"] < 0.5
