"""Clients that drop out of the comparison's own federation: leakage of many sums together."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from attacks.core.run import attack_view
from attacks.server.differencing import Differencing
from attacks.server.votes import SumVotes, record
from experiments.compare.comparison import run_of
from experiments.compare.leakage import Attempt
from experiments.core.run_config import RowSpec, RunConfig, row_config
from experiments.privacy_compare import Settings
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import Compared, noise
from secure_fd.data.image_sets import image_set

_MASKED = RowSpec("selective-fd", "hard", secure="masks")
_ONCE = f"{_MASKED.key}-one-release"
"""Row whose clients answer a proxy once in the whole run."""
_NOISY = replace(_MASKED, unit="label")
_SPECS = {_MASKED.key: _MASKED, _NOISY.key: _NOISY, _ONCE: _MASKED}
_DROP = 0.2
"""Chance of a client to miss a round."""


def _rows(cell: Cell) -> Mapping[str, str]:
    epsilon = f", ε = {cell.epsilon:g}"
    labels = {key: spec.label + epsilon * bool(spec.unit) for key, spec in _SPECS.items()}
    return {**labels, _ONCE: f"{labels[_ONCE]}, one release"}


def _prepare(cell: Cell, data_dir: Path | None) -> Compared:
    """Return what rows share, with warmed-up clients."""
    rounds, clients = (3, 5) if cell.quick else (30, 10)
    settings = Settings(rounds=rounds, clients=clients, drop=_DROP, secure_agg=True)
    return Compared.of(cell, data_dir, settings)


def _config(cell: Cell, made: Compared) -> RunConfig:
    """One release: a round asks about as many proxies as leaves some for every round."""
    config = row_config(made.base, _SPECS[cell.row], noise(cell))
    schedule = config.schedule if cell.quick else replace(config.schedule, proxy_steps=2)
    if cell.row != _ONCE:
        return replace(config, schedule=schedule)
    few = image_set(cell.dataset).proxies // config.rounds
    return replace(config, releases=1, schedule=replace(schedule, proxies_per_round=few))


def _attempts(cell: Cell, made: Compared) -> Mapping[str, Attempt]:
    """Train a row, and attack all its sums together; and who took part in them."""
    truth = list[SumVotes]()
    run = run_of(made.run(_config(cell, made), partial(record, truth=truth)))
    with_truth = Differencing().with_truth(truth)
    return {
        "differencing": partial(attack_view, with_truth, run.view, cell.seed),
        "participation": partial(run.attack, "participation"),
    }


SCENE = Scene(
    title="Clients that drop out: many sums together",
    about="The strong split, in which every client holds one class, with every client away from a "
    "round with chance .2, half of them before their votes are in. A sum hides its terms; two "
    "sums whose terms differ by one client, or thirty, do not.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
    limits=(
        "Pairs of sums alone were tried; combinations of more sums may find more.",
        "Votes measure what a client predicts, not how many records of a class it holds.",
    ),
)
