"""Training steps of one network, with its own generator, at the rates of a schedule."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from secure_fd.data.images import Images
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Learner, Trainer, logits, predict, run_each
from tests.toy import network, toy

CPU, USUAL = torch.device("cpu"), SGD(0.5, 16, 16)


def trainer(settings=USUAL, seed=0, own=None, view=None):
    return Trainer(network(), toy() if own is None else own, settings, seed, CPU, view)


def test_training_leaves_the_global_generators_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    made = trainer()
    made.take_steps(3)
    made.take_steps(3, toy().pixels, torch.full((100, 2), 0.5))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])


def test_predictions_are_softmax_rows_without_dropout_whatever_the_batch(monkeypatch):
    frozen, dropout = nn.BatchNorm1d(16).eval(), nn.Dropout(0.5)
    model, images = nn.Sequential(nn.Flatten(), frozen, dropout, nn.Linear(16, 2)), toy(50)
    whole = predict(model, images.pixels)
    assert [layer.training for layer in (model, frozen, dropout)] == [True, False, True]
    monkeypatch.setattr("secure_fd.training.trainer._PREDICT_BATCH", 7)
    assert np.allclose(predict(model, images.pixels), whole, atol=1e-6)
    outputs = model.eval()(images.pixels).detach()
    assert whole == pytest.approx(torch.softmax(outputs, dim=1).numpy(), abs=1e-6)
    assert torch.equal(logits(model, images.pixels).argmax(dim=1), outputs.argmax(dim=1))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_gradient_descent_with_nesterovs_momentum(momentum):
    """Two steps on one record, by autograd on a copy: v = m v + g, and the step is lr (g + m v)."""
    data, copy = toy()[torch.tensor([1])], network()
    made = trainer(SGD(0.3, 16, 16, momentum=momentum), own=data)
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
    seen = []

    def blacken(pixels, chance):
        seen.append(float(torch.rand(1, generator=chance)))
        return torch.zeros_like(pixels)

    made = trainer(view=blacken)
    first = made.model[1].weight.detach().clone()
    assert torch.equal(made.batch()[1], trainer().batch()[1])
    made.take_steps(2)
    made.take_steps(2, toy().pixels, torch.full((100, 2), 0.5))
    assert torch.equal(made.model[1].weight, first)
    assert len(set(seen)) == 5


# The learner of a client, whose steps must be those of a trainer at the rates of the schedule.

STEPS = Schedule(warmup_steps=3, sgd=SGD(0.05, 8, 8, own_batch=2, momentum=0.9))


def difference(one, other):
    return float((flatten(one.model) - flatten(other.model)).abs().max())


def test_a_long_round_takes_its_steps_at_falling_rates():
    falling = replace(STEPS, anneal_over=2, proxy_steps=60)
    parts = list(falling.rates(1, 60))
    assert [steps for steps, _ in parts] == [20, 20, 20]
    assert [rate for _, rate in parts] == [falling.rate(1, done) for done in (1 / 6, 0.5, 5 / 6)]
    assert list(falling.rates(0, 25)) == [(25, falling.rate(0))]
    assert list(falling.rates(0, 0)) == []
    assert list(STEPS.rates(7, 30)) == [(15, 0.05), (15, 0.05)]
    made, alone = Learner(network(), toy(), falling, 0, CPU), trainer(STEPS.sgd)
    pixels, targets = toy(seed=9).pixels, torch.full((100, 2), 0.5)
    made.round = 1
    run_each(list(made.distil(pixels, targets)))
    for steps, rate in parts:
        alone.learning_rate = rate
        alone.take_steps(steps, pixels, targets)
    assert difference(made, alone) < 1e-4
    run_each(list(made.local(1)))  # a revisit: at the round's rate, not at the last part's
    alone.learning_rate = falling.rate(1)
    alone.take_steps(1)
    assert difference(made, alone) < 1e-4


@pytest.mark.parametrize(("classes", "momentum"), [(1, 0.0), ("strays", 0.0), (3, 0.9)])
def test_the_warm_up_has_momentum_where_clients_hold_some_classes(classes, momentum):
    """With it, a client of one class or two ends with dead units; strays are single records."""
    index = torch.arange(100)
    labels = torch.where(index < 10, index, 0) if classes == "strays" else index % classes
    own, wide = Images(toy().pixels, labels), nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    start = flatten(wide)
    made = Learner(wide, own, replace(STEPS, warmup_steps=50, anneal_warmup=True), 4000, CPU)
    run_each(list(made.warm_up()))
    copy = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    nn.utils.vector_to_parameters(start, copy.parameters())
    alone = Trainer(copy, own, replace(STEPS.sgd, momentum=momentum), 2**30 + 4000, CPU)
    for rate in (0.05 * 0.853553, 0.05 * 0.146447):
        alone.learning_rate = rate
        alone.take_steps(25)
    assert difference(made, alone) < 1e-4
