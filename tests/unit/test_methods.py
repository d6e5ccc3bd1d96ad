"""The round loop and the methods: who answers, what teaches, what is counted, what repeats."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from experiments.core.variants import NetworkNamesClasses
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.methods.fedavg import FedAvg, FedAvgClient
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.selective_fd import SelectiveFD, WeighedVotes
from secure_fd.methods.votes import LEAST_COMPARED, CountedVotes, agreement
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.selection.selectors import Selection
from secure_fd.simulation.federation import Federation
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Trainer
from secure_fd.votes.codec import (
    Ensemble,
    FloatArray,
    Sums,
    contributors,
)
from secure_fd.wire import Stage
from tests.small_federation import (
    BRIEF,
    Scripted,
    all_proxies,
    ensembles,
    faults,
    federation,
    networks,
    participants,
    run,
)

CPU = torch.device("cpu")


# Who answers, and what teaches.


def test_an_allowed_class_keeps_its_share_and_the_others_lose_theirs():
    opinion = CountedVotes(np.ones(3), np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=np.bool_))
    softmax = np.array([[0.2, 0.3, 0.5]])
    soft = [opinion.contribution(np.array([i]), softmax, "soft").predictions[0] for i in range(3)]
    assert soft[0] == pytest.approx([0.4, 0.6, 0.0])
    assert soft[1].tolist() == [1.0, 0.0, 0.0]
    assert soft[2] == pytest.approx([0.2, 0.3, 0.5])
    hard = opinion.contribution(np.array([0]), softmax, "hard").predictions
    assert hard.tolist() == [[0.0, 1.0, 0.0]]


def test_a_weighed_vote_is_the_product_of_selector_and_network():
    votes = WeighedVotes(np.array([[0.8, 0.2, 0.0], [0.0, 0.0, 0.0]]), np.arange(3) < 2)
    softmax = np.array([[0.3, 0.1, 0.6], [0.2, 0.5, 0.3]])
    soft = votes.contribution(np.arange(2), softmax, "soft", trust=1.0)
    both = 0.24**2, 0.02**2  # .8 x .3 and .2 x .1, sharpened; no evidence, no vote
    assert soft.weights == pytest.approx([sum(both), 0.0])
    assert soft.predictions[0] == pytest.approx([both[0] / sum(both), both[1] / sum(both), 0.0])
    hard = votes.contribution(np.arange(2), softmax, "hard", trust=1.0)
    assert hard.weights == pytest.approx([np.sqrt(0.24), 0.0])
    assert hard.predictions[0].tolist() == [1.0, 0.0, 0.0]
    # A network that nobody trusts only divides between the classes held: .75 and .25.
    new = votes.contribution(np.arange(2), softmax, "soft", trust=0.0)
    assert new.weights[0] == pytest.approx(0.6**2 + 0.05**2)
    half = votes.contribution(np.arange(2), softmax, "soft", trust=0.5)
    assert half.weights[0] == pytest.approx(0.42**2 + 0.035**2)


def test_a_network_may_name_classes_alone():
    """The selector's two posteriors, .6 and .3, then only say that .9 of the proxy is its own."""
    found = Selection((0, 1), np.ones((2, 2)), np.zeros(2), np.array([[0.6, 0.3], [0.9, 0.8]]))
    softmax = np.array([[0.1, 0.5, 0.4], [0.1, 0.5, 0.4]])

    def said(labels, kind, answers=softmax):
        method = (NetworkNamesClasses if kind == "network" else SelectiveFD)(labels)
        return method.policy_of(found, 3).contribution(np.arange(2), answers, labels, trust=1.0)

    alone = said("soft", "network")
    whole = 0.1**2 + 0.5**2  # of all votes, at most one
    assert alone.weights == pytest.approx([0.9**2 * whole, whole])
    assert alone.predictions[0] == pytest.approx([1 / 26, 25 / 26, 0.0])
    assert said("soft", "both").predictions[0] == pytest.approx([36 / 261, 225 / 261, 0.0])
    sure = np.array([[0.3, 0.4, 0.3]] * 2)  # .6 x .3 > .3 x .4
    named = [said("hard", kind, sure).predictions[0].argmax() for kind in ("network", "both")]
    assert named == [1, 0]


def test_trust_is_what_the_network_knew_before_it_was_taught():
    count = LEAST_COMPARED
    said, kept = np.arange(count + 1) % 3, np.arange(count + 1) < count
    named = np.where(np.arange(count + 1) < 8, 0, np.arange(count + 1) % 3)  # 5 of these 8 are new
    taught = Ensemble(np.arange(count + 1), np.eye(3)[named], kept)
    assert agreement(said, taught) == pytest.approx(1 - 5 / count)
    assert agreement(None, taught) is None  # it was not asked


def test_a_server_that_keeps_few_lessons_reads_no_trust():
    """One kept proxy would tell what the network says about it."""
    count = LEAST_COMPARED
    said, rows = np.zeros(count, dtype=int), np.eye(3)[np.zeros(count, dtype=int)]
    for kept in (1, count - 1):
        ensemble = Ensemble(np.arange(count), rows, np.arange(count) < kept)
        assert agreement(said, ensemble) is None
    assert agreement(said, Ensemble(np.arange(count), rows, np.ones(count, dtype=bool))) == 1.0


def test_one_client_that_gives_nearly_all_of_a_count_is_alone():
    units = [np.array([9, 0, 8, 0, 0, 0]), np.array([0, 1, 2, 0, 0, 0]), np.zeros(6, dtype=int)]
    assert contributors(units, 2) == (1, 2)  # 9 of 10; 8 of 10; nobody
    assert contributors([], 2) == (0, 0)


SUMS = Sums(
    count=np.array([4.0, 4.0, 2.0, 0.0, 4.0]),
    total=np.array([[4.0, 0, 0], [2.0, 1, 1], [1.0, 1, 0], [0, 0, 0], [1.5, 1.5, 1]]),
)


def test_the_server_keeps_what_is_precise():
    """2 (1 - max h) is 0, 1, 1, (nobody), 1.25; the third ties, so it names no label."""
    where = np.array([5, 7, 8, 9, 11])
    strict = SelectiveFD("soft", server_threshold=0.5).ensemble(where, SUMS)
    usual = SelectiveFD("soft", server_threshold=1.0).ensemble(where, SUMS)
    assert strict.kept.tolist() == [True, False, False, False, False]
    assert usual.kept.tolist() == [True, True, False, False, False]
    assert usual.indices.tolist() == where.tolist()
    assert usual.predictions[1].tolist() == [0.5, 0.25, 0.25]
    assert SelectiveFD("hard").ensemble(where, SUMS).predictions[1].tolist() == [1, 0, 0]
    assert SelectiveFD("soft", server_threshold=2.0).ensemble(where, SUMS).kept.sum() == 2
    made = FedMD().ensemble(where, SUMS)
    assert made.kept.tolist() == [True, True, True, False, True]
    assert made.predictions[2].tolist() == [0.5, 0.5, 0.0]
    assert np.isfinite(made.predictions).all()


def test_an_abstention_weighs_nothing_and_one_voice_is_counted_as_one(digits):
    """Of 200 proxies all answer the first 20, client 0 alone the next 30, nobody the rest."""
    answered = np.zeros((4, 200))
    answered[:, :20] = 1
    answered[0, 20:50] = 1
    method = Scripted(iter([CountedVotes(weights) for weights in answered]))
    made = federation(digits, method, schedule=all_proxies(digits))
    report = next(made.rounds(1))
    assert report.single == pytest.approx(30 / 50)
    assert made.single_contributors == pytest.approx(30 / 50)
    assert method.sums[0].count.tolist() == answered.sum(axis=0).tolist()
    uploads = made.transcript.distillation[0].uploads
    for client, words in uploads.items():
        assert words.reshape(200, 10).sum(axis=1).tolist() == answered[client].tolist()
    silent = federation(digits, Scripted(iter([CountedVotes(np.zeros(200)) for _ in range(4)])))
    report = next(silent.rounds(1))
    assert (report.kept, report.single, silent.single_contributors) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("remember", [True, False])
def test_what_clients_learn_from(digits, remember, monkeypatch):
    """Every proxy that was taught so far, by its newest ensemble; else the newest round alone."""
    lessons: list[tuple[torch.Tensor, torch.Tensor]] = []
    monkeypatch.setattr(
        Trainer,
        "take_steps",
        lambda _, __, pixels=None, targets=None: (
            None if pixels is None else lessons.append((pixels.clone(), targets.clone()))
        ),
    )
    made = run(federation(digits, FedMD(), schedule=replace(BRIEF, remember=remember)), rounds=3)
    newest: dict[int, FloatArray] = {}
    for number, sent in enumerate(ensembles(made)):
        told = {int(i): row for i, row in zip(sent.indices, sent.predictions, strict=True)}
        newest = {**newest, **told} if remember else told
        order = sorted(newest)
        for pixels, targets in lessons[4 * number : 4 * number + 4]:
            assert torch.equal(pixels, digits.proxies.pixels[order])
            wanted = np.stack([newest[i] for i in order])
            assert np.array_equal(targets.numpy(), wanted.astype(np.float32))
    assert len(newest) > 32 if remember else len(newest) == 32


# FedAvg's average.


def local(sgd: SGD, steps: int) -> Schedule:
    return Schedule(local_steps=steps, proxy_steps=0, sgd=sgd)


def test_fedavg_weighs_the_clients_of_the_sum_by_their_records(digits, monkeypatch):
    """Without a step of training the average of different networks is known in advance."""
    sizes = (5, 20, 9, 7)
    data = [first(digits.clients[0], size) for size in sizes]
    models = networks(4)
    plan = faults({0: {1: Stage.UNMASK, 2: Stage.INPUT, 3: Stage.PREPARE}})
    terms = {"schedule": local(SGD(learning_rate=0.0), 1), "dropouts": plan, "device": CPU}
    made = Federation(models, data, None, FedAvg(), **terms)
    start = flatten(models[0]).numpy().copy()
    monkeypatch.setattr(FedAvgClient, "load", lambda _: None)  # clients keep their own
    other = flatten(models[1]).numpy().copy()
    [report] = made.rounds(1)
    assert report.survivors == (0, 1)
    wanted = (5 * start + 20 * other) / 25
    assert np.abs(made.transcript.parameters[0].result - wanted).max() < 1e-6
    assert np.abs(start - wanted).max() > 1e-3


def test_fedavg_s_clients_start_from_the_global_model(digits):
    """Networks of different initial weights: only the first client's start the run."""
    made = federation(digits, FedAvg(), schedule=local(SGD(learning_rate=0.0), 2))
    start = flatten(networks(4)[0]).numpy()
    list(made.rounds(2))
    for seen in made.transcript.parameters:
        assert np.abs(seen.result - start).max() < 1e-6


def test_a_client_that_diverges_shares_what_it_was_sent(digits):
    made, well = (
        federation(digits, FedAvg(), schedule=local(SGD(rate), 11)) for rate in (1e30, 0.1)
    )
    start = flatten(made.models[0]).numpy().copy()
    for one, diverged in ((made, 2), (well, 0)):
        run(one)
        assert [client.role.diverged for client in one.clients] == [diverged] * 4
    assert np.abs(made.global_parameters - start).max() < 1e-5


def test_momentum_begins_anew_after_averaging(digits, monkeypatch):
    """Two rounds of one step each with momentum are those of plain steps; the twin's are not."""

    def ends(momentum: float) -> FloatArray:
        sgd = SGD(learning_rate=0.1, momentum=momentum)
        made = run(federation(digits, FedAvg(), schedule=local(sgd, 1)))
        return made.global_parameters.astype(np.float64)

    rested = ends(0.5)
    monkeypatch.setattr(Trainer, "reset_momentum", lambda _: None)
    carried = ends(0.5)
    # Nesterov's first step is (1 + momentum) plain ones.
    monkeypatch.undo()
    sgd = SGD(learning_rate=0.1 * 1.5)
    plain = run(federation(digits, FedAvg(), schedule=local(sgd, 1)))
    assert np.abs(rested - plain.global_parameters).max() < 1e-5
    assert np.abs(carried - plain.global_parameters).max() > 1e-4


# What a federation refuses, and what it must not disturb.


def test_a_federation_says_what_is_wrong(digits):
    """Networks that differ, another number of them, no proxies (see test_api_mistakes as well)."""
    mixed = [*networks(3), nn.Sequential(nn.Flatten(), nn.Linear(784, 12))]
    with pytest.raises(ConfigurationError, match="models"):
        Federation(mixed, digits.clients, None, FedAvg())
    with pytest.raises(ConfigurationError, match=r"models: 3 is not allowed; .*4"):
        Federation(networks(3), digits.clients, None, FedAvg())
    with pytest.raises(ConfigurationError, match="aggregation: 3 is not allowed; make it for 4"):
        Federation(*participants(digits), None, FedAvg(), aggregation=PlainSum(3))
    with pytest.raises(ConfigurationError, match="proxies: None is not allowed"):
        Federation(*participants(digits), None, FedMD(), schedule=BRIEF)


def first(client: ClientData, size: int) -> ClientData:
    train = Images(client.train.pixels[:size], client.train.labels[:size])
    return ClientData(train, client.validation, client.n_classes)
