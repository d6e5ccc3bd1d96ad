"""Training steps and predictions of one network, with its own generator."""

import numpy as np
import pytest
import torch
from torch import nn

from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD
from secure_fd.training.trainer import Trainer, accuracy, logits, predict
from tests.toy import network, toy

CPU, USUAL = torch.device("cpu"), SGD(0.5, 16, 16)


def trainer(seed: int = 0, settings: SGD = USUAL) -> Trainer:
    return Trainer(network(), toy(), settings, seed, CPU)


def test_training_leaves_the_global_generators_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    made = trainer(3)
    made.take_steps(3)
    made.take_steps(3, toy().pixels, torch.full((100, 2), 0.5))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])


@pytest.mark.parametrize("batch", [16, 500])
def test_distillation_moves_predictions_to_the_targets(batch):
    """Targets of 0.9 against 0.1, against the true classes."""
    pixels, labels = toy().pixels, toy().labels
    targets = torch.where(nn.functional.one_hot(labels) == 1, 0.1, 0.9)
    made = trainer(0, SGD(0.5, 16, batch))
    before = flatten(made.model)
    made.take_steps(5, pixels[:0], targets[:0])
    assert torch.equal(before, flatten(made.model))
    made.take_steps(300, pixels, targets)
    assert np.abs(predict(made.model, pixels) - targets.numpy()).mean() < 0.05


def test_predictions_are_softmax_rows_whatever_the_batch(monkeypatch):
    model, images = network(), toy(50)
    whole = predict(model, images.pixels)
    assert whole.shape == (50, 2)
    assert whole.dtype == np.float64
    assert whole.sum(axis=1) == pytest.approx(np.ones(50), abs=1e-6)
    outputs = model(images.pixels).detach()
    assert whole == pytest.approx(torch.softmax(outputs, dim=1).numpy(), abs=1e-6)
    labels = outputs.argmax(dim=1)
    assert accuracy(model, images) == float((labels == images.labels).double().mean())
    monkeypatch.setattr("secure_fd.training.trainer._PREDICT_BATCH", 7)
    assert np.allclose(predict(model, images.pixels), whole, atol=1e-6)
    assert torch.equal(logits(model, images.pixels).argmax(dim=1), labels)


def test_predicting_switches_dropout_off_and_leaves_every_layer_as_it_was():
    frozen, dropout = nn.BatchNorm1d(16).eval(), nn.Dropout(0.5)
    model, images = nn.Sequential(nn.Flatten(), frozen, dropout, nn.Linear(16, 2)), toy()
    assert np.array_equal(predict(model, images.pixels), predict(model, images.pixels))
    assert torch.equal(*(logits(model, images.pixels).argmax(dim=1) for _ in range(2)))
    assert [layer.training for layer in (model, frozen, dropout)] == [True, False, True]
    assert not torch.equal(model(images.pixels), model(images.pixels))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_gradient_descent_with_nesterovs_momentum(momentum):
    """Two steps on one record, by autograd on a copy: v = m v + g, and the step is lr (g + m v)."""
    data, copy = toy()[torch.tensor([1])], network()
    made = Trainer(network(), data, SGD(0.3, 16, 16, momentum=momentum), 0, CPU)
    made.take_steps(2)
    velocity = [torch.zeros_like(parameter) for parameter in copy.parameters()]
    for _ in range(2):
        loss = nn.functional.cross_entropy(copy(data.pixels), data.labels)
        gradients = torch.autograd.grad(loss, list(copy.parameters()))
        velocity = [momentum * v + g for v, g in zip(velocity, gradients, strict=True)]
        with torch.no_grad():
            for parameter, g, v in zip(copy.parameters(), gradients, velocity, strict=True):
                parameter.sub_(0.3 * (g + momentum * v))
    assert torch.allclose(flatten(made.model), flatten(copy), atol=1e-6)


def test_every_batch_is_augmented_by_the_trainers_own_generator():
    """Black pictures move the biases alone; and the draw is the one without augmentation."""
    seen: list[torch.Tensor] = []

    def blacken(pixels: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
        seen.append(torch.rand(1, generator=chance))
        return torch.zeros_like(pixels)

    made = Trainer(network(), toy(), SGD(0.5, 16, 16), 0, CPU, blacken)
    first = made.model[1].weight.detach().clone()
    _, labels = made.batch()
    assert torch.equal(labels, trainer().batch()[1])
    made.take_steps(2)
    made.take_steps(2, toy().pixels, torch.full((100, 2), 0.5))
    assert torch.equal(made.model[1].weight, first)
    assert len({float(value) for value in seen}) == 5
