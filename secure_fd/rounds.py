"""A client's memory of how often it was asked about each proxy, under whatever cohort or round.

Two sums about one proxy whose cohorts differ by one client differ by that client's vote. Masks do
not help against it; a limit on how often a client answers does.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.aggregation.base import SecureSum
from secure_fd.crypto.public import draw_indices, joint_seed, public_nonces
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.knowledge import Ensemble, FloatArray, IntArray


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


# Which proxies a round is about: drawn jointly where the sum can, and within every ledger.


class ProxyChoice:
    """Draws each round's proxies among those that every client may still release.

    aggregation: draws with the clients' nonces, or leaves the draw to public ones from `seed`;
    both then give the same proxies where the clients' nonces are those public ones.
    limit: releases agreed for each (client, proxy) pair; None: one a round, without an end.
    """

    def __init__(
        self, aggregation: SecureSum, n_proxies: int, per_round: int, seed: int, limit: int | None
    ) -> None:
        self._sum = aggregation
        self._per_round = per_round
        self._seed = joint_seed(public_nonces(seed, aggregation.n_clients))
        self._ledgers = [ReleaseLedger(n_proxies, limit) for _ in range(aggregation.n_clients)]

    @property
    def most_released(self) -> int:
        """The most often that any client was asked about any proxy."""
        return max(ledger.most for ledger in self._ledgers)

    def draw(self, index: int) -> IntArray:
        """[m] proxies of round `index`, ascending, counted in every ledger before anybody answers.

        A drawn proxy counts for every client, also for one that is away or whose answer never
        arrives: so all clients know all counts from the draws alone, and none is too low. Where
        fewer are left than a round takes, the round takes those. Raises BudgetError where none
        is left.
        """
        allowed = np.flatnonzero(np.logical_and.reduce([ledger.open for ledger in self._ledgers]))
        if not len(allowed):
            raise BudgetError(
                f"round {index}: every proxy was released as often as agreed "
                f"({self._ledgers[0].limit}); the run ends here"
            )
        count = min(self._per_round, len(allowed))
        drawn = self._sum.draw(index, len(allowed), count)
        if drawn is None:
            drawn = draw_indices(self._seed, index, len(allowed), count)
        chosen = allowed[drawn]
        for ledger in self._ledgers:
            ledger.spend(chosen)
        return chosen


# What clients were taught so far, and what those that were away have still to be sent.


class Memory:
    """The newest ensemble of each proxy: what every client learns from that was sent them all.

    One memory serves all clients, since a client that comes back is sent what it missed before
    it learns again. remember: ensembles of earlier rounds teach as well.
    """

    def __init__(self, proxies: Tensor, n_classes: int, n_clients: int, *, remember: bool) -> None:
        self._pixels = proxies
        self._targets = torch.zeros(len(proxies), n_classes, device=proxies.device)
        self._known = torch.zeros(len(proxies), dtype=torch.bool, device=proxies.device)
        self._owed = np.zeros(n_clients, dtype=np.int64)
        self._remember = remember

    def learn(self, ensemble: Ensemble) -> tuple[Tensor, Tensor]:
        """Pixels and targets to distil from, after this ensemble came in."""
        if not self._remember:
            self._known[:] = False
        indices = torch.from_numpy(ensemble.indices).to(self._known.device)
        kept = torch.from_numpy(ensemble.kept).to(self._known.device)
        taught = torch.from_numpy(ensemble.predictions).float().to(self._known.device)
        self._known[indices] = kept
        self._targets[indices] = taught
        return self._pixels[self._known], self._targets[self._known]

    def owe(self, size: int, present: Sequence[int]) -> NDArray[np.int64]:
        """[n] bytes that present clients [n] are sent when a new message of `size` bytes is out.

        The message, and every earlier one that a client missed and that still teaches.
        """
        self._owed = size + self._owed * self._remember
        due = self._owed[list(present)]
        self._owed[list(present)] = 0
        return due


# How far each client may trust its own network about classes that it does not hold.


class Trust:
    """How often the client's network agreed with an ensemble before it was taught that ensemble.

    A client sees that by itself: it compares what its network said with what came back last. Zero
    until then. A round of fewer than `LEAST` lessons changes nothing: a server could keep a single
    proxy to read what the network says about that one.
    """

    LEAST: ClassVar[int] = 32

    def __init__(self, n_clients: int) -> None:
        self._trust = [0.0] * n_clients
        self._said: dict[int, IntArray] = {}

    def of(self, client: int) -> float:
        """In [0, 1]."""
        return self._trust[client]

    def forget(self) -> None:
        """The round brought no ensemble to compare with."""
        self._said.clear()

    def said(self, client: int, predictions: FloatArray) -> None:
        """Keep what the network says about the round's proxies, [m, C]."""
        self._said[client] = np.asarray(predictions.argmax(axis=1))

    def heard(self, ensemble: Ensemble, present: Sequence[int]) -> None:
        """Compare with the ensemble about the same proxies, at the clients that receive it."""
        taught = ensemble.predictions.argmax(axis=1)
        for client in present:
            said = self._said.get(client)
            if said is None or said.shape != taught.shape or ensemble.kept.sum() < self.LEAST:
                continue
            self._trust[client] = float((said == taught)[ensemble.kept].mean())
        self.forget()
