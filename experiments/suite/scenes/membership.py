"""Small federations of every protocol row, and overfitted ones, attacked with shadow runs."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from attacks.core.run import labelled
from attacks.membership.label_shadows import QUICK, ShadowedLabels
from attacks.membership.shadows import RMIA, IndirectMembership, LiRA, UploadLiRA
from experiments.compare import games
from experiments.compare.comparison import CONTROLS
from experiments.compare.games import Prepare
from experiments.compare.leakage import NOT_RUN, Attempt
from experiments.core.run_config import RowSpec, row_config
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import base, federated, noise
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import concatenate

_SPECS = (
    RowSpec("fedavg"),
    RowSpec("fedavg", unit="record"),
    RowSpec("selective-fd", "soft"),
    RowSpec("selective-fd"),
    RowSpec("selective-fd", secure="masks"),
    RowSpec("selective-fd", unit="label"),
)
_ROWS = {spec.key: spec for spec in _SPECS}
_CONTROLS = {name: CONTROLS[name] for name in ("overfitted fedavg", "overfitted votes")}
"""Unprotected federations of the same data, in which every attack has to find members."""
_SAME = f"{NOT_RUN}masks change what the server reads, and not the networks that clients deploy"
_ASKED: Mapping[str, Prepare] = {
    LiRA.name: lambda _, own, k: LiRA(own, k),
    RMIA.name: lambda _, own, k: RMIA(own, k),
    ShadowedLabels.name: partial(ShadowedLabels.prepare, settings=QUICK),
}


def _rows(cell: Cell) -> Mapping[str, str]:
    """One architecture for all."""
    epsilon = f", ε = {cell.epsilon:g}"
    rows = {key: spec.label + epsilon * bool(spec.unit) for key, spec in _ROWS.items()}
    controls = {key: f"{spec.label}, overfitted (control)" for key, spec in _CONTROLS.items()}
    return rows | controls


def _clients(cell: Cell) -> int:
    return 3 if cell.quick else 5


def _prepare(cell: Cell, data_dir: Path | None) -> games.Drawn:
    """Draw candidates and proxies, disjoint."""
    of_a_class = 10 if cell.quick else 22
    sizes = Sizes(50, 60, 0, local=of_a_class * _clients(cell))
    data = federated(cell, data_dir, _clients(cell), sizes, "iid")
    owned = tuple(labelled(concatenate([c.train, c.validation])) for c in data.clients)
    return games.Drawn(data.name, data.n_classes, owned, data.proxies)


def _attempts(cell: Cell, made: games.Drawn) -> Mapping[str, Attempt]:
    """Play all runs of a row; attack the networks that clients deploy, and what the server read."""
    spec = (_ROWS | _CONTROLS)[cell.row]
    config = row_config(base(cell, "iid", _clients(cell)), spec, noise(cell))
    row, records = games.small(config), made
    if cell.row in _CONTROLS:
        row, records = games.overfitted(config, made)
    attacks = games.attempts(row, records, cell.seed, _ASKED, 6 if cell.quick else 16)
    read = UploadLiRA if spec.kind == "fedavg" else IndirectMembership
    outside = {name: (lambda: _SAME) if spec.secure else attacks[name] for name in _ASKED}
    return {**outside, read.name: attacks[games.SERVER]}


SCENE = Scene(
    title="Membership, against shadow federations",
    about="Five clients hold about a hundred records each, of all classes; sixteen whole "
    "federations of every row differ in which half of the candidates took part, and each is "
    "attacked with the others as shadows. Small mixed sets are where membership "
    "shows: a client of one class trains a constant predictor.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
    limits=(
        "The first three attacks ask the networks that clients deploy, each trained on its "
        "client's few records: distillation needs no such query and protects against none.",
        "Epsilon of the label unit is that of one answer of hundreds: it bounds no membership.",
    ),
    controls=tuple(_CONTROLS),
)
