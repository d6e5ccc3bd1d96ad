"""Chest radiographs: a small fake folder, the real one where given, and the hospitals' split."""

import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from secure_fd.data.federated import federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import Split, parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError
from tests.refusals import refused

CLASSES = ("normal", "pneumonia", "covid")
HOSPITALS = Split("hospitals")
SIZES = Sizes(proxies=6, test=(4, 2, 2), held_out=3)
COUNT = 40


@pytest.fixture
def fake(tmp_path):
    """Each image is of one grey: 3 its number + its class."""
    for label, name in enumerate(CLASSES):
        folder = tmp_path / "chest_xray" / name
        folder.mkdir(parents=True)
        for i in range(COUNT):
            Image.new("L", (64, 64), 3 * i + label).save(folder / f"{i:04}.png")
    return tmp_path


def test_folders_are_read_in_the_order_of_their_names(fake):
    source = load("chest_xray", fake)
    assert source.test is None
    assert source.pool.pixels.shape == (3 * COUNT, 1, 64, 64)
    assert source.pool.labels.tolist() == [0] * COUNT + [1] * COUNT + [2] * COUNT
    grey = (source.pool.pixels[:, 0, 31, 7] * 255).round().long()
    assert torch.equal(grey, 3 * torch.arange(COUNT).repeat(3) + source.pool.labels)


def test_four_hospitals_hold_one_or_two_classes(fake):
    """Of 40 images 6 are proxies, 3 held out and 4, 2, 2 tested: 27, 29 and 29 are divided."""
    source = load("chest_xray", fake)
    data = federate(source, parse_split("hospitals"), 4, 0, SIZES)
    assert [client.classes for client in data.clients] == [(0,), (1,), (2,), (0, 1)]
    sizes = [len(client.train) + len(client.validation) for client in data.clients]
    assert sizes[2] == 29
    assert sizes[0] + sizes[1] + sizes[3] == 27 + 29
    assert abs(sizes[0] - 13.5) < 1 > abs(sizes[1] - 14.5)
    assert torch.bincount(data.test.labels).tolist() == [4, 2, 2]
    assert torch.bincount(data.proxies.labels).tolist() == [6] * 3
    even = federate(source, HOSPITALS, 4, 0, Sizes(6, 4, 3))
    assert torch.bincount(even.test.labels).tolist() == [4] * 3
    for clients, sizes, field in (
        *((count, SIZES, "clients") for count in (3, 5)),
        (4, Sizes(6, (4, 2), 3), "sizes"),
        (4, Sizes(6, (4, 40, 2), 3), "proxies"),
    ):
        with refused(field):
            federate(source, HOSPITALS, clients, 0, sizes)


def test_a_folder_or_image_that_does_not_fit_is_named(fake, monkeypatch):
    monkeypatch.delenv("SECURE_FD_DATA", raising=False)
    path = fake / "chest_xray" / "covid" / "0007.png"
    for spoil in (
        lambda: Image.new("L", (64, 63)).save(path),
        lambda: path.write_bytes(b"\x89PNG no more"),
    ):
        spoil()
        with pytest.raises(ConfigurationError) as caught:
            load("chest_xray", fake)
        assert str(path) in str(caught.value)
    for image in path.parent.iterdir():
        image.unlink()
    for given in ((fake,), (fake / "chest_xray",), ()):
        with refused("data_dir"):
            load("chest_xray", *given)


def test_the_real_images_reach_for_the_papers_sizes():
    folder = Path(os.environ.get("SECURE_FD_DATA", ""))
    if not (folder / "chest_xray").is_dir():
        pytest.skip("chest radiographs are not at hand")
    data = federate(load("chest_xray", folder), HOSPITALS, 4, 0)
    assert torch.bincount(data.proxies.labels).tolist() == [500] * 3
    assert torch.bincount(data.test.labels).tolist() == [100, 50, 50]
    held = [len(client.train) + len(client.validation) for client in data.clients]
    assert held == [540, 565, 1130, 1105]
