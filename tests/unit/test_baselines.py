"""The rivals with proxies, each by its own rule: an order, a temperature, a central network."""

import numpy as np
import pytest
import torch
from torch import nn

from experiments.rivals.edgefd import EdgeFD
from secure_fd.data.federated import ClientData
from secure_fd.methods.base import Labels, Setting
from secure_fd.methods.ds_fl import DSFL
from secure_fd.methods.feded import FedED, FedEDServer
from secure_fd.methods.selective_fd import SelectiveFD, SelectiveFDAsPublished
from secure_fd.privacy.base import NoProtection
from secure_fd.selection.selectors import KulsifSelector
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Trainer, predict
from secure_fd.votes.codec import Sums
from tests.small_federation import (
    CPU,
    all_proxies,
    ensembles,
    federation,
    networks,
    run,
)
from tests.unit.toy import network, toy

VOTES = Sums(np.array([2.0, 4.0, 0.0]), np.array([[1.2, 0.8], [1.0, 3.0], [0.0, 0.0]]))
"""Means (0.6, 0.4) and (0.25, 0.75), and a proxy that nobody answered."""


# DS-FL sharpens the mean.


def test_the_mean_is_sharpened():
    """softmax(6, 4) and softmax(2.5, 7.5), by hand."""
    made = DSFL().ensemble(np.array([3, 1, 4]), VOTES)
    first, second = 1 / (1 + np.exp(-2.0)), 1 / (1 + np.exp(-5.0))
    assert np.allclose(made.predictions[:2], [[first, 1 - first], [1 - second, second]])
    assert made.kept.tolist() == [True, True, False]
    assert made.indices.tolist() == [3, 1, 4]


# FedED's central network learns, and teaches.


def central(labels: Labels = "soft", *, remember: bool = True, warmup: int = 0) -> FedEDServer:
    steps = Schedule(proxy_steps=3, proxies_per_round=6, remember=remember, sgd=SGD(0.5, 4, 4))
    proxies, shape = toy(6).pixels, (1, 4, 4)
    terms = Setting(2, 2, shape, proxies, steps, (3, 4), bytes(32), None, NoProtection())
    return FedED(labels, network(1), warmup, seed=5).server(terms, network(1))


def votes(*means: tuple[float, float]) -> Sums:
    """Of two clients."""
    return Sums(np.full(len(means), 2.0), 2 * np.array(means))


def taught(*lessons: tuple[list[int], list[tuple[float, float]]], warmup: int = 0) -> nn.Module:
    """A network like the central one after these lessons, by a trainer of its own.

    warmup: steps more on the first lesson.
    """
    twin = network(1)
    trainer = Trainer(twin, toy(2), SGD(0.5, 4, 4), 5, CPU)
    for index, (where, means) in enumerate(lessons):
        steps = 3 + (warmup if index == 0 else 0)
        trainer.take_steps(steps, toy(6).pixels[where], torch.tensor(means))
    return twin


def test_the_central_network_answers_after_it_has_learnt_from_the_mean():
    made, where = central(), np.array([4, 2])
    answer = made.apply(where, votes((0.9, 0.1), (0.3, 0.7)))
    twin = taught(([2, 4], [(0.3, 0.7), (0.9, 0.1)]))
    assert torch.equal(flatten(made._model), flatten(twin))
    assert np.array_equal(answer.predictions, predict(twin, toy(6).pixels[where]))
    assert answer.indices.tolist() == [4, 2]
    assert np.abs(answer.predictions - [[0.9, 0.1], [0.3, 0.7]]).max() > 0.01  # no mean


@pytest.mark.parametrize("remember", [True, False])
def test_the_central_network_learns_from_earlier_rounds(remember):
    made = central(remember=remember)
    made.apply(np.array([2]), votes((0.3, 0.7)))
    made.apply(np.array([4]), votes((0.9, 0.1)))
    later = ([2, 4], [(0.3, 0.7), (0.9, 0.1)])
    alone = ([4], [(0.9, 0.1)])
    rivals = [taught(([2], [(0.3, 0.7)]), lesson) for lesson in (later, alone)]
    same = [torch.equal(flatten(made._model), flatten(twin)) for twin in rivals]
    assert same == [remember, not remember]


def test_hard_answers_are_the_class_that_the_central_network_names():
    made = central("hard")
    where = np.arange(6)
    answer = made.apply(where, votes(*[(1.0, 0.0)] * 6))
    named = predict(made._model, toy(6).pixels).argmax(axis=1)
    assert np.array_equal(answer.predictions, np.eye(2)[named])
    silent = Sums(np.zeros(6), np.zeros((6, 2)))
    assert not made.apply(where, silent).kept.any()


def test_the_central_network_learns_longer_from_the_first_ensemble():
    made, lesson = central(warmup=4), ([2], [(0.3, 0.7)])
    for _ in range(2):
        made.apply(np.array([2]), votes((0.3, 0.7)))
    assert torch.equal(flatten(made._model), flatten(taught(lesson, lesson, warmup=4)))
    assert not torch.equal(flatten(made._model), flatten(taught(lesson, lesson)))


def test_clients_learn_what_the_central_network_says(digits):
    start = networks(1, 9)[0]
    method = FedED("soft", start)
    made = run(federation(digits, method))
    last = ensembles(made)[-1]
    pixels: torch.Tensor = digits.proxies.pixels[torch.from_numpy(last.indices)]
    assert np.array_equal(last.predictions, predict(made.server_role._model, pixels))


# EdgeFD answers near its centroids.


def test_edgefd_answers_where_its_own_records_are(digits):
    """Two records held back a client set its reach, so that means over clients are compared."""
    proxies, labels = digits.proxies.pixels, digits.proxies.labels.numpy()
    rates = []
    for k, client in enumerate(digits.clients):
        near, own = EdgeFD().policy(client, proxies), labels == k
        assert ((near.scores >= 0) == near.weights.astype(bool)).all()
        far = EdgeFD(quantile=1.0).policy(client, proxies)
        assert (far.weights >= near.weights).all()
        rates.append((near.weights[own].mean(), near.weights[~own].mean()))
    its_own, others = np.mean(rates, axis=0)
    assert its_own > others + 0.2
    made = run(federation(digits, EdgeFD("hard"), schedule=all_proxies(digits)), rounds=1)
    [seen] = made.transcript.distillation
    assert 0 < seen.result.kept.mean() < 1
    assert set(np.unique(seen.result.predictions)) == {0.0, 1.0}


# Selective-FD as its authors run it.


def test_as_published_any_class_may_be_named_and_ties_teach(digits):
    """Twin: this package's counted votes name own classes only, and drop ties."""
    client, pixels = digits.clients[1], digits.proxies.pixels
    published = SelectiveFDAsPublished("hard")
    found = published.policy(client, pixels)
    asked = np.flatnonzero(found.weights)
    assert 0 < len(asked) < len(pixels)
    sure = np.tile(np.eye(10)[7], (len(asked), 1))
    assert set(found.contribution(asked, sure, "hard").predictions.argmax(axis=1)) == {7}
    own = SelectiveFD("hard", KulsifSelector(), votes="counted").policy(client, pixels)
    assert set(own.contribution(asked, sure, "hard").predictions.argmax(axis=1)) == {1}
    tie = Sums(np.array([2.0, 0.0]), np.array([[1.0, 1.0], [0.0, 0.0]]))
    taught = published.ensemble(np.arange(2), tie)
    assert taught.kept.tolist() == [True, False]
    assert taught.predictions[0].tolist() == [0.5, 0.5]
    assert not SelectiveFD("hard").ensemble(np.arange(2), tie).kept.any()
    several = ClientData(digits.test, digits.test, 10)
    assert len(several.classes) == 10
    assert published.policy(several, pixels).weights.sum() > 0
