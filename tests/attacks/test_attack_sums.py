"""Attacks on sums against the real protections, and against twins in which one is broken.

False-alarm rates are stated where a test could fail by chance; noise and keys are not seeded.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attacks.core.base import ABSTAIN, NEVER, AttackResult
from attacks.core.run import attack_view, histograms, public_of
from attacks.core.view import Public, server_view
from attacks.server.differencing import Differencing
from attacks.server.label_distribution import Distributions, Participation
from attacks.server.votes import Said, record
from secure_fd.data.federated import FederatedData
from secure_fd.errors import MissingClientError, PeerError
from secure_fd.protocol.transcript import Transcript
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Dropouts, Federation
from secure_fd.votes.codec import (
    IntArray,
    UnitArray,
    WordArray,
    one_hot,
)
from secure_fd.wire import Stage
from tests.attack_games import add_round
from tests.drivers.cohort import Cohort
from tests.small_federation import BRIEF, faults, federation, run

K, C, M = 4, 4, 12


def public() -> Public:
    return Public(torch.zeros(M, 1, 4, 4), K, C, lambda _: nn.Linear(1, 1))


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


def test_without_the_ledger_a_clients_votes_are_the_difference(digits):
    """One release a pair leaves nothing to subtract of two rounds that differ by one client."""
    safe = subtracted(digits, limit=1, per_round=100)
    assert (safe.details["pairs_of_rounds"], safe.details["differences"]) == (1, 0)
    assert safe.figure == safe.control
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


@pytest.mark.parametrize("binding", [True, False], ids=["bound", "twin without binding"])
def test_a_vote_is_isolated_only_where_masks_are_not_bound_to_what_a_client_was_shown(binding):
    assert isolated(binding=binding) == [not binding] * K


def test_the_same_proxies_for_all_do_sum():
    vectors = {k: np.full(8, k, np.uint64) for k in range(K)}
    assert ask(Cohort(K), 1, vectors, dict.fromkeys(range(K), b"x"), b"x").tolist() == [6] * 8


@pytest.mark.parametrize("claimed", [b"x", b"decoy"])
def test_a_lying_server_gains_nothing_by_either_claim(claimed):
    vectors = {k: np.full(64, int(k == 0), np.uint64) for k in range(K)}
    subjects = {0: b"x", 1: b"decoy", 2: b"decoy", 3: b"decoy"}
    assert ask(Cohort(K), 1, vectors, subjects, claimed) is None


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
