"""IDEAL's parts: the generator's loss, what answers teach, whom it asks, and how often."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.ideal import (
    DEFAULT,
    PUBLISHED,
    IdealSettings,
    NearestProxies,
    Pool,
    empty_pool,
    from_ensembles,
    from_generator,
    from_pool,
    from_votes,
    generator_loss,
    jitter,
    steal,
    synthesise,
)
from attacks.view import Oracle, Public, server_view
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.knowledge import Ensemble
from tests.attack_games import answered, linear

SMALL = IdealSettings(epochs=3, batch=8, generator_steps=4, latent=6, channels=2)
IMAGES = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
NOTHING = empty_pool(IMAGES, 4)


network = partial(linear, 64, 4)


def by_brightness(images: Tensor) -> Tensor:
    """One client's votes [N, 1, 4]: the class is the brightest quarter of the rows."""
    rows = images.reshape(len(images), 4, -1).mean(dim=2)
    return nn.functional.one_hot(rows.argmax(dim=1), 4).double()[:, None]


def test_generator_loss_is_the_formula() -> None:
    random = np.random.default_rng(0)
    logits, targets = random.normal(size=(6, 4)), random.integers(0, 4, 6)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    cross_entropy = -np.log(p[np.arange(6), targets]).mean()
    for balance in (0.0, 5.0):
        expected = cross_entropy + balance * (p * np.log(p)).mean()
        found = generator_loss(torch.tensor(logits), torch.tensor(targets), balance)
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_generator_loss_survives_a_student_that_is_certain() -> None:
    logits = torch.tensor([[1000.0, 0.0, 0.0]], requires_grad=True)
    loss = generator_loss(logits, torch.tensor([0]), 5.0)
    torch.autograd.backward(loss)
    assert float(loss.detach()) == 0
    assert torch.isfinite(logits.grad if logits.grad is not None else torch.tensor(np.nan)).all()


def test_jitter_shifts_by_at_most_four_pixels_and_mirrors_when_asked() -> None:
    dot = torch.zeros(400, 1, 12, 12)
    dot[:, 0, 6, 5] = 1.0
    for flip in (False, True):
        moved = jitter(dot, torch.Generator().manual_seed(0), flip=flip)
        assert moved.shape == dot.shape
        assert torch.equal(moved.sum(dim=(1, 2, 3)), torch.ones(400))
        _, _, rows, columns = moved.nonzero(as_tuple=True)
        assert set(rows.tolist()) == set(range(2, 11))
        assert set(columns.tolist()) == set(range(1, 11 if flip else 10))


def test_synthesis_is_the_best_batch_seeded_and_leaves_the_student_alone() -> None:
    student = network(0)
    before = [p.detach().clone() for p in student.parameters()]
    state = torch.random.get_rng_state()
    settings = replace(SMALL, generator_steps=25, generator_rate=0.02)
    one, two = (synthesise(student, 4, (1, 8, 8), settings, 3) for _ in range(2))
    assert torch.equal(one.images, two.images)
    assert torch.equal(state, torch.random.get_rng_state())
    assert one.targets.tolist() == [0, 1, 2, 3] * 2
    assert (
        one.loss
        < synthesise(student, 4, (1, 8, 8), replace(settings, generator_steps=1), 3).loss - 0.1
    )
    assert 0 <= one.images.min() <= one.images.max() <= 1
    for parameter, old in zip(student.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.requires_grad
        assert parameter.grad is None


@pytest.mark.parametrize("side", [8, 14, 28, 29])
def test_synthesis_paints_the_side_of_the_proxies(side: int) -> None:
    student = nn.Sequential(nn.Flatten(), nn.Linear(side * side, 4))
    assert synthesise(student, 4, (1, side, side), SMALL, 0).images.shape == (8, 1, side, side)


def test_votes_become_distributions_and_nobody_becomes_uniform() -> None:
    votes = torch.zeros(3, 2, 4, dtype=torch.float64)
    votes[0, 0, 1], votes[0, 1, 2] = 1.0, 3.0
    votes[2, 0] = torch.tensor([-2.0, 0.5, 0.5, -1.0])
    pool = from_votes(IMAGES[:3], votes)
    assert pool.targets.tolist() == [[0, 0.25, 0.75, 0], [0.25] * 4, [0, 0.5, 0.5, 0]]
    assert pool.answered.tolist() == [True, False, True]
    assert pool.acceptance == pytest.approx(2 / 3)
    assert NOTHING.acceptance == 0
    with pytest.raises(LocalError, match=r"votes: \(3, 4\) is not allowed; use \[3, R, C\]"):
        from_votes(IMAGES[:3], votes[:, 0])


def test_overheard_keeps_the_newest_answer_that_may_teach() -> None:
    public = Public(IMAGES, 3, 4, network)
    first = Ensemble(np.array([7, 2]), np.eye(4)[[0, 1]], np.array([True, True]))
    second = Ensemble(np.array([2, 5]), np.eye(4)[[3, 3]], np.array([True, False]))
    pool = from_ensembles(server_view(answered(first, second), public))
    assert torch.equal(pool.images, IMAGES[[2, 7]])
    assert pool.targets.argmax(dim=1).tolist() == [3, 0]
    silent = Ensemble(np.array([1]), np.eye(4)[[0]], np.array([False]))
    assert len(from_ensembles(server_view(answered(silent), public))) == 0
    beyond = Ensemble(np.array([40]), np.eye(4)[[0]], np.array([True]))
    with pytest.raises(LocalError, match="proxy index 40 is not allowed; 40 proxies exist"):
        from_ensembles(server_view(answered(beyond), public))


def test_every_image_is_asked_once_and_the_budget_holds() -> None:
    asked: list[int] = []

    def answer(images: Tensor) -> Tensor:
        asked.append(len(images))
        return by_brightness(images)

    oracle = Oracle(answer, SMALL.queries)
    theft = steal(network(0), NOTHING, oracle, SMALL, 0)
    # One question a batch, however many passes the student makes over the pool.
    assert asked == [SMALL.batch] * SMALL.epochs
    assert oracle.queries == len(theft.asked) == SMALL.queries
    assert theft.batches == (1.0,) * SMALL.epochs
    with pytest.raises(BudgetError, match="8 new queries after 16 exceed the budget of 23"):
        steal(network(0), NOTHING, Oracle(by_brightness, SMALL.queries - 1), SMALL, 0)


def test_a_student_learns_from_answers_and_from_what_was_known_before() -> None:
    # A teacher that names one class only, and a pool that knows better.
    constant = nn.functional.one_hot(torch.zeros(8, dtype=torch.int64), 4)[:, None].double()
    settings = replace(SMALL, passes=40, student_rate=0.05)
    alone = steal(network(0), NOTHING, Oracle(lambda _: constant, 24), settings, 0).student
    assert (alone(IMAGES).argmax(dim=1) == 0).all()
    known = from_votes(IMAGES, by_brightness(IMAGES))
    both = steal(network(0), known, Oracle(lambda _: constant, 24), settings, 0).student
    right = both(IMAGES).argmax(dim=1) == known.targets.argmax(dim=1)
    assert right.float().mean() > 0.8


def test_silence_teaches_uncertainty_or_nothing() -> None:
    def silent(images: Tensor) -> Tensor:
        return torch.zeros(len(images), 2, 4)

    before = network(0)
    settings = replace(SMALL, passes=40, student_rate=0.1, rejected_weight=0.0)
    deaf = steal(network(0), NOTHING, Oracle(silent, 24), settings, 0)
    assert deaf.batches == (0.0,) * 3
    assert torch.equal(deaf.student(IMAGES), before(IMAGES))
    heeding = steal(
        network(0), NOTHING, Oracle(silent, 24), replace(settings, rejected_weight=1.0), 0
    )
    sure, was = (m(heeding.asked.images).softmax(1).max() for m in (heeding.student, before))
    assert sure < was - 0.05


def test_the_nearest_proxies_are_chosen_each_at_most_once() -> None:
    choose = NearestProxies(IMAGES)
    noise = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1)) * 0.01
    wanted = (IMAGES[:12] + noise).clamp(0, 1)
    assert torch.equal(choose(wanted), IMAGES[:12])
    again = choose(wanted)
    taken = torch.cat([IMAGES[:12], again, choose(wanted), choose(wanted)])
    assert len(taken) == 40
    assert len(torch.unique(taken.flatten(1), dim=0)) == 40
    assert choose(wanted).shape == (0, 1, 8, 8)
    # The run ends where nothing is left to ask about.
    theft = steal(
        network(0), NOTHING, Oracle(by_brightness, 40), replace(SMALL, epochs=9), 0,
        NearestProxies(IMAGES),
    )  # fmt: skip
    assert len(theft.asked) == 40
    assert len(theft.batches) == 5


def test_votes_over_other_classes_are_refused() -> None:
    def three(images: Tensor) -> Tensor:
        return torch.ones(len(images), 1, 3)

    with pytest.raises(LocalError, match="votes: 3 classes, not 4"):
        steal(network(0), NOTHING, Oracle(three, 24), SMALL, 0)


def test_the_pool_shows_the_surest_images_of_each_class_and_breaks_ties_at_random() -> None:
    targets = torch.zeros(40, 4)
    targets[:20, 1] = torch.linspace(0.6, 0.9, 20)
    targets[20:, 3] = 1.0
    answered = torch.ones(40, dtype=torch.bool)
    answered[19] = False
    found = from_pool(Pool(IMAGES, targets, answered), 2, 0)
    assert found is not None
    assert found.groups.tolist() == [1, 1, 3, 3]
    assert torch.equal(found.images[:2], IMAGES[[18, 17]])
    firsts = {
        float(made.images[2].sum())
        for s in range(30)
        if (made := from_pool(Pool(IMAGES, targets, answered), 2, s)) is not None
    }
    assert len(firsts) > 10
    assert from_pool(NOTHING, 2, 0) is None
    assert from_pool(Pool(IMAGES, targets, torch.zeros(40, dtype=torch.bool)), 2, 0) is None


def test_the_generator_shows_every_class_and_the_student_picks() -> None:
    student = network(0)
    found = from_generator(student, Public(IMAGES, 1, 4, network), 1, SMALL, 0)
    every = synthesise(student, 4, (1, 8, 8), SMALL, 0)
    assert found.groups.tolist() == [0, 1, 2, 3]
    for c in range(4):
        losses = nn.functional.cross_entropy(
            student(every.images), torch.full((8,), c), reduction="none"
        ).masked_fill(every.targets != c, torch.inf)
        assert torch.equal(found.images[c], every.images[losses.argmin()])


def test_settings_are_checked_and_the_published_ones_are_the_papers() -> None:
    assert PUBLISHED.queries == 25_000
    assert (PUBLISHED.generator_steps, PUBLISHED.generator_rate, PUBLISHED.balance) == (30, 1e-3, 5)
    assert (PUBLISHED.student_rate, PUBLISHED.momentum, PUBLISHED.decay) == (0.01, 0.9, 5e-4)
    assert not PUBLISHED.warm
    assert DEFAULT.queries < PUBLISHED.queries
    with pytest.raises(ConfigurationError, match=r"ideal\.epochs: 0 is not allowed"):
        IdealSettings(epochs=0)
    with pytest.raises(ConfigurationError, match=r"ideal\.student_rate"):
        IdealSettings(student_rate=0)
    with pytest.raises(ConfigurationError, match=r"ideal\.rejected_weight"):
        IdealSettings(rejected_weight=1.5)
