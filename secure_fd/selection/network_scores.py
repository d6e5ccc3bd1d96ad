"""Scores that read a client's own network: the rivals of the density ratio in the paper's Fig. 5.

A network that was trained on one class alone gives that class everywhere, so neither score can know
what it has never seen. Both are higher where a sample is more in distribution.
"""

from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import logsumexp, softmax

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import FloatArray

Score = Callable[[FloatArray], FloatArray]
"""Logits [N, C] to scores [N]."""


def confidence(logits: FloatArray) -> FloatArray:
    """The largest probability (Hendrycks and Gimpel, 2017; DeVries and Taylor, 2018)."""
    return np.asarray(softmax(logits, axis=1).max(axis=1))


def negative_energy(logits: FloatArray) -> FloatArray:
    """log sum exp of the logits: minus the energy at temperature one (Liu et al., 2020)."""
    return np.asarray(logsumexp(logits, axis=1))


SCORES: Mapping[str, Score] = {"confidence": confidence, "energy": negative_energy}


def score(name: str) -> Score:
    """The score of that name. Raises ConfigurationError for an unknown one."""
    if name not in SCORES:
        raise ConfigurationError("score", name, f"use one of {', '.join(SCORES)}")
    return SCORES[name]
