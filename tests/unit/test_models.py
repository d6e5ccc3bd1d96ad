"""Tables 2 to 4 of the paper's supplement, counted by hand."""

from types import SimpleNamespace
from urllib.error import URLError

import pytest
import torch
from torch import nn

import experiments  # noqa: F401 - adds image sets
from secure_fd.data.image_sets import IMAGE_SETS, image_set
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.training import models as resnets
from secure_fd.training.models import (
    _RESNETS,
    SHARED,
    Standardise,
    build,
    flatten,
    load_flat,
)

COUNTS = {
    # A convolution has out x in x k x k weights and out biases, a linear layer out x in and out.
    # Sides: 28 -5+1= 24 -pool-> 12 -5+1= 8 -pool-> 4, so 20 x 4 x 4 = 320 reach the linear layers.
    "cnn-5-5-50": (250 + 10) + (5000 + 20) + (320 * 50 + 50) + (500 + 10),
    # 28 (padded) -> 14 (padded) -> 7: 20 x 7 x 7 = 980.
    "cnn-3-3-128": (90 + 10) + (1800 + 20) + (980 * 128 + 128) + (1280 + 10),
    # 28 -5+1= 24 -> 12 (padded) -> 6: 20 x 6 x 6 = 720.
    "cnn-5-3-64": (250 + 10) + (1800 + 20) + (720 * 64 + 64) + (640 + 10),
    "mlp-1024-512-256": (784 * 1024 + 1024) + (1024 * 512 + 512) + (512 * 256 + 256) + 2570,
    "mlp-1024-1024": (784 * 1024 + 1024) + (1024 * 1024 + 1024) + (1024 * 10 + 10),
}
CHEST = {
    # Sides: 64 -5+1= 60 -pool-> 30 -5+1= 26 -pool-> 13, so 20 x 13 x 13 = 3,380.
    "cnn-5-5-50@1x64x64": (250 + 10) + (5000 + 20) + (3380 * 50 + 50) + (150 + 3),
    # 64 (padded) -> 32 (padded) -> 16: 20 x 16 x 16 = 5,120.
    "cnn-3-3-128@1x64x64": (90 + 10) + (1800 + 20) + (5120 * 128 + 128) + (384 + 3),
    "mlp-1024-512-256@1x64x64": 4096 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 256 + 256 + 771,
    "mlp-1024-1024@1x64x64": (4096 * 1024 + 1024) + (1024 * 1024 + 1024) + (1024 * 3 + 3),
}
HEADS = {
    "mlp-128-64@1280x1x1:0.036:0.072": (1280 * 128 + 128) + (128 * 64 + 64) + (640 + 10),
    "mlp-256@1280x1x1:0.036:0.072": (1280 * 256 + 256) + (2560 + 10),
}
PATCHES = {"mlp-128@60x1x1:0.5:0.1": (60 * 128 + 128) + (1280 + 10)}
# torchvision's count with its layer of 1,000 classes, less that layer, and the head.
RESNETS = {
    "resnet18-128-64": 11_689_512 - 513_000 + (512 * 128 + 128) + (128 * 64 + 64) + (640 + 10),
    "resnet34-256": 21_797_672 - 513_000 + (512 * 256 + 256) + (2560 + 10),
    "resnet50-256": 25_557_032 - 2_049_000 + (2048 * 256 + 256) + (2560 + 10),
}
every_name = pytest.mark.parametrize("name", COUNTS)
PIXELS = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))


@every_name
def test_an_images_logits_do_not_depend_on_its_neighbours(name):
    model = build(name, 2, 0)
    assert not isinstance(list(model.children())[-1], nn.Softmax | nn.ReLU)
    assert torch.allclose(model(PIXELS[:1]), model(PIXELS)[:1], atol=1e-5)


@every_name
def test_the_seed_decides_the_weights_and_nothing_else_does(name):
    first = flatten(build(name, 10, 1))
    torch.rand(7)
    before = torch.get_rng_state()
    assert torch.equal(first, flatten(build(name, 10, 1)))
    assert not torch.equal(first, flatten(build(name, 10, 2)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "count", "shape", "classes"),
    [
        *((name, count, (1, 28, 28), 10) for name, count in COUNTS.items()),
        *((name, count, (1, 64, 64), 3) for name, count in CHEST.items()),
        *((name, count, (1280, 1, 1), 10) for name, count in HEADS.items()),
        *((name, count, (60, 1, 1), 10) for name, count in PATCHES.items()),
    ],
)
def test_parameters_are_as_many_as_by_hand_and_logits_are_finite(name, count, shape, classes):
    model = build(name, classes, 0)
    assert len(flatten(model)) == count
    pixels = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    logits = model(pixels)
    assert logits.shape == (3, classes)
    assert torch.isfinite(logits).all()
    assert torch.equal(flatten(model), flatten(build(name, classes, 0)))


@pytest.mark.parametrize("name", RESNETS)
def test_a_resnet_has_the_head_in_place_of_its_last_layer_and_learns(name):
    model = build(name, 10, 0)
    before = flatten(model)
    assert len(before) == RESNETS[name]
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    logits = model(images)
    assert logits.shape == (2, 10)
    loss = nn.functional.cross_entropy(logits, torch.tensor([3, 7]))
    loss.backward()
    optimiser.step()
    moved = flatten(model) - before
    assert torch.isfinite(moved).all()
    sizes = [parameter.numel() for parameter in model.parameters()]
    assert all(bool(part.any()) for part in torch.split(moved, sizes)), "a layer did not learn"


def test_weights_that_cannot_be_downloaded_are_told(monkeypatch):
    asked = []

    def get_model(name: str, weights: str | None) -> nn.Module:
        asked.append((name, weights))
        raise URLError("no network")

    offline = SimpleNamespace(models=SimpleNamespace(get_model=get_model))
    monkeypatch.setattr(resnets, "torchvision", lambda: offline)
    with pytest.raises(ConfigurationError, match=r"resnet34, pretrained.*without -pretrained"):
        build("resnet34-256-pretrained", 10, 0)
    assert asked == [("resnet34", "IMAGENET1K_V1")]


def test_every_image_set_has_its_architectures_in_the_tables_order():
    used = {name for known in IMAGE_SETS.values() for name in known.architectures}
    assert used <= {*COUNTS, *CHEST, *HEADS, *PATCHES, *_RESNETS}
    pairs = ["cnn-5-5-50", "cnn-3-3-128", "cnn-5-3-64", "mlp-1024-512-256", "mlp-1024-1024"]
    assert image_set("mnist").architectures == tuple(name for name in pairs for _ in range(2))
    assert image_set("chest_xray").architectures == tuple(CHEST)
    deep, wide = HEADS
    heads = [deep, deep, wide, wide, deep, deep, wide, wide, wide, wide]
    assert list(image_set("cifar10_features").architectures) == heads
    nets = [f"resnet{d}-" for d in (18, 18, 18, 18, 34, 34, 34, 34, 50, 50)]
    for name, net, head in zip(image_set("cifar10").architectures, nets, heads, strict=True):
        assert name == net + head.removeprefix("mlp-").partition("@")[0] + "-pretrained"
    with pytest.raises(ConfigurationError, match=r"dataset: 'svhn'.*chest_xray"):
        image_set("svhn")


def test_figures_behind_the_shape_standardise_the_pixels():
    first = next(iter(build("mlp-128@60x1x1:0.5:0.1", 10, 0)))
    assert (first.mean, first.deviation) == (0.5, 0.1)


def test_an_unknown_architecture_is_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"model: 'resnet'.*mlp-1024-1024"):
        build("resnet", 10, 0)


def test_pixels_are_standardised_inside_the_model():
    """Black is -0.1307 / 0.3081 = -0.4242 and white 0.8693 / 0.3081 = 2.8215."""
    found = Standardise()(torch.tensor([0.0, 0.1307, 1.0]))
    assert torch.allclose(found, torch.tensor([-0.4242, 0.0, 2.8215]), atol=1e-4)


@every_name
def test_flatten_and_load_flat_are_inverse_and_copy(name):
    """One client's training must not move the global model that the next client starts from."""
    source, target, third = (build(name, 10, seed) for seed in (1, 2, 3))
    vector = flatten(source)
    assert not vector.requires_grad
    for model in (target, third):
        load_flat(model, vector)
        assert torch.equal(source(PIXELS), model(PIXELS))
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(1.0)
    assert torch.equal(flatten(target), vector + 1)
    assert torch.equal(flatten(third), vector)
    load_flat(source, torch.zeros_like(vector))
    assert torch.equal(flatten(third), vector)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_vector_of_another_length_is_refused(change):
    with pytest.raises(LocalError, match="21840 parameters"):
        load_flat(build(SHARED, 10, 0), torch.zeros(COUNTS[SHARED] + change))
