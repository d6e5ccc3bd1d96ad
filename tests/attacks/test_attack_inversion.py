"""Model inversion by a public prior: GMI and IDEAL beat their controls on leaky targets alone."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from attacks.core.base import Images, seeded
from attacks.core.fit import label_function
from attacks.core.run import attack_view
from attacks.core.view import (
    AnswerFunction,
    Capability,
    Oracle,
    Public,
    View,
    server_view,
)
from attacks.inversion.gmi import PUBLIC_TARGET, InversionSettings, ModelInversion, invert
from attacks.inversion.ideal import Ideal, IdealSettings, empty_pool, from_votes, steal
from attacks.inversion.prior import Prior
from secure_fd.errors import BudgetError
from secure_fd.protocol.transcript import ObservedRound, Transcript
from secure_fd.training.trainer import logits
from secure_fd.votes.codec import Ensemble, one_hot
from tests.attack_games import TRAINING, answered, client_view, mlp, part, prior, private_network
from tests.attack_games import inverted_truth as truth
from tests.attack_games import known as public

SEARCH = InversionSettings(steps=60, restarts=2, per_class=1)


@cache
def attack() -> ModelInversion:
    return ModelInversion.prepare(public(), prior(), 0, SEARCH, TRAINING)


def fedavg(parameters: np.ndarray) -> Transcript:
    run = Transcript(3)
    run.add_parameters(ObservedRound(0, parameters))
    return run


def answer(labels: Tensor, kept: np.ndarray) -> Ensemble:
    return Ensemble(np.arange(len(labels)), one_hot(labels.numpy(), 10), kept)


def flat(model: nn.Module) -> np.ndarray:
    return parameters_to_vector(model.parameters()).detach().numpy()


def test_global_parameters_are_inverted_and_beat_a_random_private_network():
    view = server_view(fedavg(flat(private_network())), public())
    estimate = attack().estimate(view, 0)
    result = attack().with_truth(truth()).score(estimate, 0)
    assert estimate.target == "global model"
    right = result.details["attack_accuracy"]
    assert right >= 0.8
    untrained = attack().against(public().architecture(5), "untrained network", 0)
    blind = attack().with_truth(truth()).score(untrained, 0)
    assert right > blind.details["attack_accuracy"] + 0.4
    # An honest public prior shows classes, not records.
    assert result.details["delta_p_value"] > 0.01
    assert result.control == result.details[f"{PUBLIC_TARGET}: delta"]
    assert result.images is not None
    assert result.images["attack"].shape == (10, 16, 16)


def test_ensembles_are_inverted_through_a_student():
    taught = logits(private_network(), public().proxies).argmax(dim=1)
    view = client_view(answered(answer(taught, np.ones(600, dtype=bool))), public())
    estimate = attack().estimate(view, 0)
    assert estimate.target == "student of ensembles"
    result = attack().with_truth(truth()).score(estimate, 0)
    assert result.details["attack_accuracy"] >= 0.7


def test_a_copy_of_private_images_is_leakage_and_the_class_mean_is_not():
    per_class = [(truth().private.labels == c).nonzero()[0, 0] for c in range(10)]
    copies = Images(truth().private.images[torch.stack(per_class)], torch.arange(10))
    result = attack().with_truth(truth()).score(copies, 0)
    assert result.figure > 50
    assert result.interval[0] > 50
    assert result.details["delta_p_value"] < 0.01
    for name in attack().controls:
        assert abs(result.details[f"{name}: delta"]) < 1.0
    # Blur earns raw PSNR: the class mean, made without access, beats a real image of the class.
    held_out = [(truth().held_out.labels == c).nonzero()[0, 0] for c in range(10)]
    real = Images(truth().held_out.images[torch.stack(held_out)], torch.arange(10))
    honest = attack().with_truth(truth()).score(real, 0)
    assert result.details["public class mean: A"] > honest.details["A"]


# The search.


def toy() -> tuple[Prior, nn.Module]:
    """Smooth networks of a few weights, whose gradients differ from code to code."""
    paint = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)), 0)
    judge = seeded(lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), 1)
    target = seeded(lambda: nn.Linear(4, 2), 2)
    for network in (paint, judge, target):
        network.double().requires_grad_(False)
    settings = SimpleNamespace(latent=3)
    return Prior(settings, paint, judge), target


def published_search(made: Prior, target: nn.Module, z: Tensor, labels: Tensor) -> Tensor:
    """The update as the published code writes it: velocity, look-ahead, clamp.

    Its loss is the mean over three classes, so three times the rate makes the same step.
    """
    velocity = torch.zeros_like(z)
    for _ in range(40):
        z = z.detach().requires_grad_()
        images = made.generator(z)
        loss = -made.critic(images).mean() + 100 * cross_entropy(target(images), labels)
        (gradient,) = torch.autograd.grad(loss, z)
        before, velocity = velocity, 0.9 * velocity - 3 * 2e-3 * gradient
        z = torch.clamp(z.detach() - 0.9 * before + 1.9 * velocity, -1, 1)
    return z


def test_the_search_is_the_published_one(monkeypatch):
    made, target = toy()
    classes = torch.tensor([0, 1, 1])
    random = torch.Generator().manual_seed(7)
    start = torch.randn(3, 3, generator=random).clamp(-1, 1).double()
    monkeypatch.setattr(torch, "randn", lambda *_, **__: start)
    found = invert(target, made, classes, InversionSettings(40, 1, 1), seed=0)
    expected = made.generator(published_search(made, target, start, classes))
    torch.testing.assert_close(found.images, expected, rtol=1e-9, atol=1e-12)
    fewer = invert(target, made, classes, InversionSettings(39, 1, 1), seed=0)
    assert not torch.allclose(fewer.images, expected)


# IDEAL: the theft of what clients know, by reading and by asking.

THEFT = IdealSettings(epochs=4, batch=50, generator_steps=6, latent=16, channels=4, passes=4)
LOOSE = InversionSettings(steps=15, restarts=1, per_class=2)


@cache
def ready() -> Ideal:
    return replace(Ideal.prepare(public(), prior(), 0, LOOSE, TRAINING), theft=THEFT)


def votes_of(labels: Tensor) -> Tensor:
    return nn.functional.one_hot(labels, 10).double()[:, None]


def honest(images: Tensor) -> Tensor:
    return votes_of(logits(private_network(), images).argmax(dim=1))


def guessing(images: Tensor) -> Tensor:
    """Says the same of an image every time, and knows nothing."""
    return votes_of((images.sum(dim=(1, 2, 3)) * 1e4).long() % 10)


def round_of(answer: AnswerFunction, known: Public) -> Transcript:
    """A run whose one round asked about the first proxies; a silent ensemble is not kept."""
    votes = answer(known.proxies[:300]).sum(dim=1)
    kept = (votes.sum(dim=1) > 0).numpy()
    return answered(Ensemble(np.arange(300), one_hot(votes.argmax(dim=1).numpy(), 10), kept))


def reading(answer: AnswerFunction, known: Public | None = None) -> View:
    known = known or public()
    return server_view(round_of(answer, known), known)


def asking(answer: AnswerFunction) -> View:
    """A server that has read the same round, and injects proxies."""
    oracles = {Capability.INJECT_PROXIES: Oracle(answer, THEFT.queries)}
    return server_view(round_of(answer, public()), public(), oracles)


def accuracy(found: Images) -> float:
    says = label_function(found.network)(truth().held_out.images)
    return float((says == truth().held_out.labels).double().mean())


@pytest.mark.parametrize("access", [reading, asking])
def test_a_teacher_that_knows_is_stolen_and_one_that_guesses_is_not(access):
    """Power first, by reading and by injecting; then chance, to 4 deviations (1 in 10^4)."""
    chance = 0.1 + 4 * np.sqrt(0.09 / len(truth().held_out))
    assert accuracy(ready().estimate(access(honest), 0)) > 0.6
    null = ready().estimate(access(guessing), 0)
    assert accuracy(null) < chance + 0.04  # classes are a little unequal
    assert ready().with_truth(truth()).score(null, 0).details["delta_p_value"] > 0.001


def test_a_memorising_selector_shows_private_images_among_the_proxies():
    """A mutation: members among the proxies, and clients that answer near their records only."""
    inside = part(600, 700)
    mixed = Public(torch.cat([part(0, 200).images, inside.images]), 3, 10, mlp)

    def remembers(images: Tensor) -> Tensor:
        near = torch.cdist(images.flatten(1), truth().private.images.flatten(1)).min(dim=1).values
        return honest(images) * (near < 0.1)[:, None, None]

    caught, fair = (
        attack_view(ready().with_truth(truth()), reading(answer, mixed), 0).details
        for answer in (remembers, honest)
    )
    assert caught["pool: delta"] > 30
    assert caught["pool: delta_p_value"] < 0.01
    assert caught["answers"] < 0.6 * 300
    assert fair["answers"] == 300
    assert fair["pool: delta"] < caught["pool: delta"] - 10


# What trained clients answer.


def test_votes_become_distributions_and_nobody_becomes_uniform():
    votes = torch.zeros(3, 2, 4, dtype=torch.float64)
    votes[0, 0, 1], votes[0, 1, 2] = 1.0, 3.0
    votes[2, 0] = torch.tensor([-2.0, 0.5, 0.5, -1.0])
    pool = from_votes(torch.zeros(3, 1, 8, 8), votes, 4)
    assert pool.targets.tolist() == [[0, 0.25, 0.75, 0], [0.25] * 4, [0, 0.5, 0.5, 0]]
    assert pool.answered.tolist() == [True, False, True]


def test_every_image_is_asked_once_and_the_budget_holds():
    """One question a batch, however many passes the student makes over the pool."""
    asked: list[int] = []

    def answer(images: Tensor) -> Tensor:
        asked.append(len(images))
        return guessing(images)

    oracle, nothing = Oracle(answer, THEFT.queries), empty_pool(public().proxies, 10)
    pool = steal(mlp(0), nothing, oracle, THEFT, 0)
    assert asked == [THEFT.batch] * THEFT.epochs
    assert oracle.queries == len(pool) == THEFT.queries
    with pytest.raises(BudgetError):
        steal(mlp(0), nothing, Oracle(guessing, THEFT.queries - 1), THEFT, 0)
