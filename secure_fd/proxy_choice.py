"""Which proxies a round is about: drawn jointly where the sum can, and within every ledger."""

import numpy as np

from secure_fd.aggregation.base import SecureSum
from secure_fd.draw import draw_indices, joint_seed, public_nonces
from secure_fd.errors import BudgetError
from secure_fd.knowledge import IntArray
from secure_fd.ledger import ReleaseLedger


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
