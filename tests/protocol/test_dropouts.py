"""Federations with drop-outs: survivors, absent clients, noise of those in the sum, reports."""

import math
from collections import Counter

import numpy as np
import pytest

from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.votes import CountedVotes
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.simulation.federation import Dropouts
from secure_fd.wire import Stage
from tests.small_federation import Scripted, alike, all_proxies, faults, federation, parameters, run

GONE = Stage.INPUT


def test_the_ensemble_is_that_of_the_survivors(digits):
    """Only client k names class k, so the sum shows whose input arrived."""
    size = len(digits.proxies)
    script = dict(enumerate(Stage))
    allowed = [np.tile(np.arange(10) == k, (size, 1)) for k in range(4)]
    method = Scripted(iter([CountedVotes(np.ones(size), only) for only in allowed[1:]]))
    made = federation(digits, method, dropouts=faults({0: script}), schedule=all_proxies(digits))
    report = next(made.rounds(1))
    assert (report.survivors, report.missing) == ((2, 3), tuple(script.items()))
    assert not report.aborted
    assert method.sums[0].total.sum(axis=0).tolist() == [0, 0, size, size] + [0] * 6
    [seen] = made.transcript.distillation
    assert set(seen.uploads) == set(seen.payloads) == set(seen.survivors) == {2, 3}
    assert made.transcript.missing == Counter(script.items())


@pytest.mark.parametrize("stage", list(Stage))
def test_a_client_that_dropped_out_neither_learns_nor_receives(digits, stage):
    made = run(federation(digits, FedMD(), dropouts=faults({1: {2: stage}})), rounds=1)
    before, sent = parameters(made), made.transcript.down.copy()
    run(made, rounds=1)
    still = [np.array_equal(a, b) for a, b in zip(before, parameters(made), strict=True)]
    assert still == [False, False, True, False]
    received = made.transcript.down - sent
    assert (received[2] > 0) == (stage is not Stage.PREPARE)
    assert received[2] < received[0] == received[1] == received[3]  # no ensemble


# The label unit.


class Forgetful(LabelUnit):
    """Mutant: subtracts the noise of all clients, not of those in the sum."""

    def debias(self, sums, survivors):  # noqa: ARG002 - the fault
        return super().debias(sums, range(4))


class Biased(LabelUnit):
    """Mutant: the server takes noisy votes at their face value."""

    def debias(self, sums, survivors):  # noqa: ARG002 - the fault
        return sums


def votes(data, kind, epsilon, repeats):
    """[repeats * P] votes for class 3, which all clients name, two of whom are absent."""
    size, random = len(data.proxies), SeededRandom(1)
    allowed = np.tile(np.arange(10) == 3, (size, 1))
    lost = faults({0: {0: GONE, 1: Stage.PREPARE, 2: Stage.CONSISTENCY}})
    found = []
    for _ in range(repeats):
        method = Scripted(iter([CountedVotes(np.ones(size), allowed) for _ in range(4)]))
        unit = kind(epsilon, 1e-5, random=random)  # fresh noise each time
        made = federation(data, method, protection=unit, schedule=all_proxies(data), dropouts=lost)
        run(made, rounds=1)
        found.append(method.sums[0].total[:, 3])
    return np.concatenate(found)


def test_debiasing_under_dropouts_is_unbiased_up_to_its_clipping():
    """Two of four survive: over 6,000 proxies the mean is as expected within 5 standard errors.

    The expected count of two true votes is clipped at zero. The false-alarm rate would be 6e-7
    without the seed. Both mutants must fail.
    """
    data, epsilon, symbols = alike(4, proxies=100, local=20), 2.0, 11
    q = 1.0 / (math.exp(epsilon) + symbols - 1)
    p = 1.0 - (symbols - 1) * q
    counts = [max(0.0, (s - 2 * q) / (p - q)) for s in range(3)]
    expected = np.dot([(1 - p) ** 2, 2 * p * (1 - p), p**2], counts)
    tolerance = 5 * math.sqrt(2 * p * (1 - p) / 6000) / (p - q)
    assert abs(votes(data, LabelUnit, epsilon, 6).mean() - expected) < tolerance
    for mutant in (Forgetful, Biased):
        assert abs(votes(data, mutant, epsilon, 6).mean() - expected) > tolerance


def test_a_lost_upload_counts_as_released_and_one_never_made_does_not(digits):
    unit = LabelUnit(1.0, 1e-5, random=SeededRandom(0))
    plan = faults({0: dict(enumerate(Stage))})
    run(federation(digits, protection=unit, dropouts=plan), rounds=1)
    assert [part.released for part in unit.parts.values()] == [0, 32, 32, 32]


def test_reports_and_transcript_of_a_long_run_agree_with_its_faults(digits):
    plan = Dropouts(0.95, seed=4)
    unit = LabelUnit(4.0, 1e-5, random=SeededRandom(2))
    made = federation(digits, protection=unit, dropouts=plan)
    reports = list(made.rounds(30))
    faulty = [dict(report.missing) for report in reports]
    assert faulty == [plan.plan(index, 4) for index in range(30)]
    assert made.transcript.missing == Counter(pair for plan in faulty for pair in plan.items())
    done = [report for report in reports if not report.aborted]
    assert 0 < made.transcript.aborted_rounds == 30 - len(done) < 30
    assert made.transcript.survivors == [len(report.survivors) for report in done]
    assert [s.index for s in made.transcript.distillation] == [report.index for report in done]
