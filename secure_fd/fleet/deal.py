"""Which of thousands of clients holds which record."""

from typing import Literal

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import IntArray

Dealt = Literal["strong", "iid"]


def deal(
    labels: IntArray, split: Dealt, n_clients: int, n_classes: int, rng: np.random.Generator
) -> IntArray:
    """[N] the owner of each record, as even as can be.

    strong: client k holds records of class k mod C alone. iid: records are dealt at random.
    Raises ConfigurationError where some client would hold none.
    """
    owners = np.empty(len(labels), dtype=np.int64)
    if split == "iid":
        owners[rng.permutation(len(labels))] = np.arange(len(labels)) % n_clients
    else:
        for c in range(n_classes):
            records = rng.permutation(np.flatnonzero(labels == c))
            holders = np.arange(c, n_clients, n_classes)
            owners[records] = holders[np.arange(len(records)) % max(1, len(holders))]
    if len(np.unique(owners)) != n_clients:
        raise ConfigurationError(
            "clients", n_clients, f"some would hold none of the {len(labels)} records: use fewer"
        )
    return owners


def expected_classes(split: Dealt, records: float, n_classes: int) -> float:
    """How many of C balanced classes a client of so many records is expected to hold."""
    if split == "strong":
        return 1.0
    return float(n_classes * (1 - (1 - 1 / n_classes) ** records))
