"""A server of FedAvg inverts updates, or reads a masked sum by a model of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from attacks.core.base import AttackResult, substream
from attacks.core.run import public_of
from attacks.inversion.imprint import Imprint, lying
from attacks.inversion.one_update import MLP, SetUp, one_update
from attacks.inversion.update_truth import UpdateTruth
from attacks.inversion.updates import QUICK, Search
from attacks.inversion.updates_attack import (
    AnalyticInversion,
    MeanInversion,
    OptimisedInversion,
    UpdateInversion,
)
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import federated, launched, noted
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.image_sets import Sizes
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.training import models

Attack = AnalyticInversion | MeanInversion | OptimisedInversion

# Held-out records serve twice: half as references, half in the control's updates.
_SIZES = Sizes(proxies=100, test=0, held_out=140, local=260)


@dataclass(frozen=True, slots=True)
class _Row:
    """One protocol row: ten clients that take one local step on a batch of known size."""

    label: str
    set_up: SetUp
    masks: bool = False
    noise: bool = False


_ROWS: Mapping[str, _Row] = {
    "mlp-b1": _Row("FedAvg, MLP, batch 1", SetUp()),
    "mlp-b8": _Row("FedAvg, MLP, batch 8", SetUp(batch=8)),
    "mlp-b64": _Row("FedAvg, MLP, batch 64", SetUp(batch=64)),
    "mlp-b1-masks": _Row("FedAvg, MLP, batch 1 + masks", SetUp(), masks=True),
    "mlp-b8-masks": _Row("FedAvg, MLP, batch 8 + masks", SetUp(batch=8), masks=True),
    "mlp-b1-dp-sgd": _Row("FedAvg, MLP, batch 1 + DP-SGD", SetUp(), noise=True),
    "cnn-b1": _Row("FedAvg, CNN, batch 1", SetUp(model=models.SHARED)),
    "imprint": _Row("FedAvg + masks, a model of the server's own", SetUp(batch=8)),
    "imprint-dp-sgd": _Row(
        "FedAvg + masks + DP-SGD, a model of the server's own", SetUp(batch=8), noise=True
    ),
}
_SLOW = ("mlp-b64",)


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """One seed's data. control: clients that train on the other half of the held-out records."""

    data: FederatedData
    control: FederatedData
    mixed: FederatedData


def _rows(cell: Cell) -> Mapping[str, str]:
    return {k: row.label for k, row in _ROWS.items() if not (cell.quick and k in _SLOW)}


def _prepare(cell: Cell, data_dir: Path | None) -> _Prepared:
    """One class a client for inversion, mixed clients for imprint."""
    data = federated(cell, data_dir, 4 if cell.quick else 10, _SIZES)
    sizes = Sizes(proxies=20 if cell.quick else 50, test=1, held_out=40, local=60)
    mixed = federated(cell, data_dir, 10, sizes, "iid")
    held_out, first, second = data.held_out, [], []
    for c in range(data.n_classes):
        own = (held_out.labels == c).nonzero()[:, 0]
        first.append(own[: len(own) // 2])
        second.append(own[len(own) // 2 :])
    others, none = held_out[torch.cat(second)], torch.arange(0)
    clients = tuple(
        ClientData(
            others[torch.isin(others.labels, torch.tensor(client.classes))],
            others[none],
            data.n_classes,
        )
        for client in data.clients
    )
    apart = replace(data, held_out=held_out[torch.cat(first)])
    return _Prepared(apart, replace(apart, clients=clients), mixed)


def _attempts(cell: Cell, made: _Prepared) -> Mapping[str, Attempt]:
    """Invert the newest round of a row, in closed form or by search."""
    row = _ROWS[cell.row]
    if cell.row.startswith(Imprint.name):
        return {Imprint.name: partial(_imprint, cell, row, made.mixed)}
    if row.set_up.model != MLP:
        search = QUICK if cell.quick else Search()
        return {OptimisedInversion.name: partial(_inverted, OptimisedInversion, cell, made, search)}
    kinds = (AnalyticInversion, MeanInversion)
    return {kind.name: partial(_inverted, kind, cell, made) for kind in kinds}


def _private(cell: Cell, row: _Row) -> PrivateSGD | None:
    return PrivateSGD(cell.epsilon, cell.delta, 2) if row.noise else None


def _inverted(
    kind: type[Attack], cell: Cell, made: _Prepared, search: Search | None = None
) -> AttackResult:
    """Beside the same attack on a run of held-out records that are no references.

    That run has no masks: its sum is the same, and the attack never sees what they hide.
    """
    row, chance = _ROWS[cell.row], substream(cell.seed, "control")
    train = partial(one_update, row.set_up, private=_private(cell, row))
    met, other = train(made.data, cell.seed, masks=row.masks), train(made.control, chance)
    attack = kind(met.public, row.set_up.recipe, search)
    estimate, control = attack.estimate(met.view, cell.seed), attack.estimate(other.view, cell.seed)
    truth = UpdateTruth(met.records.private, met.records.held_out, control)
    return noted(attack.with_truth(truth).score(estimate, cell.seed), caveats=met.caveats)


def _imprint(cell: Cell, row: _Row, data: FederatedData) -> AttackResult:
    """Imprint a model on ten mixed clients' step on eight records, beside an honest model."""
    public = replace(public_of(data), architecture=partial(models.build, MLP, data.n_classes))
    private = _private(cell, row)
    update = partial(one_update, row.set_up, data, cell.seed, private=private, masks=True)
    lied, honest = update(lie=lying(public)), update()
    recipe = row.set_up.recipe
    found = launched(Imprint(public, recipe), lied.view, lied.records, cell.seed)
    plain = launched(UpdateInversion(public, recipe), honest.view, honest.records, cell.seed)
    return noted(found, {"honest_model_psnr": plain.figure}, lied.caveats)


SCENE = Scene(
    title="Inverting updates",
    about="Every client holds one class and sends its parameters after one local step on a batch "
    "of known size; the server inverts what the newest round moved. Updates leak most where few "
    "records stand behind one, so small batches are where to look. Or the server sends a model of "
    "its own, and reads the sum of ten clients under masks.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
