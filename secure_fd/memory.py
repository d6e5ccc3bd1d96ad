"""What clients were taught so far, and what those that were away have still to be sent."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.knowledge import Ensemble


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
