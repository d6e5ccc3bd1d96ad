"""Training together is training apart, within rounding; and what is not the same is caught."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secure_fd import batched as batched_layers
from secure_fd import batched as convolution_block
from secure_fd.cohort import Cohort, group
from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.models import HETEROGENEOUS, build, flatten, load_flat
from secure_fd.recipes import SGD
from secure_fd.training import Augment, Trainer, predict

CPU = torch.device("cpu")
PAIR = range(2)
SETTINGS = SGD(0.02, local_batch=8, distillation_batch=16)
SAME, OTHER = 5e-5, 1e-4
"""Largest differences of parameters after 20 steps: rounding alone leaves 1e-7, unless two pixels
of a pool or a value and zero are so close that it changes their order."""


class Unknown(nn.Module):
    """A network of a user's own, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10))

    def forward(self, pixels: Tensor) -> Tensor:
        out: Tensor = self.layers(pixels)
        return out


def unknown(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Unknown()


def as_the_paper_writes_it(seed: int) -> nn.Module:
    """ReLU before the pool, sides that are odd, a dilation, no biases."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 4, padding=(1, 0), dilation=(1, 2), bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * 13 * 11, 10, bias=False),
        )


def make(name: str, seed: int) -> nn.Module:
    own = {"unknown": unknown, "as written": as_the_paper_writes_it}
    return own[name](seed) if name in own else build(name, 10, seed)


def images(seed: int, count: int = 40) -> Images:
    """Dark below, so that pools meet equal values."""
    chance = torch.Generator().manual_seed(seed)
    pixels = torch.rand(count, 1, 28, 28, generator=chance)
    pixels[..., 14:, :] = 0
    return Images(pixels, torch.randint(10, (count,), generator=chance))


TAUGHT = images(9).pixels
TARGETS = torch.rand(40, 10, generator=torch.Generator().manual_seed(9)).softmax(dim=1)


def cohort(
    name: str, settings: SGD = SETTINGS, augment: Augment | None = None, seeds: Sequence[int] = PAIR
) -> Cohort:
    models = [make(name, k) for k in PAIR]
    own = [
        Trainer(model, images(k), settings, seed, CPU, augment)
        for k, model, seed in zip(PAIR, models, seeds, strict=True)
    ]
    return Cohort(own, CPU)


def trainers(name: str, settings: SGD = SETTINGS, augment: Augment | None = None) -> list[Trainer]:
    return [Trainer(make(name, k), images(k), settings, k, CPU, augment) for k in PAIR]


def train_together(made: Cohort, present: Sequence[int] = PAIR) -> None:
    """20 steps: private records, drawn batches of 16, and all 10 at once."""
    made.local_steps(8, present)
    made.distillation_steps([(TAUGHT, TARGETS)] * len(present), 8, present)
    made.distillation_steps([(TAUGHT[:10], TARGETS[:10])] * len(present), 4, present)


def train_alone(trainer: Trainer) -> None:
    trainer.local_steps(8)
    trainer.distillation_steps(TAUGHT, TARGETS, 8)
    trainer.distillation_steps(TAUGHT[:10], TARGETS[:10], 4)


def furthest(made: Cohort, alone: Sequence[Trainer]) -> float:
    """The largest difference between any two parameters."""
    return max(
        float((flatten(ours) - flatten(theirs.model)).abs().max())
        for ours, theirs in zip(made.models, alone, strict=True)
    )


@pytest.mark.parametrize("name", [*dict.fromkeys(HETEROGENEOUS), "as written", "unknown"])
def test_members_go_the_way_of_their_trainers(name: str) -> None:
    made, alone = cohort(name), trainers(name)
    train_together(made)
    for trainer in alone:
        train_alone(trainer)
    assert furthest(made, alone) < SAME
    for ours, trainer in zip(made.predict(TAUGHT), alone, strict=True):
        assert ours.dtype == np.float64
        assert np.abs(ours - predict(trainer.model, TAUGHT)).max() < 1e-4
        assert ours.sum(axis=1) == pytest.approx(np.ones(40), abs=1e-6)


@pytest.mark.parametrize("name", ["cnn-5-5-50", "cnn-3-3-128", "cnn-5-3-64", "as written"])
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_in_double_precision_are_torchs(name: str, shared: bool) -> None:
    """Rounded, the larger of two pixels may be the other one, and a path then goes elsewhere."""
    models = [make(name, k).double() for k in PAIR]
    columns = zip(*(batched_layers.layer_parameters(model) for model in models), strict=True)
    stacked = [torch.stack(list(c)).detach().requires_grad_() for c in columns]
    pixels = torch.stack([images(0 if shared else k).pixels.double() for k in PAIR])
    given = pixels[:1] if shared else pixels
    batched_layers.batched_logits(models[0], stacked, given).square().sum().backward()  # type: ignore[no-untyped-call]
    for k, model in enumerate(models):
        model(pixels[k]).square().sum().backward()
        for ours, theirs in zip(stacked, batched_layers.layer_parameters(model), strict=True):
            assert ours.grad is not None
            torch.testing.assert_close(ours.grad[k], theirs.grad, rtol=1e-9, atol=1e-9)


def test_a_second_backward_through_one_graph_is_refused() -> None:
    """The first has overwritten what it would read."""
    models = [make("cnn-5-5-50", k) for k in PAIR]
    stacked = [p.requires_grad_() for p in batched_layers.stacked_parameters(models)]
    loss = batched_layers.batched_logits(models[0], stacked, TAUGHT[None]).sum()
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ["cnn-5-3-64", "unknown"])
@pytest.mark.parametrize("twin", ["swapped seeds", "a scaled gradient", "a later batch"])
def test_the_comparison_catches_twins(name: str, twin: str) -> None:
    made = cohort(name, seeds=(1, 0) if twin == "swapped seeds" else PAIR)
    alone = trainers(name)
    if twin == "a scaled gradient":
        made.learning_rate *= 1.05
    if twin == "a later batch":
        alone[1].local_batch()
    train_together(made)
    for trainer in alone:
        train_alone(trainer)
    assert furthest(made, alone) > OTHER


def test_a_pool_that_sends_the_gradient_to_equals_in_both_rows_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In flat regions four pixels are equally large; torch takes the first."""

    def to_both_rows(corners: Sequence[Tensor], largest: Tensor, gradient: Tensor) -> None:
        first, upper, third, lower = corners
        for left, row in ((first, upper), (third, lower)):
            share, is_left = gradient * (row == largest), left == row
            left.copy_(share * is_left)
            row.copy_(share * ~is_left)

    monkeypatch.setattr(convolution_block, "_spread", to_both_rows)
    made, alone = cohort("cnn-5-5-50"), trainers("cnn-5-5-50")
    train_together(made)
    for trainer in alone:
        train_alone(trainer)
    assert furthest(made, alone) > OTHER


@pytest.mark.parametrize("name", ["cnn-3-3-128", "unknown"])
def test_absent_members_and_their_generators_are_left_alone(name: str) -> None:
    made, alone = cohort(name), trainers(name)
    before = flatten(made.models[0])
    train_together(made, [1])
    made.local_steps(3, [])
    assert torch.equal(flatten(made.models[0]), before)
    train_alone(alone[1])
    assert furthest(made, alone) < SAME
    train_together(made, [1, 0])
    for trainer in alone:
        train_alone(trainer)
    assert furthest(made, alone) < SAME


def flipped(pixels: Tensor, chance: torch.Generator) -> Tensor:
    mirrored = torch.rand(len(pixels), generator=chance) < 0.5
    return torch.where(mirrored[:, None, None, None], pixels.flip(-1), pixels)


def test_momentum_rates_and_augmentation_are_the_trainers() -> None:
    settings = SGD(0.02, local_batch=8, distillation_batch=16, own_batch=4, momentum=0.8)
    made, alone = (kind("cnn-5-3-64", settings, flipped) for kind in (cohort, trainers))
    assert isinstance(made, Cohort)
    assert isinstance(alone, list)
    for present in (PAIR, [1]):
        train_together(made, present)
        made.learning_rate = 0.01
        for k in present:
            train_alone(alone[k])
            alone[k].learning_rate = 0.01
    assert furthest(made, alone) < SAME


def test_momentum_belongs_to_the_trainer_and_goes_with_it() -> None:
    """Steps in a cohort and steps alone continue each other; the twin forgets the momentum."""
    settings = SGD(0.02, local_batch=8, momentum=0.8)
    own, alone = trainers("cnn-5-3-64", settings), trainers("cnn-5-3-64", settings)
    own[0].local_steps(3)
    Cohort(own, CPU).local_steps(4, PAIR)
    own[0].local_steps(3)
    alone[0].local_steps(10)
    assert float((flatten(own[0].model) - flatten(alone[0].model)).abs().max()) < SAME
    alone[1].local_steps(4)
    alone[1].bind_velocity([torch.zeros_like(p) for p in alone[1].model.parameters()])
    for trainer in (own[1], alone[1]):
        trainer.local_steps(3)
    assert float((flatten(own[1].model) - flatten(alone[1].model)).abs().max()) > OTHER


def test_large_batches_go_through_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_layers, "_VALUES_AT_ONCE", 784 * 6)  # 2 members, 3 records
    made, alone = cohort("cnn-5-3-64"), trainers("cnn-5-3-64")
    train_together(made)
    for trainer in alone:
        train_alone(trainer)
    assert furthest(made, alone) < SAME
    assert np.abs(made.predict(TAUGHT)[1] - predict(made.models[1], TAUGHT)).max() < 1e-6


def test_members_models_can_be_overwritten_and_moved() -> None:
    made, alone = cohort("cnn-5-3-64"), trainers("cnn-5-3-64")
    wanted = flatten(make("cnn-5-3-64", 7))
    for model in (made.models[0], alone[0].model):
        load_flat(model, wanted)
    made.models[1].to(memory_format=torch.channels_last)  # elsewhere in memory from now on
    load_flat(made.models[1], wanted)
    load_flat(alone[1].model, wanted)
    train_together(made)
    for trainer in alone:
        train_alone(trainer)
    assert furthest(made, alone) < SAME


def test_groups_are_of_equal_architecture() -> None:
    names = [*HETEROGENEOUS, "cnn-5-5-50", "unknown", "unknown"]
    models = [make(name, k) for k, name in enumerate(names)]
    models[4][0].mean = 0.5
    assert group(models) == [[0, 1, 10], [2, 3], [4], [5], [6], [7], [8], [9], [11], [12]]


def test_a_cohort_of_two_architectures_is_refused() -> None:
    models = [build(name, 10, 0) for name in ("cnn-5-5-50", "cnn-5-3-64")]
    with pytest.raises(LocalError, match="one architecture"):
        Cohort([Trainer(m, images(0), SETTINGS, 0, CPU) for m in models], CPU)


def block() -> list[nn.Module]:
    return [nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.ReLU()]


def test_a_network_of_blocks_is_computed_here() -> None:
    model = nn.Sequential(*block(), nn.Flatten(), nn.Linear(196, 10))
    assert batched_layers.architecture(model) is not None


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Flatten(), nn.Linear(784, 10)],
        [nn.Conv2d(1, 2, 3, stride=2), *block()[1:], nn.Flatten()],
        [nn.Conv2d(1, 2, 3, padding="same"), *block()[1:], nn.Flatten()],
        [nn.Conv2d(1, 1, 1), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten()],
        [*block(), nn.Flatten(), nn.Dropout(0.5)],
        [*block(), nn.Linear(14, 10), nn.Flatten()],
        [*block(), nn.Linear(14, 10)],
        [nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(784, 10)],
        [nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(196, 10)],
        [*block(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(49, 10)],
        [*block(), nn.Flatten(), nn.Linear(196, 10).double()],
        [*block(), nn.Flatten(), nn.Linear(196, 10).requires_grad_(False)],
    ],
)
def test_what_is_not_computed_here_is_left_to_the_trainer(layers: list[nn.Module]) -> None:
    assert batched_layers.architecture(nn.Sequential(*layers)) is None


def test_a_layer_in_two_places_is_called_twice() -> None:
    """`children` names a module once, however often it is called."""

    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        relu = nn.ReLU()
        pool = nn.MaxPool2d(2)
        layers = [nn.Conv2d(1, 3, 3), pool, relu, nn.Conv2d(3, 3, 4), pool, relu, nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(75, 10))

    members = [made(seed) for seed in PAIR]
    own = [Trainer(m, images(k), SETTINGS, k, CPU) for k, m in zip(PAIR, members, strict=True)]
    together = Cohort(own, CPU)
    pixels = images(9).pixels
    for seed, said in zip(PAIR, together.predict(pixels), strict=True):
        np.testing.assert_allclose(said, predict(made(seed), pixels), atol=1e-5)


@pytest.mark.parametrize("kind", ["in place", "hooked"])
def test_layers_that_do_more_than_they_say_are_left_to_the_trainer(kind: str) -> None:
    relu = nn.ReLU(inplace=kind == "in place")
    if kind == "hooked":
        relu.register_forward_hook(lambda *_: None)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), relu, nn.Flatten(), nn.Linear(507, 10)
    )
    assert batched_layers.architecture(model) is None
    alone = Cohort([Trainer(model, images(0), SETTINGS, 0, CPU)], CPU)
    alone.local_steps(1, [0])


def test_a_parameter_that_is_frozen_later_is_refused() -> None:
    made = cohort("cnn-5-5-50")
    next(made.models[0].parameters()).requires_grad_(requires_grad=False)
    with pytest.raises(LocalError, match="frozen"):
        made.local_steps(1, PAIR)
