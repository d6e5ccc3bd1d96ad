"""What only an evaluation may know of a run: how right selectors and ensembles were, by name."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from experiments.papers.bounds import bound_figures
from experiments.papers.build import Prepared, Runner, method_of
from experiments.papers.cells import Cell
from experiments.papers.fixed_labels import FixedLabels
from experiments.papers.measures import (
    AUROC_CLASS,
    AUROC_RIGHT,
    COVERED,
    KEPT,
    OVER_CLIENTS,
    RESNET_DOWN,
    RESNET_UP,
    RIGHT,
    VALIDATION,
)
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images, concatenate
from secure_fd.federation import Federation
from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.methods.fedavg import ParameterCodec
from secure_fd.methods.selective_fd import SelectiveByNetwork
from secure_fd.methods.votes import ProxyVotes
from secure_fd.models import flatten
from secure_fd.secagg.packing import LaneLayout
from secure_fd.selection.density import Same
from secure_fd.training import predicted_labels
from secure_fd.transcript import DistillationRound
from secure_fd.vision import torchvision

FEATURES = "_features"
"""How the names of image sets end that clients see through a frozen network."""
_MOST_VALIDATED = 2000


def measured(cell: Cell, runner: Runner, made: Prepared) -> dict[str, float]:
    """All figures that the run has."""
    found = {VALIDATION: float(np.mean(runner.accuracies(_validation(Same(made.data)))))}
    if cell.method == "fedavg" and made.data.name.endswith(FEATURES):
        up, down = _resnet_bytes(len(made.data.clients), made.data.n_classes)
        found |= {RESNET_UP: float(up), RESNET_DOWN: float(down)}
    if isinstance(runner, FixedLabels):
        found |= bound_figures(runner, made)
    if isinstance(runner, Federation) and isinstance(runner.method, ProxyVotes):
        truth = made.data.proxies.labels.numpy()
        found |= _knowledge(runner.transcript.distillation, truth)
        found |= _selectors(cell, runner, made, truth)
    return found


def _knowledge(rounds: Sequence[DistillationRound], truth: IntArray) -> dict[str, float]:
    """Of all rounds: the share of the asked proxies that taught, how many ever, how right."""
    if not rounds:
        return {}
    kept = np.concatenate([r.ensemble.kept for r in rounds])
    indices = np.concatenate([r.ensemble.indices for r in rounds])
    named = np.concatenate([r.ensemble.predictions.argmax(axis=1) for r in rounds])
    found = {
        KEPT: float(kept.mean()),
        COVERED: len(np.unique(indices[kept])) / len(truth),
    }
    if kept.any():
        found[RIGHT] = float((named == truth[indices])[kept].mean())
    return found


def _selectors(cell: Cell, runner: Federation, made: Prepared, truth: IntArray) -> dict[str, float]:
    """Mean over clients of the AUROC of selectors, for their classes and for right predictions.

    Right is what the client's network predicts after the warm-up, before anybody has taught it.
    """
    right = _warm_predictions(Same(made)) == truth
    own, correct = [], []
    for k, scores in _scores(cell, runner, made):
        own += _auroc(np.isin(truth, made.data.clients[k].classes), scores)
        correct += _auroc(right[k], scores)
    found = {}
    for name, values in ((AUROC_CLASS, own), (AUROC_RIGHT, correct)):
        if values:
            found[name] = float(np.mean(values))
            found[name + OVER_CLIENTS] = float(np.std(values))
    return found


def _scores(cell: Cell, runner: Federation, made: Prepared) -> Iterator[tuple[int, FloatArray]]:
    """Clients and their selectors' scores [P]; those that a network gives are of the warm-up."""
    method = method_of(cell, made.data)
    if isinstance(method, SelectiveByNetwork):
        for k, network in enumerate(made.networks()):
            yield k, method.scores(network, made.data.proxies.pixels)
        return
    for k in range(len(made.data.clients)):
        scores = runner.selector_scores(k)
        if scores is not None:
            yield k, scores


def _auroc(positive: np.ndarray[tuple[int], np.dtype[np.bool_]], scores: FloatArray) -> list[float]:
    """One number, or none where one of the two kinds is missing."""
    return [float(roc_auc_score(positive, scores))] if 0 < positive.sum() < len(positive) else []


@lru_cache(maxsize=1)
def _warm_predictions(made: Same[Prepared]) -> IntArray:
    """[K, P] the class that each client's network gives each proxy after the warm-up."""
    pixels = made.one.data.proxies.pixels
    return np.stack([predicted_labels(m, pixels).numpy() for m in made.one.networks()])


@lru_cache(maxsize=1)
def _validation(data: Same[FederatedData]) -> Images:
    """Records of all clients that none trained on, for choices that no test image may make."""
    pooled = concatenate([client.validation for client in data.one.clients])
    if len(pooled) <= _MOST_VALIDATED:
        return pooled
    rng = np.random.default_rng(0)
    return pooled[torch.from_numpy(rng.permutation(len(pooled))[:_MOST_VALIDATED])]


@lru_cache(maxsize=1)
def _resnet_bytes(clients: int, n_classes: int) -> tuple[int, int]:
    """Of a client and round of FedAvg on ResNet-18: packed up, as float32 down; nothing trained."""
    network = torchvision().models.resnet18(num_classes=n_classes)
    flat = flatten(network).numpy()
    codec = ParameterCodec((1.0,) * clients)
    layout = LaneLayout(clients, codec.bound, 0)
    return layout.pack(codec.encode(0, flat)).nbytes, flat.nbytes
