"""All clients in training: each on its own path, at the schedule's rate."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.models import build, flatten
from secure_fd.recipes import SGD, Schedule
from secure_fd.training import Alone, Learner, Lesson, OnSteps, Trainer

CPU = torch.device("cpu")
STEPS = Schedule(warmup_steps=3, sgd=SGD(0.05, 8, 8, own_batch=2, momentum=0.9))
NAMES = ("cnn-5-5-50", "mlp-1024-512-256", "cnn-5-5-50")


def records(seed: int, count: int = 40) -> Images:
    random = torch.Generator().manual_seed(seed)
    pixels = torch.rand(count, 1, 28, 28, generator=random)
    return Images(pixels, torch.randint(10, (count,), generator=random))


def networks() -> list[nn.Module]:
    return [build(name, 10, seed) for seed, name in enumerate(NAMES)]


class Together:
    """Clients that train, as a federation has them do."""

    def __init__(
        self, train: Sequence[Images], schedule: Schedule, on_steps: OnSteps | None = None
    ) -> None:
        self.models = networks()
        self._learners = [
            Learner(model, own, schedule, 4000 + k, CPU)
            for k, (model, own) in enumerate(zip(self.models, train, strict=True))
        ]
        self._run = Alone(on_steps)
        self.begin_round(0)

    def begin_round(self, index: int) -> None:
        for learner in self._learners:
            learner.round = index

    def warm_up(self) -> None:
        for jobs in zip(*(learner.warm_up() for learner in self._learners), strict=True):
            self._run(jobs)

    def local_steps(
        self, steps: int, present: Sequence[int], targets: torch.Tensor | None = None
    ) -> None:
        for jobs in zip(*(self._learners[k].local(steps, targets) for k in present), strict=True):
            self._run(jobs)

    def distillation_steps(
        self, pixels: torch.Tensor, targets: torch.Tensor, steps: int, present: Sequence[int]
    ) -> None:
        lesson = Lesson(pixels, torch.arange(len(pixels)), targets)
        for k in present:
            learner = self._learners[k]
            learner.schedule = replace(learner.schedule, proxy_steps=steps)
        for jobs in zip(*(self._learners[k].distil(lesson) for k in present), strict=True):
            self._run(jobs)


def made(schedule: Schedule = STEPS) -> Together:
    return Together([records(k) for k in range(3)], schedule)


def trainers(schedule: Schedule = STEPS) -> list[Trainer]:
    """The same clients by their trainers, whose steps theirs must be."""
    return [
        Trainer(network, records(k), schedule.sgd, 4000 + k, CPU)
        for k, network in enumerate(networks())
    ]


def apart(one: nn.Module, other: nn.Module) -> float:
    return float((flatten(one) - flatten(other)).abs().max())


def test_every_client_goes_the_way_of_its_trainer():
    together, alone = made(), trainers()
    lesson = records(9)
    targets = nn.functional.one_hot(lesson.labels, 10).float()
    together.local_steps(2, [0, 1, 2])
    together.distillation_steps(lesson.pixels, targets, 3, [0, 2])  # client 1 is away
    for k, trainer in enumerate(alone):
        trainer.local_steps(2)
        if k != 1:
            trainer.distillation_steps(lesson.pixels, targets, 3)
        assert apart(together.models[k], trainer.model) < 1e-4
    assert apart(together.models[0], together.models[2]) > 1e-3


def test_lessons_take_the_place_of_labels():
    plain, taught, turned = made(), made(), made()
    plain.local_steps(2, range(3))
    taught.local_steps(2, range(3), torch.eye(10))
    turned.local_steps(2, range(3), torch.eye(10).roll(1, dims=0))
    for k in range(3):
        assert apart(plain.models[k], taught.models[k]) < 1e-5
        assert apart(plain.models[k], turned.models[k]) > 1e-4


def test_private_records_join_a_distillation_batch():
    trainer = trainers()[0]
    lesson = records(9)
    pixels, targets = trainer.distillation_batch(lesson.pixels, torch.full((40, 10), 0.1))
    assert (len(pixels), len(targets)) == (10, 10)
    assert torch.equal(targets[8:].sum(dim=1), torch.ones(2))
    own = records(0)
    for image, target in zip(pixels[8:], targets[8:], strict=True):
        [index] = [i for i in range(len(own)) if torch.equal(own.pixels[i], image)]
        assert int(target.argmax()) == int(own.labels[index])


def test_taught_labels_are_smoothed_and_private_ones_are_not():
    smooth = replace(STEPS.sgd, smoothing=0.2)
    plain, trainer = (Trainer(networks()[0], records(0), s, 1, CPU) for s in (STEPS.sgd, smooth))
    lesson = records(9)
    taught = nn.functional.one_hot(lesson.labels, 10).float()
    (_, before), (_, after) = (
        t.distillation_batch(lesson.pixels, taught) for t in (plain, trainer)
    )
    assert torch.allclose(after[:8], 0.8 * before[:8] + 0.02)
    assert torch.equal(after[8:], before[8:])


def test_a_long_round_takes_its_steps_at_falling_rates():
    falling = replace(STEPS, anneal_over=2)
    parts = list(falling.rates(1, 60))
    assert [steps for steps, _ in parts] == [20, 20, 20]
    assert [rate for _, rate in parts] == [falling.rate(1, done) for done in (1 / 6, 0.5, 5 / 6)]
    assert list(falling.rates(0, 25)) == [(25, falling.rate(0))]
    assert list(falling.rates(0, 0)) == []
    assert list(STEPS.rates(7, 30)) == [(15, 0.05), (15, 0.05)]
    taught = nn.functional.one_hot(records(9).labels, 10).float()
    learners, [trainer, *_] = made(falling), trainers(falling)
    learners.begin_round(1)
    learners.distillation_steps(records(9).pixels, taught, 60, range(3))
    for steps, rate in parts:
        trainer.learning_rate = rate
        trainer.distillation_steps(records(9).pixels, taught, steps)
    assert apart(learners.models[0], trainer.model) < 1e-4
    learners.local_steps(1, range(3))  # a revisit: at the round's rate, not at the last part's
    trainer.learning_rate = falling.rate(1)
    trainer.local_steps(1)
    assert apart(learners.models[0], trainer.model) < 1e-4
    constant = made()
    constant.distillation_steps(records(9).pixels, taught, 60, range(3))
    assert apart(learners.models[0], constant.models[0]) > 1e-3


def test_the_warm_up_s_rate_falls_where_it_is_asked_to():
    falling = replace(STEPS, warmup_steps=50, anneal_warmup=True)
    rates = [rate for _, rate in falling.warmup_rates]
    assert rates == pytest.approx([0.05 * 0.853553, 0.05 * 0.146447], abs=1e-6)
    constant = replace(falling, anneal_warmup=False)
    assert list(constant.warmup_rates) == [(25, 0.05), (25, 0.05)]
    learners = made(falling)
    learners.warm_up()
    trainer = Trainer(networks()[0], records(0), STEPS.sgd, 2**30 + 4000, CPU)
    for rate in rates:
        trainer.learning_rate = rate
        trainer.local_steps(25)
    assert apart(learners.models[0], trainer.model) < 1e-4


def test_the_rate_falls_to_zero_along_half_a_cosine():
    falling = replace(STEPS, anneal_over=4)
    rates = [falling.rate(r) for r in range(6)]
    assert rates[0] == pytest.approx(0.05 * 0.9619, abs=1e-5)
    assert rates[1] + rates[2] == pytest.approx(0.05)
    assert all(earlier > later for earlier, later in pairwise(rates[:5]))
    assert rates[4:] == [0.0, 0.0]  # a run that goes on does not start over
    assert STEPS.rate(100) == 0.05
    learners = made(falling)
    before = [flatten(model) for model in learners.models]
    learners.begin_round(5)
    learners.local_steps(1, range(3))
    assert all(torch.equal(b, flatten(m)) for b, m in zip(before, learners.models, strict=True))


def strays(labels: torch.Tensor) -> torch.Tensor:
    """One record of each of ten classes, all others of class 0."""
    return torch.where(torch.arange(len(labels)) < 10, torch.arange(len(labels)), 0)


@pytest.mark.parametrize(
    ("relabel", "momentum"),
    [
        (lambda labels: labels % 1, 0.0),
        (lambda labels: labels % 2, 0.0),
        (strays, 0.0),
        (lambda labels: labels % 3, 0.9),
        (lambda labels: labels, 0.9),
    ],
)
def test_the_warm_up_has_momentum_where_clients_hold_some_classes(relabel, momentum):
    """With it, a client of one class or two ends with dead units."""
    held = [replace(r, labels=relabel(r.labels)) for r in map(records, range(3))]
    learners = Together(held, STEPS)
    learners.warm_up()
    sgd = replace(STEPS.sgd, momentum=momentum)
    for k, network in enumerate(networks()):
        Trainer(network, held[k], sgd, 2**30 + 4000 + k, CPU).local_steps(3)
        assert apart(learners.models[k], network) < 1e-6
    assert apart(learners.models[0], networks()[0]) > 1e-4


def test_the_steps_of_those_who_are_present_are_heard_of():
    heard: list[int] = []
    train = [records(k) for k in range(3)]
    learners = Together(train, STEPS, heard.append)
    taught = torch.full((40, 10), 0.1)
    learners.warm_up()
    assert sum(heard) == 3 * 3
    learners.local_steps(2, [0, 1])
    learners.distillation_steps(records(9).pixels, taught, 60, [2])
    assert sum(heard) == 3 * 3 + 2 * 2 + 60
    assert max(heard) <= 25


def test_an_augmentation_that_is_unknown_is_refused():
    with pytest.raises(ConfigurationError, match="augment"):
        made(replace(STEPS, augment="rotate"))


def test_the_warm_up_s_batches_do_not_come_again():
    """Local steps after a warm-up are not the warm-up once more."""
    plain = replace(STEPS, sgd=replace(STEPS.sgd, momentum=0.0))
    warmed, again = made(plain), made(plain)
    warmed.warm_up()
    again.local_steps(3, range(3))
    assert all(apart(a, b) > 1e-4 for a, b in zip(warmed.models, again.models, strict=True))
