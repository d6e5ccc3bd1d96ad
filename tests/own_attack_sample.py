"""An attack of one's own, as a user would write it: it names the class of most votes."""

from typing import Any, ClassVar

import numpy as np

from attacks.base import AttackResult
from attacks.view import Capability, Public, View
from experiments.attacking import Truth


class MostVotes:
    """Guesses the class that all clients hold together most of."""

    name: ClassVar[str] = "most-votes"
    title: ClassVar[str] = "Most votes"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (frozenset({Capability.READ_SUMS}),)
    figure_name: ClassVar[str] = "found"
    control_name: ClassVar[str] = "guess"

    @classmethod
    def prepare(cls, public: Public, *_: Any, **__: Any) -> "MostVotes":  # noqa: ARG003, ANN401
        return cls()

    def run(self, view: View, seed: int) -> int:  # noqa: ARG002
        return 0

    def score(self, estimate: int, truth: Truth, seed: int) -> AttackResult:  # noqa: ARG002
        found = float(np.argmax(truth.histograms.sum(axis=0)) == estimate)
        return AttackResult(
            name=self.name,
            title=self.title,
            figure=found,
            figure_name=self.figure_name,
            unit="",
            interval=(found, found),
            control=0.1,
            control_name=self.control_name,
        )
