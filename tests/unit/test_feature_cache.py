"""Features on disk: made once, and resumed after an interrupt."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.core import backbone as feature_cache
from experiments.core.backbone import cached_features

Bytes = NDArray[np.uint8]


@dataclass
class RowSums:
    """In the backbone's place: counts the images it has seen, and may fail after some shards."""

    fails_after: int = 99
    seen: list[int] = field(default_factory=list)

    def __call__(self, pixels: Bytes) -> Bytes:
        if len(self.seen) == self.fails_after:
            raise KeyboardInterrupt
        self.seen.append(len(pixels))
        return (pixels.sum(axis=(1, 3), dtype=np.int64) % 256).astype(np.uint8)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(feature_cache, "SHARD", 10)


@pytest.fixture
def cached(monkeypatch):
    """Features of images by another map."""

    def features(pixels: Bytes, made_by: RowSums, folder: Path) -> Bytes:
        monkeypatch.setattr(feature_cache, "efficientnet_lite0", made_by)
        return cached_features(pixels, folder)

    return features


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (34, 3, 8, 8), dtype=np.uint8)


def test_features_are_made_once_and_read_in_order(tmp_path, images, cached):
    first, second = RowSums(), RowSums()
    made = cached(images, first, tmp_path / "new" / "folder")
    assert np.array_equal(made, RowSums()(images))
    assert (made.dtype, made.shape) == (np.uint8, (34, 8))
    assert np.array_equal(cached(images, second, tmp_path / "new" / "folder"), made)
    assert (first.seen, second.seen) == ([10, 10, 10, 4], [])


def test_an_interrupted_run_resumes_where_it_stopped(tmp_path, images, cached):
    stopped, resumed = RowSums(fails_after=2), RowSums()
    with pytest.raises(KeyboardInterrupt):
        cached(images, stopped, tmp_path)
    made = cached(images, resumed, tmp_path)
    assert resumed.seen == [10, 4]
    assert np.array_equal(made, RowSums()(images))


def test_what_features_are_made_from_decides_the_file(tmp_path, images, cached, monkeypatch):
    cached(images, RowSums(), tmp_path)
    changed = images.copy()
    changed[15, 0, 0, 0] ^= 1
    one_shard, other_map, reshaped = RowSums(), RowSums(), RowSums()
    cached(changed, one_shard, tmp_path)
    cached(images.reshape(34, 3, 8, 4, 2)[..., 0], reshaped, tmp_path)
    monkeypatch.setattr(feature_cache, "_MADE_BY", "row sums, version 2")
    cached(images, other_map, tmp_path)
    assert (one_shard.seen, other_map.seen) == ([10], [10, 10, 10, 4])
    assert sum(reshaped.seen) == 34
    assert len(list(tmp_path.iterdir())) == 4 + 1 + 4 + 4
