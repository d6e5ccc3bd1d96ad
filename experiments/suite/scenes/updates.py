"""Updates of FedAvg that the comparison does not invert: large batches, and a malicious server."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from attacks.core.base import AttackResult
from attacks.core.run import attack_view, public_of
from attacks.inversion.imprint import Imprint, lying
from attacks.inversion.one_update import MLP, SetUp, one_update
from attacks.inversion.update_inversion import UpdateInversion
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import federated
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import Sizes
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.training import models

_CLIENTS = 10
_STRONG = Sizes(proxies=100, test=0, held_out=140, local=260)
_MIXED = Sizes(proxies=50, test=1, held_out=40, local=60)


@dataclass(frozen=True, slots=True)
class _Row:
    """One local step of every client. imprint: the server sends a malicious model."""

    label: str
    batch: int = 8
    masks: bool = True
    noise: bool = False
    imprint: bool = False


_ROWS: Mapping[str, _Row] = {
    "batch-64": _Row("FedAvg, batch 64", batch=64, masks=False),
    "masks": _Row("FedAvg + masks, batch 8"),
    "imprint": _Row("the same, malicious model", imprint=True),
    "imprint-dp-sgd": _Row("the same + DP-SGD", imprint=True, noise=True),
}


def _rows(_: Cell) -> Mapping[str, str]:
    return {key: row.label for key, row in _ROWS.items()}


def _prepare(cell: Cell, data_dir: Path | None) -> Mapping[bool, FederatedData]:
    """Clients of one class each in clear, of all classes under masks."""
    return {
        False: federated(cell, data_dir, _CLIENTS, _STRONG),
        True: federated(cell, data_dir, _CLIENTS, _MIXED, "iid"),
    }


def _attempts(cell: Cell, made: Mapping[bool, FederatedData]) -> Mapping[str, Attempt]:
    kind = Imprint if _ROWS[cell.row].imprint else UpdateInversion
    return {kind.name: partial(_inverted, kind, cell, made[_ROWS[cell.row].masks])}


def _inverted(kind: type[UpdateInversion], cell: Cell, data: FederatedData) -> AttackResult:
    """Invert what the newest round of a row changed, in closed form."""
    row = _ROWS[cell.row]
    public = replace(public_of(data), architecture=partial(models.build, MLP, data.n_classes))
    met = one_update(
        SetUp(batch=row.batch),
        data,
        cell.seed,
        private=PrivateSGD(cell.epsilon, cell.delta, 2) if row.noise else None,
        masks=row.masks,
        lie=lying(public) if row.imprint else None,
    )
    return attack_view(kind.of(met), met.view, cell.seed)


SCENE = Scene(
    title="Inverting updates",
    about="Every client takes one local step on a batch of known size, and the server inverts what "
    "the newest round changed: 64 records of one class in clear, or a masked sum of ten clients "
    "with 8 records each. In the last two rows the server sends a model made for reading the sum. "
    "The comparison inverts batches of 1 and 8 with every protection.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
    limits=(
        "120 dB denotes equality. Under masks a match is a record of the cohort, and does not say "
        "whose.",
        "A malicious model costs the training of that round.",
        "Clients hold one batch: it takes more noise for an epsilon than a batch sampled from a "
        "larger set.",
    ),
)
