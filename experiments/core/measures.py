"""What only an evaluation may know of a run, one name for one quantity.

Libraries are imported where a measure needs them: tables and command lines use the names alone.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.core.results import SINGLE

if TYPE_CHECKING:
    from experiments.core.run_config import RunConfig
    from experiments.core.runs import Prepared
    from secure_fd.data.federated import FederatedData
    from secure_fd.protocol.transcript import ObservedVotes
    from secure_fd.simulation.federation import Federation
    from secure_fd.votes.codec import FloatArray, IntArray

ACCURACY = "accuracy"
"""On the test set after the last round, mean over clients."""
NETWORK = "network accuracy"
"""Of the networks of clients that a head taught."""
AUROC_CLASS = "selector AUROC, own classes"
"""Of a selector's scores of all proxies, for the classes that its client holds: mean of clients."""
OVER_CLIENTS = AUROC_CLASS + ", deviation over clients"
KEPT_ALL = "kept share, all rounds"
"""Of the proxies asked about in all rounds: the share whose label the server kept."""
RIGHT_ALL = "right labels among kept, all rounds"
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
TAUGHT = "proxies that teach"
"""As a share of all."""

BoolArray = NDArray[np.bool_]


def measured(cell: "RunConfig", runner: "Federation", made: "Prepared") -> dict[str, float]:
    """All figures of a run but its accuracy, by name."""
    return of_method(cell, runner, made) | of_lost(runner)


def of_method(cell: "RunConfig", runner: "Federation", made: "Prepared") -> dict[str, float]:
    """Figures that runs of some methods alone have."""
    from experiments.core.run_config import HEADS
    from secure_fd.methods.pooled_heads import HeadClient
    from secure_fd.methods.votes import VotingMethod

    if cell.method == "fedavg":
        return of_divergence(runner)
    if isinstance(runner.method, VotingMethod):
        truth = made.data.proxies.labels.numpy()
        return _labels(runner.transcript.distillation, truth) | _selectors(runner, made, truth)
    if cell.method in HEADS and cell.schedule.proxy_steps:
        roles = [client.role for client in runner.clients]
        heads = [role for role in roles if isinstance(role, HeadClient)]
        each = [head.accuracies(made.data.test)["network"] for head in heads]
        return {NETWORK: float(np.mean(each))}
    return {}


def of_divergence(runner: "Federation") -> dict[str, float]:
    """How often training diverged."""
    from secure_fd.methods.fedavg import FedAvgClient

    halves = [client.role for client in runner.clients]
    counts = [half.diverged for half in halves if isinstance(half, FedAvgClient)]
    return {DIVERGED: float(np.mean(counts))}


def lost(runner: "Federation") -> set[int]:
    """Clients whose networks ended outside the finite numbers: from then on they are silent."""
    from secure_fd.training.models import flatten

    each = enumerate(runner.models)
    return {client for client, network in each if not flatten(network).isfinite().all()}


def of_lost(runner: "Federation") -> dict[str, float]:
    """The rounds in which these diverged: one, and all in which they were silent since."""
    gone, missing = lost(runner), runner.transcript.missing
    rounds = len(gone) + sum(many for (client, _), many in missing.items() if client in gone)
    return {DIVERGED: rounds / len(runner.models)} if gone else {}


# Distillation: labels and selectors.


def _labels(rounds: "Sequence[ObservedVotes]", truth: "IntArray") -> dict[str, float]:
    if not rounds:
        return {}
    kept = np.concatenate([r.result.kept for r in rounds])
    indices = np.concatenate([r.result.indices for r in rounds])
    named = np.concatenate([r.result.predictions.argmax(axis=1) for r in rounds])
    found = {KEPT_ALL: float(kept.mean())}
    if kept.any():
        found[RIGHT_ALL] = float((named == truth[indices])[kept].mean())
    return found


def _selectors(runner: "Federation", made: "Prepared", truth: "IntArray") -> dict[str, float]:
    own = _own_classes(made.data, truth, _scores(runner, made))
    return {AUROC_CLASS: float(np.mean(own)), OVER_CLIENTS: float(np.std(own))} if own else {}


def _own_classes(
    data: "FederatedData", truth: "IntArray", scores: "Iterator[tuple[int, FloatArray]]"
) -> list[float]:
    """AUROC of every client's scores of all proxies, for the classes that it holds."""
    return [
        value
        for k, of_client in scores
        for value in auroc(np.isin(truth, data.clients[k].classes), of_client)
    ]


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
    found = {KEPT_LAST: float(kept.mean())}
    if kept.any() and truth.min() >= 0:
        right = last.predictions[kept].argmax(axis=1) == truth[last.indices[kept]]
        found[RIGHT_LAST] = float(right.mean())
    found[SINGLE] = runner.single_contributors
    found["most releases of a proxy"] = float(runner.server_role.most_released())
    if own := _own_classes(data, truth, _scores(runner)):
        found[AUROC_CLASS] = float(np.mean(own))
    return found
