"""An attack of one's own, in one file: which class fills most of each client's records?

python experiments/privacy_compare.py --quick --attacks examples.own_attack:LargestClass
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attacks.core.base import Attack, AttackResult, Distributions
from attacks.core.scoring import score_distributions
from attacks.core.view import Capability, View
from attacks.on_run import Truth
from attacks.server.votes import in_votes


@dataclass(frozen=True, slots=True)
class LargestClass(Attack[Distributions, Truth]):
    """Name the class that a client votes for most, where its votes are readable; else class 0.

    `prepare` is the base's: there is nothing to do before a transcript is there.
    """

    name: ClassVar[str] = "largest-class"
    title: ClassVar[str] = "Largest class of each client"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (frozenset({Capability.READ_SUMS}),)
    figure_name: ClassVar[str] = "largest classes named"
    control_name: ClassVar[str] = "the same class for every client"

    def run(self, view: View, seed: int) -> Distributions:  # noqa: ARG002 - counting needs no chance
        """[K] class ids: nothing here knows the truth."""
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

    def score(self, estimate: Distributions, truth: Truth, seed: int) -> AttackResult:
        """Share of clients whose largest class is named, with its exact interval."""
        return score_distributions(self, estimate, truth.histograms.argmax(axis=1), seed)
