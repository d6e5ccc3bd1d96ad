"""How far each client may trust its own network about classes that it does not hold."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from secure_fd.knowledge import Ensemble, FloatArray, IntArray


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
