"""Random views: the right pixels, moved as far as allowed, from the generator alone."""

import pytest
import torch

from secure_fd.augmentation import augmentation, mirrored, shifted, shifted_and_mirrored
from secure_fd.errors import ConfigurationError

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


def test_a_shift_moves_each_image_by_up_to_two_pixels_each_way() -> None:
    moves = places(shifted(dots(), generator())) - torch.tensor([4, 6])
    assert len(moves) == COUNT
    assert {tuple(move) for move in moves.tolist()} == {
        (row, column) for row in range(-2, 3) for column in range(-2, 3)
    }


def test_what_leaves_the_image_is_gone_and_black_comes_in() -> None:
    corner = torch.zeros(COUNT, 2, 5, 5)
    corner[:, :, 0, 0] = 1.0
    seen = shifted(corner, generator()).sum(dim=(2, 3))
    assert set(seen.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(seen[:, 0], seen[:, 1])  # all channels move together


def test_a_mirror_flips_half_of_the_images() -> None:
    columns = places(mirrored(dots(), generator()))[:, 1]
    flipped = int((columns == 4).sum())
    assert int((columns == 6).sum()) == COUNT - flipped
    assert abs(flipped - COUNT / 2) < 60  # six deviations


def test_the_generator_decides() -> None:
    one, again, other = (shifted_and_mirrored(dots(), generator(s)) for s in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_names() -> None:
    assert augmentation("none") is None
    assert augmentation("shift") is shifted
    with pytest.raises(ConfigurationError, match="augment"):
        augmentation("rotate")


def test_features_have_no_places_to_shift() -> None:
    with pytest.raises(ConfigurationError, match="4 pixels"):
        shifted(torch.zeros(3, 1280, 1, 1), generator())
