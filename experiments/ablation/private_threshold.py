"""The alternative to a data-free threshold: a quantile of the records' own ratios, bought.

The paper's tau_client needs the records a second time, so it takes a share of the budget. The
exponential mechanism chooses from a public grid, the quantiles of the proxies' scores; its
privacy loss has a bounded range, so it is (epsilon^2 / 8)-zCDP (Cesar and Rogers, "Bounding,
Concentrating, and Truncating", 2021), which adds to the head's 1 / (2 z^2).
"""

import math

import numpy as np

from secure_fd.knowledge import FloatArray, IntArray

_GRID: FloatArray = np.linspace(0.5, 0.995, 100)


def response_epsilon(noise_multiplier: float, share: float) -> float:
    """Epsilon of an exponential mechanism that costs `share` of what this noise does, in zCDP."""
    return 2.0 * math.sqrt(share) / noise_multiplier if noise_multiplier else math.inf


def private_thresholds(
    proxy_ratios: FloatArray,
    own_ratios: FloatArray,
    labels: IntArray,
    quantile: float,
    epsilon: float,
    rng: np.random.Generator,
) -> FloatArray:
    """[k] one threshold a class; a record's class decides which of them it moves.

    proxy_ratios: [P, k]. own_ratios: [n, k] at the private records; labels: [n] columns. rng: not
    a secure one, for a study of public data releases nothing.
    """
    found = np.empty(proxy_ratios.shape[1])
    for column, proxies in enumerate(proxy_ratios.T):
        grid = np.quantile(proxies, _GRID)
        score = utility(grid, own_ratios[labels == column, column], quantile)
        if math.isinf(epsilon):
            found[column] = grid[score.argmax()]
            continue
        # The largest of the utilities under Gumbel noise is a draw of the exponential mechanism.
        found[column] = grid[(epsilon * score / 2 + rng.gumbel(size=len(grid))).argmax()]
    return found


def utility(grid: FloatArray, own: FloatArray, quantile: float) -> FloatArray:
    """[G] how near each point is to the quantile of a class's own ratios, in records.

    A record that is zeroed out takes one from a count, or none, and `quantile` from its target, so
    a utility moves by max(quantile, 1 - quantile) at most: less than the 1 that the noise is for.
    """
    below = (own[None, :] < grid[:, None]).sum(axis=1)
    return np.asarray(-np.abs(below - quantile * len(own)))
