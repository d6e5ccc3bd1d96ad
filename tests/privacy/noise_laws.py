"""Reference computations: exact noise by convolution, and dp-accounting's price of DP-SGD."""

import math
from functools import cache

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
    from_two_probability_mass_functions,
)

from secure_fd.votes.codec import FloatArray


@cache
def noise_law(variance: float, shares: int, reach: int) -> FloatArray:
    """[2 n + 1] probabilities of a sum of discrete Gaussians, to `reach` or where they are 0.

    They are sums and products of positive numbers, so tails are right relative to themselves.
    """
    reach = min(reach, math.ceil(38 * math.sqrt(variance * shares)))
    if shares == 1:
        single = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * variance))
        return np.asarray(single / single.sum())
    total = noise_law(variance, shares // 2, reach)
    total = np.convolve(total, total)
    if shares % 2:
        total = np.convolve(total, noise_law(variance, 1, reach))
    cut = max(0, len(total) // 2 - reach)
    return np.asarray(total[cut : len(total) - cut])


def shift_losses(
    variance: float, shares: int, shift: int, *, grid: float = 1e-4, pessimistic: bool
) -> PrivacyLossDistribution:
    """Privacy losses of one integer that neighbours move by `shift`, rounded to a grid."""
    logs = np.log(noise_law(variance, shares, math.ceil(12 * math.sqrt(variance * shares)) + shift))
    still = dict(enumerate(logs.tolist()))
    moved = {place + shift: value for place, value in still.items()}
    return from_two_probability_mass_functions(
        still, moved, pessimistic_estimate=pessimistic, value_discretization_interval=grid
    )


def dp_sgd_bounds(
    noise: float, rate: float, steps: int, delta: float, grid: float
) -> tuple[float, float]:
    """Return bounds of epsilon, for the worse of a record that is removed and one that is added.

    They come closer with a finer grid of losses (Doroshenko et al., 2022).
    """

    def composed(pessimistic: bool) -> float:
        step = from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=grid,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        return float(step.self_compose(steps).get_epsilon_for_delta(delta))

    return composed(False), composed(True)
