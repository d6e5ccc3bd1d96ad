"""The scene of Fig. 8: public digits are not private ones, and its queries pass by every filter."""

import numpy as np
import torch

from attacks.base import Labelled, require_disjoint
from experiments.scenes import Job, load
from experiments.scenes.figure8 import FIRST_PRIVATE, FULL, QUICK, SCENE, _direct, digits, some
from secure_fd import models
from secure_fd.data.images import concatenate
from secure_fd.training import predict


def test_the_prior_sees_no_private_digit_and_nothing_overlaps():
    made = digits("mnist5k", None, 3)
    data = made.private
    assert made.outside.labels.max() < FIRST_PRIVATE
    private = concatenate([part for c in data.clients for part in (c.train, c.validation)])
    parts = [private, data.proxies, data.held_out, data.test, made.outside]
    assert all(part.labels.min() >= FIRST_PRIVATE for part in parts[:-1])
    assert [client.classes for client in data.clients] == [(5,), (6,), (7,), (8,), (9,)]
    assert sum(map(len, parts)) == 5000
    for i, one in enumerate(parts):
        for other in parts[i + 1 :]:
            require_disjoint(Labelled(one.pixels, one.labels), Labelled(other.pixels, other.labels))
    assert len(some(made.outside, 30, 0)) == 30


def test_direct_queries_are_answered_by_every_client():
    networks = [models.build(models.SHARED, 10, seed) for seed in (0, 1, 2)]
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    soft, hard = _direct(networks, "soft")(images), _direct(networks, "hard")(images)
    assert soft.shape == hard.shape == (4, 3, 10)
    np.testing.assert_allclose(soft[:, 1], predict(networks[1], images), rtol=1e-5)
    assert torch.equal(hard.argmax(2), soft.argmax(2))
    assert set(hard.unique().tolist()) == {0.0, 1.0}


def test_the_scene_is_one_of_the_suite_and_its_set_has_digits():
    assert load(SCENE.name) is SCENE
    assert set(SCENE.rows(Job())) == {"fedavg", "selective-fd-soft", "selective-fd-hard"}
    assert set(SCENE.rows(Job("mnist"))) == set(SCENE.rows(Job()))
    assert SCENE.rows(Job("fashion_mnist")) == {}


def test_what_is_reduced_is_the_size_alone():
    """Rates, ratios and the form of the loss stay GMI's."""
    assert (FULL.prior.latent, FULL.prior.critic_steps, FULL.prior.batch) == (100, 5, 64)
    assert (FULL.prior.learning_rate, FULL.prior.channels) == (2e-4, 16)
    assert (FULL.literal.steps, FULL.literal.restarts, FULL.literal.averaged) == (1500, 5, True)
    # Five codes of a published batch: the summed search takes the same step a code.
    assert FULL.search.rate == FULL.literal.rate / 5
    assert not FULL.theft.warm
    assert not QUICK.theft.warm
