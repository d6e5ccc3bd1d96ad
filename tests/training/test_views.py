"""Random views of images: moved as far as allowed, from the generator alone."""

import pytest
import torch

from secure_fd.training import views
from secure_fd.training.views import shifted, turned, view_named
from tests.refusals import refused

COUNT = 400


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dots() -> torch.Tensor:
    """One bright pixel at row 4, column 6 of each image."""
    pixels = torch.zeros(COUNT, 1, 9, 11)
    pixels[:, 0, 4, 6] = 1.0
    return pixels


def places(pixels: torch.Tensor) -> torch.Tensor:
    """[N, 2] where the dot is."""
    return torch.nonzero(pixels[:, 0])[:, 1:]


def test_a_shift_moves_each_image_by_up_to_two_pixels_each_way():
    moves = places(shifted(dots(), generator())) - torch.tensor([4, 6])
    assert {tuple(move) for move in moves.tolist()} == {
        (row, column) for row in range(-2, 3) for column in range(-2, 3)
    }
    corner = torch.zeros(COUNT, 2, 5, 5)
    corner[:, :, 0, 0] = 1.0
    seen = shifted(corner, generator()).sum(dim=(2, 3))
    assert set(seen.unique().tolist()) == {0.0, 1.0}  # black comes in
    assert torch.equal(seen[:, 0], seen[:, 1])  # all channels move together


def blob() -> torch.Tensor:
    """A round spot 8 pixels to the right of the middle of each image."""
    along = torch.arange(33) - 16.0
    spot = torch.exp(-((along[:, None]) ** 2 + (along[None, :] - 8) ** 2) / 4)
    return spot.expand(COUNT, 1, 33, 33)


def centres(pixels: torch.Tensor) -> torch.Tensor:
    """[N, 2] row and column of the spot, from the middle of the image."""
    along = torch.arange(33) - 16.0
    mass = pixels.sum(dim=(1, 2, 3))
    rows, columns = (pixels.sum(dim=(1, other)) @ along for other in (3, 2))
    return torch.stack([rows, columns], dim=1) / mass[:, None]


@pytest.mark.parametrize("kept", ["_REACH", "_TURN", "_ZOOM", None])
def test_turned_images_stay_within_each_limit(kept, monkeypatch):
    for name in {"_REACH", "_TURN", "_ZOOM"} - {kept}:
        monkeypatch.setattr(views, name, 0)
    made = turned(blob(), generator())
    assert torch.equal(made, turned(blob(), generator()))
    seen = centres(made)
    radius, angle = seen.norm(dim=1), torch.atan2(seen[:, 0], seen[:, 1]).rad2deg()
    if kept == "_REACH":
        moves = seen - torch.tensor([0.0, 8.0])
        assert 1.9 < moves.abs().amax() < 2.05
        assert moves.mean(dim=0).abs().amax() < 0.4  # six deviations
    elif kept == "_TURN":
        assert torch.allclose(radius, torch.tensor(8.0), atol=0.05)
        assert 9.5 < angle.abs().amax() < 10.05
    elif kept == "_ZOOM":
        assert angle.abs().amax() < 0.1
        assert 8 / 1.1 - 0.05 < radius.amin() < 7.4
        assert 8.7 < radius.amax() < 8 / 0.9 + 0.05
    else:
        torch.testing.assert_close(made, blob())


def test_views_are_made_by_name_and_of_images_alone():
    assert view_named("none") is None
    assert view_named("shift") is shifted
    with refused("augment"):
        view_named("rotate")
    with refused("augment"):
        shifted(torch.zeros(3, 1280, 1, 1), generator())
