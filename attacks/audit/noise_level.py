"""Bounds on a noise level: the deviation that the code really draws, where the data is known.

An attack from outside finds nothing until half of the noise is missing. An auditor that runs the
code can do better: pass records whose contribution is known, subtract it, and look at what is left.
N Gaussian values of deviation s have a sum of squares of s^2 chi^2_N. So s is at most sqrt(sum of
squares / the chi-square's quantile of `miss`), except with that probability. The claim's own
accountant computes a bound on epsilon from that noise. A bound above the claim refutes the claim.
Unlike an attack's bound it is as tight as that accountant is, and no tighter.

Noise of the right size may still be the same noise twice. So the deviation is bounded in the
weakest direction too: the least singular value of an R x d matrix of standard normal entries is at
least sqrt R - sqrt d - t but for exp(-t^2 / 2) (Davidson and Szarek, "Local operator theory, random
matrices and Banach spaces", 2001, theorem II.13).
"""

import math

import numpy as np
from scipy.stats import chi2

from attacks.audit.bounds import LARGEST, MISS, UNSEEN, Finding, rounded_down
from secure_fd.privacy.calibration import Plan, epsilon
from secure_fd.votes.codec import FloatArray

_STRIDE = 0.0025
_NOTHING = 1e-3
"""Share of the claimed noise that costs more than any bound, whatever the accountant."""
_FEW = 20
"""Entries of a draw that are compared with those of the next draw."""


def most_deviation(noise: FloatArray, miss: float) -> float:
    """Return an upper bound on the deviation of Gaussian noise around 0.

    >>> 1.0 < most_deviation(np.random.default_rng(0).normal(size=10_000), 1e-3) < 1.03
    True
    """
    return math.sqrt(float((noise**2).sum()) / float(chi2.ppf(miss, noise.size)))


def share_found(count: int, miss: float) -> float:
    """Return the most noise, over the claimed, whose bound is below the claim but for `UNSEEN`.

    >>> round(share_found(100_000, 1e-5), 3)
    0.984
    """
    return math.sqrt(float(chi2.ppf(miss, count) / chi2.isf(UNSEEN, count)))


def most_in_one_direction(rows: FloatArray, miss: float) -> float:
    """Return an upper bound on the deviation in the weakest direction.

    rows: [R, d] independent; infinite where they are too few for a bound.
    """
    count, columns = rows.shape
    surely = math.sqrt(count) - math.sqrt(columns) - math.sqrt(-2 * math.log(miss))
    if surely <= 0:
        return math.inf
    return float(np.linalg.svd(rows, compute_uv=False)[-1]) / surely


def judged(
    noise: FloatArray, claimed: float, delta: float, plan: Plan, *beside: FloatArray
) -> Finding:
    """Bound the deviation of all noise, and of its weakest direction, and price the smaller one.

    A claim may be a little above the price of its own noise, if its accountant is coarse. So the
    loss that is stated to be found is one whose bound is charged more than the claim.

    Args:
        noise: [N, d] over the sensitivity: one row a draw.
        claimed: the printed epsilon at `delta`.
        delta: of the claim.
        plan: with the claimed noise.
        beside: further matrices [R, d] of independent rows with independent columns.
    """

    def price(deviation: float) -> float:
        return min(LARGEST, epsilon(plan.with_noise(deviation), delta))

    few = noise[: len(noise) // 2 * 2, :_FEW]
    apart = (noise, few.reshape(len(few) // 2, -1), *beside)  # a draw shares with the next one
    part = MISS / (1 + len(apart))
    level = most_deviation(noise, part)
    weakest = min(most_in_one_direction(matrix, part) for matrix in apart)
    least = min(level, weakest)
    seen = share = share_found(noise.size, part)
    while share > 0 and price(plan.noise * share / seen) <= claimed:
        share -= _STRIDE
    return Finding(
        claimed,
        delta,
        bound=price(least) if least > _NOTHING * plan.noise else LARGEST,
        ceiling=LARGEST,
        attack=f"deviation of at most {level / plan.noise:.3f} of the claimed, "
        f"{weakest / plan.noise:.3f} in the weakest direction",
        trials=noise.size,
        finds=f"noise {rounded_down(max(0.0, share))}",
    )
