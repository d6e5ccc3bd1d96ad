"""What each choice of the record unit is worth: votes by other rules, and how right they are.

The paper's tau_client needs the records a second time, so it takes a share of the budget. The
exponential mechanism chooses from a public grid, the quantiles of the proxies' scores; its
privacy loss has a bounded range, so it is (epsilon^2 / 8)-zCDP (Cesar and Rogers, "Bounding,
Concentrating, and Truncating", 2021), which adds to the head's 1 / (2 z^2).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from experiments.measures import HARD_KEPT, KEPT_ONCE, RIGHT_OF_ALL, RIGHT_ONCE, STUDENT
from experiments.study import Progress, Result
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.knowledge import Ensemble, FloatArray, IntArray, Released, Sums, one_hot
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.calibration import epsilon as epsilon_of
from secure_fd.privacy.release import record_plan, release_class_means
from secure_fd.protection.record import RecordRules, RecordUnit, votes
from secure_fd.recipes import image_set
from secure_fd.selection.client import otsu_thresholds, top_share_thresholds
from secure_fd.selection.density import ProxyReference, ReferenceSettings, Same, shared_reference

if TYPE_CHECKING:
    from experiments.record_ablation import Cell

DELTA = 1e-5
_CLIENTS = 10
_LOCAL = 1500
"""Records of a class, at most, that the clients divide: larger sets cost the same time."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to make votes of records. share: of the budget (in zCDP) that the head gets.

    private_quantile: the threshold is this quantile of the records' own ratios, bought with the
    rest of the budget; None: by the rules, and the rest buys nothing.
    """

    name: str
    rules: RecordRules = field(default_factory=RecordRules)
    share: float = 1.0
    private_quantile: float | None = None


def _size(ranks: tuple[int, int], features: int) -> RecordRules:
    """One feature map whatever the noise."""
    chosen = ReferenceSettings("convolutions", ranks, features)
    return RecordRules(size=lambda _noise, _classes: chosen)


def _ridge(least: Callable[[int], float]) -> RecordRules:
    """The noise of a coordinate, whatever the classes, or a least ridge by proxies."""
    return RecordRules(ridge=lambda noise, proxies, _classes: max(least(proxies), noise))


def _top(share: float) -> RecordRules:
    """Each class accepts this share of the proxies, over the classes."""
    return RecordRules(thresholds=lambda ratios, n: top_share_thresholds(ratios, share / n))


_LARGE, _BY_NOISE = _size((100, 60), 2000), _ridge(lambda proxies: 1.0 / proxies)
_OTSU = RecordRules(thresholds=lambda ratios, _classes: otsu_thresholds(ratios))
_ALL_THREE = replace(_LARGE, ridge=_BY_NOISE.ridge, thresholds=_OTSU.thresholds)
CHOICES: Mapping[str, Choice] = {
    choice.name: choice
    for choice in (
        Choice("as shipped"),
        Choice("threshold: Otsu on the ratios", _OTSU),
        Choice("threshold: top .75 / C", _top(0.75)),
        Choice("threshold: top 1.25 / C", _top(1.25)),
        Choice(
            "threshold: private 25 % quantile, a tenth of the budget",
            share=0.9,
            private_quantile=0.25,
        ),
        Choice("ridge: max(1 / P, z / n)", _BY_NOISE),
        Choice("ridge: max(1e-3, z / n)", _ridge(lambda _: 1e-3)),
        Choice("size: ranks 100 + 60, D 2,000", _LARGE),
        Choice("size: ranks 40 + 20, D 1,000", _size((40, 20), 1000)),
        Choice("size: ranks 20 + 10, D 500", _size((20, 10), 500)),
        Choice("budget: half on the head", share=0.5),
        Choice("Otsu, max(1 / P, z / n), ranks 100 + 60, D 2,000", _ALL_THREE),
    )
}


def measure(data_dir: Path | None, cell: "Cell", _made: None, _progress: Progress) -> Result:
    """Make every client's release and judge the votes."""
    start, choice = time.process_time(), CHOICES[cell.choice]
    data = _data(cell.image_set, cell.split, cell.seed, data_dir)
    records = [concatenate([client.train, client.validation]) for client in data.clients]
    rng = np.random.default_rng(cell.seed)
    if choice.private_quantile is None:
        released = _by_rules(data, records, cell.epsilon, choice)
    else:
        released = [_by_quantile(data, held, cell.epsilon, choice, rng) for held in records]
    return Result(cell, judge(data, released), time.process_time() - start)


def _by_rules(
    data: FederatedData, records: list[Images], epsilon: float, choice: Choice
) -> list[Released]:
    least = min(map(len, records))
    unit = RecordUnit(_head_epsilon(epsilon, choice.share, least), DELTA, rules=choice.rules)
    unit.prepare(data.proxies.pixels, data.n_classes, records)
    everyone = np.arange(len(data.proxies))
    return [unit.parts[client].release(everyone) for client in range(len(records))]


def _by_quantile(
    data: FederatedData, held: Images, epsilon: float, choice: Choice, rng: np.random.Generator
) -> Released:
    """The head on its share of the budget, thresholds on the rest."""
    whole = record_plan(epsilon, DELTA, len(held)).noise
    budget = _head_epsilon(epsilon, choice.share, len(held))
    noise = record_plan(budget, DELTA, len(held)).noise / len(held)
    labels = held.labels.numpy()
    classes, columns = np.unique(labels, return_inverse=True)
    reference, _ = shared_reference(
        Same(data.proxies.pixels), choice.rules.size(noise, len(classes))
    )
    features = reference.features(held.pixels)
    declared = tuple(classes.tolist())
    means = release_class_means(
        features,
        labels,
        data.n_classes,
        epsilon=budget,
        delta=DELTA,
        declared_classes=declared,
    ).means[classes]
    solver = reference.solver(choice.rules.ridge(noise, len(data.proxies), len(classes)))
    head = solver.head(means, declared)
    # H was fitted on the proxies, not on these records: only leave-one-out ratios compare.
    own_share = solver.leverage(reference.proxy_features)
    ratios = head.ratios(reference.proxy_features) / (1.0 - own_share)[:, None]
    answer = response_epsilon(whole, 1.0 - choice.share)
    thresholds = private_thresholds(
        ratios, head.ratios(features), columns, choice.private_quantile or 0.0, answer, rng
    )
    return votes(ratios, thresholds, declared, data.n_classes)


def _head_epsilon(epsilon: float, share: float, n_records: int) -> float:
    """What a release costs that gets this share of the budget, counted in zCDP: 1 / z^2."""
    plan = record_plan(epsilon, DELTA, n_records)
    return epsilon if share == 1 else epsilon_of(plan.with_noise(plan.noise / share**0.5), DELTA)


@lru_cache(maxsize=1)
def _data(dataset: str, split: str, seed: int, data_dir: Path | None) -> FederatedData:
    sizes = image_set(dataset).sizes
    sizes = replace(sizes, local=min(sizes.local or _LOCAL, _LOCAL))
    return federate(load(dataset, data_dir), parse_split(split), _CLIENTS, seed, sizes)


# A threshold that is bought.

_GRID: FloatArray = np.linspace(0.5, 0.995, 100)


def response_epsilon(noise_multiplier: float, share: float) -> float:
    """Epsilon of an exponential mechanism that costs `share` of what this noise does, in zCDP."""
    return 2.0 * math.sqrt(share) / noise_multiplier if noise_multiplier else math.inf


def private_thresholds(
    proxy_ratios: FloatArray,
    own_ratios: FloatArray,
    labels: IntArray,
    quantile: float,
    epsilon: float,
    rng: np.random.Generator,
) -> FloatArray:
    """[k] one threshold a class; a record's class decides which of them it moves.

    proxy_ratios: [P, k]. own_ratios: [n, k] at the private records; labels: [n] columns. rng: not
    a secure one, for a study of public data releases nothing.
    """
    found = np.empty(proxy_ratios.shape[1])
    for column, proxies in enumerate(proxy_ratios.T):
        grid = np.quantile(proxies, _GRID)
        score = utility(grid, own_ratios[labels == column, column], quantile)
        if math.isinf(epsilon):
            found[column] = grid[score.argmax()]
            continue
        # The largest of the utilities under Gumbel noise is a draw of the exponential mechanism.
        found[column] = grid[(epsilon * score / 2 + rng.gumbel(size=len(grid))).argmax()]
    return found


def utility(grid: FloatArray, own: FloatArray, quantile: float) -> FloatArray:
    """[G] how near each point is to the quantile of a class's own ratios, in records.

    A record that is zeroed out takes one from a count, or none, and `quantile` from its target, so
    a utility moves by max(quantile, 1 - quantile) at most: less than the 1 that the noise is for.
    """
    below = (own[None, :] < grid[:, None]).sum(axis=1)
    return np.asarray(-np.abs(below - quantile * len(own)))


# How right votes are.

_JUDGE = ReferenceSettings("convolutions", (60, 40), 1000, seed=7)
"""Not the heads' features: another seed."""
_STUDENT_RIDGE = 1e-3


def judge(data: FederatedData, released: Sequence[Released]) -> dict[str, float]:
    """Figures of the labels that these votes about every proxy would give, by name."""
    total = np.sum([r.weights[:, None] * r.predictions for r in released], axis=0)
    sums = Sums(total.sum(axis=1), total)
    ensemble = SelectiveFD("hard").ensemble(np.arange(len(total)), sums)
    truth = data.proxies.labels.numpy()
    kept = ensemble.kept
    right = kept & (ensemble.predictions.argmax(axis=1) == truth)
    return {
        KEPT_ONCE: float(kept.mean()),
        HARD_KEPT: float(kept[_hard(Same(data))].mean()),
        RIGHT_ONCE: float(right.sum() / max(1, kept.sum())),
        RIGHT_OF_ALL: float(right.mean()),
        STUDENT: _student(data, ensemble),
    }


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
    reference, proxies = _public(data)[0], data.one.proxies
    return hardest_half(reference.public(proxies.pixels), proxies.labels.numpy())


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
