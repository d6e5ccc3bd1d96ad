"""One cell of the ablation: a case, a seed and a choice, from images to a quality."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from experiments.ablation.choices import CHOICES, Choice
from experiments.ablation.private_threshold import private_thresholds, response_epsilon
from experiments.ablation.quality import Quality, judge
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.knowledge import Released
from secure_fd.privacy.calibration import epsilon as epsilon_of
from secure_fd.privacy.release import record_plan, release_class_means
from secure_fd.protection.record import RecordUnit, votes
from secure_fd.recipes import image_set
from secure_fd.selection.density import Same, shared_reference

CLIENTS = 10
DELTA = 1e-5


@dataclass(frozen=True, slots=True)
class Case:
    """An image set, how it is split among ten clients, and the budget of each."""

    dataset: str
    split: str
    epsilon: float

    @property
    def name(self) -> str:
        """As the table heads its column."""
        return f"{self.dataset} {self.split}, ε = {self.epsilon:g}"


CASES = (
    Case("mnist5k", "strong", 1),
    Case("mnist5k", "strong", 4),
    Case("mnist5k", "weak", 1),
    Case("mnist5k", "iid", 4),
    Case("fashion_mnist", "strong", 4),
)
"""300 records a client, and 1,500 of Fashion-MNIST."""

_LOCAL = 1500
"""Records of a class, at most, that the clients divide: larger sets cost the same time."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement, with everything that tells it from others."""

    dataset: str
    split: str
    epsilon: float
    choice: str
    seed: int
    quality: Quality

    @property
    def key(self) -> tuple[str, str, float, str, int]:
        """What the cell is a measurement of."""
        return self.dataset, self.split, self.epsilon, self.choice, self.seed


def grid(cases: tuple[Case, ...], seeds: int) -> list[tuple[Case, int, Choice]]:
    """Every cell to come; those that share images and features are neighbours."""
    return [(case, seed, choice) for seed in range(seeds) for case in cases for choice in CHOICES]


def measure(case: Case, seed: int, choice: Choice, data_dir: Path | None) -> Cell:
    """Make every client's release and judge the votes."""
    data = _data(case.dataset, case.split, seed, data_dir)
    records = [concatenate([client.train, client.validation]) for client in data.clients]
    rng = np.random.default_rng(seed)
    if choice.private_quantile is None:
        released = _by_rules(data, records, case.epsilon, choice)
    else:
        released = [_by_quantile(data, held, case.epsilon, choice, rng) for held in records]
    return Cell(case.dataset, case.split, case.epsilon, choice.name, seed, judge(data, released))


def _by_rules(
    data: FederatedData, records: list[Images], epsilon: float, choice: Choice
) -> list[Released]:
    least = min(map(len, records))
    unit = RecordUnit(_head_epsilon(epsilon, choice.share, least), DELTA, rules=choice.rules)
    unit.prepare(data.proxies.pixels, data.n_classes, records)
    everyone = np.arange(len(data.proxies))
    return [unit.release(client, everyone) for client in range(len(records))]


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
    return federate(load(dataset, data_dir), parse_split(split), CLIENTS, seed, sizes)
