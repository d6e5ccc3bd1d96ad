"""The terms of Theorem 2 (Shao, Wu and Zhang, 2023), measured for one client.

Losses are l1 distances of predictions, up to 2, so that the test loss is twice the error rate.
What is exact: the empirical risk, the numerical constraint, and the losses of misleading and of
ambiguous knowledge over the proxies that teach, from their true labels. What is estimated: the
G-distances, from below. What is assumed: that the network's family holds the true labelling, so
that both lambdas are 0, as the paper assumes in its study of alpha.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from secure_fd import models
from secure_fd.data.images import Images
from secure_fd.knowledge import FloatArray, IntArray, one_hot
from secure_fd.recipes import SGD
from secure_fd.training import Trainer, default_device, predict, predicted_labels

DELTA = 0.05
_STEPS = 300
_MOST = 2000
"""Images of each side that a distance is estimated from."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The bound is their sum, with alpha and 1 - alpha already multiplied in."""

    empirical: float
    numerical: float
    local_distance: float
    proxy_distance: float
    misleading: float
    ambiguous: float

    @property
    def bound(self) -> float:
        """The right-hand side; above 2 it says nothing, as no l1 distance is larger."""
        return (
            self.empirical
            + self.numerical
            + self.local_distance
            + self.proxy_distance
            + self.misleading
            + self.ambiguous
        )


def numerical(alpha: float, m_local: int, m_proxy: int, delta: float = DELTA) -> float:
    """sqrt((2 alpha^2 / m_k + 2 (1 - alpha)^2 / m_proxy) log(2 / delta))."""
    variance = 2 * alpha**2 / m_local + 2 * (1 - alpha) ** 2 / m_proxy
    return math.sqrt(variance * math.log(2 / delta))


def knowledge_losses(taught: FloatArray, truth: IntArray) -> tuple[float, float]:
    """(p1 L1, p2 L2) of labels [m, C] in the simplex at proxies of true classes [m].

    Misleading where the largest label is wrong: distance to the truth. Ambiguous where it is
    right: distance to its own one-hot label, which is the truth. Both are means over all m.
    """
    named = taught.argmax(axis=1)
    distance = np.abs(taught - one_hot(truth, taught.shape[1])).sum(axis=1)
    wrong = named != truth
    return float((distance * wrong).mean()), float((distance * ~wrong).mean())


def empirical_risk(
    model: torch.nn.Module, train: Images, pixels: Tensor, taught: FloatArray, alpha: float
) -> float:
    """alpha times the l1 loss on records, plus 1 - alpha times that on the taught proxies."""
    wrong = predicted_labels(model, train.pixels) != train.labels
    named = predicted_labels(model, pixels).cpu().numpy()
    # The l1 distance of a one-hot label to a point of the simplex is 2 (1 - its own component).
    missed = 2 * (1 - taught[np.arange(len(named)), named])
    return alpha * 2 * float(wrong.double().mean()) + (1 - alpha) * float(missed.mean())


def distance(near: Tensor, far: Tensor, architecture: str, n_classes: int, seed: int) -> float:
    """An estimate of the G-distance of two samples [N, ...] and [M, ...], 0 to 2.

    From below, up to the sampling error of the held-out halves: 2 |Pr_near[g] - Pr_far[g]| for one
    g in G, where a network of the family, trained to tell half of one sample from half of the
    other by its first two classes, differs from the predictor that always names the first. Measured
    on the other halves; a better g could only be further apart.
    """
    generator = torch.Generator().manual_seed(seed)
    (a, a_held), (b, b_held) = (_halves(sample, generator) for sample in (near, far))
    sides = Images(torch.cat([a, b]), torch.cat([torch.zeros(len(a)), torch.ones(len(b))]).long())
    judge = Trainer(
        models.build(architecture, n_classes, seed), sides, SGD(), seed, default_device()
    )
    judge.local_steps(_STEPS)
    shares = [
        float((predict(judge.model, held).argmax(axis=1) != 0).mean()) for held in (a_held, b_held)
    ]
    return 2 * max(0.0, shares[1] - shares[0])


def _halves(sample: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    drawn = sample[torch.randperm(len(sample), generator=generator)[:_MOST]]
    return drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
