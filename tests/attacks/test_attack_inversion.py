"""Model inversion by a public prior: GMI and IDEAL beat their controls on leaky targets alone."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.core.base import Images
from attacks.core.fit import label_function
from attacks.core.run import attack_view
from attacks.core.view import AnswerFunction, Capability, Oracle, Public, View, server_view
from attacks.inversion.gmi import PUBLIC_TARGET, InversionSettings, ModelInversion
from attacks.inversion.ideal import Ideal, IdealSettings, empty_pool, steal
from secure_fd.errors import BudgetError
from secure_fd.protocol.transcript import ObservedRound, Transcript
from secure_fd.training.models import flatten
from secure_fd.training.trainer import logits
from secure_fd.votes.codec import Ensemble, one_hot
from tests.attack_games import TRAINING, answered, client_view, mlp, part, prior, private_network
from tests.attack_games import inverted_truth as truth
from tests.attack_games import known as public

SEARCH = InversionSettings(steps=60, restarts=2, per_class=1)


@cache
def attack() -> ModelInversion:
    return ModelInversion.prepare(public(), prior(), 0, SEARCH, TRAINING)


def test_global_parameters_are_inverted_and_beat_a_random_private_network():
    seen = Transcript(3)
    seen.add_parameters(ObservedRound(0, flatten(private_network()).numpy()))
    estimate = attack().estimate(server_view(seen, public()), 0)
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
    labels = logits(private_network(), public().proxies).argmax(dim=1)
    ensemble = Ensemble(np.arange(600), one_hot(labels.numpy(), 10), np.ones(600, dtype=bool))
    estimate = attack().estimate(client_view(answered(ensemble), public()), 0)
    assert estimate.target == "student of ensembles"
    result = attack().with_truth(truth()).score(estimate, 0)
    assert result.details["attack_accuracy"] >= 0.7


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
