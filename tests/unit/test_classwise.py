"""Methods without proxies: what clients say of their classes, who is taught what, and the steps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from attacks.core.view import Capability, Public, server_view
from experiments.core.measures import diagnose
from secure_fd.data.federated import ClientData
from secure_fd.errors import PeerError
from secure_fd.methods.class_means import (
    class_means,
    class_targets,
    read_sum,
    sum_message,
)
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pls import PLS
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Trainer, predict
from secure_fd.votes.codec import FloatArray, KnowledgeCodec, Released, Sums
from secure_fd.wire import Stage
from tests.small_federation import BRIEF, CPU, alike, faults, federation, parameters, run
from tests.unit.toy import network, toy

PREDICTIONS = np.array([[0.8, 0.1, 0.1], [0.4, 0.5, 0.1], [0.0, 0.7, 0.3], [0.3, 0.6, 0.1]])
OF_CLASS = np.eye(3)[[0, 0, 1, 1]]
"""Four records: one of class 0 is taken for class 1. Nobody holds class 2."""


@pytest.fixture(scope="module")
def mixed():
    """Four clients that hold every class."""
    return alike(4, 20, 24)


# What a client says.


def test_a_class_is_answered_by_the_mean_of_its_records():
    made = FKD().contribution(PREDICTIONS, OF_CLASS)
    assert made.weights.tolist() == [1, 1, 0]
    assert np.allclose(made.predictions[:2], [[0.6, 0.3, 0.1], [0.15, 0.65, 0.2]])
    assert not class_means(PREDICTIONS, OF_CLASS)[2].any()


def test_pls_selects_the_records_that_are_named_rightly():
    made = PLS().contribution(PREDICTIONS, OF_CLASS)
    assert made.weights.tolist() == [0.5, 1, 0]
    assert np.allclose(made.predictions[:2], [[0.8, 0.1, 0.1], [0.15, 0.65, 0.2]])
    whole = made.weights[:, None] * made.predictions  # right predictions over all records
    assert np.allclose(whole[0], np.array([0.8, 0.1, 0.1]) / 2)


def test_hard_labels_are_those_of_the_means():
    made = FKD("hard").contribution(PREDICTIONS, OF_CLASS)
    assert made.predictions[:2].tolist() == [[1, 0, 0], [0, 1, 0]]
    vote = PLS("hard").contribution(PREDICTIONS, OF_CLASS)
    units = KnowledgeCodec(3, 1).encode(Released.of(vote))  # half of class 0 is no majority
    assert units.reshape(3, 3).tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


# Who is taught what.


def sums(*rows: tuple[float, Sequence[float]]) -> Sums:
    weights = np.array([weight for weight, _ in rows])
    return Sums(weights, weights[:, None] * np.array([row for _, row in rows]))


def test_fkd_teaches_the_mean_of_the_others_and_pls_the_mean_of_all():
    """Class 0: its own and another's; class 1: its own alone; class 2: nobody's."""
    everyone = sums((2.0, (0.5, 0.3, 0.2)), (1.0, (0.0, 1.0, 0.0)), (0.0, (0, 0, 0)))
    others = sums((1.0, (0.7, 0.1, 0.2)), (0.0, (0, 0, 0)), (0.0, (0, 0, 0)))
    nothing = [0, 0, 0]
    assert np.allclose(FKD().teaching(everyone, others), [[0.7, 0.1, 0.2], nothing, nothing])
    assert np.allclose(PLS().teaching(everyone, others), [[0.5, 0.3, 0.2], nothing, nothing])


def test_a_run_teaches_each_client_what_the_others_said(mixed, monkeypatch):
    lessons: list[FloatArray] = []
    monkeypatch.setattr(
        "secure_fd.methods.class_means.class_targets",
        lambda taught, _: lessons.append(taught) or torch.eye(10),
    )
    still = replace(BRIEF, warmup_steps=0, local_steps=0, proxy_steps=0)
    made = run(federation(mixed, FKD(), schedule=still), 1)  # so the networks still say the same
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
        assert kept <= {0.0, 1.0} or kind is PLS  # which leaves out classes named wrongly
        assert np.array_equal(parameters(made), parameters(alone)) is same


def test_rows_of_classes_are_no_answers_about_proxies(mixed):
    """A student distilled from them would learn one proxy for each class number."""
    made = run(federation(mixed, FKD()), 1)
    assert made.transcript.distillation[-1].result.of_classes
    known = Public(mixed.proxies.pixels, 4, 10, network)
    assert Capability.READ_ENSEMBLES not in server_view(made.transcript, known).capabilities
    assert diagnose(made, mixed) == {}
    assert made.roles[0].scores() is None


# The steps.


def test_one_step_lowers_both_losses_together(monkeypatch):
    """Against CE(f, y) + gamma CE(f, g_y) by autograd, batch being all records."""
    monkeypatch.setattr(Trainer, "_draw", lambda _, population, __: torch.arange(population))
    data, gamma, rate = toy(6), 0.7, 0.3
    lessons = np.array([[0.6, 0.4], [0.0, 0.0]])  # nobody spoke of class 1
    start, twin = network(), network()
    client = ClientData(data, data, 2)
    schedule = Schedule(warmup_steps=0, local_steps=1, proxy_steps=0, sgd=SGD(rate, 16, 16))
    monkeypatch.setattr(FKD, "teaching", lambda *_: lessons)
    monkeypatch.setattr(FKD, "gamma", gamma)
    pair = [start, network(2)]
    Federation(pair, [client] * 2, None, FKD(), schedule=schedule, device=CPU).fit(1)
    logits = twin(data.pixels)
    guide = torch.from_numpy(lessons).float()[data.labels]
    kd = -(guide * functional.log_softmax(logits, dim=1)).sum(dim=1).mean()
    (functional.cross_entropy(logits, data.labels) + gamma * kd).backward()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.sub_(rate * parameter.grad)
    assert torch.allclose(flatten(start), flatten(twin), atol=1e-6)
    assert not torch.allclose(flatten(start), flatten(network()), atol=1e-3)


def test_a_gamma_of_zero_leaves_the_labels_alone(mixed, monkeypatch):
    """The same batches of the same size, whatever a batch of proxies would be."""
    uneven = replace(BRIEF, sgd=SGD(local_batch=16, distillation_batch=4))
    monkeypatch.setattr(FKD, "gamma", 0.0)
    alone, made = (run(federation(mixed, m, schedule=uneven)) for m in (Independent(), FKD()))
    assert np.allclose(parameters(made), parameters(alone), atol=1e-5)
    assert np.array_equal(class_targets(np.ones((3, 3)), 0.0).numpy(), np.eye(3))


# Bytes.


@pytest.mark.parametrize(("levels", "width"), [(51, 1), (52, 2), (13107, 2), (13108, 4)])
def test_a_message_reads_back(levels, width):
    codec, clients = KnowledgeCodec(2, levels), 5
    total = np.array([0, 1, clients * levels, 7], dtype=np.uint64)
    message = sum_message(total, clients, codec)
    assert len(message) == 4 + 4 * width
    read, of = read_sum(message, codec)
    assert (read.tolist(), of) == (total.tolist(), clients)
    for broken in (message[:-1], message + b"x", b""):
        with pytest.raises(PeerError, match="bytes"):
            read_sum(broken, codec)


def test_a_void_round_leaves_plain_labels(mixed):
    plan = faults({0: dict.fromkeys(range(1, 4), Stage.INPUT)})
    made = federation(mixed, FKD(), dropouts=plan, aggregation=MaskedSum(4))
    alone = run(federation(mixed, Independent()), 1)
    [report] = made.fit(1)
    assert (report.aborted, report.kept, report.survivors) == (True, 0.0, ())
    assert np.array_equal(parameters(made)[0], parameters(alone)[0])
