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
from experiments.core.run_config import RowSpec, Terms
from experiments.privacy_compare import Settings, plan
from experiments.suite.scenes import Cell, Scene

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
    warm: runs.WarmUp = field(repr=False)


def _terms(cell: Cell, data_dir: Path | None) -> Terms:
    """Terms of the comparison with the cell's data and budget.

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
        few = made.image_set.proxies // made.terms.rounds
        made = plan(replace(settings, releases=1, proxies_per_round=few), None)
    if cell.quick:
        return made.terms
    return replace(made.terms, schedule=replace(made.terms.schedule, proxy_steps=2))


def _rows(_: Cell) -> Mapping[str, str]:
    labels = {key: spec.label for key, spec in _SPECS.items()}
    return {**labels, _ONCE: f"{labels[_ONCE]}, one release"}


def _prepare(cell: Cell, data_dir: Path | None) -> Prepared:
    return Prepared(data_dir, runs.warm_up(_terms(cell, data_dir), cell.seed))


def _attempts(cell: Cell, made: Prepared) -> Mapping[str, Attempt]:
    """Train a row, and attack all its sums together; then with user-supplied attacks."""
    terms, spec, seed = _terms(cell, made.data_dir), _SPECS[cell.row], cell.seed
    truth: list[Said] = []
    keep = partial(record, said=truth)
    trained = runs.run_row(terms, spec, seed, made.warm, on_round=keep)
    run = run_of(terms, trained)
    return {
        "differencing": partial(attack_view, Differencing().with_truth(truth), run.view, seed),
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
