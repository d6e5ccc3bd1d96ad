"""Random views of images: moved as far as allowed, from the generator alone."""

import torch

from secure_fd.training.views import shifted, turned, view_named
from tests.refusals import refused

COUNT = 400


def generator():
    return torch.Generator().manual_seed(0)


def test_a_shift_moves_each_image_by_up_to_two_pixels_each_way():
    dots, corner = torch.zeros(COUNT, 1, 9, 11), torch.zeros(COUNT, 2, 5, 5)
    dots[:, 0, 4, 6] = 1.0
    places = torch.nonzero(shifted(dots, generator())[:, 0])[:, 1:] - torch.tensor([4, 6])
    assert set(map(tuple, places.tolist())) == {
        (row, column) for row in range(-2, 3) for column in range(-2, 3)
    }
    corner[:, :, 0, 0] = 1.0
    seen = shifted(corner, generator()).sum(dim=(2, 3))
    assert set(seen.unique().tolist()) == {0.0, 1.0}  # black comes in
    assert torch.equal(seen[:, 0], seen[:, 1])  # all channels move together


def test_turned_images_are_moved_scaled_and_turned_as_far_as_their_limits():
    """Two spots 8 pixels to the left and right of the middle: pixels, degrees and a share."""
    along = torch.arange(41) - 20.0
    made = []
    for side in (-8, 8):
        spot = torch.exp(-((along[:, None]) ** 2 + (along[None, :] - side) ** 2) / 4)
        pixels = turned(spot.expand(COUNT, 1, 41, 41), generator())[:, 0]
        moments = torch.stack([(pixels.sum(dim=axis) @ along) for axis in (2, 1)], dim=1)
        made.append(moments / pixels.sum(dim=(1, 2))[:, None])
    left, right = made
    between, middle = right - left, (left + right) / 2
    scale, angle = (
        between.norm(dim=1) / 16,
        torch.rad2deg(torch.atan2(between[:, 0], between[:, 1])),
    )
    assert 1.8 < middle.abs().amax() < 2.5
    assert middle.mean(dim=0).abs().amax() < 0.4  # six deviations
    assert 9.5 < angle.abs().amax() < 10.1
    assert 1 / 1.1 - 0.01 < scale.amin() < 0.93
    assert 1.08 < scale.amax() < 1 / 0.9 + 0.01


def test_views_are_made_by_name_and_of_images_alone():
    assert view_named("none") is None
    assert view_named("shift") is shifted
    for wrong in (
        lambda: view_named("rotate"),
        lambda: shifted(torch.zeros(3, 12, 1, 1), generator()),
    ):
        with refused("augment"):
            wrong()
