"""Architectures of the paper: parameters counted by hand, seeded weights, pixels standardised."""

import pytest
import torch

from secure_fd.data.image_sets import image_set
from secure_fd.errors import LocalError
from secure_fd.training.models import SHARED, Standardise, build, flatten, load_flat
from tests.refusals import refused

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
    # Sides: 64 -5+1= 60 -pool-> 30 -5+1= 26 -pool-> 13, so 20 x 13 x 13 = 3,380.
    "cnn-5-5-50@1x64x64": (250 + 10) + (5000 + 20) + (3380 * 50 + 50) + (500 + 10),
    "mlp-128-64@1280x1x1:0.036:0.072": (1280 * 128 + 128) + (128 * 64 + 64) + (640 + 10),
}


@pytest.mark.parametrize("name", COUNTS)
def test_an_architecture_has_its_parameters_and_follows_from_its_seed(name):
    sides = name.partition("@")[2].partition(":")[0] or "1x28x28"
    model = build(name, 10, 1)
    assert len(flatten(model)) == COUNTS[name]
    assert model(torch.rand(3, *map(int, sides.split("x")))).shape == (3, 10)
    before = torch.get_rng_state()
    assert torch.equal(flatten(model), flatten(build(name, 10, 1)))
    assert not torch.equal(flatten(model), flatten(build(name, 10, 2)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 40, 40), (12, 1, 1)])
def test_own_images_have_architectures_of_their_shape(shape):
    name = f"own-{'x'.join(map(str, shape))}-4-10"
    for architecture in image_set(name).architectures:
        assert build(architecture, 4, 0)(torch.zeros(2, *shape)).shape == (2, 4)


def test_what_no_network_can_be_built_for_is_refused():
    with refused("model"):
        build("resnet", 10, 0)
    for wrong in ("3x8x8", "3x32x16"):
        with refused("images"):
            build(f"mlp-1024-1024@{wrong}", 3, 0)
    with refused("dataset"):
        image_set("svhn")


def test_pixels_are_standardised_inside_the_model():
    """Black is -0.1307 / 0.3081 = -0.4242 and white 0.8693 / 0.3081 = 2.8215."""
    found = Standardise()(torch.tensor([0.0, 0.1307, 1.0]))
    assert torch.allclose(found, torch.tensor([-0.4242, 0.0, 2.8215]), atol=1e-4)
    first = next(iter(build("mlp-128@60x1x1:0.5:0.1", 10, 0)))
    assert (first.mean, first.deviation) == (0.5, 0.1)


def test_flatten_and_load_flat_are_inverse_and_copy():
    """One client's training must not move the global model that the next client starts from."""
    source, target, third = (build(SHARED, 10, seed) for seed in (1, 2, 3))
    vector = flatten(source)
    for model in (target, third):
        load_flat(model, vector)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(1.0)
    assert torch.equal(flatten(target), vector + 1)
    assert torch.equal(flatten(third), vector)
    for change in (-1, 1):
        with pytest.raises(LocalError):
            load_flat(source, torch.zeros(COUNTS[SHARED] + change))
