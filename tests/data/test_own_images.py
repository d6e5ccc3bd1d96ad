"""User-supplied folders of images: federations, refused images, and rows of a comparison."""

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

from attacks.core.run import public_of
from experiments.core.files import encode
from experiments.core.run_config import RowSpec, row_config
from experiments.core.runs import run
from experiments.privacy_compare import STUDY, Settings, cells, plan
from secure_fd.data.federated import content_of
from secure_fd.data.own_images import federation_in, images_in, read_picture
from secure_fd.data.partition import Split, parse_split
from tests.refusals import refused

EACH = 22


def fill(folder, mode, seed, count=EACH):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for index in range(count):
        shape = (18, 20) if mode == "L" else (18, 20, 3)
        pixels = rng.integers(0, 256, shape).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Three clients; one of them lacks a class, another is grey."""
    root = tmp_path_factory.mktemp("data") / "hospitals"
    for seed, (client, kind) in enumerate(
        [("a", "ill"), ("a", "well"), ("b", "ill"), ("c", "ill"), ("c", "well")]
    ):
        fill(root / client / kind, "L" if client == "b" else "RGB", seed)
    return root


def everything(data):
    held = [part for client in data.clients for part in (client.train, client.validation)]
    parts = [*held, data.proxies, data.test, data.held_out]
    return [content_of(image) for part in parts for image in part.pixels]


def settings(*arguments):
    return tyro.cli(Settings, args=list(arguments))


def test_a_folder_a_client_becomes_a_federation(hospitals):
    data = federation_in(hospitals, None, Split("own"), 3, 16, seed=1)
    assert [client.classes for client in data.clients] == [(0, 1), (0,), (0, 1)]
    assert data.proxies.pixels.shape[1:] == (3, 16, 16)
    assert all(len(client.validation) for client in data.clients)
    found = everything(data)
    assert len(set(found)) == len(found) == 5 * EACH
    other = federation_in(hospitals, None, Split("own"), 3, 16, seed=2)
    assert torch.equal(other.test.pixels, data.test.pixels)
    assert not torch.equal(other.proxies.pixels, data.proxies.pixels)


def test_a_folder_a_class_is_divided(tmp_path):
    for seed in range(3):
        fill(tmp_path / f"class {seed}", "L", seed)
    data = federation_in(tmp_path, None, parse_split("strong"), 3, 16, seed=0)
    assert [client.classes for client in data.clients] == [(0,), (1,), (2,)]
    assert data.proxies.pixels.shape[1:] == (1, 16, 16)


def test_proxies_come_from_a_folder_and_are_no_record(hospitals, tmp_path):
    fill(tmp_path / "public", "RGB", 99, count=12)
    private = hospitals / "a" / "ill" / "0.png"
    (tmp_path / "public" / "copy.png").write_bytes(private.read_bytes())
    data = federation_in(hospitals, tmp_path / "public", Split("own"), 3, 16, seed=0)
    assert len(data.proxies) == 12
    assert public_of(data).labels is None
    assert len(set(everything(data))) == 5 * EACH + 12


@pytest.mark.parametrize(
    "made", [{}, {"one/ill": EACH}, {"ill": EACH, "well": 3}, {"a/ill": EACH, "b/ill": 3}]
)
def test_too_few_folders_or_images_are_refused(tmp_path, made):
    for seed, (name, count) in enumerate(made.items()):
        fill(tmp_path / name, "L", seed, count)
    with refused("images"):
        federation_in(tmp_path, None, parse_split("iid"), 2, 16, seed=0)


@pytest.mark.parametrize(
    ("ending", "place", "value"),
    [
        ("png", 16, 0),  # no width
        ("png", 33, 20),  # fewer bytes of pixels than there are: a SyntaxError in Pillow
        ("bmp", 46, 1000),  # colours of the palette: a ValueError in Pillow
    ],
)
def test_a_damaged_image_is_named(tmp_path, ending, place, value):
    (tmp_path / "ill").mkdir()
    file = tmp_path / "ill" / f"0.{ending}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40), np.uint8)).save(file)
    order, whole = "big" if ending == "png" else "little", file.read_bytes()
    file.write_bytes(whole[:place] + value.to_bytes(4, order) + whole[place + 4 :])
    for content in (file.read_bytes(), whole[: len(whole) // 2]):
        file.write_bytes(content)
        with refused("folder") as caught:
            images_in(tmp_path, 8)
        assert f"0.{ending}" in str(caught.value)


def test_an_image_that_unpacks_to_far_too_many_pixels_is_named(tmp_path, monkeypatch):
    fill(tmp_path / "ill", "L", 0, count=1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # of twice as many, Pillow opens none
    with refused("folder"):
        images_in(tmp_path, 8)


def test_an_image_of_16_bits_keeps_its_greys(tmp_path):
    greys = 1040 * np.arange(63, dtype=np.uint16).reshape(7, 9)
    Image.fromarray(greys).save(tmp_path / "0.png")
    assert (read_picture(tmp_path / "0.png", 1)[0].numpy() == greys >> 8).all()


def test_cells_name_the_data_and_no_folder(hospitals):
    made = cells(settings("--images", str(hospitals), "--image-size", "16"))
    assert {cell.config.clients for cell in made} == {3}
    content = encode(made[0], "cell")
    assert str(hospitals) not in str(content)
    assert STUDY.image_set(made[0]) is None
    digests = {cell.config.own.digest for cell in made if cell.config.own}
    assert len(digests) == 1
    smaller = cells(settings("--images", str(hospitals), "--image-size", "20"))
    assert smaller[0] != made[0]


def test_a_row_runs_on_colour_images(hospitals):
    given = ["--images", str(hospitals), "--image-size", "16", "--rounds", "1", "--quick"]
    made = plan(settings(*given), None)
    row = run(row_config(made.base, RowSpec("fedavg")))
    assert len(row.accuracies) == 3
    shape = torch.zeros(2, 3, 16, 16)
    assert [network(shape).shape for network in row.federation.models] == [(2, 2)] * 3
