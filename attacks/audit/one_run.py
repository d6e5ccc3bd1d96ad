"""One run, many canaries: each is there by a fair coin, and the attacker guesses which are."""

import math

import numpy as np
from scipy.stats import norm

from attacks.audit.bounds import one_run_bound
from attacks.audit.finding import Proof
from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray


def guess(scores: FloatArray, included: FloatArray, guesses: int) -> int:
    """How many of the boldest guesses are right: highest scores "in", lowest "out".

    scores, included: [m]. Half of the guesses go to either end; the rest are not guessed.
    """
    if not (scores.shape == included.shape and 0 < 2 * (guesses // 2) <= len(scores)):
        raise LocalError(f"{guesses} guesses do not fit {len(scores)} canaries")
    order, half = np.argsort(scores, kind="stable"), guesses // 2
    return int((included[order[-half:]] == 1).sum() + (included[order[:half]] == 0).sum())


def prove_one_run(
    scores: FloatArray, included: FloatArray, guesses: int, delta: float, miss: float
) -> Proof:
    """The bound from one run. `guesses` must not have been chosen from these scores."""
    made = 2 * (guesses // 2)
    right = guess(scores, included, made)
    return Proof(
        bound=one_run_bound(len(scores), made, right, delta, miss),
        ceiling=one_run_bound(len(scores), made, made, delta, miss),
        attack=f"{right} of {made} boldest guesses right",
        trials=len(scores),
    )


def prove_named(scores: FloatArray, included: FloatArray, miss: float) -> Proof:
    """The bound at delta 0 from answers that name "in" (above 0), "out" (below), or neither."""
    guessed = scores != 0
    made = int(np.count_nonzero(guessed))
    right = int(np.count_nonzero(guessed & ((scores > 0) == (included == 1))))
    return Proof(
        bound=one_run_bound(len(scores), made, right, 0.0, miss),
        ceiling=one_run_bound(len(scores), made, made, 0.0, miss),
        attack=f"{right} of {made} guesses right",
        trials=len(scores),
    )


def bold(canaries: int, mu: float, delta: float, miss: float, claimed: float) -> int:
    """The number of guesses that promises most against Gaussian noise of a public mu.

    From the claim alone: no score is looked at. Only numbers that could refute it count, were all
    guesses right; where there are none, the audit cannot tell, and all count.
    """
    shares = np.geomspace(0.004, 1)
    options = sorted({2 * min(canaries // 2, max(1, round(canaries * s / 2))) for s in shares})
    able = [r for r in options if one_run_bound(canaries, r, r, delta, miss) > claimed]
    return int(max(able or options, key=lambda r: _promise(canaries, r, mu, delta, miss)))


def _promise(canaries: int, guesses: int, mu: float, delta: float, miss: float) -> float:
    """The bound where the boldest guesses are as right as their mean."""
    threshold = _threshold(guesses / canaries, mu)
    hit, wrong = float(norm.sf(threshold - mu)), float(norm.sf(threshold))
    right = math.floor(guesses * hit / (hit + wrong))
    return one_run_bound(canaries, guesses, right, delta, miss)


def _threshold(share: float, mu: float) -> float:
    """Where the upper half of the guesses begins, for a mixture of N(0, 1) and N(mu, 1)."""
    grid = np.linspace(mu / 2, mu + 8, 2000)
    tail = (norm.sf(grid) + norm.sf(grid - mu)) / 2
    return float(grid[int(np.abs(tail - share / 2).argmin())])
