"""Methods without proxies: predictions by class, the distillation from them, and its steps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from secure_fd.data.federated import ClientData
from secure_fd.errors import PeerError
from secure_fd.methods.class_means import class_means, read_sum, sum_message
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pls import PLS
from secure_fd.simulation.federation import Federation
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Trainer, predict
from secure_fd.votes.codec import FloatArray, KnowledgeCodec, Sums
from tests.small_federation import BRIEF, CPU, alike, federation, parameters, run
from tests.toy import network, toy

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


def sums(*rows: tuple[float, Sequence[float]]) -> Sums:
    weights = np.array([weight for weight, _ in rows])
    return Sums(weights, weights[:, None] * np.array([row for _, row in rows]))


def test_fkd_distils_the_mean_of_the_others_and_pls_the_mean_of_all():
    """Class 0: its own and another's; class 1: its own alone; class 2 has no holder."""
    everyone = sums((2.0, (0.5, 0.3, 0.2)), (1.0, (0.0, 1.0, 0.0)), (0.0, (0, 0, 0)))
    others = sums((1.0, (0.7, 0.1, 0.2)), (0.0, (0, 0, 0)), (0.0, (0, 0, 0)))
    nothing = [0, 0, 0]
    assert np.allclose(FKD().teaching(everyone, others), [[0.7, 0.1, 0.2], nothing, nothing])
    assert np.allclose(PLS().teaching(everyone, others), [[0.5, 0.3, 0.2], nothing, nothing])


def test_a_client_of_a_run_distils_the_predictions_of_the_others(mixed, monkeypatch):
    lessons: list[FloatArray] = []
    monkeypatch.setattr(
        "secure_fd.methods.class_means.class_targets",
        lambda taught, _: lessons.append(taught) or torch.eye(10),
    )
    still = replace(BRIEF, warmup_steps=0, local_steps=0, proxy_steps=0)
    made = run(federation(mixed, FKD(), schedule=still), 1)  # networks are still the same
    means = np.stack(
        [
            class_means(predict(model, c.train.pixels), np.eye(10)[c.train.labels.numpy()])
            for model, c in zip(made.models, mixed.clients, strict=True)
        ]
    )
    assert len(lessons) == len(mixed.clients)
    for client, taught in enumerate(lessons):
        wanted = np.delete(means, client, axis=0).mean(axis=0)
        assert np.abs(taught - wanted).max() < 1 / 4095
        assert np.abs(taught - means.mean(axis=0)).max() > 10 / 4095  # its own would show


@pytest.mark.parametrize("labels", ["soft", "hard"])
@pytest.mark.parametrize("kind", [FKD, PLS])
def test_where_each_class_has_one_holder_it_is_independent_learning(digits, mixed, kind, labels):
    """To the last bit; and not at all where clients share classes."""
    for data, same in ((digits, True), (mixed, False)):
        alone, made = run(federation(data, Independent())), federation(data, kind(labels))
        kept = {report.kept for report in made.rounds(2)}
        assert (kept == {0.0}) is same
        assert np.array_equal(parameters(made), parameters(alone)) is same


def test_one_step_lowers_both_losses_together(monkeypatch):
    """Against CE(f, y) + gamma CE(f, g_y) by autograd, batch being all records."""
    monkeypatch.setattr(Trainer, "_draw", lambda _, population, __: torch.arange(population))
    data, gamma, rate = toy(6), 0.7, 0.3
    lessons = np.array([[0.6, 0.4], [0.0, 0.0]])  # class 1 has no prediction
    start, copy = network(), network()
    client = ClientData(data, data, 2)
    schedule = Schedule(warmup_steps=0, local_steps=1, proxy_steps=0, sgd=SGD(rate, 16, 16))
    monkeypatch.setattr(FKD, "teaching", lambda *_: lessons)
    monkeypatch.setattr(FKD, "gamma", gamma)
    pair = [start, network(2)]
    Federation(pair, [client] * 2, None, FKD(), schedule=schedule, device=CPU).fit(1)
    logits = copy(data.pixels)
    guide = torch.from_numpy(lessons).float()[data.labels]
    kd = -(guide * functional.log_softmax(logits, dim=1)).sum(dim=1).mean()
    (functional.cross_entropy(logits, data.labels) + gamma * kd).backward()
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.sub_(rate * parameter.grad)
    assert torch.allclose(flatten(start), flatten(copy), atol=1e-6)
    assert not torch.allclose(flatten(start), flatten(network()), atol=1e-3)


@pytest.mark.parametrize(("levels", "width"), [(51, 1), (52, 2), (13107, 2), (13108, 4)])
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
