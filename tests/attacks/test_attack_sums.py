"""Attacks on many masked sums: they find what differs between sums, and nothing else."""

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
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Dropouts
from secure_fd.wire import Stage
from tests.small_federation import BRIEF, faults, federation, run

K = 4


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
