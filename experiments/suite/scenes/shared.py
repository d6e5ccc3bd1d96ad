"""Set-ups and steps that several scenes share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from attacks.core.base import AttackResult, Labelled
from attacks.core.run import Attack, attack_view, labelled
from attacks.core.view import View
from experiments.suite.scenes import Cell
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import concatenate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load


def federated(
    cell: Cell,
    data_dir: Path | None,
    clients: int,
    sizes: Sizes | None = None,
    split: Literal["strong", "iid"] = "strong",
) -> FederatedData:
    """Divide a cell's image set; by default each client holds one class."""
    return federate(load(cell.dataset, data_dir), Split(split), clients, cell.seed, sizes)


def members_of(data: FederatedData) -> Labelled:
    """Training records of all clients."""
    return labelled(concatenate([client.train for client in data.clients]))


def launched(attack: Attack[Any, Any], view: View, truth: object, seed: int) -> AttackResult:
    """Run an attack on a view and score it."""
    return attack_view(attack.with_truth(truth), view, seed)


def noted(
    result: AttackResult, details: Mapping[str, float] | None = None, caveats: Sequence[str] = ()
) -> AttackResult:
    """Return a result with further figures and caveats."""
    known = {**result.details, **(details or {})}
    return replace(result, details=known, caveats=(*result.caveats, *caveats))
