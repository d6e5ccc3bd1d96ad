"""Optimiser, loss, scheduler and precision of one's own, and what hears of rounds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd import Recipe, Schedule, Training, federate, load, parse_split, simulate
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.methods.fedavg import flatten
from secure_fd.own_training import USUAL
from secure_fd.recipes import SGD
from secure_fd.training import Trainer

STEPS = Schedule(warmup_steps=4, local_steps=1, proxy_steps=2, proxies_per_round=60)
CPU = torch.device("cpu")
ADAM = partial(torch.optim.AdamW, lr=1e-3)
HALVING = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)


@pytest.fixture(scope="module")
def digits() -> FederatedData:
    return federate(load("digits"), parse_split("weak"), 3, seed=0)


def recipe(training: Training | None) -> Recipe:
    return Recipe(2, STEPS, training)


def trainer(training: Training, rate: float = 0.1) -> Trainer:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    torch.manual_seed(1)
    records = Images(torch.rand(32, 1, 4, 4), torch.arange(32) % 4)
    return Trainer(network, records, SGD(learning_rate=rate), 0, CPU, training=training)


def test_the_same_optimiser_by_hand_takes_the_same_steps() -> None:
    usual = trainer(USUAL)
    own = trainer(Training(optimiser=partial(torch.optim.SGD, lr=0.1)))
    for made in (usual, own):
        made.local_steps(5)
    assert torch.equal(flatten(usual.model), flatten(own.model))


def test_a_scheduler_sets_the_rate_of_every_step_and_nothing_else_does() -> None:
    made = trainer(Training(optimiser=partial(torch.optim.SGD, lr=0.8), scheduler=HALVING))
    made.learning_rate = 5.0
    made.local_steps(3)
    assert made.learning_rate == pytest.approx(0.1)


def test_a_loss_of_one_s_own_is_what_is_minimised() -> None:
    """Smoothed entropy keeps logits smaller than the plain one does."""
    smooth = Training(loss=partial(functional.cross_entropy, label_smoothing=0.5))
    plain, own = trainer(USUAL, 1.0), trainer(smooth, 1.0)
    for made in (plain, own):
        made.local_steps(100)
    sizes = [float(made.model(torch.ones(1, 1, 4, 4)).detach().std()) for made in (plain, own)]
    assert sizes[1] < 0.7 * sizes[0]


def test_bfloat16_computes_products_and_leaves_parameters_as_they_are() -> None:
    seen: list[torch.dtype] = []
    plain, half = trainer(USUAL), trainer(Training(precision="bfloat16"))
    mixed = trainer(Training(precision="mixed"))
    half.model[1].register_forward_hook(lambda *parts: seen.append(parts[-1].dtype))  # type: ignore[operator,union-attr]
    for made in (plain, half, mixed):
        made.local_steps(3)
    assert set(seen) == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in half.model.parameters())
    assert torch.equal(flatten(plain.model), flatten(mixed.model))  # mixed is for GPUs
    apart = (flatten(plain.model) - flatten(half.model)).abs().max()
    assert 0 < float(apart) < 0.01
    assert Training(precision="mixed").half(torch.device("cuda"))


@pytest.mark.parametrize("method", ["selective-fd", "fedavg"])
def test_a_run_trains_with_what_is_in_its_recipe(digits: FederatedData, method: str) -> None:
    own = recipe(Training(optimiser=ADAM, scheduler=HALVING))
    made = [simulate(digits, method=method, recipe=steps) for steps in (own, own, recipe(None))]
    for each in made:
        each.fit(2)
    first, second, third = (flatten(each.federation.models[0]) for each in made)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def detached(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets).detach()


@pytest.mark.parametrize(
    ("training", "field"),
    [
        (lambda: Training(optimiser=lambda _: "adam"), "optimiser"),  # type: ignore[arg-type,return-value]
        (lambda: Training(optimiser=partial(torch.optim.AdamW, lr=-1)), "optimiser"),
        (lambda: Training(optimiser="adam"), "optimiser"),  # type: ignore[arg-type]
        (lambda: Training(optimiser=torch.optim.LBFGS), "optimiser"),
        (lambda: Training(scheduler=HALVING), "scheduler"),
        (lambda: Training(optimiser=ADAM, scheduler=lambda _: 3), "scheduler"),
        (lambda: Training(loss=detached), "loss"),
        (lambda: Training(loss=functional.mse_loss), "loss"),
        (lambda: Training(loss=partial(functional.cross_entropy, reduction="none")), "loss"),
        (lambda: Training(loss=functional.nll_loss), "loss"),
        (lambda: Training(precision="float16"), "precision"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_is_told_before_anything_trains(
    digits: FederatedData, training: Callable[[], Training], field: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        simulate(digits, recipe=recipe(training()))
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


def test_the_check_leaves_networks_as_they_were(digits: FederatedData) -> None:
    plain, own = (
        simulate(digits, recipe=recipe(t)).federation.models for t in (None, Training(ADAM))
    )
    assert all(torch.equal(flatten(a), flatten(b)) for a, b in zip(plain, own, strict=True))


@pytest.mark.parametrize(
    "options", [{"method": "fedproto"}, {"method": "fedavg", "unit": "record", "epsilon": 4.0}]
)
def test_a_method_with_steps_of_its_own_refuses(
    digits: FederatedData, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match="training: "):
        simulate(digits, recipe=recipe(Training(ADAM)), **options)


# What hears of rounds.
