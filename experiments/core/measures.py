"""Measures of a run that only an evaluation may compute, one name for one quantity.

Libraries are imported where a measure needs them: tables and command lines use the names alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from experiments.core.run_config import RunConfig
    from experiments.core.runs import Prepared
    from secure_fd.data.federated import FederatedData
    from secure_fd.protocol.transcript import ObservedVotes
    from secure_fd.simulation.federation import Federation
    from secure_fd.votes.codec import FloatArray, IntArray

SINGLE = "single-contributor proxies"
"""The diagnostic: share of the answered proxies that exactly one client answered."""
ACCURACY = "accuracy"
"""On the test set after the last round, mean over clients."""
BALANCED, AREA = "balanced accuracy", "AUC"
"""As `ACCURACY`: mean recall of the classes, and mean area under the curve of each against the
others."""
NETWORK = "network accuracy"
"""Accuracy of the clients' networks that are distilled from a head."""
AUROC_CLASS = "selector AUROC, own classes"
"""AUROC of a selector's scores of all proxies, for its client's classes: mean of clients."""
OVER_CLIENTS = AUROC_CLASS + ", deviation over clients"
KEPT_ALL = "kept share, all rounds"
"""Share of the proxies asked about in all rounds whose label the server kept."""
RIGHT_ALL = "right labels among kept, all rounds"
KEPT_LAST = "kept share, last round"
"""Share of the proxies in the last round's ensemble, remembered predictions included."""
RIGHT_LAST = "right labels among kept, last round"
BYTES_UP = "bytes up a client"
"""In all rounds."""
DIVERGED = "diverged rounds"
"""Rounds in which a client's training left what can be shared, mean over clients."""
_NAN = "not finite"
"""What a client says that refuses to share, or to take, what diverged."""
DISTILLED_PROXIES = "proxies that teach"
"""Share of all proxies whose labels train the networks."""


def measured(cell: "RunConfig", runner: "Federation", made: "Prepared") -> dict[str, float]:
    """All figures of a run but its accuracy, by name; runs of some methods alone have some."""
    from experiments.core.run_config import HEADS
    from secure_fd.methods.pooled_heads import HeadClient
    from secure_fd.methods.votes import VotingMethod

    found: dict[str, float] = {}
    roles = [client.role for client in runner.clients]
    if isinstance(runner.method, VotingMethod):
        found = _labels(runner.transcript.distillation, made.data, KEPT_ALL, RIGHT_ALL)
        if own := _own_classes(made.data, _scores(runner, made)):
            found |= {AUROC_CLASS: float(np.mean(own)), OVER_CLIENTS: float(np.std(own))}
    elif cell.method in HEADS and cell.schedule.proxy_steps:
        heads = [role for role in roles if isinstance(role, HeadClient)]
        each = [head.accuracies(made.data.test)["network"] for head in heads]
        found[NETWORK] = float(np.mean(each))
    return found | diverged(runner)


def diverged(runner: "Federation") -> dict[str, float]:
    """Rounds in which training diverged, of methods that share parameters or lost a client."""
    from secure_fd.methods.fedavg import GlobalModelClient

    found: dict[str, float] = {}
    roles = [client.role for client in runner.clients]
    if counts := [role.diverged for role in roles if isinstance(role, GlobalModelClient)]:
        found[DIVERGED] = float(np.mean(counts))
    if gone := lost(runner):  # a client's round of divergence, and all in which it was silent since
        missing = runner.transcript.missing
        rounds = len(gone) + sum(many for (client, _), many in missing.items() if client in gone)
        found[DIVERGED] = found.get(DIVERGED, 0.0) + rounds / len(runner.models)
    return found


def by_class(answers: "Sequence[FloatArray]", labels: "IntArray") -> dict[str, float]:
    """Balanced accuracy and AUC, mean over clients. answers: scores [N, C] of each client.

    >>> scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> by_class([scores], np.array([0, 1, 1, 0]))
    {'balanced accuracy': 0.75, 'AUC': 1.0}
    """
    from sklearn.metrics import roc_auc_score  # slow to import, and only workers come here

    present = np.unique(labels)
    answers = [np.nan_to_num(scores) for scores in answers]  # of networks that diverged
    recalls = [
        [(scores.argmax(axis=1)[labels == c] == c).mean() for c in present] for scores in answers
    ]
    areas = [
        [roc_auc_score(labels == c, scores[:, c]) for c in present]
        for scores in answers
        if len(present) > 1
    ]
    found = {BALANCED: float(np.mean(recalls))}
    return found | ({AREA: float(np.mean(areas))} if areas else {})


def lost(runner: "Federation") -> set[int]:
    """Clients whose training left the finite numbers; most are silent from then on."""
    from secure_fd.training.models import flatten

    each = enumerate(runner.models)
    ended = {client for client, network in each if not flatten(network).isfinite().all()}
    return ended | {client for client, why in runner.transcript.refused.items() if _NAN in why}


def diagnose(runner: "Federation", data: "FederatedData") -> dict[str, float]:
    """Figures of the last round's ensemble, and the selectors' mean AUROC where there are any.

    Nothing where no round gave an ensemble of proxies.
    """
    rounds = runner.transcript.distillation
    if not rounds or rounds[-1].result.of_classes:
        return {}
    found = _labels(rounds[-1:], data, KEPT_LAST, RIGHT_LAST)
    found[SINGLE] = runner.single_contributors
    found["most releases of a proxy"] = float(runner.server_role.most_released())
    if own := _own_classes(data, _scores(runner)):
        found[AUROC_CLASS] = float(np.mean(own))
    return found


def _labels(
    rounds: "Sequence[ObservedVotes]", data: "FederatedData", kept_name: str, right_name: str
) -> dict[str, float]:
    """The share of asked proxies whose label the server kept, and of right labels among them."""
    if not rounds:
        return {}
    truth = data.proxies.labels.numpy()
    kept = np.concatenate([r.result.kept for r in rounds])
    indices = np.concatenate([r.result.indices for r in rounds])
    named = np.concatenate([r.result.predictions.argmax(axis=1) for r in rounds])
    found = {kept_name: float(kept.mean())}
    if kept.any() and truth.min() >= 0:
        found[right_name] = float((named == truth[indices])[kept].mean())
    return found


def _own_classes(data: "FederatedData", scores: "Iterable[tuple[int, FloatArray]]") -> list[float]:
    """AUROC of clients' scores of all proxies, for the classes that each holds.

    A client that holds the classes of all proxies, or of none, has no such area.
    """
    from sklearn.metrics import roc_auc_score  # slow to import, and only workers come here

    truth = data.proxies.labels.numpy()
    each = [(np.isin(truth, data.clients[k].classes), own) for k, own in scores]
    return [float(roc_auc_score(held, own)) for held, own in each if 0 < held.sum() < len(held)]


def _scores(
    runner: "Federation", made: "Prepared | None" = None
) -> "Iterator[tuple[int, FloatArray]]":
    """Clients and their selectors' scores [P]; with `made`, a network's are of the warm-up."""
    from experiments.core.by_network import SelectiveByNetwork

    if made is not None and isinstance(runner.method, SelectiveByNetwork):
        for k, network in enumerate(made.networks()):
            yield k, runner.method.scores(network, made.data.proxies.pixels)
        return
    for k in range(len(runner.models)):
        scores = runner.roles[k].scores()
        if scores is not None:
            yield k, scores
