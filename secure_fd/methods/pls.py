"""PLS (Wang et al., 2023): class-wise knowledge that is selected before it is shared.

Shao, Wu and Zhang (2023) describe it as a method without proxies that shares class-wise mean
predictions; its own paper adds the selection of knowledge and the optimisation of local updates.
The rule here is one reading of the first, not the paper's formula: a client shares the mean over
those records of a class that its network names rightly, with their share of its records of that
class as its weight. Both factors follow from one sum: w s is the sum of its right predictions over
the number of its records. Local updates are not optimised; here every method takes as many.

A client's own knowledge stays in the mean. A class without a row of another client has no target: a
client has its own mean already.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from secure_fd.methods.base import Labels
from secure_fd.methods.class_means import ClassMeansMethod, class_means
from secure_fd.votes.codec import Contribution, FloatArray, Sums, hard_or_soft


@dataclass(frozen=True, slots=True)
class PLS(ClassMeansMethod):
    """labels: what clients share; a hard vote is cast where more than half of a class is right.

    >>> PLS("hard").name
    'PLS hard'
    """

    title: ClassVar[str] = "PLS"

    labels: Labels = "soft"

    def contribution(self, predictions: FloatArray, of_class: FloatArray) -> Contribution:
        """The mean of right predictions, weighted by their share of the class."""
        named = predictions.argmax(axis=1) == of_class.argmax(axis=1)
        right = of_class * named[:, None]
        held = of_class.sum(axis=0)
        weights = np.divide(right.sum(axis=0), held, out=np.zeros_like(held), where=held > 0)
        return Contribution(weights, hard_or_soft(class_means(predictions, right), self.labels))

    def teaching(self, everyone: Sums, others: Sums) -> FloatArray:
        """The weighted mean of all, where another client has a row."""
        return np.asarray(everyone.mean * (others.count > 0)[:, None])
