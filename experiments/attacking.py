"""The attacks on a row of the comparison."""

from collections.abc import Callable
from functools import partial

from attacks import on_run
from attacks.base import AttackResult
from attacks.on_run import Arsenal, Run
from experiments.results import NOT_APPLICABLE
from experiments.rows import Attacks, Terms
from experiments.runs import RowRun, data_of, method_of, network
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.fedavg import FedAvg


def prepare(terms: Terms, seed: int, chosen: Attacks, progress: Callable[[int], None]) -> Arsenal:
    """Make the attacks ready for all rows of a seed. progress(n): n percent done."""
    data = data_of(terms, seed)
    return on_run.prepare(chosen.names, data, seed, quick=chosen.quick, progress=progress)


def attack_row(
    terms: Terms,
    chosen: Attacks,
    arsenal: Arsenal,
    row: RowRun,
    progress: Callable[[int], None],
) -> dict[str, AttackResult | str]:
    """Every attack's result, or the sentence that says which capability is missing."""
    run = run_of(terms, row)
    found: dict[str, AttackResult | str] = {}
    for done, name in enumerate(chosen.names, start=1):
        found[name] = unless_missing(partial(arsenal.attack, name, run))
        progress(done)
    return found


def run_of(terms: Terms, row: RowRun) -> Run:
    """A row as attacks take it."""
    data = data_of(terms, row.seed)
    method = method_of(terms.run(row.spec, row.seed), data)
    return Run(
        data,
        row.transcript,
        [network(name, data.n_classes, flat) for name, flat in row.networks],
        row.seed,
        row.queryable,
        row.response,
        row.declared_classes,
        method.optimiser if isinstance(method, FedAvg) else None,
    )


def unless_missing(attack: Callable[[], AttackResult], also: str = "") -> AttackResult | str:
    """An attack's result, or which capability it lacks; `also` ends that sentence."""
    try:
        return attack()
    except MissingCapabilityError as missing:
        return f"{NOT_APPLICABLE}{missing}{also}"
