"""A client's memory of how often it was asked about each proxy, under whatever cohort or round.

Two sums about one proxy whose cohorts differ by one client differ by that client's vote. Masks do
not help against it; a limit on how often a client answers does.
"""

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.knowledge import IntArray


class ReleaseLedger:
    """Counts one client's releases of every proxy; one a client, for as long as the client lives.

    limit: releases of one proxy that the client has agreed to in all its life; None counts only,
    and still refuses to answer a proxy twice in one round.
    """

    __slots__ = ("_counts", "limit")

    def __init__(self, n_proxies: int, limit: int | None) -> None:
        if n_proxies < 1:
            raise ConfigurationError("n_proxies", n_proxies, "use 1 or more")
        if limit is not None and limit < 1:
            raise ConfigurationError("releases_per_pair", limit, "use 1 or more")
        self.limit = limit
        self._counts = np.zeros(n_proxies, dtype=np.int64)

    @property
    def most(self) -> int:
        """The most often that any proxy was released."""
        return int(self._counts.max())

    @property
    def open(self) -> NDArray[np.bool_]:
        """[P] the proxies that may be released once more."""
        if self.limit is None:
            return np.ones(len(self._counts), dtype=np.bool_)
        return self._counts < self.limit

    def spend(self, indices: IntArray) -> None:
        """Count one release of every proxy at `indices` [m]; call it before anything is sent.

        Raises BudgetError where one is spent, and LocalError where one is unknown or named twice;
        then nothing is counted.
        """
        if indices.size and not 0 <= indices.min() <= indices.max() < len(self._counts):
            raise LocalError(f"a proxy index is outside [0, {len(self._counts)})")
        if len(np.unique(indices)) < len(indices):
            raise LocalError("a proxy is asked about twice in one round")
        spent = np.count_nonzero(~self.open[indices])
        if spent:
            raise BudgetError(
                f"{spent} of {len(indices)} proxies were already released as often as this "
                f"client has agreed to ({self.limit})"
            )
        self._counts[indices] += 1
