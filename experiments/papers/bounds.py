"""Theorem 2's terms for a run with fixed proxy labels: means over clients, by name."""

from dataclasses import asdict
from functools import lru_cache

import numpy as np

from experiments.papers.build import Prepared, architectures
from experiments.papers.fixed_labels import FixedLabels, Lesson
from experiments.papers.measures import BOUND, TAUGHT, TERMS, TEST_LOSS
from experiments.papers.theorem import (
    Terms,
    distance,
    empirical_risk,
    knowledge_losses,
    numerical,
)
from secure_fd.selection.density import Same

_SEED = 7
"""Of the networks that tell samples apart; no client has it."""


def bound_figures(runner: FixedLabels, made: Prepared) -> dict[str, float]:
    """Every term, their sum and the loss that the sum bounds, all as l1 distances up to 2."""
    every = [_terms(runner, made, k) for k in range(len(made.data.clients))]
    found = {
        name: float(np.mean([asdict(terms)[field] for terms in every]))
        for field, name in TERMS.items()
    }
    found[BOUND] = float(np.mean([terms.bound for terms in every]))
    found[TEST_LOSS] = 2 * (1 - float(np.mean(runner.accuracies(made.data.test))))
    found[TAUGHT] = len(runner.lesson.truth) / len(made.data.proxies)
    return found


def _terms(runner: FixedLabels, made: Prepared, client: int) -> Terms:
    alpha, lesson, train = runner.alpha, runner.lesson, made.data.clients[client].train
    taught = lesson.targets.double().numpy()
    misleading, ambiguous = knowledge_losses(taught, lesson.truth.numpy())
    name = architectures(made.data.name, client + 1)[client]
    return Terms(
        empirical=empirical_risk(runner.models[client], train, lesson.pixels, taught, alpha),
        numerical=numerical(alpha, len(train), len(lesson.truth)),
        local_distance=alpha * _local_distance(Same(made), client, name),
        proxy_distance=(1 - alpha) * _proxy_distance(Same(made), Same(lesson), name),
        misleading=(1 - alpha) * misleading,
        ambiguous=(1 - alpha) * ambiguous,
    )


@lru_cache(maxsize=32)
def _local_distance(made: Same[Prepared], client: int, architecture: str) -> float:
    data = made.one.data
    local = data.clients[client].train.pixels
    return distance(local, data.test.pixels, architecture, data.n_classes, _SEED)


@lru_cache(maxsize=32)
def _proxy_distance(made: Same[Prepared], lesson: Same[Lesson], architecture: str) -> float:
    data = made.one.data
    return distance(lesson.one.pixels, data.test.pixels, architecture, data.n_classes, _SEED)
