"""The paper's selector against a case solved by hand, its own objective and a known ratio."""

import math

import numpy as np
import pytest
import torch

from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.selection.kulsif import Kulsif, gaussian_kernel
from secure_fd.selection.selectors import KulsifSelector
from secure_fd.votes.codec import FloatArray

HALF = math.sqrt(1 / (2 * math.log(2)))
"""The width at which k(x, y) = 2^-(x - y)^2: a half at distance 1, a sixteenth at 2."""


def points(*values: float) -> FloatArray:
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


class Objective:
    """Equation (1) of the paper for functions sum_i c_i k(., z_i)."""

    def __init__(self, fitted: Kulsif, extra: FloatArray) -> None:
        self.centres = np.concatenate([fitted.reference, fitted.local, extra])
        self.fitted = fitted

    def __call__(self, c: FloatArray) -> float:
        f, z = self.fitted, self.centres
        at_reference = gaussian_kernel(f.reference, z, f.width) @ c
        at_local = gaussian_kernel(f.local, z, f.width) @ c
        squared_norm = c @ gaussian_kernel(z, z, f.width) @ c
        return float((at_reference**2).mean() / 2 - at_local.mean() + f.beta / 2 * squared_norm)

    def coefficients(self, alpha: FloatArray) -> FloatArray:
        f = self.fitted
        near = np.full(len(f.local), 1 / (len(f.local) * f.beta))
        return np.concatenate([alpha, near, np.zeros(len(self.centres) - len(alpha) - len(near))])


def test_no_other_function_has_a_lower_objective():
    """500 random directions, three lengths each; alpha off by a tenth must be beaten."""
    rng = np.random.default_rng(0)
    fitted = Kulsif.fit(rng.normal(size=(12, 3)), rng.uniform(-3, 3, (20, 3)), 0.2, 1.3)
    objective = Objective(fitted, rng.uniform(-3, 3, (10, 3)))
    best = objective.coefficients(fitted.alpha)
    mutant = objective.coefficients(fitted.alpha * 0.9)
    least, beaten = objective(best), 0
    assert objective(mutant) > least
    for _ in range(500):
        step = rng.normal(size=len(best))
        for length in (1e-3, 1e-2, 1.0):
            assert objective(best + length * step) > least
            beaten += objective(mutant + length * step) < objective(mutant)
    assert beaten > 100


def images(values: FloatArray, labels: list[int]) -> Images:
    return Images(torch.tensor(values).float().reshape(-1, 1, 1, 1), torch.tensor(labels))


def client(values: FloatArray, labels: list[int]) -> ClientData:
    held = images(values, labels)
    return ClientData(held, held, 3)


def test_the_selector_accepts_what_lies_near_its_own_class():
    values = np.concatenate([np.linspace(0.1, 0.2, 40), np.linspace(0.8, 0.9, 40)])
    data = client(values, [0] * 40 + [2] * 40)
    proxies = torch.tensor([0.15, 0.5, 0.85]).reshape(-1, 1, 1, 1)
    selection = KulsifSelector(width=0.2, share=0.5).select(data, proxies)
    assert selection.classes == (0, 2)
    assert selection.accepted.tolist() == [True, False, True]
    assert selection.allowed(3).tolist() == [
        [True, False, False],
        [False, False, False],
        [False, False, True],
    ]
