"""Image sets: bundled ones, folders in each format, damaged files, and real folders where given."""

import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from secure_fd.data.federated import federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import Split, parse_split
from secure_fd.data.sources import load, read_idx
from secure_fd.data.vision import torchvision
from secure_fd.errors import ConfigurationError
from tests.refusals import refused


def test_torchvision_imports_beside_any_torch():
    module = torchvision()
    assert torchvision() is module
    resized = module.transforms.Resize(14)(torch.zeros(1, 28, 28))
    assert resized.shape == (1, 14, 14)


@pytest.mark.parametrize(
    ("name", "count", "least"), [("mnist5k", 5000, 500), ("digits", 1797, 174)]
)
def test_bundled_images_are_of_the_size_of_mnist(name, count, least):
    pool = load(name).pool
    assert pool.pixels.shape == (count, 1, 28, 28)
    assert torch.bincount(pool.labels).min() == least
    assert 0.0 == pool.pixels.min() < 0.9 < pool.pixels.max() <= 1.0
    if name == "mnist5k":  # models standardise by the figures of MNIST
        assert float(pool.pixels.mean()) == pytest.approx(0.1307, abs=0.005)
        assert float(pool.pixels.std()) == pytest.approx(0.3081, abs=0.005)


# IDX files.

N_TRAIN, N_TEST = 500, 100


def idx_bytes(array):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.tobytes()


def write(folder, part, pixels, labels):
    folder.mkdir(exist_ok=True)
    for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(array)))


@pytest.fixture
def mnist(tmp_path):
    """Every image is its own number in two pixels, so that it can be recognised."""
    for part, count in (("train", N_TRAIN), ("t10k", N_TEST)):
        pixels = np.zeros((count, 28, 28), dtype=np.uint8)
        pixels[:, 0, 0], pixels[:, 0, 1] = np.arange(count) % 256, np.arange(count) // 256
        pixels[:, 0, 2] = 255 if part == "t10k" else 0
        labels = (np.arange(count) % 10).astype(np.uint8)
        write(tmp_path / "mnist", part, pixels, labels)
    return tmp_path


def names(images):
    """(1 for the published test set, number) of each fake image."""
    rows = (images.pixels[:, 0, 0, :3] * 255).round().long().tolist()
    return {(int(row[2] == 255), row[0] + 256 * row[1]) for row in rows}


def test_an_idx_folder_is_read_whole_and_its_test_set_is_the_test_set(mnist):
    source = load("mnist", mnist)
    assert source.pool.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert names(source.pool) == {(0, i) for i in range(N_TRAIN)}
    data = federate(source, Split("strong"), 10, 3, Sizes(5, 999, 4))
    parts = [data.proxies, data.test, data.held_out]
    parts += [part for client in data.clients for part in (client.train, client.validation)]
    assert [len(part) for part in parts[:3]] == [50, N_TEST, 40]
    assert len(set.union(*map(names, parts))) == sum(map(len, parts)) == N_TRAIN + N_TEST
    assert names(data.test) == {(1, i) for i in range(N_TEST)}
    assert torch.bincount(data.held_out.labels).tolist() == [4] * 10


def test_the_variable_names_the_folder_where_no_argument_does(mnist, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("SECURE_FD_DATA", str(mnist))
    assert len(load("mnist").pool) == N_TRAIN
    with refused("data_dir"):
        load("mnist", empty)
    monkeypatch.setenv("SECURE_FD_DATA", str(empty))
    assert len(load("mnist", mnist).pool) == N_TRAIN
    for value in (str(empty), ""):
        monkeypatch.setenv("SECURE_FD_DATA", value)
        with refused("data_dir"):
            load("chest_xray")


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [
        *(((9, 28, 28), [0] * 8), ((9, 784), [0] * 9), ((9, 32, 32), [0] * 9)),
        *(((9, 28, 28), [0] * 8 + [10]), ((0, 28, 28), []), (None, [])),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(mnist, pixels, labels):
    if pixels is None:
        (mnist / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    else:
        grey = np.zeros(pixels, dtype=np.uint8)
        write(mnist / "mnist", "train", grey, np.array(labels, dtype=np.uint8))
    with pytest.raises(ConfigurationError) as caught:
        load("mnist", mnist)
    assert str(mnist / "mnist") in str(caught.value)


WHOLE = idx_bytes(np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4))
PACKED = gzip.compress(WHOLE)
DAMAGED = {
    "empty": b"",
    "first_byte": b"\1" + WHOLE[1:],
    "not_unsigned_bytes": WHOLE[:2] + b"\x0d" + WHOLE[3:],
    "no_dimensions": b"\0\0\x08\0" + b"\7",
    "header_inside_a_size": WHOLE[:10],
    "no_body": WHOLE[:16],
    "body_short_by_one": WHOLE[:-1],
    "body_long_by_one": WHOLE + b"\0",
    # 2^32 x 2^32 is 0 modulo 2^64: a product that wraps would accept the empty body.
    "size_wraps": struct.pack(">BBBB4I", 0, 0, 8, 4, 1 << 16, 1 << 16, 1 << 16, 1 << 16),
    "half.gz": PACKED[: len(PACKED) // 2],
    "checksum.gz": PACKED[:-6] + bytes([PACKED[-6] ^ 1]) + PACKED[-5:],
    "bad_block.gz": PACKED[:10] + b"\xff" * 8,
    "not_gzip.gz": WHOLE,
    "short.gz": gzip.compress(WHOLE[:-1]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_and_named(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(DAMAGED[name])
    with refused("data_dir") as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_file_beyond_the_limit_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "cut.gz"
    path.write_bytes(PACKED)
    assert read_idx(path).shape == (2, 3, 4)
    monkeypatch.setattr("secure_fd.data.sources._MAX_BYTES", len(WHOLE) - 1)
    with refused("data_dir"):
        read_idx(path)


# CIFAR-10 as mosaics.

TRAIN, TEST = (4, 3), (2, 1)  # rows and columns of tiles in each fake mosaic


def mosaic(path, tiles, rows, columns):
    """Lossless, tiles [rows columns, 32, 32, 3] row by row."""
    grid = tiles.reshape(rows, columns, 32, 32, 3).swapaxes(1, 2)
    Image.fromarray(grid.reshape(32 * rows, 32 * columns, 3)).save(path, lossless=True)


def tiles(part, label):
    """Noise, so that every tile and every channel is its own."""
    count = TRAIN[0] * TRAIN[1] if part == "train" else TEST[0] * TEST[1]
    rng = np.random.default_rng([label, part == "train"])
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def cifar10(tmp_path):
    (tmp_path / "cifar10").mkdir()
    for part, (rows, columns) in (("train", TRAIN), ("test", TEST)):
        for label in range(10):
            path = tmp_path / "cifar10" / f"{part}_{label}.webp"
            mosaic(path, tiles(part, label), rows, columns)
    return tmp_path


def test_mosaics_are_read_tile_by_tile(cifar10):
    source = load("cifar10", cifar10)
    assert source.pool.pixels.shape == (120, 3, 32, 32)
    assert source.pool.labels.tolist() == [c for c in range(10) for _ in range(12)]
    for part, images, count in (("train", source.pool, 12), ("test", source.test, 2)):
        for label in (0, 7):
            mine = (images.pixels[label * count : (label + 1) * count] * 255).round().byte()
            assert np.array_equal(mine.permute(0, 2, 3, 1).numpy(), tiles(part, label))


# Chest radiographs.

COUNT = 40


@pytest.fixture
def chest_xray(tmp_path):
    """Each image is of one grey: 3 its number + its class."""
    for label, name in enumerate(("normal", "pneumonia", "covid")):
        folder = tmp_path / "chest_xray" / name
        folder.mkdir(parents=True)
        for i in range(COUNT):
            Image.new("L", (64, 64), 3 * i + label).save(folder / f"{i:04}.png")
    return tmp_path


def test_folders_are_read_in_the_order_of_their_names(chest_xray):
    source = load("chest_xray", chest_xray)
    assert source.test is None
    assert source.pool.labels.tolist() == [0] * COUNT + [1] * COUNT + [2] * COUNT
    grey = (source.pool.pixels[:, 0, 31, 7] * 255).round().long()
    assert torch.equal(grey, 3 * torch.arange(COUNT).repeat(3) + source.pool.labels)


def test_four_hospitals_hold_one_or_two_classes(chest_xray):
    """40 images: 6 proxies, 3 held out, 4, 2 and 2 tested; 27, 29 and 29 are divided."""
    source, split = load("chest_xray", chest_xray), parse_split("hospitals")
    data = federate(source, split, 4, 0, Sizes(6, (4, 2, 2), 3))
    assert [client.classes for client in data.clients] == [(0,), (1,), (2,), (0, 1)]
    sizes = [len(client.train) + len(client.validation) for client in data.clients]
    assert sizes[2] == 29
    assert sizes[0] + sizes[1] + sizes[3] == 27 + 29
    assert abs(sizes[0] - 13.5) < 1 > abs(sizes[1] - 14.5)
    assert torch.bincount(data.test.labels).tolist() == [4, 2, 2]
    for clients, test, field in (
        *((count, (4, 2, 2), "clients") for count in (3, 5)),
        *((4, (4, 2), "sizes"), (4, (4, 40, 2), "proxies")),
    ):
        with refused(field):
            federate(source, split, clients, 0, Sizes(6, test, 3))


# Files that do not fit, and real folders.


@pytest.mark.parametrize(
    ("name", "file", "change"),
    [
        ("cifar10", "test_4.webp", lambda path: path.unlink()),
        ("cifar10", "test_4.webp", lambda path: path.write_bytes(path.read_bytes()[:200])),
        ("cifar10", "test_4.webp", lambda path: Image.new("RGB", (64, 33)).save(path)),
        ("chest_xray", "covid/0007.png", lambda path: Image.new("L", (64, 63)).save(path)),
        ("chest_xray", "covid/0007.png", lambda path: path.write_bytes(b"\x89PNG no more")),
    ],
)
def test_an_image_file_that_does_not_fit_is_named(request, name, file, change):
    folder = request.getfixturevalue(name)
    path = folder / name / file
    change(path)
    with pytest.raises(ConfigurationError) as caught:
        load(name, folder)
    assert str(path) in str(caught.value)
