"""The server selector: which ensembles are precise enough to teach."""

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import FloatArray, Sums


def check_server_threshold(threshold: float) -> None:
    """Raise ConfigurationError unless the threshold is an l1 distance between 0 and 2."""
    if not 0 < threshold <= 2:
        raise ConfigurationError("server_threshold", threshold, "use a number above 0, at most 2")


def ensemble_predictions(sums: Sums) -> FloatArray:
    """h(x) = S(x) / N(x), [m, C]; a zero row where nobody answered."""
    count = sums.count[:, None]
    return np.divide(sums.total, count, out=np.zeros_like(sums.total), where=count > 0)


def precise(predictions: FloatArray, threshold: float) -> NDArray[np.bool_]:
    """[m] True where 2 (1 - max h(x)) <= tau_server and the maximum is unique.

    The distance is the l1 distance of h(x) to its own one-hot label (section "Server-Side
    Selector"); a tie names no label, whatever the threshold.
    """
    top = np.sort(predictions, axis=1)[:, -2:]
    return np.asarray((2.0 * (1.0 - top[:, 1]) <= threshold) & (top[:, 1] > top[:, 0]))
