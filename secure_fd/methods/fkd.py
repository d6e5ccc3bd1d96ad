"""FKD: federated distillation without proxies (Jeong et al., 2018; Seo et al., 2022).

The target of a class is the mean of the other clients' mean softmax outputs; the client's own is
left out, as a student is not its own teacher. Clients that lack a class do not count in its mean.

Where the papers leave a choice: a client's mean is taken over all its records once its steps are
done, not summed up along the way. gamma has no number in Jeong et al.; 1 lets both losses weigh
the same. With hard labels, which are not in the papers, clients share one-hot labels of their
means.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from secure_fd.methods.base import Labels
from secure_fd.methods.class_means import ClassMeansMethod, class_means
from secure_fd.votes.codec import Contribution, FloatArray, Sums, hard_or_soft


@dataclass(frozen=True, slots=True)
class FKD(ClassMeansMethod):
    """labels: what clients share.

    >>> FKD().name
    'FKD soft'
    """

    title: ClassVar[str] = "FKD"

    labels: Labels = "soft"

    def contribution(self, predictions: FloatArray, of_class: FloatArray) -> Contribution:
        """Weight 1 for each class that the client holds, and its mean prediction there."""
        means = hard_or_soft(class_means(predictions, of_class), self.labels)
        return Contribution(np.max(of_class, axis=0), means)

    def teaching(self, everyone: Sums, others: Sums) -> FloatArray:  # noqa: ARG002 - its own is left out
        """The others' mean."""
        return others.mean
