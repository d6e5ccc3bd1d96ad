"""Image sets: the bundled ones for real, IDX folders from a small fake and, where given, whole."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from secure_fd.data.federated import federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import Images
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.data.vision import torchvision
from secure_fd.errors import ConfigurationError
from tests.refusals import refused

N_TRAIN, N_TEST = 500, 100


def write(folder: Path, part: str, pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    folder.mkdir(exist_ok=True)
    for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        content = gzip.compress(head + array.tobytes())
        (folder / f"{part}-{kind}-ubyte.gz").write_bytes(content)


@pytest.fixture
def fake(tmp_path):
    """Every image is its own number in two pixels, so that it can be recognised."""
    for part, count in (("train", N_TRAIN), ("t10k", N_TEST)):
        pixels = np.zeros((count, 28, 28), dtype=np.uint8)
        pixels[:, 0, 0], pixels[:, 0, 1] = np.arange(count) % 256, np.arange(count) // 256
        pixels[:, 0, 2] = 255 if part == "t10k" else 0
        labels = (np.arange(count) % 10).astype(np.uint8)
        write(tmp_path / "mnist", part, pixels, labels)
    return tmp_path


def names(images: Images) -> set[tuple[int, int]]:
    """(1 for the published test set, number) of each fake image."""
    rows = (images.pixels[:, 0, 0, :3] * 255).round().long().tolist()
    return {(int(row[2] == 255), row[0] + 256 * row[1]) for row in rows}


def test_an_idx_folder_is_read_whole(fake):
    source = load("mnist", fake)
    assert source.pool.pixels.shape == (N_TRAIN, 1, 28, 28)
    assert source.pool.pixels.dtype == torch.float32
    assert source.pool.labels.dtype == torch.int64
    assert (float(source.pool.pixels.min()), float(source.test.pixels.max())) == (0.0, 1.0)
    assert source.pool.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert names(source.pool) == {(0, i) for i in range(N_TRAIN)}
    assert names(source.test) == {(1, i) for i in range(N_TEST)}


def test_a_published_test_set_is_the_test_set(fake):
    data = federate(load("mnist", fake), Split("strong"), 10, 3, Sizes(5, 999, 4))
    parts = [data.proxies, data.test, data.held_out]
    parts += [part for client in data.clients for part in (client.train, client.validation)]
    assert [len(part) for part in parts[:3]] == [50, N_TEST, 40]
    assert len(set.union(*map(names, parts))) == sum(map(len, parts)) == N_TRAIN + N_TEST
    assert names(data.test) == {(1, i) for i in range(N_TEST)}
    assert all(origin == 0 for origin, _ in names(data.held_out))  # drawn like the members
    assert torch.bincount(data.held_out.labels).tolist() == [4] * 10


def test_the_variable_names_the_folder_where_no_argument_does(fake, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("SECURE_FD_DATA", str(fake))
    assert len(load("mnist").pool) == N_TRAIN
    with refused("data_dir"):
        load("mnist", empty)
    monkeypatch.setenv("SECURE_FD_DATA", str(empty))
    assert len(load("mnist", fake).pool) == N_TRAIN
    for value in (str(empty), ""):
        monkeypatch.setenv("SECURE_FD_DATA", value)
        with pytest.raises(ConfigurationError, match="SECURE_FD_DATA") as caught:
            load("chest_xray")
        assert caught.value.field == "data_dir"


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [
        ((9, 28, 28), [0] * 8),
        *(((9, 784), [0] * 9), ((9, 32, 32), [0] * 9)),
        ((9, 28, 28), [0] * 8 + [10]),
        ((0, 28, 28), []),
        (None, []),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(fake, pixels, labels):
    if pixels is None:
        (fake / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    else:
        grey = np.zeros(pixels, dtype=np.uint8)
        write(fake / "mnist", "train", grey, np.array(labels, dtype=np.uint8))
    with pytest.raises(ConfigurationError, match="train") as caught:
        load("mnist", fake)
    assert str(fake / "mnist") in str(caught.value)


@pytest.mark.parametrize(("name", "counts"), [("mnist5k", [500] * 10), ("digits", None)])
def test_bundled_images_are_of_the_size_of_mnist(name, counts):
    source = load(name)
    found = torch.bincount(source.pool.labels).tolist()
    assert source.test is None
    assert source.pool.pixels.shape == (sum(counts) if counts else 1797, 1, 28, 28)
    assert found == counts if counts else min(found) >= 174
    assert float(source.pool.pixels.min()) == 0.0
    assert 0.9 < float(source.pool.pixels.max()) <= 1.0
    if name == "mnist5k":  # models standardise by the figures of MNIST
        assert float(source.pool.pixels.mean()) == pytest.approx(0.1307, abs=0.005)
        assert float(source.pool.pixels.std()) == pytest.approx(0.3081, abs=0.005)


@pytest.mark.skipif(not os.environ.get("SECURE_FD_DATA"), reason="full MNIST is not at hand")
def test_full_mnist():
    source = load("mnist", Path(os.environ["SECURE_FD_DATA"]))
    assert (len(source.pool), len(source.test)) == (60_000, 10_000)
    assert torch.bincount(source.pool.labels)[:3].tolist() == [5923, 6742, 5958]
    assert source.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    data = federate(source, Split("strong"), 10, 0)
    assert (len(data.proxies), len(data.held_out), len(data.test)) == (6000, 1000, 10000)
    assert [client.classes for client in data.clients] == [(c,) for c in range(10)]


def test_torchvision_imports_beside_any_torch():
    module = torchvision()
    assert torchvision() is module
    assert issubclass(module.datasets.MNIST, torch.utils.data.Dataset)
    resized = module.transforms.Resize(14)(torch.zeros(1, 28, 28))
    assert resized.shape == (1, 14, 14)
    assert sum(p.numel() for p in module.models.resnet18(weights=None).parameters()) == 11_689_512
