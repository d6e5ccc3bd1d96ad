"""Clients that drop out of the comparison's own federation: leakage of many sums together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from attacks.core.run import attack_view
from attacks.server.differencing import Differencing
from attacks.server.votes import Said, record
from experiments.compare.comparison import run_of
from experiments.compare.leakage import Attempt
from experiments.core import runs
from experiments.core.run_config import RowSpec, RunConfig, row_config
from experiments.privacy_compare import Settings, noise, plan
from experiments.suite.scenes import Cell, Scene
from secure_fd.data.image_sets import image_set

_HARD = RowSpec("selective-fd", "hard")
_MASKED = replace(_HARD, secure="masks")
_ONCE = f"{_MASKED.key}-one-release"
"""Row whose clients answer a proxy once in the whole run."""
_SPECS = {spec.key: spec for spec in (_HARD, _MASKED, replace(_MASKED, unit="label"))} | {
    _ONCE: _MASKED
}
_DROP = 0.2
"""Chance of a client to miss a round."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Warmed clients."""

    data_dir: Path | None
    ready: Mapping[RunConfig, object] = field(repr=False)


def _config(cell: Cell, data_dir: Path | None) -> RunConfig:
    """The row in a comparison with the cell's data and budget.

    One release: a round asks about as many proxies as leaves some for every round.
    """
    settings = Settings(
        rounds=3 if cell.quick else 30,
        clients=5 if cell.quick else 10,
        drop=_DROP,
        attacks="none",
        dataset=cell.dataset,
        data_dir=data_dir,
        secure_agg=True,
        dp_eps=cell.epsilon,
        dp_delta=cell.delta,
        quick=cell.quick,
    )
    made = plan(settings, None)
    if cell.row == _ONCE:
        few = image_set(cell.dataset).proxies // made.base.rounds
        made = plan(replace(settings, releases=1, proxies_per_round=few), None)
    base = replace(made.base, seed=cell.seed)
    if not cell.quick:
        base = replace(base, schedule=replace(base.schedule, proxy_steps=2))
    return row_config(base, _SPECS.get(cell.row, _HARD), noise(made))


def _rows(_: Cell) -> Mapping[str, str]:
    labels = {key: spec.label for key, spec in _SPECS.items()}
    return {**labels, _ONCE: f"{labels[_ONCE]}, one release"}


def _prepare(cell: Cell, data_dir: Path | None) -> Prepared:
    shared = runs.needs(_config(cell, data_dir))
    return Prepared(data_dir, {start: runs.prepare(data_dir, start) for start in shared})


def _attempts(cell: Cell, made: Prepared) -> Mapping[str, Attempt]:
    """Train a row, and attack all its sums together; then with user-supplied attacks."""
    config, truth = _config(cell, made.data_dir), list[Said]()
    keep = partial(record, said=truth)
    run = run_of(runs.run(config, made.data_dir, made.ready, attacked=True, on_round=keep))
    with_truth = Differencing().with_truth(truth)
    return {
        "differencing": partial(attack_view, with_truth, run.view, cell.seed),
        **{name: partial(run.attack, name) for name in ("participation", *cell.own)},
    }


SCENE = Scene(
    title="Clients that drop out: many sums together",
    about="The strong split, in which every client holds one class, with every client away from a "
    "round with chance .2, half of them before their votes are in. A sum hides its terms; two "
    "sums whose terms differ by one client, or thirty, do not.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
