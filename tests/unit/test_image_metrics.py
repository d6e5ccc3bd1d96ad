"""Image metrics against scikit-image and cases worked by hand."""

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio
from torch import Tensor

from attacks.core.base import Images, Labelled
from attacks.core.images import CEILING, Originals, compare, psnr
from secure_fd.errors import LocalError


def pictures(seed: int, *shape: int) -> Tensor:
    """Smooth blobs with a little noise, in [0, 1]."""
    made = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.avg_pool2d(made, 3, 1, 1) if made.ndim > 2 else made


def test_psnr_of_every_pair_is_scikit_images():
    a, b = pictures(0, 4, 1, 28, 28).double(), pictures(1, 5, 1, 28, 28).double()
    expected = [
        [peak_signal_noise_ratio(y.numpy(), x.numpy(), data_range=1.0) for y in b] for x in a
    ]
    np.testing.assert_allclose(psnr(a, b), expected, atol=1e-10)


def test_psnr_of_near_equal_images_is_not_lost_to_rounding():
    image = pictures(0, 1, 1, 6, 6).double()
    assert psnr(image, image + 1e-5)[0, 0] == pytest.approx(100.0, abs=1e-3)
    assert psnr(image, image)[0, 0] == CEILING
    with pytest.raises(LocalError):
        psnr(image, torch.zeros(1, 1, 5, 5))


def test_delta_of_the_class_mean_is_near_zero():
    private, held_out = torch.rand(2, 50, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    blur = Images(private.mean(0, keepdim=True), torch.tensor([0]))
    labels = torch.zeros(50, dtype=torch.int64)
    found = compare(blur, Originals(Labelled(private, labels), Labelled(held_out, labels)), 0)
    assert found is not None
    assert abs(found.details["delta"]) < 0.5
