"""What lasts from round to round: counts of releases, the draws, what was taught, trust.

Two sums about one proxy whose cohorts differ by one client differ by that client's vote. Masks do
not help against it; a limit on how often a client answers does.
"""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.crypto.public import draw_indices
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.knowledge import Ensemble, FloatArray, IntArray
from secure_fd.learner import Lesson


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


class Draws:
    """Draws each round's proxies; every party that knows the seed finds the same ones.

    seed: the joint seed of all clients, or a public one. limit: releases agreed for each
    (client, proxy) pair; None: one a round, without an end. A drawn proxy counts for every client,
    also for one that is away or whose answer never arrives, so that all parties know all counts
    from the draws alone, and none is too low.
    """

    def __init__(self, seed: bytes, n_proxies: int, per_round: int, limit: int | None) -> None:
        self._seed, self._per_round = seed, per_round
        self._ledger = ReleaseLedger(n_proxies, limit)
        self._next = 0
        self._last: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def most_released(self) -> int:
        """The most often that any proxy was asked about."""
        return self._ledger.most

    def of(self, index: int) -> IntArray:
        """[m] proxies of round `index`, ascending, counted in the ledger; rounds before are too.

        Where fewer are left than a round takes, the round takes those. Raises BudgetError where
        none is left, LocalError for a round before the last one that was asked for.
        """
        if index < self._next - 1:
            raise LocalError(f"round {index} was drawn before round {self._next - 1}")
        while self._next <= index:
            self._last = self._draw(self._next)
            self._next += 1
        return self._last

    def _draw(self, index: int) -> IntArray:
        allowed = np.flatnonzero(self._ledger.open)
        if not len(allowed):
            raise BudgetError(
                f"round {index}: every proxy was released as often as agreed "
                f"({self._ledger.limit}); the run ends here"
            )
        count = min(self._per_round, len(allowed))
        chosen = np.asarray(allowed[draw_indices(self._seed, index, len(allowed), count)])
        self._ledger.spend(chosen)
        return chosen


class Memory:
    """What one client was taught so far: the newest ensemble of each proxy.

    remember: ensembles of earlier rounds teach as well.
    """

    def __init__(self, proxies: Tensor, n_classes: int, *, remember: bool) -> None:
        self._proxies = proxies
        self._targets = torch.zeros(len(proxies), n_classes, device=proxies.device)
        self._known = torch.zeros(len(proxies), dtype=torch.bool, device=proxies.device)
        self._remember = remember

    def learn(self, ensemble: Ensemble) -> Lesson:
        """What to distil from after this ensemble came in."""
        if not self._remember:
            self._known[:] = False
        indices = torch.from_numpy(ensemble.indices).to(self._known.device)
        kept = torch.from_numpy(ensemble.kept).to(self._known.device)
        taught = torch.from_numpy(ensemble.predictions).float().to(self._known.device)
        self._known[indices] = kept
        self._targets[indices] = taught
        known = self._known.nonzero()[:, 0]
        return Lesson(self._proxies, known, self._targets[known])


class Trust:
    """How often one client's network agreed with an ensemble before it was taught that ensemble.

    A client sees that by itself: it compares what its network said with what came back last. Zero
    until then. A round of fewer than `LEAST` lessons changes nothing: a server could keep a single
    proxy to read what the network says about that one.
    """

    LEAST: ClassVar[int] = 32

    def __init__(self) -> None:
        self.value = 0.0
        """In [0, 1]."""
        self._said: IntArray | None = None

    def forget(self) -> None:
        """The round brought no ensemble to compare with."""
        self._said = None

    def said(self, predictions: FloatArray) -> None:
        """Keep what the network says about the round's proxies, [m, C]."""
        self._said = np.asarray(predictions.argmax(axis=1))

    def compare(self, ensemble: Ensemble) -> None:
        """Compare with the ensemble about the same proxies."""
        taught, said = ensemble.predictions.argmax(axis=1), self._said
        enough = ensemble.kept.sum() >= self.LEAST
        if said is not None and said.shape == taught.shape and enough:
            self.value = float((said == taught)[ensemble.kept].mean())
        self.forget()
