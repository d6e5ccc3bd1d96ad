"""The record unit: one noisy release a client gives labels and abstentions for every round."""

import os

import numpy as np
from torch import Tensor

from secure_fd.data.images import Images
from secure_fd.knowledge import HARD_LEVELS, Contribution, IntArray, Sums, one_hot
from secure_fd.privacy.entropy import Random
from secure_fd.privacy.record_release import NoisyClassMeans, release_class_means
from secure_fd.privacy.units import Guarantee
from secure_fd.protection.base import Answer
from secure_fd.selection.density import ProxyReference, ReferenceSettings
from secure_fd.selection.thresholds import otsu_thresholds

_LARGE = 1000
"""Records from which the full feature map pays; below it, fewer features drown less in noise."""


class RecordUnit:
    """Labels and abstentions from the class-conditional density-ratio head, made private once.

    The client's network is never asked, so it may train on raw records without noise as long as
    it stays at the client. Thresholds are Otsu's on the noisy ratios at the public proxies:
    post-processing, so they cost nothing. epsilon, delta: of the whole run, one record of one
    client, with its number of records and its classes public.
    """

    name = "record unit"

    def __init__(self, epsilon: float, delta: float, random: Random = os.urandom) -> None:
        self._epsilon = epsilon
        self._delta = delta
        self._random = random
        self._votes: list[Contribution] = []
        self._releases: list[NoisyClassMeans] = []

    def levels(self, wanted: int) -> int:  # noqa: ARG002 - the head votes for one class
        """One unit: the head's vote is a class or an abstention."""
        return HARD_LEVELS

    def prepare(self, proxies: Tensor, n_classes: int, records: list[Images]) -> None:
        """Release every client's noisy means, and derive all its votes from them."""
        smallest = min(len(r) for r in records)
        reference = ProxyReference.fit(proxies, _settings(smallest))
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

    def debias(self, sums: Sums) -> Sums:
        """The sums themselves: the noise is in the head."""
        return sums

    def guarantee(self) -> Guarantee | None:
        """The same for every client but for its number of records; the smallest speaks."""
        return min(self._releases, key=lambda released: released.n_records).guarantee


def _settings(n_records: int) -> ReferenceSettings:
    """Chosen from public facts alone; fewer records carry fewer features through the noise."""
    return ReferenceSettings() if n_records >= _LARGE else ReferenceSettings(30, 500)


def _votes(reference: ProxyReference, released: NoisyClassMeans, n_classes: int) -> Contribution:
    # The ridge grows with the noise a coordinate carries, so that inverting H cannot blow it up.
    beta = max(1.0 / len(reference.proxy_features), released.noise_multiplier / released.n_records)
    head = reference.solver(beta).head(released.means[list(released.classes)], released.classes)
    ratios = head.ratios(reference.proxy_features)
    accepted = np.asarray((ratios >= otsu_thresholds(ratios)).any(axis=1))
    labels = np.asarray(released.classes)[ratios.argmax(axis=1)]
    return Contribution(accepted.astype(np.float64), one_hot(labels, n_classes))
