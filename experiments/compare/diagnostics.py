"""What only an evaluation may know: how right the selectors and ensembles were."""

import numpy as np

from experiments.results import SINGLE
from secure_fd.data.federated import FederatedData
from secure_fd.federation import Federation


def diagnose(runner: Federation, data: FederatedData) -> dict[str, float]:
    """Figures of the last round's ensemble, and the selectors' mean AUROC where there are any.

    Nothing where no round gave an ensemble.
    """
    if not runner.transcript.distillation:
        return {}
    from sklearn.metrics import roc_auc_score  # slow to import, and only workers come here

    truth = data.proxies.labels.numpy()
    last = runner.transcript.distillation[-1].ensemble
    kept = last.kept
    found = {"kept proxies": float(kept.mean())}
    if kept.any():
        right = last.predictions[kept].argmax(axis=1) == truth[last.indices[kept]]
        found["right labels among kept"] = float(right.mean())
    found[SINGLE] = runner.single_contributors
    found["most releases of a proxy"] = float(runner.most_released)
    aurocs = [
        roc_auc_score(inside, scores)
        for k, client in enumerate(data.clients)
        if (scores := runner.selector_scores(k)) is not None
        and 0 < (inside := np.isin(truth, client.classes)).sum() < len(inside)
    ]
    if aurocs:
        found["selector AUROC"] = float(np.mean(aurocs))
    return found
