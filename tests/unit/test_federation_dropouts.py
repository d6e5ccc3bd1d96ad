"""Federations whose clients fall silent: who is counted, who learns, what is sent, what goes on."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from secure_fd.aggregation.base import PlainSum, Stage
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.broadcasts import BROADCAST_BYTES
from secure_fd.data.federated import FederatedData
from secure_fd.federation import Dropouts, Federation, participants_of
from secure_fd.knowledge import FloatArray, KnowledgeCodec, Sums, ensemble_message, proxy_bytes
from secure_fd.methods.base import CountedVotes
from secure_fd.methods.fedavg import FedAvg, FedAvgClient
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.models import flatten
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.protection.base import Protection
from secure_fd.protection.label import LabelUnit
from secure_fd.recipes import SGD
from secure_fd.secagg.session import HEADER_BYTES
from tests.small_federation import (
    Scripted,
    all_proxies,
    ensembles,
    faults,
    federation,
    networks,
    parameters,
    run,
    same_ensembles,
)

GONE = Stage.INPUT
CPU = torch.device("cpu")
SUBJECT = BROADCAST_BYTES + 41
"""Bytes of a round's subject: frame, position, signature, round and digest."""


def told(made: Federation, place: int) -> int:
    """Bytes that a client which is there gets in a round: its subject and the ensemble."""
    seen = made.transcript.distillation[place]
    codec = KnowledgeCodec(10, seen.levels)
    sent = ensemble_message(seen.ensemble, codec, seen.total, len(seen.survivors))
    return SUBJECT + BROADCAST_BYTES + len(sent)


def test_no_faults_and_a_plan_without_any_are_the_same(digits: FederatedData) -> None:
    bare = run(federation(digits))
    planned = run(federation(digits, dropouts=Dropouts(0.0, seed=5)))
    assert same_ensembles(bare, planned)
    assert np.array_equal(parameters(bare), parameters(planned))
    assert bare.transcript.survivors == [4, 4]
    assert bare.transcript.missing == Counter()


def test_the_ensemble_is_that_of_the_survivors(digits: FederatedData) -> None:
    """Client k alone says class k: the sum names exactly those whose input arrived."""
    size = len(digits.proxies)
    script = dict(enumerate(Stage))
    allowed = [np.tile(np.arange(10) == k, (size, 1)) for k in range(4)]
    method = Scripted(iter([CountedVotes(np.ones(size), only) for only in allowed[1:]]))
    made = federation(digits, method, dropouts=faults({0: script}), schedule=all_proxies(digits))
    report = next(made.rounds(1))
    assert report.survivors == (2, 3)
    assert report.missing == tuple(script.items())
    assert not report.void
    assert method.sums[0].total.sum(axis=0).tolist() == [0, 0, size, size] + [0] * 6
    [seen] = made.transcript.distillation
    assert seen.survivors == (2, 3)
    assert seen.uploads is not None
    assert set(seen.uploads) == set(seen.payloads) == {2, 3}
    assert made.transcript.survivors == [2]
    assert made.transcript.missing == Counter(script.items())


def test_single_contributors_are_counted_among_survivors(digits: FederatedData) -> None:
    """Clients 0 and 1 answer everything, 2 and 3 nothing; without 1, every vote stands alone."""
    opinions = [CountedVotes(np.full(200, float(k < 2))) for k in range(4)]
    lost = federation(digits, Scripted(iter(opinions)), dropouts=faults({0: {1: GONE}}))
    whole = federation(digits, Scripted(iter(opinions)))
    assert (next(lost.rounds(1)).single, next(whole.rounds(1)).single) == (1.0, 0.0)
    assert lost.single_contributors == 1.0


@pytest.mark.parametrize("stage", list(Stage))
def test_a_client_that_dropped_out_neither_learns_nor_hears(
    digits: FederatedData, stage: Stage
) -> None:
    made = run(federation(digits, FedMD(), dropouts=faults({1: {2: stage}})), rounds=1)
    before, sent = parameters(made), made.transcript.down.copy()
    run(made, rounds=1)
    still = [np.array_equal(a, b) for a, b in zip(before, parameters(made), strict=True)]
    assert still == [False, False, True, False]
    heard = made.transcript.down - sent
    assert heard[2] == (0 if stage is Stage.PREPARE else SUBJECT)
    assert set(heard[[0, 1, 3]].tolist()) == {told(made, 1)}


def test_who_comes_back_is_sent_what_it_missed(digits: FederatedData) -> None:
    """Client 2 reads round 0's subject and no ensemble, client 3 not round 1's ensemble."""
    plan = faults({0: {2: GONE}, 1: {2: Stage.PREPARE, 3: Stage.UNMASK}})
    made = run(federation(digits, dropouts=plan), rounds=2)
    sizes = [told(made, r) for r in range(2)]
    start = proxy_bytes(digits.proxies.pixels)
    heard = (made.transcript.down - start).tolist()
    ensemble = sizes[1] - SUBJECT
    assert heard == [sum(sizes), sum(sizes), SUBJECT, sum(sizes) - ensemble]
    run(made, rounds=1)
    sizes.append(told(made, 2))
    again = [0, 0, 3 * HEADER_BYTES, HEADER_BYTES]  # what was missed comes in a frame of its own
    assert (made.transcript.down - start - sum(sizes)).tolist() == again


def test_a_client_that_was_told_something_else_does_not_sum(digits: FederatedData) -> None:
    """The running hash of all that a client was told is the subject of every sum."""
    made = federation(digits, schedule=all_proxies(digits))
    next(made.rounds(1))
    made.clients[1]._told.digest = bytes(32)
    report = next(made.rounds(1))
    assert report.survivors == (0, 2, 3)
    assert [k for k, _ in report.refused] == [1]
    assert dict(report.missing) == {1: Stage.INPUT}


def test_who_comes_back_learns_from_what_it_missed(
    digits: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons: list[int] = []
    made = federation(digits, FedMD(), dropouts=faults({0: {3: GONE}}))
    monkeypatch.setattr(
        made,
        "_train",
        lambda due: lessons.extend(len(s.lesson.indices) for s in due if s.lesson is not None),
    )
    run(made)
    asked = {int(i) for sent in ensembles(made) for i in sent.indices}
    assert lessons == [32] * 3 + [len(asked)] * 4


VOID = dict.fromkeys(range(4), GONE)


def test_a_federation_goes_on_after_a_void_round(digits: FederatedData) -> None:
    some = {0: GONE, 1: GONE, 2: GONE, 3: GONE}
    made = federation(digits, dropouts=faults({1: some}))
    rounds = made.rounds(3)
    first = next(rounds)
    before = made.transcript.down.copy(), made.transcript.up.copy()
    void = next(rounds)
    assert (first.void, void.void) == (False, True)
    assert (void.kept, void.single, void.survivors) == (0.0, 0.0, ())
    assert dict(void.missing) == some
    assert (made.transcript.down - before[0]).tolist() == [SUBJECT] * 4
    assert np.array_equal(before[1], made.transcript.up)
    last = next(rounds)
    assert last.survivors == (0, 1, 2, 3)
    assert [seen.index for seen in made.transcript.distillation] == [0, 2]
    assert made.transcript.void_rounds == 1
    assert made.transcript.survivors == [4, 4]
    assert made.transcript.missing == Counter(some.items())


def test_whoever_is_there_in_a_void_round_trains_alone(
    digits: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum with a threshold can be void while some clients are there."""
    made = federation(
        digits, dropouts=faults({0: {0: GONE, 1: GONE}}), aggregation=MaskedSum(4, public_seed=0)
    )
    run(made, rounds=0)
    train, lessons = made._train, list[object]()
    monkeypatch.setattr(
        made, "_train", lambda due: (train(due), lessons.extend(s.lesson for s in due))
    )
    before = parameters(made)
    report = next(made.rounds(1))
    assert report.void
    still = [np.array_equal(a, b) for a, b in zip(before, parameters(made), strict=True)]
    assert still == [True, True, False, False]
    assert lessons == [None, None]


# Masks on or off changes nothing, with faults as without.


@pytest.mark.parametrize(
    "method", [SelectiveFD("soft"), SelectiveFD("hard"), FedMD("soft"), FedMD("hard")]
)
def test_masks_change_no_bit_whoever_is_missing(
    digits: FederatedData, method: SelectiveFD | FedMD
) -> None:
    """One of four clients is lost in every round, at every stage in turn; then all come back."""
    script = {r: {r % 4: stage} for r, stage in enumerate([*Stage, *reversed(Stage)])}
    made = [
        run(
            federation(
                digits,
                method,
                aggregation=aggregation,
                dropouts=faults(script),
            ),
            rounds=9,
        )
        for aggregation in (PlainSum(4), MaskedSum(4, public_seed=0))
    ]
    clear, masked = made
    assert clear.transcript.survivors == masked.transcript.survivors
    assert sorted(set(clear.transcript.survivors)) == [3, 4]
    assert masked.transcript.void_rounds == 0
    assert any(sent.kept.any() for sent in ensembles(clear))
    assert same_ensembles(clear, masked)
    assert np.array_equal(parameters(clear), parameters(masked))
    assert all(seen.uploads is None for seen in masked.transcript.distillation)


def test_clients_without_public_nonces_draw_proxies_of_their_own(digits: FederatedData) -> None:
    """The twin of the pairing: fresh nonces give other proxies, and other ones in every run."""
    fresh = [run(federation(digits, aggregation=MaskedSum(4)), rounds=1) for _ in range(2)]
    paired = run(federation(digits, aggregation=MaskedSum(4, public_seed=0)), rounds=1)
    asked = {m.transcript.distillation[0].proxy_indices.tobytes() for m in [*fresh, paired]}
    assert len(asked) == 3


def test_a_round_that_is_void_under_masks_reveals_nothing_and_the_next_goes_on(
    digits: FederatedData,
) -> None:
    """Two of four are left, one below the threshold: no sum, no ensemble, no proxy answered."""
    plan = faults({1: {0: GONE, 3: GONE}})
    made = federation(digits, aggregation=MaskedSum(4, public_seed=0), dropouts=plan)
    reports = list(made.rounds(3))
    assert [r.void for r in reports] == [False, True, False]
    assert [seen.index for seen in made.transcript.distillation] == [0, 2]
    assert made.transcript.void_rounds == 1
    assert dict(reports[1].missing).keys() == {0, 3}


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


def test_debiasing_under_dropouts_is_unbiased_up_to_its_clipping(digits: FederatedData) -> None:
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


def test_k_is_the_number_of_survivors_that_declare_a_class(digits: FederatedData) -> None:
    unit = LabelUnit(1.0, 1e-5, "declared", SeededRandom(0))
    records = [client.train for client in digits.clients]
    unit.prepare(digits.proxies.pixels, digits.n_classes, records)
    mechanism = unit.mechanism
    noise = np.zeros((1, 10))
    noise[0, :4] = 1.0
    taken = unit.debias(Sums(noise.sum(axis=1), noise), range(4)).total[0]
    assert taken[:4] == pytest.approx([(1 - mechanism.q) / (mechanism.p - mechanism.q)] * 4)
    noise[0, :2] = 0.0
    left = unit.debias(Sums(noise.sum(axis=1), noise), (2, 3)).total[0]
    assert left[:2].tolist() == [0.0, 0.0]
    assert left[2:4].tolist() == taken[2:4].tolist()


def test_a_lost_upload_counts_as_released_and_one_never_made_does_not(
    digits: FederatedData,
) -> None:
    unit = LabelUnit(1.0, 1e-5, random=SeededRandom(0))
    plan = faults({0: dict(enumerate(Stage))})
    run(federation(digits, protection=unit, dropouts=plan), rounds=1)
    assert [part.ledger.released for part in unit.parts.values()] == [0, 32, 32, 32]


# FedAvg.


def fedavg(
    data: FederatedData, script: dict[int, dict[int, Stage]], rate: float = 0.0
) -> Federation:
    return Federation(
        participants_of(networks(4), data.clients),
        None,
        FedAvg(SGD(learning_rate=rate, local_batch=16), 1),
        dropouts=faults(script),
        device=CPU,
    )


def test_fedavg_is_the_mean_of_the_survivors(
    digits: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a step of training, every client sends the network that it was built with."""
    made = fedavg(digits, {0: {0: GONE, 1: Stage.UNMASK, 3: Stage.PREPARE}})
    monkeypatch.setattr(FedAvgClient, "_load", lambda _: None)  # clients keep their own
    held = [flatten(model).numpy() for model in networks(4)]
    shares = [len(client.train) for client in digits.clients]
    [report] = made.rounds(1)
    assert report.survivors == (1, 2)
    wanted = (shares[1] * held[1] + shares[2] * held[2]) / (shares[1] + shares[2])
    [seen] = made.transcript.parameters
    assert np.abs(seen.parameters - wanted).max() < 1e-6
    assert seen.uploads is not None
    assert set(seen.uploads) == {1, 2}


def test_a_void_round_leaves_the_global_model_as_it_was(digits: FederatedData) -> None:
    made = fedavg(digits, {1: VOID}, rate=0.1)
    list(made.rounds(1))
    before = flatten(made.models[0]).clone()
    [void] = made.rounds(1)
    assert (void.survivors, dict(void.missing)) == ((), VOID)
    assert len(made.transcript.parameters) == 1
    [after] = made.rounds(1)
    assert after.survivors == (0, 1, 2, 3)
    assert not torch.equal(flatten(made.models[0]), before)
    assert len({flatten(model).numpy().tobytes() for model in made.models}) == 1
    assert made.transcript.void_rounds == 1


def test_fedavg_sends_the_model_to_who_is_there_and_to_who_comes_back(
    digits: FederatedData,
) -> None:
    plan = {0: {1: GONE, 2: Stage.PREPARE}, 1: {2: Stage.PREPARE, 3: Stage.UNMASK}}
    made = fedavg(digits, plan)
    size = 4 * flatten(made.models[0]).numel()
    counts = [(list(made.rounds(1)), (made.transcript.down // size).tolist())[1] for _ in range(3)]
    # The start; then the mean of round 0 to who stayed, and to client 1 before it trains again.
    assert counts[0] == [2, 1, 0, 2]
    assert counts[1] == [3, 3, 0, 2]
    assert counts[2] == [4, 4, 4, 4]  # client 2 is sent all that it was not told


@pytest.mark.parametrize("protection", [None, LabelUnit(4.0, 1e-5, random=SeededRandom(2))])
def test_a_long_run_of_random_faults_keeps_its_books(
    digits: FederatedData, protection: Protection | None
) -> None:
    plan = Dropouts(0.95, seed=4)
    made: Federation = federation(digits, protection=protection, dropouts=plan)
    reports = list(made.rounds(30))
    faulty = [dict(report.missing) for report in reports]
    assert faulty == [plan.plan(index, 4) for index in range(30)]
    assert made.transcript.missing == Counter(pair for plan in faulty for pair in plan.items())
    void = [r.void for r in reports]
    assert 0 < sum(void) < 30
    assert made.transcript.void_rounds == sum(void)
    assert made.transcript.survivors == [len(r.survivors) for r in reports if not r.void]
    assert [s.index for s in made.transcript.distillation] == [
        r.index for r in reports if not r.void
    ]
