"""A server of FedAvg inverts updates, or reads a masked sum by a model of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from attacks.core.base import AttackResult
from attacks.core.run import attack_view, public_of
from attacks.inversion.imprint import Imprint, lying
from attacks.inversion.one_update import MLP, OneUpdate, SetUp, one_update
from attacks.inversion.update_inversion import UpdateInversion, UpdateMatching
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import federated, noted
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import Sizes
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.training import models

_SIZES = Sizes(proxies=100, test=0, held_out=140, local=260)
_ITERATIONS = 1000
"""Iterations of gradient matching, where time allows."""


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
Update = Callable[..., OneUpdate]
"""Trains a row's update; `lie` makes the model that clients receive."""


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """One seed's data. strong: one class a client, for inversion. mixed: for imprint."""

    strong: FederatedData
    mixed: FederatedData


def _rows(cell: Cell) -> Mapping[str, str]:
    return {k: row.label for k, row in _ROWS.items() if not (cell.quick and k in _SLOW)}


def _prepare(cell: Cell, data_dir: Path | None) -> _Prepared:
    sizes = Sizes(proxies=20 if cell.quick else 50, test=1, held_out=40, local=60)
    strong = federated(cell, data_dir, 4 if cell.quick else 10, _SIZES)
    return _Prepared(strong, federated(cell, data_dir, 10, sizes, "iid"))


def _attempts(cell: Cell, made: _Prepared) -> Mapping[str, Attempt]:
    """Invert the newest round of a row, in closed form or by search."""
    row, imprint = _ROWS[cell.row], cell.row.startswith(Imprint.name)
    private = PrivateSGD(cell.epsilon, cell.delta, 2) if row.noise else None
    data, masks = (made.mixed, True) if imprint else (made.strong, row.masks)
    update = partial(one_update, row.set_up, data, cell.seed, private=private, masks=masks)
    if imprint:
        return {Imprint.name: partial(_imprint, cell, data, update)}
    kind = UpdateInversion if row.set_up.model == MLP else UpdateMatching
    return {kind.name: partial(_inverted, kind, cell, update)}


def _inverted(kind: type[UpdateInversion], cell: Cell, update: Update) -> AttackResult:
    met = update()
    attack = kind.of(met)
    if isinstance(attack, UpdateMatching) and not cell.quick:
        attack = replace(attack, iterations=_ITERATIONS)
    found = attack_view(attack, met.view, cell.seed)
    return replace(found, title="Inversion of one update")


def _imprint(cell: Cell, data: FederatedData, update: Update) -> AttackResult:
    """Imprint a model on ten mixed clients' step on eight records, beside an honest model."""
    public = replace(public_of(data), architecture=partial(models.build, MLP, data.n_classes))
    lied, honest = update(lie=lying(public)), update()
    plain = attack_view(UpdateInversion.of(honest), honest.view, cell.seed).figure
    found = attack_view(Imprint.of(lied), lied.view, cell.seed)
    return noted(found, {"honest_model_psnr": plain})


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
