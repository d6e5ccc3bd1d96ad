"""The record unit: one noisy release a client gives labels and abstentions for every round."""

import os
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from secure_fd.data.images import Images
from secure_fd.errors import BudgetError
from secure_fd.knowledge import SOFT_LEVELS, Contribution, IntArray, Sums, one_hot
from secure_fd.privacy.entropy import Random
from secure_fd.privacy.record_release import NoisyClassMeans, release_class_means
from secure_fd.privacy.units import Guarantee
from secure_fd.protection.base import Answer, check_budget
from secure_fd.selection.density import (
    ProxyReference,
    ReferenceSettings,
    Same,
    posterior,
    shared_reference,
)
from secure_fd.selection.thresholds import otsu_thresholds


class RecordUnit:
    """Labels and abstentions from the class-conditional density-ratio head, made private once.

    The client's network is never asked, so it may train on raw records without noise as long as
    it stays at the client. Thresholds are Otsu's on the noisy ratios at the public proxies:
    post-processing, so they cost nothing. epsilon, delta: of the whole run, one record of one
    client, with its number of records and its classes public. One object serves one federation.
    """

    name = "record unit"

    def __init__(self, epsilon: float, delta: float, random: Random = os.urandom) -> None:
        check_budget(epsilon, delta)
        self._epsilon = epsilon
        self._delta = delta
        self._random = random
        self._votes: list[Contribution] = []
        self._releases: list[NoisyClassMeans] = []

    def levels(self, wanted: int) -> int:  # noqa: ARG002 - the head decides
        """Fractions: the head knows how sure it is, and saying so costs no privacy."""
        return SOFT_LEVELS

    def prepare(self, proxies: Tensor, n_classes: int, records: list[Images]) -> None:
        """Release every client's noisy means, and derive all its votes from them.

        Raises BudgetError the second time: a second release would double the cost.
        """
        if self._releases:
            raise BudgetError("a record unit serves one federation: its release is spent")
        reference, _ = shared_reference(Same(proxies), ReferenceSettings())
        for held in records:
            released = release_class_means(
                reference.features(held.pixels),
                held.labels.cpu().numpy(),
                n_classes,
                epsilon=self._epsilon,
                delta=self._delta,
                random=self._random,
                declared_classes=tuple(sorted(set(held.labels.tolist()))),
            )
            self._releases.append(released)
            self._votes.append(_votes(reference, released, n_classes))

    def release(self, client: int, indices: IntArray, answer: Answer) -> Contribution:  # noqa: ARG002 - the network must not be asked
        """The head's votes, the same in every round."""
        votes = self._votes[client]
        return Contribution(votes.weights[indices], votes.predictions[indices])

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:  # noqa: ARG002 - as for all
        """The sums themselves: the noise is in the head."""
        return sums

    def guarantee(self) -> Guarantee | None:
        """Of the client with most records, which costs most at the client level; None before."""
        if not self._releases:
            return None
        return max(self._releases, key=lambda released: released.n_records).guarantee


def _votes(reference: ProxyReference, released: NoisyClassMeans, n_classes: int) -> Contribution:
    """One-hot labels, weighted by the posterior where a class's ratio reaches its threshold."""
    # The ridge grows with the noise a coordinate carries, so that inverting H cannot blow it up.
    beta = max(1.0 / len(reference.proxy_features), released.noise_multiplier / released.n_records)
    head = reference.solver(beta).head(released.means[list(released.classes)], released.classes)
    ratios = head.ratios(reference.proxy_features)
    accepted = (ratios >= otsu_thresholds(ratios)).any(axis=1)
    posteriors = posterior(ratios, n_classes)
    labels = np.asarray(released.classes)[posteriors.argmax(axis=1)]
    weights = np.where(accepted, posteriors.max(axis=1), 0.0)
    return Contribution(weights, one_hot(labels, n_classes))
