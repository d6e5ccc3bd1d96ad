"""Gradient inversion in its parts: updates, the closed form, labels, the search, the score."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.core.base import AttackResult, Labelled, seeded
from attacks.core.base import Images as Guesses
from attacks.core.fit import network
from attacks.core.images import CEILING, match
from attacks.core.view import Public, View, server_view
from attacks.inversion.update_truth import UpdateTruth, references
from attacks.inversion.updates import (
    Mismatch,
    Recipe,
    Search,
    check_explained,
    client_updates,
    first_layer,
    invert_first_layer,
    mean_update,
    newest_draw,
    scaling_before,
    split_fixed,
)
from attacks.inversion.updates_attack import AnalyticInversion
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.simulation.federation import Federation
from secure_fd.training.models import Standardise, flatten
from secure_fd.training.recipes import SGD, Schedule
from tests.attack_games import perceptron

SIDE, CLASSES = 8, 3


def built(layers: Callable[[], list[nn.Module]]) -> Callable[[int], nn.Module]:
    return lambda seed: seeded(lambda: nn.Sequential(Standardise(), *layers()), seed)


def hidden(inputs: int, units: int) -> list[nn.Module]:
    layers = nn.Flatten(), nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, CLASSES)
    return list(layers)


ARCHITECTURES = {
    "mlp": built(lambda: hidden(64, 96)),
    "cnn": built(lambda: [nn.Conv2d(1, 12, 3), nn.ReLU(), *hidden(432, 24)]),
}


def records(count: int, seed: int) -> Labelled:
    """Images on the grid of 8-bit greys; a class is a bright band of three rows."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    greys = torch.randint(0, 90, (count, 1, SIDE, SIDE), generator=random)
    for c in range(CLASSES):
        greys[labels == c, :, 2 * c : 2 * c + 3] += 120
    return Labelled(greys.float() / 255, labels)


@cache
def public(architecture: str = "mlp") -> Public:
    known = records(60, 1)
    return Public(known.images, 3, CLASSES, ARCHITECTURES[architecture], known.labels)


@cache
def run(architecture: str, recipe: Recipe, per_client: int = 12, rounds: int = 2) -> View:
    """Real FedAvg of three clients, each with all classes; seeds as FedAvg gives them: k."""
    clients = [records(per_client, 10 + k) for k in range(3)]
    data = [
        ClientData(Images(c.images, c.labels), Images(c.images[:0], c.labels[:0]), CLASSES)
        for c in clients
    ]
    fedavg = Federation(
        [public(architecture).architecture(5) for _ in clients],
        data,
        None,
        FedAvg(),
        schedule=Schedule(
            local_steps=recipe.steps,
            proxy_steps=0,
            sgd=SGD(recipe.learning_rate, recipe.batch),
        ),
    )
    fedavg.fit(rounds)
    return server_view(fedavg.transcript, public(architecture))


def drawn(recipe: Recipe, per_client: int = 12, rounds: int = 2) -> dict[int, Labelled]:
    return {
        k: records(per_client, 10 + k).take(newest_draw(k, per_client, recipe, rounds))
        for k in range(3)
    }


# Updates


def test_updates_need_a_round_before():
    view = run("mlp", Recipe(1))
    with pytest.raises(MissingCapabilityError, match="from before the newest round"):
        mean_update(replace(view, models=view.models[-1:]), Recipe(1))


def test_bad_settings_and_foreign_parameters_are_refused():
    with pytest.raises(ConfigurationError, match="batch"):
        Recipe(0)
    with pytest.raises(ConfigurationError, match="learning_rate"):
        Recipe(1, learning_rate=float("nan"))
    with pytest.raises(ConfigurationError, match=r"search\.iterations"):
        Search(iterations=0)
    with pytest.raises(LocalError, match="7 values, but the architecture has"):
        network(public(), torch.zeros(7))


# The truth


@pytest.mark.parametrize("recipe", [Recipe(1), Recipe(4, 3)])
def test_the_replayed_draw_explains_real_updates_and_no_other_does(recipe):
    view, truth = run("mlp", recipe), drawn(recipe)
    for updates in (client_updates(view, recipe), mean_update(view, recipe)):
        check_explained(public(), updates, recipe, truth)
        wrong = {**truth, 1: truth[0]}
        with pytest.raises(LocalError, match="misses the update"):
            check_explained(public(), updates, recipe, wrong)


# The closed form


def test_a_first_layer_must_be_linear_behind_a_pixelwise_scaling():
    with pytest.raises(MissingCapabilityError, match="fully connected first layer"):
        first_layer(public("cnn"))
    with pytest.raises(MissingCapabilityError, match="pixelwise scaling"):
        scaling_before(nn.Sigmoid(), (1, SIDE, SIDE))
    with pytest.raises(MissingCapabilityError, match="pixelwise scaling"):
        scaling_before(nn.AvgPool2d(2), (1, SIDE, SIDE))
    with pytest.raises(MissingCapabilityError, match="sequential"):
        split_fixed(nn.Linear(2, 2))
    scaling = first_layer(public()).scaling
    image = records(1, 0).images
    given = Standardise()(image).double().flatten(1)
    assert torch.allclose(scaling.pixels(given), image.double().flatten(1), atol=1e-6)


def test_black_pixels_are_read_as_black_whatever_their_sign():
    """Where nothing is standardised, ratios of black are 0 or -0.0, which has other bytes."""
    image = torch.zeros(1, 1, SIDE, SIDE)
    image[0, 0, 2] = 200 / 255
    plain = Public(records(60, 1).images, 3, CLASSES, partial(perceptron, 64, 96, CLASSES))
    model = plain.architecture(5)
    loss = nn.functional.cross_entropy(model(image), torch.tensor([1]))
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    gradient = torch.cat([slope.flatten() for slope in slopes]).double()
    found = invert_first_layer(first_layer(plain), gradient, 2, grid=True)
    assert found.certain == 1
    assert found.images[0].numpy().tobytes() == image[0].numpy().tobytes()


def test_no_gradient_and_pure_noise_make_nothing_certain():
    layer, length = first_layer(public()), len(flatten(public().architecture(0)))
    random = torch.Generator().manual_seed(0)
    for count in (1, 4):
        nothing = torch.zeros(length).double()
        assert len(invert_first_layer(layer, nothing, count, grid=True).images) == 0
        noise = torch.randn(length, generator=random, dtype=torch.float64)
        assert invert_first_layer(layer, noise, count, grid=True).certain == 0


# The search


@pytest.mark.parametrize("recipe", [Recipe(1), Recipe(2, 3)])
def test_the_true_records_have_no_mismatch_and_others_do(recipe):
    """Unrolled as many steps as the client took; one step fewer must not fit."""
    view, truth = run("cnn", recipe), drawn(recipe)
    updates = client_updates(view, recipe)
    model = network(public("cnn"), updates.start)
    labels = torch.stack([truth[k].labels for k in range(3)])
    images = torch.stack([truth[k].images for k in range(3)])
    wanted, zero, one = updates.gradients.float(), torch.zeros(1), torch.ones(1)
    apart = Mismatch(model, labels, wanted, recipe, zero, one, tv=0.0)
    assert apart(images).max() < 1e-3
    assert (apart(images.flip(0))[[0, 2]] > 0.01).all()


def scored(estimate: Guesses, truth: UpdateTruth) -> AttackResult:
    return AnalyticInversion(public(), Recipe(batch=1), truth=truth).score(estimate, 0)


def guess_at(images: list[Tensor], certain: int = 0) -> Guesses:
    groups = torch.arange(3).repeat_interleave(len(images[0]))
    sure = torch.arange(len(images[0])).repeat(3) < certain
    return Guesses(torch.cat(images), groups, sure=sure)


def test_guesses_are_matched_whatever_their_order():
    truth = records(7, 0).images
    shuffled = truth[torch.randperm(7, generator=torch.Generator().manual_seed(1))]
    found = match(torch.cat([torch.zeros(2, 1, SIDE, SIDE), shuffled]), truth)
    assert found.decibel.tolist() == [CEILING] * 7
    assert found.errors.tolist() == [0.0] * 7
    with pytest.raises(LocalError, match="6 for 7 records"):
        match(truth[:6], truth)


def behind(count: int, seed: int, pool: int = 90) -> tuple[dict[int, Labelled], Any]:
    """By client, private records and held-out ones."""
    private = {k: records(count, seed + k) for k in range(3)}
    return private, {k: references(private[k], records(pool, seed + 10), k) for k in private}


def test_a_wrong_claim_of_certainty_shows():
    wrong = guess_at([records(4, 70 + k).images for k in range(3)], certain=4)
    result = scored(wrong, UpdateTruth(*behind(4, 20), wrong))
    assert (result.details["certain"], result.details["certain_and_right"]) == (12, 0)
    assert result.details["share_exact"] == 0


def test_guesses_without_access_have_a_fair_delta():
    """Twenty seeds: their mean Δ is within three standard errors of 0 (false alarms .3 %).

    Guesses that are a tenth of the way to the truth are caught by the same rule.
    """

    def mean_over_error(share: float) -> float:
        deltas = []
        for seed in range(20):
            private, held_out = behind(4, 1000 + 20 * seed, 60)
            blind = [records(4, 9000 + 10 * seed + k).images for k in range(3)]
            near = [(1 - share) * b + share * private[k].images for k, b in enumerate(blind)]
            truth = UpdateTruth(private, held_out, guess_at(blind))
            deltas.append(scored(guess_at(near), truth).figure)
        return float(np.mean(deltas) / (np.std(deltas, ddof=1) / 20**0.5))

    assert abs(mean_over_error(0.0)) < 3
    assert mean_over_error(0.1) > 3


def test_references_are_as_many_class_by_class_and_enough_or_refused():
    private = records(5, 0)
    for chosen in references(private, records(60, 9), 0):
        assert torch.equal(chosen.labels.sort().values, private.labels.sort().values)
    assert len(references(private.take(torch.tensor([0])), records(60, 9), 0)) > 10
    with pytest.raises(LocalError, match="1 of class 0, but 2 needed"):
        references(private, records(3, 9), 0)


@pytest.mark.parametrize(
    ("held_out", "words"),
    [
        ([records(2, 1)], "differ in labels"),
        ([records(3, 0)], "members too"),
        ([], "no held-out"),
    ],
)
def test_the_truth_refuses_unequal_shared_or_missing_references(held_out, words):
    nothing = guess_at([records(1, k).images for k in range(3)])
    with pytest.raises(LocalError, match=words):
        UpdateTruth({0: records(3, 0)}, {0: held_out}, nothing)
