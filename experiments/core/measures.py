"""What only an evaluation may know of a run, one name for one quantity.

Libraries are imported where a measure needs them: tables and command lines use the names alone.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.core.results import SINGLE
from secure_fd.cache import freed_with_owner

if TYPE_CHECKING:
    from experiments.core.rows import Cell
    from experiments.core.runs import Prepared, Runner
    from secure_fd.data.federated import FederatedData
    from secure_fd.data.images import Images
    from secure_fd.protocol.transcript import ObservedVotes
    from secure_fd.simulation.federation import Federation
    from secure_fd.votes.codec import FloatArray, IntArray

ACCURACY = "accuracy"
"""On the test set after the last round, mean over clients."""
VALIDATION = "validation accuracy"
"""On records of all clients that none trained on, mean over clients."""
NETWORK, HEAD, MEAN = "network accuracy", "head accuracy", "accuracy of network and head"
"""Of what a client that a head taught could leave with."""
NETWORK_VALIDATION = "validation accuracy, network alone"
"""Of such a client's network, on the records of `VALIDATION`."""
AUROC_CLASS = "selector AUROC, own classes"
"""Of a selector's scores of all proxies, for the classes that its client holds: mean of clients."""
AUROC_RIGHT = "selector AUROC, right predictions"
"""The same, for what the client's network predicts rightly after the warm-up."""
OVER_CLIENTS = ", deviation over clients"
KEPT_ALL = "kept share, all rounds"
"""Of the proxies asked about in all rounds: the share whose label the server kept."""
RIGHT_ALL = "right labels among kept, all rounds"
COVERED = "proxies ever kept"
"""Of all proxies: the share that the server kept in a round or more."""
KEPT_LAST = "kept share, last round"
"""Of the proxies in the last round's ensemble, with whatever it remembers."""
RIGHT_LAST = "right labels among kept, last round"
KEPT_ONCE = "kept share, one release"
"""Where there is one release: of the proxies that it is about."""
RIGHT_ONCE = "right labels among kept, one release"
RIGHT_OF_ALL = "right labels, of all proxies"
BYTES_UP = "bytes up a client"
"""In all rounds."""
DIVERGED = "diverged rounds"
"""Rounds in which a client's training left what can be shared, mean over clients."""
RESNET_UP, RESNET_DOWN = "ResNet-18, bytes up a round", "ResNet-18, bytes down a round"
"""Of FedAvg's cells on frozen features: what its real messages would weigh."""
TERMS = {
    "empirical": "empirical risk",
    "numerical": "numerical constraint",
    "local_distance": "local distance",
    "proxy_distance": "proxy distance",
    "misleading": "misleading knowledge",
    "ambiguous": "ambiguous knowledge",
}
"""Theorem 2's terms as they are added up, by the field of `Terms`: means over clients."""
TEST_LOSS = "l1 test loss"
BOUND = "sum"
"""Of all terms: as its distances are estimated from below, so is the bound."""
TAUGHT = "proxies that teach"
"""As a share of all."""

LAST_ROUND = {
    "kept proxies": KEPT_LAST,
    "right labels among kept": RIGHT_LAST,
    "selector AUROC": AUROC_CLASS,
}
"""Names of `diagnose`, as the comparison has them, where studies have more exact ones."""

FEATURES = "_features"
"""How the names of image sets end that clients see through a frozen network."""
_MOST_VALIDATED = 2000
BoolArray = NDArray[np.bool_]


def measured(cell: "Cell", runner: "Runner", made: "Prepared") -> dict[str, float]:
    """All figures of a run but its accuracy, by name."""

    found = {VALIDATION: float(np.mean(runner.accuracies(_validation(made.data))))}
    return found | of_method(cell, runner, made) | of_lost(runner)


def of_method(cell: "Cell", runner: "Runner", made: "Prepared") -> dict[str, float]:
    """What runs of some methods alone have."""
    from experiments.core.rows import HEADS
    from experiments.paper.fixed_labels import FixedLabels, of_bound
    from secure_fd.methods.votes import VotingMethod

    if cell.method == "fedavg":
        return {**of_messages(made.data), **of_divergence(runner)}
    if isinstance(runner, FixedLabels):
        return of_bound(runner, made.data)
    if isinstance(runner.method, VotingMethod):
        truth = made.data.proxies.labels.numpy()
        return _labels(runner.transcript.distillation, truth) | _selectors(runner, made, truth)
    if cell.method in HEADS and cell.schedule.proxy_steps:
        return of_heads(runner, made)
    return {}


def of_heads(runner: "Federation", made: "Prepared") -> dict[str, float]:
    """Test accuracy of all that clients could leave with, and the share of right labels."""
    from secure_fd.methods.pooled_heads import HeadClient
    from secure_fd.training.trainer import accuracy

    test, truth = made.data.test, made.data.proxies.labels
    halves = [client.role for client in runner.clients]
    each = [half.accuracies(test) for half in halves if isinstance(half, HeadClient)]
    held_back = _validation(made.data)
    validated = [
        accuracy(half.learner.model, held_back) for half in halves if isinstance(half, HeadClient)
    ]
    first = next(half for half in halves if isinstance(half, HeadClient))
    _, targets = first.lesson()
    right = (targets.argmax(dim=1).cpu() == truth.cpu()[first.known]).double().mean()
    names = {"network": NETWORK, "head": HEAD, "mean": MEAN}
    return {
        **{shown: float(np.mean([one[name] for one in each])) for name, shown in names.items()},
        NETWORK_VALIDATION: float(np.mean(validated)),
        RIGHT_OF_ALL: float(right),
    }


def of_divergence(runner: "Runner") -> dict[str, float]:
    """How often training diverged."""
    from secure_fd.methods.fedavg import FedAvgClient
    from secure_fd.simulation.federation import Federation

    if not isinstance(runner, Federation):
        return {}
    halves = [client.role for client in runner.clients]
    counts = [half.diverged for half in halves if isinstance(half, FedAvgClient)]
    return {DIVERGED: float(np.mean(counts))}


def of_messages(data: "FederatedData") -> dict[str, float]:
    """Bytes of FedAvg on ResNet-18, where clients train a head on frozen features."""
    if not data.name.endswith(FEATURES):
        return {}
    up, down = _resnet_bytes(len(data.clients), data.n_classes)
    return {RESNET_UP: float(up), RESNET_DOWN: float(down)}


def lost(runner: "Runner") -> set[int]:
    """Clients whose networks ended outside the finite numbers: from then on they are silent."""
    from secure_fd.training.models import flatten

    each = enumerate(runner.models)
    return {client for client, network in each if not flatten(network).isfinite().all()}


def of_lost(runner: "Runner") -> dict[str, float]:
    """The rounds in which these diverged: one, and all in which they were silent since."""
    gone, missing = lost(runner), runner.transcript.missing
    rounds = len(gone) + sum(many for (client, _), many in missing.items() if client in gone)
    return {DIVERGED: rounds / len(runner.models)} if gone else {}


@lru_cache(maxsize=1)
def _resnet_bytes(clients: int, n_classes: int) -> tuple[int, int]:
    """Of a client and round: packed up, as float32 down; nothing is trained."""
    from secure_fd.data.vision import torchvision
    from secure_fd.methods.fedavg import parameter_codec
    from secure_fd.training.models import flatten
    from secure_fd.votes.packing import LaneLayout

    flat = flatten(torchvision().models.resnet18(num_classes=n_classes)).numpy()
    codec = parameter_codec((1.0,) * clients)
    layout = LaneLayout(clients, codec.levels, 0)
    return layout.pack(codec.encode(0, flat)).nbytes, flat.nbytes


@freed_with_owner
def _validation(data: "FederatedData") -> "Images":
    """Records of all clients that none trained on, for choices that no test image may make."""
    import torch

    from secure_fd.data.images import concatenate

    pooled = concatenate([client.validation for client in data.clients])
    if len(pooled) <= _MOST_VALIDATED:
        return pooled
    rng = np.random.default_rng(0)
    return pooled[torch.from_numpy(rng.permutation(len(pooled))[:_MOST_VALIDATED])]


# Distillation: labels and selectors.


def _labels(rounds: "Sequence[ObservedVotes]", truth: "IntArray") -> dict[str, float]:
    if not rounds:
        return {}
    kept = np.concatenate([r.result.kept for r in rounds])
    indices = np.concatenate([r.result.indices for r in rounds])
    named = np.concatenate([r.result.predictions.argmax(axis=1) for r in rounds])
    found = {
        KEPT_ALL: float(kept.mean()),
        COVERED: len(np.unique(indices[kept])) / len(truth),
    }
    if kept.any():
        found[RIGHT_ALL] = float((named == truth[indices])[kept].mean())
    return found


def _selectors(runner: "Federation", made: "Prepared", truth: "IntArray") -> dict[str, float]:

    right = _warm_predictions(made) == truth
    own, correct = [], []
    for k, scores in _scores(runner, made):
        own += auroc(np.isin(truth, made.data.clients[k].classes), scores)
        correct += auroc(right[k], scores)
    found = {}
    for name, values in ((AUROC_CLASS, own), (AUROC_RIGHT, correct)):
        if values:
            found[name] = float(np.mean(values))
            found[name + OVER_CLIENTS] = float(np.std(values))
    return found


def _scores(
    runner: "Federation", made: "Prepared | None" = None
) -> "Iterator[tuple[int, FloatArray]]":
    """Clients and their selectors' scores [P]; with `made`, a network's are of the warm-up."""
    from experiments.rivals.by_network import SelectiveByNetwork

    method = getattr(runner.method, "rule", None)
    if made is not None and isinstance(method, SelectiveByNetwork):
        for k, network in enumerate(made.networks()):
            yield k, method.scores(network, made.data.proxies.pixels)
        return
    for k in range(len(runner.models)):
        scores = runner.roles[k].scores()
        if scores is not None:
            yield k, scores


def auroc(positive: BoolArray, scores: "FloatArray") -> list[float]:
    """[one number], or [] where one of the two kinds is missing.

    >>> auroc(np.array([True, False]), np.array([0.9, 0.1]))
    [1.0]
    >>> auroc(np.array([True, True]), np.array([0.9, 0.1]))
    []
    """
    from sklearn.metrics import roc_auc_score  # slow to import, and only workers come here

    return [float(roc_auc_score(positive, scores))] if 0 < positive.sum() < len(positive) else []


@freed_with_owner
def _warm_predictions(made: "Prepared") -> "IntArray":
    """[K, P] the class that each client's network gives each proxy after the warm-up."""
    from secure_fd.training.trainer import logits

    pixels = made.data.proxies.pixels
    return np.stack([logits(m, pixels).argmax(dim=1).numpy() for m in made.networks()])


def diagnose(runner: "Federation", data: "FederatedData") -> dict[str, float]:
    """Figures of the last round's ensemble, and the selectors' mean AUROC where there are any.

    Nothing where no round gave an ensemble of proxies.
    """
    rounds = runner.transcript.distillation
    if not rounds or rounds[-1].result.of_classes:
        return {}
    truth = data.proxies.labels.numpy()
    last = rounds[-1].result
    kept = last.kept
    found = {"kept proxies": float(kept.mean())}
    if kept.any() and truth.min() >= 0:
        right = last.predictions[kept].argmax(axis=1) == truth[last.indices[kept]]
        found["right labels among kept"] = float(right.mean())
    found[SINGLE] = runner.single_contributors
    found["most releases of a proxy"] = float(runner.server_role.most_released())
    own: list[float] = []
    for k, scores in _scores(runner):
        own += auroc(np.isin(truth, data.clients[k].classes), scores)
    if own:
        found["selector AUROC"] = float(np.mean(own))
    return found
