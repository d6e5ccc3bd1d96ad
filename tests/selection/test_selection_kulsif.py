"""The paper's selector against a case solved by hand and its own objective."""

import math

import numpy as np
import pytest
import torch

from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.selection.kulsif import Kulsif, gaussian_kernel
from secure_fd.selection.selectors import KulsifSelector

HALF = math.sqrt(1 / (2 * math.log(2)))
"""The width at which k(x, y) = 2^-(x - y)^2: a half at distance 1, a sixteenth at 2."""


def points(*values):
    return np.array(values).reshape(-1, 1)


def test_one_local_point_by_hand():
    """Reference {0, 1}, local {0}, beta = 1/2.

    K11 / 2 + I / 2 = [[1, 1/4], [1/4, 1]], of determinant 15/16; the right side is
    -K12 1 / (2 * 1 * 1/2) = -(1, 1/2). So alpha = -16/15 (1 - 1/8, 1/2 - 1/4) = (-14/15, -4/15),
    and w(x) = -14/15 k(x, 0) - 4/15 k(x, 1) + 2 k(x, 0):
    w(0) = -14/15 - 2/15 + 2 = 14/15, w(1) = -7/15 - 4/15 + 1 = 4/15,
    w(2) = -14/240 - 32/240 + 30/240 = -1/15: an estimate may be negative.
    """
    fitted = Kulsif.fit(points(0), points(0, 1), beta=0.5, width=HALF)
    assert fitted.alpha == pytest.approx([-14 / 15, -4 / 15], abs=1e-14)
    scores = fitted.score_samples(points(0, 1, 2))
    assert scores == pytest.approx([14 / 15, 4 / 15, -1 / 15], abs=1e-14)


def test_the_gradient_of_the_objective_vanishes():
    """Equation (1) of the paper for functions sum_i c_i k(., z_i), at centres of any kind."""
    rng = np.random.default_rng(0)
    fitted = Kulsif.fit(rng.normal(size=(12, 3)), rng.uniform(-3, 3, (20, 3)), 0.2, 1.3)
    centres = np.concatenate([fitted.reference, fitted.local, rng.uniform(-3, 3, (10, 3))])
    at_reference, at_local, kernel = (
        gaussian_kernel(x, centres, fitted.width) for x in (fitted.reference, fitted.local, centres)
    )

    def gradient(alpha):
        near = np.full(len(fitted.local), 1 / (len(fitted.local) * fitted.beta))
        c = np.concatenate([alpha, near, np.zeros(10)])
        error = at_reference.T @ (at_reference @ c) / len(at_reference) - at_local.mean(axis=0)
        return np.abs(error + fitted.beta * kernel @ c).max()

    assert gradient(fitted.alpha) < 1e-12
    assert gradient(0.9 * fitted.alpha) > 1e-3


def test_the_selector_accepts_what_lies_near_its_own_class():
    values = np.concatenate([np.linspace(0.1, 0.2, 40), np.linspace(0.8, 0.9, 40)])
    held = Images(torch.tensor(values).float().reshape(-1, 1, 1, 1), torch.arange(80) // 40 * 2)
    proxies = torch.tensor([0.15, 0.5, 0.85]).reshape(-1, 1, 1, 1)
    selection = KulsifSelector(width=0.2, share=0.5).select(ClientData(held, held, 3), proxies)
    assert selection.classes == (0, 2)
    assert selection.accepted.tolist() == [True, False, True]
    assert np.argwhere(selection.allowed(3)).tolist() == [[0, 0], [2, 2]]
