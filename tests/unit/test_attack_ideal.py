"""IDEAL's parts: the generator's loss, what it learns from answers, and how often it asks."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.core.view import Oracle, Public, server_view
from attacks.inversion.ideal import IdealSettings, empty_pool, from_ensembles, from_votes, steal
from secure_fd.errors import BudgetError, LocalError
from secure_fd.votes.codec import Ensemble
from tests.attack_games import answered, linear

SMALL = IdealSettings(epochs=3, batch=8, generator_steps=4, latent=6, channels=2)
IMAGES = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
NOTHING = empty_pool(IMAGES, 4)


network = partial(linear, 64, 4)


def by_brightness(images: Tensor) -> Tensor:
    """One client's votes [N, 1, 4]: the class is the brightest quarter of the rows."""
    rows = images.reshape(len(images), 4, -1).mean(dim=2)
    return nn.functional.one_hot(rows.argmax(dim=1), 4).double()[:, None]


def test_votes_become_distributions_and_nobody_becomes_uniform():
    votes = torch.zeros(3, 2, 4, dtype=torch.float64)
    votes[0, 0, 1], votes[0, 1, 2] = 1.0, 3.0
    votes[2, 0] = torch.tensor([-2.0, 0.5, 0.5, -1.0])
    pool = from_votes(IMAGES[:3], votes, 4)
    assert pool.targets.tolist() == [[0, 0.25, 0.75, 0], [0.25] * 4, [0, 0.5, 0.5, 0]]
    assert pool.answered.tolist() == [True, False, True]
    assert pool.acceptance == pytest.approx(2 / 3)
    assert NOTHING.acceptance == 0
    with pytest.raises(LocalError):
        from_votes(IMAGES[:3], votes[:, 0], 4)


def test_overheard_keeps_the_newest_answer_that_may_teach():
    public = Public(IMAGES, 3, 4, network)
    first = Ensemble(np.array([7, 2]), np.eye(4)[[0, 1]], np.array([True, True]))
    second = Ensemble(np.array([2, 5]), np.eye(4)[[3, 3]], np.array([True, False]))
    pool = from_ensembles(server_view(answered(first, second), public))
    assert torch.equal(pool.images, IMAGES[[2, 7]])
    assert pool.targets.argmax(dim=1).tolist() == [3, 0]
    silent = Ensemble(np.array([1]), np.eye(4)[[0]], np.array([False]))
    assert len(from_ensembles(server_view(answered(silent), public))) == 0
    beyond = Ensemble(np.array([40]), np.eye(4)[[0]], np.array([True]))
    with pytest.raises(LocalError):
        from_ensembles(server_view(answered(beyond), public))


def test_every_image_is_asked_once_and_the_budget_holds():
    asked: list[int] = []

    def answer(images: Tensor) -> Tensor:
        asked.append(len(images))
        return by_brightness(images)

    oracle = Oracle(answer, SMALL.queries)
    pool = steal(network(0), NOTHING, oracle, SMALL, 0)
    # One question a batch, however many passes the student makes over the pool.
    assert asked == [SMALL.batch] * SMALL.epochs
    assert oracle.queries == len(pool) == SMALL.queries
    assert pool.acceptance == 1.0
    with pytest.raises(BudgetError):
        steal(network(0), NOTHING, Oracle(by_brightness, SMALL.queries - 1), SMALL, 0)


def test_silence_teaches_uncertainty():
    def silent(images: Tensor) -> Tensor:
        return torch.zeros(len(images), 2, 4)

    before, student = network(0), network(0)
    settings = replace(SMALL, passes=400)
    asked = steal(student, NOTHING, Oracle(silent, 24), settings, 0)
    assert asked.acceptance == 0
    sure, was = (m(asked.images).softmax(1).max() for m in (student, before))
    assert sure < was - 0.05
