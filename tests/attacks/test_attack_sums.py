"""Attacks on sums against the real protections, and against mutants in which one is broken.

False-alarm rates are stated where a test could fail by chance; noise and keys are not seeded.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from attacks.core.base import AttackResult
from attacks.core.run import attack_view, histograms, public_of
from attacks.core.view import server_view
from attacks.server.differencing import Differencing
from attacks.server.label_distribution import Participation
from attacks.server.votes import SumVotes, record
from secure_fd.data.federated import FederatedData
from secure_fd.errors import MissingClientError, PeerError
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Dropouts
from secure_fd.votes.codec import (
    UnitArray,
    WordArray,
    one_hot,
)
from secure_fd.wire import Stage
from tests.drivers.cohort import Cohort
from tests.small_federation import BRIEF, faults, federation, run

K, C, M = 4, 4, 12


def subtracted(data: FederatedData, limit: int | None, per_round: int) -> AttackResult:
    """Client 2 is away from the second of two masked rounds."""
    made = federation(
        data,
        aggregation=MaskedSum(K, public_seed=0, hybrid=False),
        dropouts=faults({1: {2: Stage.PREPARE}}),
        schedule=replace(BRIEF, proxies_per_round=per_round),
        releases_per_pair=limit,
    )
    truth: list[SumVotes] = []
    for _ in made.rounds(2):
        record(made, truth)
    return attack_view(Differencing(truth=truth), server_view(made.transcript, public_of(data)), 0)


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
    cohort.server.barred.clear()  # a liar bars no client
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
    """For each client k, check if the sum is its vote when it alone is shown something new.

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


@pytest.mark.parametrize("binding", [True, False], ids=["bound", "mutant without binding"])
def test_a_vote_is_isolated_only_where_masks_are_not_bound_to_what_a_client_was_shown(binding):
    assert isolated(binding=binding) == [not binding] * K


@pytest.mark.parametrize("claimed", [b"x", b"decoy"])
def test_a_lying_server_gains_nothing_by_either_claim(claimed):
    vectors = {k: np.full(64, int(k == 0), np.uint64) for k in range(K)}
    subjects = {0: b"x", 1: b"decoy", 2: b"decoy", 3: b"decoy"}
    assert ask(Cohort(K), 1, vectors, subjects, claimed) is None


def disaggregated(data: FederatedData, drop: float, *, mixed: bool = False) -> AttackResult:
    """mixed: the attack receives the participants of other rounds."""
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
