"""Reconstruction metrics: closed forms, equal numbers, and a Δ that is zero without leakage."""

import numpy as np
import pytest
import torch

from attacks.images import CEILING, closeness, leakage, psnr
from secure_fd.errors import LocalError


def blobs(n: int, seed: int) -> torch.Tensor:
    return torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_psnr_closed_forms() -> None:
    flat = torch.full((1, 1, 4, 4), 0.5)
    assert psnr(flat, flat + 0.1)[0, 0] == pytest.approx(20.0, abs=1e-5)
    assert psnr(torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4))[0, 0] == pytest.approx(0.0)
    assert psnr(flat, flat)[0, 0] == CEILING


def test_psnr_of_near_equal_images_is_not_lost_to_rounding() -> None:
    image = blobs(1, 0).double()
    assert psnr(image, image + 1e-5)[0, 0] == pytest.approx(100.0, abs=1e-3)


def test_unequal_references_are_refused() -> None:
    with pytest.raises(LocalError, match="3 private and 2 held-out"):
        closeness(blobs(1, 0), blobs(3, 1), blobs(2, 2))
    with pytest.raises(LocalError, match="0 private"):
        closeness(blobs(1, 0), blobs(0, 1), blobs(0, 2))


def test_equal_images_differ_in_pixels_only() -> None:
    with pytest.raises(LocalError, match="36 pixels"):
        psnr(blobs(1, 0), torch.zeros(1, 1, 5, 5))


def test_a_copy_of_a_private_image_leaks() -> None:
    private, held_out = blobs(20, 1), blobs(20, 2)
    found = leakage([closeness(private[:8] + 0.001, private, held_out)], 0)
    assert found.a == pytest.approx(60.0, abs=0.01)
    assert found.delta.value == pytest.approx(found.a - found.a_held_out)
    assert found.delta.interval[0] > 40
    # One class: all eight best images are private with chance about 1 / 2^8.
    assert found.p_value < 0.02
    assert leakage([closeness(held_out[:8] + 0.001, private, held_out)], 0).p_value > 0.98


def test_delta_of_the_class_mean_is_zero_though_d_is_perfect() -> None:
    private, held_out = blobs(50, 1), blobs(50, 2)
    found = leakage([closeness(private.mean(0, keepdim=True), private, held_out)], 0)
    assert found.d > 100
    assert abs(found.delta.value) < 0.5


def test_p_value_of_images_made_without_access_is_a_fair_coin() -> None:
    def p_value(seed: int) -> float:
        classes = [
            closeness(blobs(2, 1000 + seed), blobs(10, seed), blobs(10, 500 + seed))
            for seed in range(10 * seed, 10 * seed + 3)
        ]
        return leakage(classes, seed).p_value

    values = [p_value(seed) for seed in range(40)]
    # P[Bin(40, .05) > 9] < 1e-4; the mean of 40 uniform values has deviation .046.
    assert sum(value <= 0.05 for value in values) <= 9
    assert np.mean(values) == pytest.approx(0.5, abs=0.2)
