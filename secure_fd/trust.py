"""How far each client may trust its own network about classes that it does not hold."""

from collections.abc import Sequence

import numpy as np

from secure_fd.knowledge import Ensemble, FloatArray, IntArray


class Trust:
    """Share of a round's lessons that the client's network knew before it was taught them.

    A client sees that by itself: it compares what its network said with what came back. Zero until
    then, and as it was where a round teaches nothing.
    """

    def __init__(self, n_clients: int) -> None:
        self._trust = [0.0] * n_clients
        self._said: dict[int, IntArray] = {}

    def of(self, client: int) -> float:
        """In [0, 1]."""
        return self._trust[client]

    def said(self, client: int, predictions: FloatArray) -> None:
        """Keep what the network says about the round's proxies, [m, C]."""
        self._said[client] = np.asarray(predictions.argmax(axis=1))

    def heard(self, ensemble: Ensemble, present: Sequence[int]) -> None:
        """Compare with the ensemble about the same proxies, at the clients that receive it."""
        taught = ensemble.predictions.argmax(axis=1)
        for client in present:
            said = self._said.get(client)
            if said is not None and said.shape == taught.shape and ensemble.kept.any():
                self._trust[client] = float((said == taught)[ensemble.kept].mean())
        self._said.clear()
