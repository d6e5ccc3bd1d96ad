"""Image metrics against scikit-image, scikit-learn and cases worked by hand."""

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from attacks.base import Images
from attacks.images import (
    CEILING,
    Originals,
    class_coverage,
    closeness,
    compare,
    coverage,
    feature_distance,
    knn_distance,
    psnr,
    ssim,
)
from secure_fd.errors import LocalError


def pictures(seed: int, *shape: int) -> Tensor:
    """Smooth blobs with a little noise, in [0, 1]."""
    made = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.avg_pool2d(made, 3, 1, 1) if made.ndim > 2 else made


def projected(images: Tensor) -> Tensor:
    weights = torch.randn(784, 6, generator=torch.Generator().manual_seed(1))
    return images.flatten(1) @ weights


@pytest.mark.parametrize("side", [7, 12, 28])
def test_ssim_of_every_pair_is_scikit_images(side: int) -> None:
    a, b = pictures(0, 4, side, side), pictures(1, 5, side, side)
    expected = [
        [structural_similarity(x.numpy().astype(float), y.numpy(), data_range=1.0) for y in b]
        for x in a
    ]
    np.testing.assert_allclose(ssim(a, b), expected, atol=1e-7)


def test_ssim_of_channels_is_their_mean() -> None:
    a, b = pictures(2, 3, 3, 16, 16).double(), pictures(3, 2, 3, 16, 16).double()
    expected = [
        [structural_similarity(x.numpy(), y.numpy(), data_range=1.0, channel_axis=0) for y in b]
        for x in a
    ]
    np.testing.assert_allclose(ssim(a, b), expected, atol=1e-12)


def test_ssim_in_blocks_is_ssim_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pictures(4, 7, 12, 12), pictures(5, 6, 12, 12)
    whole = ssim(a, b)
    monkeypatch.setattr("attacks.images._BLOCK", 2 * b.numel())
    np.testing.assert_array_equal(ssim(a, b), whole)


def test_ssim_knows_equal_and_inverted_images() -> None:
    a = pictures(6, 3, 28, 28)
    np.testing.assert_allclose(np.diag(ssim(a, a)), 1.0, atol=1e-12)
    assert (np.diag(ssim(a, 1 - a)) < 0).all()


@pytest.mark.parametrize("shape", [(1, 14, 14), (1, 6, 6)])
def test_ssim_refuses_other_shapes_and_small_images(shape: tuple[int, ...]) -> None:
    references = pictures(1, 1, 28, 28) if shape[1] > 6 else pictures(1, *shape)
    with pytest.raises(LocalError, match="7 pixels a side"):
        ssim(pictures(0, *shape), references)


def test_psnr_of_every_pair_is_scikit_images() -> None:
    a, b = pictures(0, 4, 1, 28, 28).double(), pictures(1, 5, 1, 28, 28).double()
    expected = [
        [peak_signal_noise_ratio(y.numpy(), x.numpy(), data_range=1.0) for y in b] for x in a
    ]
    np.testing.assert_allclose(psnr(a, b), expected, atol=1e-10)


def test_psnr_of_near_equal_images_is_not_lost_to_rounding() -> None:
    image = pictures(0, 1, 1, 6, 6).double()
    assert psnr(image, image + 1e-5)[0, 0] == pytest.approx(100.0, abs=1e-3)
    assert psnr(image, image)[0, 0] == CEILING
    with pytest.raises(LocalError, match="36 pixels"):
        psnr(image, torch.zeros(1, 1, 5, 5))


def test_unequal_references_are_refused() -> None:
    made, few, more = (torch.rand(n, 1, 6, 6) for n in (1, 2, 3))
    with pytest.raises(LocalError, match="3 private and 2 held-out"):
        closeness(made, more, few)
    with pytest.raises(LocalError, match="0 private"):
        closeness(made, more[:0], few)


def test_delta_of_the_class_mean_is_zero_though_d_is_perfect() -> None:
    private, held_out = torch.rand(2, 50, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    blur = Images(private.mean(0, keepdim=True), torch.tensor([0]))
    found = compare(blur, Originals({0: private}, {0: [held_out]}), 0)
    assert found is not None
    assert found.details["D"] > 100
    assert abs(found.details["delta"]) < 0.5


@pytest.mark.parametrize("k", [1, 3])
def test_knn_distance_is_scikit_learns(k: int) -> None:
    a, b = pictures(0, 6, 28, 28), pictures(1, 20, 28, 28)
    nearest = NearestNeighbors(n_neighbors=k).fit(projected(b).double().numpy())
    expected, _ = nearest.kneighbors(projected(a).double().numpy())
    np.testing.assert_allclose(knn_distance(a, b, k, projected), expected[:, -1], atol=1e-9)


def test_copies_are_at_distance_zero_and_lack_of_neighbours_is_refused() -> None:
    a = pictures(0, 4, 28, 28)
    assert knn_distance(a, a).max() == 0.0
    with pytest.raises(LocalError, match="5 of 4 references"):
        knn_distance(a, a, k=5)


def test_feature_distance_is_to_the_centre_of_the_class() -> None:
    a, b = pictures(0, 6, 28, 28), pictures(1, 20, 28, 28)
    centre = projected(b).double().numpy().mean(axis=0)
    expected = np.linalg.norm(projected(a).double().numpy() - centre, axis=1)
    np.testing.assert_allclose(feature_distance(a, b, projected), expected, rtol=1e-5)
    with pytest.raises(LocalError, match="0 images"):
        feature_distance(a, b[:0], projected)


def test_coverage_by_hand() -> None:
    """On a line with k = 1 the radii are 1, 1, 2 and 4: 3.5 is in the balls of 1 + 2 and 3 + 4."""
    real = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    assert coverage(torch.tensor([[3.5]]), real, 1) == 0.5
    assert coverage(torch.tensor([[-0.5]]), real, 1) == 0.25
    assert coverage(torch.tensor([[100.0]]), real, 1) == 0.0
    assert coverage(real, real, 1) == 1.0


def test_coverage_of_fresh_draws_is_as_derived_and_of_one_image_is_small() -> None:
    """Naeem et al., lemma 1: 1 - (m - 1)...(m - k) / ((2m - 1)...(2m - k)) for equally many."""
    m, k = 200, 3
    factors = [(m - i) / (2 * m - i) for i in range(1, k + 1)]
    found = []
    for seed in range(30):
        draws = torch.randn(2, m, 5, generator=torch.Generator().manual_seed(seed))
        found.append(coverage(draws[0], draws[1], k))
    # Over seeds the deviation is .033 or less, of the mean .006: five of those.
    assert np.std(found) < 0.033
    assert np.mean(found) == pytest.approx(1 - np.prod(factors), abs=0.03)
    repeated = torch.zeros(m, 5)
    assert coverage(repeated, draws[1], k) < np.mean(found) - 0.3


def test_coverage_counts_equal_references_as_neighbours() -> None:
    real = torch.tensor([[0.0], [0.0], [5.0]])
    assert coverage(torch.tensor([[0.1]]), real, 1) == pytest.approx(1 / 3)
    with pytest.raises(LocalError, match="3 neighbours of 3"):
        coverage(real, real, 3)


def test_class_coverage_asks_for_one_hit_a_class() -> None:
    meant = torch.tensor([0, 0, 1, 1, 4])
    assert class_coverage(meant, torch.tensor([0, 3, 0, 1, 9])) == pytest.approx(2 / 3)
    assert class_coverage(meant, meant) == 1.0
    with pytest.raises(LocalError, match="equally many"):
        class_coverage(meant, meant[:2])
