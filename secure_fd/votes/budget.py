"""A budget of votes: what one client may claim of a round's proxies, all its votes together.

Each of n clients has an equal share of the round's proxies, times a public slack. Without a budget,
a client that keeps to one vote a proxy may still speak up at every one of them, also where the only
holder of a class is outvoted by it. A proven sum enforces the budget; others trust in it.

Honest clients keep inside by a rule that reads no labels: the heaviest votes first, and among equal
ones those that come first from the client's own place in the round's draw, so that clients which
know all proxies alike leave none out together.
"""

import math

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.votes.codec import WordArray


def check_budget(budget: float | None) -> None:
    """Raise ConfigurationError for a slack that leaves a client less than its equal share."""
    if budget is not None and not 1 <= budget < math.inf:
        raise ConfigurationError("budget", budget, "use 1 or more, or None")


def units_of(slack: float | None, proxies: int, clients: int, levels: int) -> int | None:
    """A budget in integer units, for so many proxies; None where it binds nobody.

    >>> units_of(1.5, proxies=256, clients=10, levels=3)
    117
    """
    if slack is None or slack >= clients:
        return None
    return math.ceil(slack * proxies / clients) * levels


def within(units: WordArray, n_classes: int, budget: int | None, place: float) -> WordArray:
    """The votes [m * C] that a budget leaves, whole rows alone; 0 where it leaves none.

    place: in [0, 1), where in the round the client begins among votes of equal weight.

    >>> within(np.array([0, 1, 3, 0, 0, 3], np.uint64), 2, 4, place=0.5).tolist()
    [0, 0, 3, 0, 0, 0]
    """
    rows = units.reshape(-1, n_classes)
    weights = rows.sum(axis=1).astype(np.int64)
    if budget is None or int(weights.sum()) <= budget:
        return units
    order = np.roll(np.arange(len(rows)), -int(place * len(rows)))
    order = order[np.argsort(-weights[order], kind="stable")]
    kept = np.zeros(len(rows), dtype=np.bool_)
    kept[order] = np.cumsum(weights[order]) <= budget
    return np.where(kept[:, None], rows, np.zeros_like(rows)).reshape(-1)
