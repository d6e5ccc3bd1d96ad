"""Rivals: FedAvg, FedED, FKD and PLS against their definitions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from secure_fd.errors import LocalError, PeerError
from secure_fd.methods.base import Setting
from secure_fd.methods.class_means import read_sum, sum_message
from secure_fd.methods.fedavg import FedAvg, FedAvgClient, parameter_codec
from secure_fd.methods.feded import FedED
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pls import PLS
from secure_fd.privacy.base import NoProtection
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.simulation.federation import Federation
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Trainer, predict
from secure_fd.votes.codec import KnowledgeCodec, Sums
from secure_fd.wire import Stage
from tests.small_federation import CPU, alike, faults, federation, networks, parameters, run
from tests.toy import network, toy


def local(sgd, steps):
    return Schedule(local_steps=steps, proxy_steps=0, sgd=sgd)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 16.001])
def test_diverged_parameters_are_refused(bad):
    with pytest.raises(LocalError, match="diverged"):
        parameter_codec((1.0,)).encode(0, np.array([0.0, bad], dtype=np.float32))


def test_the_average_is_by_records_of_the_clients_in_the_sum(digits, monkeypatch):
    """Without a step of training the average of different networks is known in advance."""
    client = digits.clients[0]
    data = [replace(client, train=client.train[:size]) for size in (5, 20, 9, 7)]
    models = networks(4)
    plan = faults({0: {1: Stage.UNMASK, 2: Stage.INPUT, 3: Stage.PREPARE}})
    schedule = local(SGD(learning_rate=0.0), 1)
    made = Federation(models, data, None, FedAvg(), schedule=schedule, dropouts=plan, device="cpu")
    start = flatten(models[0]).numpy().copy()
    monkeypatch.setattr(FedAvgClient, "load", lambda _: None)  # clients keep their own
    other = flatten(models[1]).numpy().copy()
    [report] = made.rounds(1)
    assert report.survivors == (0, 1)
    wanted = (5 * start + 20 * other) / 25
    assert np.abs(made.transcript.parameters[0].result - wanted).max() < 1e-6
    assert np.abs(start - wanted).max() > 1e-3


def test_a_client_that_diverges_shares_the_global_model(digits):
    made, well = (
        federation(digits, FedAvg(), schedule=local(SGD(rate), 11)) for rate in (1e30, 0.1)
    )
    start = flatten(made.models[0]).numpy().copy()
    for one, diverged in ((made, 2), (well, 0)):
        run(one)
        assert [client.role.diverged for client in one.clients] == [diverged] * 4
    assert np.abs(made.global_parameters - start).max() < 1e-5


def test_momentum_begins_anew_after_averaging(digits, monkeypatch):
    """Two rounds of one step with momentum are two plain steps. The mutant keeps its momentum."""

    def result(momentum, rate=0.1):
        schedule = local(SGD(learning_rate=rate, momentum=momentum), 1)
        made = run(federation(digits, FedAvg(), schedule=schedule))
        return made.global_parameters.astype(np.float64)

    plain, reset = result(0.0, 0.1 * 1.5), result(0.5)  # Nesterov's first step is (1 + momentum)
    monkeypatch.setattr(Trainer, "reset_momentum", lambda _: None)
    kept = result(0.5)
    assert np.abs(reset - plain).max() < 1e-5
    assert np.abs(kept - plain).max() > 1e-4


def test_dp_sgd_is_planned_for_the_steps_that_a_method_takes():
    """Three local steps of its own, not the schedule's eleven."""
    made = FedAvg().trained_privately(4.0, 1e-5, 10, Schedule(local_steps=1, proxy_steps=2))
    assert made == FedAvg(private=PrivateSGD(4.0, 1e-5, 30))


# FedED: the server's network learns from the mean, and its predictions are distilled.

EARLIER, LATER = (0.3, 0.7), (0.9, 0.1)


def central(remember, warmup):
    steps = Schedule(proxy_steps=3, proxies_per_round=6, remember=remember, sgd=SGD(0.5, 4, 4))
    proxies, shape = toy(6).pixels, (1, 4, 4)
    terms = Setting(2, 2, shape, proxies, steps, (3, 4), bytes(32), None, NoProtection())
    return FedED("soft", network(1), warmup, seed=5).server(terms, network(1))


def votes(*means):
    """Sums of two clients."""
    return Sums(np.full(len(means), 2.0), 2 * np.array(means))


def trained(*lessons, warmup=0):
    """A copy of the central network, trained step by step; warmup: steps more on the first."""
    copy = network(1)
    trainer = Trainer(copy, toy(2), SGD(0.5, 4, 4), 5, CPU)
    for index, (where, means) in enumerate(lessons):
        steps = 3 + (warmup if index == 0 else 0)
        trainer.take_steps(steps, toy(6).pixels[where], torch.tensor(means))
    return copy


@pytest.mark.parametrize(("remember", "warmup"), [(True, 0), (False, 0), (True, 4)])
def test_the_central_network_answers_after_it_learnt_from_the_means(remember, warmup):
    made = central(remember, warmup)
    made.apply(np.array([2]), votes(EARLIER))
    answer = made.apply(np.array([4]), votes(LATER))
    last = ([2, 4], [EARLIER, LATER]) if remember else ([4], [LATER])
    copy = trained(([2], [EARLIER]), last, warmup=warmup)
    assert np.array_equal(answer.predictions, predict(copy, toy(6).pixels[[4]]))
    assert answer.indices.tolist() == [4]
    assert np.abs(answer.predictions - [LATER]).max() > 0.01  # not the mean itself
    assert not torch.equal(flatten(copy), flatten(trained(([2], [EARLIER]))))


# Methods without proxies: predictions by class, and the distillation from them.

PREDICTIONS = np.array([[0.8, 0.1, 0.1], [0.4, 0.5, 0.1], [0.0, 0.7, 0.3], [0.3, 0.6, 0.1]])
OF_CLASS = np.eye(3)[[0, 0, 1, 1]]
"""Four records: one of class 0 is taken for class 1. Class 2 has no record."""


@pytest.fixture(scope="module")
def mixed():
    """Four clients that hold every class."""
    return alike(4, 20, 24)


def test_fkd_averages_the_predictions_of_a_class_and_pls_the_right_ones():
    every, right = (kind().contribution(PREDICTIONS, OF_CLASS) for kind in (FKD, PLS))
    assert (every.weights.tolist(), right.weights.tolist()) == ([1, 1, 0], [0.5, 1, 0])
    assert np.allclose(every.predictions[:2], [[0.6, 0.3, 0.1], [0.15, 0.65, 0.2]])
    assert np.allclose(right.predictions[:2], [[0.8, 0.1, 0.1], [0.15, 0.65, 0.2]])
    hard = FKD("hard").contribution(PREDICTIONS, OF_CLASS)
    assert hard.predictions[:2].tolist() == [[1, 0, 0], [0, 1, 0]]


def sums(*rows):
    weights = np.array([weight for weight, _ in rows])
    return Sums(weights, weights[:, None] * np.array([row for _, row in rows]))


def test_fkd_distils_the_mean_of_the_others_and_pls_the_mean_of_all():
    """Class 0: its own and another's; class 1: its own alone; class 2 has no holder."""
    everyone = sums((2.0, (0.5, 0.3, 0.2)), (1.0, (0.0, 1.0, 0.0)), (0.0, (0, 0, 0)))
    others = sums((1.0, (0.7, 0.1, 0.2)), (0.0, (0, 0, 0)), (0.0, (0, 0, 0)))
    nothing = [0, 0, 0]
    assert np.allclose(FKD().teaching(everyone, others), [[0.7, 0.1, 0.2], nothing, nothing])
    assert np.allclose(PLS().teaching(everyone, others), [[0.5, 0.3, 0.2], nothing, nothing])


@pytest.mark.parametrize("labels", ["soft", "hard"])
@pytest.mark.parametrize("kind", [FKD, PLS])
def test_where_each_class_has_one_holder_it_is_independent_learning(digits, mixed, kind, labels):
    """To the last bit; and not at all where clients share classes."""
    for data, same in ((digits, True), (mixed, False)):
        alone, made = run(federation(data, Independent())), federation(data, kind(labels))
        kept = {report.kept for report in made.rounds(2)}
        assert (kept == {0.0}) is same
        assert np.array_equal(parameters(made), parameters(alone)) is same


@pytest.mark.parametrize(("levels", "width"), [(51, 1), (52, 2), (13108, 4)])
def test_a_message_reads_back(levels, width):
    codec, clients = KnowledgeCodec(2, levels), 5
    total = np.array([0, 1, clients * levels, 7], dtype=np.uint64)
    message = sum_message(total, clients, codec)
    assert len(message) == 4 + 4 * width
    read, of = read_sum(message, codec)
    assert (read.tolist(), of) == (total.tolist(), clients)
    for broken in (message[:-1], message + b"x", b""):
        with pytest.raises(PeerError):
            read_sum(broken, codec)
