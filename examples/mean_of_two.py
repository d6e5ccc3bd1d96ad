"""A method of one's own in one file: a mean of votes that teaches where two classes are apart.

secure-fd compare --methods examples.mean_of_two:MeanOfTwo --quick
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from secure_fd.knowledge import Ensemble, IntArray, Sums, ensemble_predictions
from secure_fd.methods.base import EverybodyAnswers, Labels


@dataclass(frozen=True, slots=True)
class MeanOfTwo(EverybodyAnswers):
    """labels: what clients share. margin: least distance of the two largest mean votes."""

    labels: Labels = "soft"
    margin: float = 0.05

    revisits: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"Mean of two {self.labels}"

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """The mean, kept where its two largest classes are apart."""
        predictions = ensemble_predictions(sums)
        top = np.sort(predictions, axis=1)[:, -2:]
        return Ensemble(indices, predictions, top[:, 1] - top[:, 0] >= self.margin)
