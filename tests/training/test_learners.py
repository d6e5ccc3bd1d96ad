"""The learner of a client takes the steps of its trainer, at the rates of the schedule."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import nn

from secure_fd.data.images import Images
from secure_fd.training.models import build, flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Learner, Steps, Trainer, run_each

CPU = torch.device("cpu")
STEPS = Schedule(warmup_steps=3, sgd=SGD(0.05, 8, 8, own_batch=2, momentum=0.9))
CNN = "cnn-5-5-50"


def records(seed: int, count: int = 40) -> Images:
    random = torch.Generator().manual_seed(seed)
    pixels = torch.rand(count, 1, 28, 28, generator=random)
    return Images(pixels, torch.randint(10, (count,), generator=random))


OWN, PROXIES = records(0), records(9)
TARGETS = nn.functional.one_hot(PROXIES.labels, 10).float()


def learner(schedule: Schedule = STEPS, own: Images = OWN, name: str = CNN) -> Learner:
    made = Learner(build(name, 10, 0), own, schedule, 4000, CPU)
    made.round = 0
    return made


def trainer(sgd: SGD = STEPS.sgd, name: str = CNN, seed: int = 4000, own: Images = OWN) -> Trainer:
    """The same client's trainer, whose steps must be the learner's."""
    return Trainer(build(name, 10, 0), own, sgd, seed, CPU)


def take(jobs: Iterable[Steps]) -> None:
    run_each(list(jobs))


def distil(made: Learner, steps: int) -> Iterable[Steps]:
    made.schedule = replace(made.schedule, proxy_steps=steps)
    return made.distil(PROXIES.pixels, TARGETS)


def difference(one: Learner | Trainer, other: Learner | Trainer) -> float:
    return float((flatten(one.model) - flatten(other.model)).abs().max())


@pytest.mark.parametrize("name", [CNN, "mlp-1024-512-256"])
def test_a_learner_takes_the_steps_of_its_trainer(name):
    made, alone = learner(name=name), trainer(name=name)
    take(made.local(2))
    take(distil(made, 3))
    alone.take_steps(2)
    alone.take_steps(3, PROXIES.pixels, TARGETS)
    assert difference(made, alone) < 1e-4
    assert difference(made, learner(name=name)) > 1e-3


def test_a_long_round_takes_its_steps_at_falling_rates():
    falling = replace(STEPS, anneal_over=2)
    parts = list(falling.rates(1, 60))
    assert [steps for steps, _ in parts] == [20, 20, 20]
    assert [rate for _, rate in parts] == [falling.rate(1, done) for done in (1 / 6, 0.5, 5 / 6)]
    assert list(falling.rates(0, 25)) == [(25, falling.rate(0))]
    assert list(falling.rates(0, 0)) == []
    assert list(STEPS.rates(7, 30)) == [(15, 0.05), (15, 0.05)]
    made, alone, constant = learner(falling), trainer(), learner()
    made.round = 1
    take(distil(made, 60))
    for steps, rate in parts:
        alone.learning_rate = rate
        alone.take_steps(steps, PROXIES.pixels, TARGETS)
    assert difference(made, alone) < 1e-4
    take(made.local(1))  # a revisit: at the round's rate, not at the last part's
    alone.learning_rate = falling.rate(1)
    alone.take_steps(1)
    assert difference(made, alone) < 1e-4
    take(distil(constant, 60))
    assert difference(made, constant) > 1e-3


@pytest.mark.parametrize(
    ("classes", "momentum"), [(1, 0.0), (2, 0.0), ("strays", 0.0), (3, 0.9), (10, 0.9)]
)
def test_the_warm_up_has_momentum_where_clients_hold_some_classes(classes, momentum):
    """With it, a client of one class or two ends with dead units; strays are single records."""
    index = torch.arange(len(OWN))
    labels = torch.where(index < 10, index, 0) if classes == "strays" else OWN.labels % classes
    own = replace(OWN, labels=labels)
    falling = replace(STEPS, warmup_steps=50, anneal_warmup=True)
    made = learner(falling, own=own)
    take(made.warm_up())
    alone = trainer(replace(STEPS.sgd, momentum=momentum), seed=2**30 + 4000, own=own)
    for rate in (0.05 * 0.853553, 0.05 * 0.146447):
        alone.learning_rate = rate
        alone.take_steps(25)
    assert difference(made, alone) < 1e-4
    assert difference(made, learner()) > 1e-4


def test_the_warm_up_s_batches_do_not_come_again():
    """Local steps after a warm-up are not the warm-up once more."""
    plain = replace(STEPS, sgd=replace(STEPS.sgd, momentum=0.0))
    warmed, again = learner(plain), learner(plain)
    take(warmed.warm_up())
    take(again.local(3))
    assert difference(warmed, again) > 1e-4
