"""A user-supplied attack in one file: estimate the largest class of each client.

python experiments/privacy_compare.py --quick --attacks examples.own_attack:LargestClass
"""

from typing import Self

import numpy as np

from attacks.core.base import AttackResult, Distributions
from attacks.core.run import Attack, Run
from attacks.core.scoring import score_distributions
from attacks.core.view import Capability, View
from attacks.server.votes import in_votes
from secure_fd.votes.codec import IntArray


class LargestClass(Attack[Distributions, IntArray]):
    """Name the class that a client votes for most, where its votes are readable; else class 0."""

    name = "largest-class"
    title = "Largest class of each client"
    needs = (frozenset({Capability.READ_SUMS}),)
    figure_name = "largest classes named"
    control_name = "the same class for every client"

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Return the attack with its truth: [K] the largest class of each client."""
        return cls(truth=run.histograms.argmax(axis=1))

    def estimate(self, view: View, seed: int) -> Distributions:  # noqa: ARG002 - nothing is drawn
        """[K] class ids, from the view alone."""
        votes = np.zeros((view.public.n_clients, view.public.n_classes))
        total = np.zeros(view.public.n_classes)
        for seen in view.rounds:
            for client, units in (seen.uploads or {}).items():
                votes[client] += in_votes(units, seen).sum(axis=0)
            if seen.total is not None:
                total += in_votes(seen.total, seen).sum(axis=0)
        guess = np.full(len(votes), total.argmax())
        named = np.where(votes.any(axis=1), votes.argmax(axis=1), guess)
        return Distributions(named, guess)

    def score(self, estimate: Distributions, seed: int) -> AttackResult:
        """Share of clients whose largest class is named, with its exact interval."""
        return score_distributions(self, estimate, self.truth, seed)
