"""Gradient inversion in its parts: updates, the closed form, labels, the search, the score."""

from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
from torch import nn

from attacks.core.base import Labelled, seeded
from attacks.core.fit import network
from attacks.core.images import CEILING, match
from attacks.core.view import Public, View, server_view
from attacks.inversion.updates import (
    LEARNING_RATE,
    client_updates,
    first_layer,
    infer_labels,
    invert_first_layer,
    mismatch,
    newest_draw,
    on_grid,
)
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import MissingCapabilityError
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
def run(architecture: str, batch: int) -> View:
    """Real FedAvg of three clients, each with all classes; seeds as FedAvg gives them: k."""
    clients = [records(12, 10 + k) for k in range(3)]
    data = [
        ClientData(Images(c.images, c.labels), Images(c.images[:0], c.labels[:0]), CLASSES)
        for c in clients
    ]
    fedavg = Federation(
        [public(architecture).architecture(5) for _ in clients],
        data,
        None,
        FedAvg(),
        schedule=Schedule(local_steps=1, proxy_steps=0, sgd=SGD(LEARNING_RATE, batch)),
    )
    fedavg.fit(2)
    return server_view(fedavg.transcript, public(architecture))


def drawn(batch: int) -> dict[int, Labelled]:
    return {k: records(12, 10 + k).take(newest_draw(k, 12, batch, 2)) for k in range(3)}


# Updates


@pytest.mark.parametrize("batch", [1, 4])
def test_labels_follow_from_the_last_bias(batch):
    """Of one record with certainty; of four at least the classes that are present."""
    found = infer_labels(public(), client_updates(run("mlp", batch), batch))
    for labels, own in zip(found, drawn(batch).values(), strict=True):
        assert set(labels.tolist()) <= set(own.labels.tolist())


# The closed form


def test_a_first_layer_must_be_linear_behind_a_pixelwise_scaling():
    with pytest.raises(MissingCapabilityError):
        first_layer(public("cnn"))
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
    found = invert_first_layer(first_layer(plain), gradient, 2)
    assert found[0].numpy().tobytes() == image[0].numpy().tobytes()


def test_no_gradient_and_pure_noise_give_no_record():
    layer, length = first_layer(public()), len(flatten(public().architecture(0)))
    random = torch.Generator().manual_seed(0)
    for count in (1, 4):
        nothing = torch.zeros(length).double()
        assert len(invert_first_layer(layer, nothing, count)) == 0
        noise = torch.randn(length, generator=random, dtype=torch.float64)
        assert not any(map(on_grid, invert_first_layer(layer, noise, count)))


# The search


@pytest.mark.parametrize("batch", [1, 2])
def test_the_true_records_have_no_mismatch_and_others_do(batch):
    view, truth = run("cnn", batch), drawn(batch)
    updates = client_updates(view, batch)
    model = network(public("cnn"), updates.start)
    labels = torch.stack([truth[k].labels for k in range(3)])
    images = torch.stack([truth[k].images for k in range(3)])
    wanted = updates.gradients.float()
    assert mismatch(model, images, labels, wanted).max() < 1e-3
    assert (mismatch(model, images.flip(0), labels, wanted)[[0, 2]] > 0.01).all()


def test_guesses_are_matched_whatever_their_order():
    truth = records(7, 0).images
    shuffled = truth[torch.randperm(7, generator=torch.Generator().manual_seed(1))]
    found = match(torch.cat([torch.zeros(2, 1, SIDE, SIDE), shuffled]), truth)
    assert found.decibel.tolist() == [CEILING] * 7
    assert found.errors.tolist() == [0.0] * 7
