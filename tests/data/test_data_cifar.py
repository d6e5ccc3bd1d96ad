"""CIFAR-10 as images and as features of them: a small fake folder, and the real one where given."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from experiments.core import backbone
from secure_fd.data import sources
from secure_fd.data.federated import federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import pixel_bytes, proxy_pixels
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError
from tests.refusals import refused

Bytes = NDArray[np.uint8]
TRAIN, TEST = (4, 3), (2, 1)  # rows and columns of tiles in each fake mosaic
SIZES = Sizes(proxies=4, test=0, held_out=2)


def mosaic(path: Path, tiles: Bytes, rows: int, columns: int) -> None:
    """Lossless, tiles [rows columns, 32, 32, 3] row by row."""
    grid = tiles.reshape(rows, columns, 32, 32, 3).swapaxes(1, 2)
    Image.fromarray(grid.reshape(32 * rows, 32 * columns, 3)).save(path, lossless=True)


def tiles(part: str, label: int) -> Bytes:
    """Noise, so that every tile and every channel is its own."""
    count = TRAIN[0] * TRAIN[1] if part == "train" else TEST[0] * TEST[1]
    rng = np.random.default_rng([label, part == "train"])
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.setenv("SECURE_FD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cifar10").mkdir()
    for part, (rows, columns) in (("train", TRAIN), ("test", TEST)):
        for label in range(10):
            path = tmp_path / "cifar10" / f"{part}_{label}.webp"
            mosaic(path, tiles(part, label), rows, columns)
    return tmp_path


@pytest.fixture
def corners(monkeypatch):
    """Twelve features: the four corners of every channel."""

    def features(pixels: Bytes) -> Bytes:
        return pixels[:, :, ::31, ::31].reshape(len(pixels), 12)

    monkeypatch.setattr(backbone, "WIDTH", 12)
    monkeypatch.setattr(backbone, "efficientnet_lite0", features)


def test_mosaics_are_read_tile_by_tile(fake):
    source = load("cifar10", fake)
    assert source.pool.pixels.shape == (120, 3, 32, 32)
    assert source.test.pixels.shape == (20, 3, 32, 32)
    assert source.pool.labels.tolist() == [c for c in range(10) for _ in range(12)]
    for part, images, count in (("train", source.pool, 12), ("test", source.test, 2)):
        for label in (0, 7):
            mine = (images.pixels[label * count : (label + 1) * count] * 255).round().byte()
            assert np.array_equal(mine.permute(0, 2, 3, 1).numpy(), tiles(part, label))


@pytest.mark.usefixtures("corners")
def test_proxies_cost_what_their_images_cost(fake):
    """Equal seeds draw equal records, so that the images of the features' proxies are known."""
    split = Split("strong")
    images = federate(load("cifar10", fake), split, 10, 3, SIZES)
    features = federate(load("cifar10_features", fake), split, 10, 3, SIZES)
    seen = images.proxies.pixels[:, :, ::31, ::31].flatten(1)
    assert torch.equal(features.proxies.pixels[:, :, 0, 0], seen)
    assert images.proxy_message_bytes is None
    assert features.proxy_message_bytes == pixel_bytes(proxy_pixels(images.proxies.pixels))
    assert features.proxy_message_bytes > 20 * pixel_bytes(proxy_pixels(features.proxies.pixels))


@pytest.mark.usefixtures("corners")
@pytest.mark.parametrize("name", ["cifar10", "cifar10_features"])
def test_an_image_that_is_there_twice_is_used_once(fake, name):
    """One image twice in the pool, one in the test set too: ten of twelve are left of class 0."""
    twice = tiles("train", 0)
    twice[5] = twice[2]
    twice[9] = tiles("test", 1)[0]
    mosaic(fake / "cifar10" / "train_0.webp", twice, *TRAIN)
    data = federate(load(name, fake), Split("strong"), 10, 0, SIZES)
    held = [len(client.train) + len(client.validation) for client in data.clients]
    assert held == [4] + [6] * 9


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:200]),
        lambda path: path.write_text("no image"),
        lambda path: Image.new("RGB", (64, 33)).save(path),
        lambda path: Image.new("RGB", (31, 31)).save(path),
    ],
)
def test_a_file_that_is_no_mosaic_is_named(fake, change):
    path = fake / "cifar10" / "test_4.webp"
    change(path)
    with pytest.raises(ConfigurationError) as caught:
        load("cifar10", fake)
    assert str(path) in str(caught.value)


def test_without_a_folder_torchvision_is_asked(monkeypatch):
    data = {True: tiles("train", 0), False: tiles("test", 0)}

    def known(root: str, *, train: bool, download: bool) -> SimpleNamespace:
        assert download
        assert root
        return SimpleNamespace(data=data[train], targets=[3] * len(data[train]))

    fake_module = SimpleNamespace(datasets=SimpleNamespace(CIFAR10=known))
    monkeypatch.setattr(sources, "torchvision", lambda: fake_module)
    monkeypatch.delenv("SECURE_FD_DATA", raising=False)
    source = load("cifar10")
    assert (len(source.pool), source.pool.labels[0]) == (12, 3)
    assert np.array_equal(
        (source.pool.pixels * 255).round().byte().permute(0, 2, 3, 1).numpy(), data[True]
    )

    def offline(**_: object) -> None:
        raise RuntimeError("no network")

    fake_module.datasets.CIFAR10 = offline
    with refused("data_dir"):
        load("cifar10")


def test_the_real_images_have_the_published_figures():
    """Channel means 0.4914, 0.4822, 0.4465; 5,000 and 1,000 images a class."""
    folder = Path(os.environ.get("SECURE_FD_DATA", ""))
    if not (folder / "cifar10").is_dir():
        pytest.skip("CIFAR-10 is not at hand")
    source = load("cifar10", folder)
    assert torch.bincount(source.pool.labels).tolist() == [5000] * 10
    assert torch.bincount(source.test.labels).tolist() == [1000] * 10
    means = source.pool.pixels.mean(dim=(0, 2, 3))
    assert torch.allclose(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=5e-5)
