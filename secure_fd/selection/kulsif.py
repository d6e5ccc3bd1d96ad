"""Exact kernel unconstrained least-squares importance fitting, the paper's client selector.

Kanamori, Suzuki and Sugiyama, "Statistical analysis of kernel-based least-squares density-ratio
estimation", Machine Learning 86, 2012, Theorem 1: with K11 the Gram matrix of the n_u reference
points and K12 the one between reference and local points,

    (K11 / n_u + beta I) alpha = -K12 1 / (n_u n_k beta)
    w(x) = sum_j alpha_j k(x, u_j) + sum_i k(x, x_i) / (n_k beta)
"""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

from secure_fd.votes.codec import FloatArray


def gaussian_kernel(a: FloatArray, b: FloatArray, width: float) -> FloatArray:
    """[N, M] values exp(-|a_i - b_j|^2 / (2 width^2))."""
    return np.exp(cdist(a, b, "sqeuclidean") / (-2.0 * width**2))


@dataclass(frozen=True, slots=True, eq=False)
class Kulsif:
    """A fitted estimate of p_k(x) / u(x).

    reference: [n_u, d]; local: [n_k, d]; alpha: [n_u].
    """

    reference: FloatArray
    local: FloatArray
    alpha: FloatArray
    beta: float
    width: float

    @classmethod
    def fit(cls, local: FloatArray, reference: FloatArray, beta: float, width: float) -> "Kulsif":
        """Solve equation (1) of the paper for local records [n_k, d] and reference [n_u, d]."""
        n_u, n_k = len(reference), len(local)
        k11 = gaussian_kernel(reference, reference, width)
        k12 = gaussian_kernel(reference, local, width)
        right = -k12.sum(axis=1) / (n_u * n_k * beta)
        alpha = np.linalg.solve(k11 / n_u + beta * np.eye(n_u), right)
        return cls(reference, local, alpha, beta, width)

    def score_samples(self, x: FloatArray) -> FloatArray:
        """The estimated ratio at each row of [N, d]; higher means more like the local records."""
        near = gaussian_kernel(x, self.local, self.width).sum(axis=1)
        far = gaussian_kernel(x, self.reference, self.width) @ self.alpha
        return np.asarray(far + near / (len(self.local) * self.beta))
