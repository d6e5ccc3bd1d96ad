"""How good released votes are, judged by the proxies' labels and by a student."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.knowledge import Ensemble, FloatArray, Released, Sums, one_hot
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.selection.density import ProxyReference, ReferenceSettings, Same

_JUDGE = ReferenceSettings((60, 40), 1000, seed=7)  # not the heads' features: another seed
_STUDENT_RIDGE = 1e-3


@dataclass(frozen=True, slots=True)
class Quality:
    """Shares, in [0, 1]. covered: of proxies that get a label; hard: the same among hard proxies.

    precise: of given labels that are right. right: of all proxies that get their right label.
    student: accuracy on held-out records of least squares on the labelled proxies.
    """

    covered: float
    hard: float
    precise: float
    right: float
    student: float


def judge(data: FederatedData, released: Sequence[Released]) -> Quality:
    """What the server would teach from these votes about every proxy."""
    total = np.sum([r.weights[:, None] * r.predictions for r in released], axis=0)
    sums = Sums(total.sum(axis=1), total)
    ensemble = SelectiveFD("hard").ensemble(np.arange(len(total)), sums)
    truth = data.proxies.labels.numpy()
    kept = ensemble.kept
    right = kept & (ensemble.predictions.argmax(axis=1) == truth)
    return Quality(
        covered=float(kept.mean()),
        hard=float(kept[_hard(Same(data))].mean()),
        precise=float(right.sum() / max(1, kept.sum())),
        right=float(right.mean()),
        student=_student(data, ensemble),
    )


def _student(data: FederatedData, ensemble: Ensemble) -> float:
    reference, held_out = _public(Same(data))
    rows = reference.proxy_features[ensemble.kept]
    targets = one_hot(ensemble.predictions[ensemble.kept].argmax(axis=1), data.n_classes)
    moment = rows.T @ rows / max(1, len(rows)) + _STUDENT_RIDGE * np.eye(rows.shape[1])
    weights = cho_solve(cho_factor(moment), rows.T @ (targets - 1.0 / data.n_classes))
    answers = (held_out @ weights).argmax(axis=1)
    return float((answers == data.held_out.labels.numpy()).mean())


@lru_cache(maxsize=1)
def _public(data: Same[FederatedData]) -> tuple[ProxyReference, FloatArray]:
    reference = ProxyReference.fit(data.one.proxies.pixels, _JUDGE)
    return reference, reference.features(data.one.held_out.pixels)


@lru_cache(maxsize=1)
def _hard(data: Same[FederatedData]) -> NDArray[np.bool_]:
    """[P] the half of each class that lies worst between the classes' public means."""
    reference, _ = _public(data)
    return hardest_half(_inputs(reference, data.one.proxies), data.one.proxies.labels.numpy())


def _inputs(reference: ProxyReference, images: Images) -> FloatArray:
    return reference.public(images.pixels)


def hardest_half(inputs: FloatArray, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[P] of each class, the half with the least margin of a nearest-mean classifier."""
    means = np.stack([inputs[labels == c].mean(axis=0) for c in np.unique(labels)])
    place = np.unique(labels, return_inverse=True)[1]
    away = ((inputs**2).sum(axis=1)[:, None] - 2 * inputs @ means.T) + (means**2).sum(axis=1)
    everyone = np.arange(len(labels))
    own = away[everyone, place].copy()
    away[everyone, place] = np.inf
    margin = away.min(axis=1) - own
    hard = np.zeros(len(labels), dtype=np.bool_)
    for c in range(len(means)):
        members = np.flatnonzero(place == c)
        hard[members[np.argsort(margin[members])[: len(members) // 2]]] = True
    return hard
