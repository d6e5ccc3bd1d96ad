"""Federations whose clients fall silent: who is counted, who learns, what is sent, what goes on."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from secure_fd.data.federated import FederatedData
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.votes import CountedVotes
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Dropouts, Federation
from secure_fd.votes.codec import FloatArray, Sums
from secure_fd.wire import Stage
from tests.small_federation import (
    Scripted,
    all_proxies,
    faults,
    federation,
    parameters,
    run,
)

GONE = Stage.INPUT


def test_the_ensemble_is_that_of_the_survivors(digits):
    """Client k alone says class k: the sum names exactly those whose input arrived."""
    size = len(digits.proxies)
    script = dict(enumerate(Stage))
    allowed = [np.tile(np.arange(10) == k, (size, 1)) for k in range(4)]
    method = Scripted(iter([CountedVotes(np.ones(size), only) for only in allowed[1:]]))
    made = federation(digits, method, dropouts=faults({0: script}), schedule=all_proxies(digits))
    report = next(made.rounds(1))
    assert report.survivors == (2, 3)
    assert report.missing == tuple(script.items())
    assert not report.aborted
    assert method.sums[0].total.sum(axis=0).tolist() == [0, 0, size, size] + [0] * 6
    [seen] = made.transcript.distillation
    assert seen.survivors == (2, 3)
    assert set(seen.uploads) == set(seen.payloads) == {2, 3}
    assert made.transcript.survivors == [2]
    assert made.transcript.missing == Counter(script.items())


def test_single_contributors_are_counted_among_survivors(digits):
    """Clients 0 and 1 answer everything, 2 and 3 nothing; without 1, every vote stands alone."""
    opinions = [CountedVotes(np.full(200, float(k < 2))) for k in range(4)]
    lost = federation(digits, Scripted(iter(opinions)), dropouts=faults({0: {1: GONE}}))
    whole = federation(digits, Scripted(iter(opinions)))
    assert (next(lost.rounds(1)).single, next(whole.rounds(1)).single) == (1.0, 0.0)
    assert lost.single_contributors == 1.0


@pytest.mark.parametrize("stage", list(Stage))
def test_a_client_that_dropped_out_neither_learns_nor_hears(digits, stage):
    made = run(federation(digits, FedMD(), dropouts=faults({1: {2: stage}})), rounds=1)
    before, sent = parameters(made), made.transcript.down.copy()
    run(made, rounds=1)
    still = [np.array_equal(a, b) for a, b in zip(before, parameters(made), strict=True)]
    assert still == [False, False, True, False]
    heard = made.transcript.down - sent
    assert (heard[2] > 0) == (stage is not Stage.PREPARE)
    assert heard[2] < heard[0] == heard[1] == heard[3]  # no ensemble


def test_whoever_is_there_in_a_void_round_trains_alone(digits, monkeypatch):
    """A sum with a threshold can be void while some clients are there."""
    made = federation(
        digits, dropouts=faults({0: {0: GONE, 1: GONE}}), aggregation=MaskedSum(4, public_seed=0)
    )
    run(made, rounds=0)
    train, lessons = made.trainer, list[object]()
    monkeypatch.setattr(
        made, "trainer", lambda due: (train(due), lessons.extend(s.pixels for s in due))
    )
    before = parameters(made)
    report = next(made.rounds(1))
    assert report.aborted
    still = [np.array_equal(a, b) for a, b in zip(before, parameters(made), strict=True)]
    assert still == [True, True, False, False]
    assert lessons == [None, None]


# Masks on or off changes nothing, with faults as without.


def test_clients_without_public_nonces_draw_proxies_of_their_own(digits):
    """The twin of the pairing: fresh nonces give other proxies, and other ones in every run."""
    fresh = [run(federation(digits, aggregation=MaskedSum(4)), rounds=1) for _ in range(2)]
    paired = run(federation(digits, aggregation=MaskedSum(4, public_seed=0)), rounds=1)
    asked = {m.transcript.distillation[0].result.indices.tobytes() for m in [*fresh, paired]}
    assert len(asked) == 3


# The label unit.


class Forgetful(LabelUnit):
    """Broken on purpose: takes the noise of all clients off, whoever is in the sum."""

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:  # noqa: ARG002 - the fault
        return super().debias(sums, range(4))


class Biased(LabelUnit):
    """Broken on purpose: the server takes noisy votes at their face value."""

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:  # noqa: ARG002 - the fault
        return sums


def votes(data: FederatedData, kind: type[LabelUnit], epsilon: float, repeats: int) -> FloatArray:
    """[repeats * P] votes for class 3, which all clients say and of whom two are lost."""
    size, random = len(data.proxies), SeededRandom(1)
    allowed = np.tile(np.arange(10) == 3, (size, 1))
    lost = faults({0: {0: GONE, 1: Stage.PREPARE, 2: Stage.CONSISTENCY}})
    found = []
    for _ in range(repeats):
        method = Scripted(iter([CountedVotes(np.ones(size), allowed) for _ in range(4)]))
        unit = kind(epsilon, 1e-5, random=random)  # a world anew, with fresh noise
        made = federation(data, method, protection=unit, schedule=all_proxies(data), dropouts=lost)
        run(made, rounds=1)
        found.append(method.sums[0].total[:, 3])
    return np.concatenate(found)


def clipped_mean(epsilon: float, symbols: int, taken_off: int) -> tuple[float, float]:
    """Expected count of two true votes when the noise of `taken_off` clients is subtracted.

    Besides, the standard deviation of one such count without the clipping at zero, an upper bound.
    """
    q = 1.0 / (math.exp(epsilon) + symbols - 1)
    p = 1.0 - (symbols - 1) * q
    chances = [(1 - p) ** 2, 2 * p * (1 - p), p**2]
    counts = [max(0.0, (s - taken_off * q) / (p - q)) for s in range(3)]
    return float(np.dot(chances, counts)), math.sqrt(2 * p * (1 - p)) / (p - q)


def test_debiasing_under_dropouts_is_unbiased_up_to_its_clipping(digits):
    """Two of four survive: over 6,000 proxies the mean is as expected within 5 standard errors.

    False-alarm rate 6e-7 had the noise no seed. The twin that takes the noise of all four clients
    off must fail, and does what its formula says; so must one that takes none off.
    """
    epsilon, symbols = 2.0, 11
    expected, deviation = clipped_mean(epsilon, symbols, 2)
    tolerance = 5 * deviation / math.sqrt(6000)
    fair = votes(digits, LabelUnit, epsilon, 30)
    bent = votes(digits, Forgetful, epsilon, 30)
    assert len(fair) == 6000
    assert abs(fair.mean() - expected) < tolerance < abs(bent.mean() - expected)
    assert abs(bent.mean() - clipped_mean(epsilon, symbols, 4)[0]) < tolerance
    assert abs(votes(digits, Biased, epsilon, 5).mean() - expected) > 3 * tolerance


def test_a_lost_upload_counts_as_released_and_one_never_made_does_not(digits):
    unit = LabelUnit(1.0, 1e-5, random=SeededRandom(0))
    plan = faults({0: dict(enumerate(Stage))})
    run(federation(digits, protection=unit, dropouts=plan), rounds=1)
    assert [part.released for part in unit.parts.values()] == [0, 32, 32, 32]


@pytest.mark.parametrize("protection", [None, LabelUnit(4.0, 1e-5, random=SeededRandom(2))])
def test_a_long_run_of_random_faults_keeps_its_books(digits, protection):
    plan = Dropouts(0.95, seed=4)
    made: Federation = federation(digits, protection=protection, dropouts=plan)
    reports = list(made.rounds(30))
    faulty = [dict(report.missing) for report in reports]
    assert faulty == [plan.plan(index, 4) for index in range(30)]
    assert made.transcript.missing == Counter(pair for plan in faulty for pair in plan.items())
    void = [r.aborted for r in reports]
    assert 0 < sum(void) < 30
    assert made.transcript.aborted_rounds == sum(void)
    assert made.transcript.survivors == [len(r.survivors) for r in reports if not r.aborted]
    assert [s.index for s in made.transcript.distillation] == [
        r.index for r in reports if not r.aborted
    ]
