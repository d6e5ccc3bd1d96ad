"""The comparison's own federation, one class a client: leakage of votes and their sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from attacks import load
from attacks.core.base import Effort
from attacks.server.differencing import Differencing
from attacks.server.votes import Said, record
from experiments.compare.comparison import run_of
from experiments.compare.leakage import Attempt
from experiments.core import runs
from experiments.privacy_compare import Plan, Settings, every_row, plan
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import launched

_QUICK_CLIENTS = 5
_ONCE = "-one-release"
"""How the keys of rows end that answer a proxy once in the whole run."""


@dataclass(frozen=True, slots=True)
class _SetUp:
    """Rounds, in full and quick; the rows; and the chance of a client to miss a round."""

    rounds: int
    quick_rounds: int
    rows: Sequence[str]
    drop: float = 0.0

    def plan(self, cell: Cell, data_dir: Path | None = None) -> Plan:
        """A plan of the comparison with the cell's data and budget, under masks if a row has any.

        One release: a round asks about as many proxies as leaves some for every round.
        """
        rounds = self.quick_rounds if cell.quick else self.rounds
        settings = Settings(
            rounds=rounds,
            drop=self.drop,
            attacks=",".join(("label-distribution", *cell.own)),
            dataset=cell.dataset,
            data_dir=data_dir,
            secure_agg=True,
            dp_eps=cell.epsilon,
            dp_delta=cell.delta,
            quick=cell.quick,
        )
        if cell.quick:
            settings = replace(settings, clients=_QUICK_CLIENTS)
        made = plan(settings, None)
        if cell.row.endswith(_ONCE):
            few = made.image_set.proxies // rounds
            made = plan(replace(settings, releases=1, proxies_per_round=few), None)
        if not cell.quick:
            return made
        fewer = replace(made.terms.schedule, proxy_steps=2)
        return replace(made, terms=replace(made.terms, schedule=fewer))


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Warmed clients, and what attacks need before a transcript."""

    data_dir: Path | None
    warm: runs.WarmUp = field(repr=False)
    shared: Mapping[str, Any] = field(repr=False)


def _prepare(set_up: _SetUp, cell: Cell, data_dir: Path | None) -> Prepared:
    planned = set_up.plan(cell, data_dir)
    warm = runs.warm_up(planned.terms, cell.seed)
    data, asked = runs.data_of(planned.terms, cell.seed), planned.attacks
    effort = _effort(planned)
    made = {name: load(name).for_data(data, cell.seed, effort) for name in asked.names}
    return Prepared(data_dir, warm, made)


def _effort(planned: Plan) -> Effort:
    return "quick" if planned.attacks.quick else "full"


def _attempts(set_up: _SetUp, cell: Cell, made: Prepared) -> Mapping[str, Attempt]:
    """Train a row, and attack it as the comparison does; if clients drop out, also all its sums."""
    planned, seed = set_up.plan(cell, made.data_dir), cell.seed
    spec = next(s for s in every_row(planned) if s.key == cell.row.removesuffix(_ONCE))
    warm = None if spec.kind == "fedavg" else made.warm
    truth: list[Said] = []
    keep = partial(record, said=truth)
    trained = runs.run_row(planned.terms, spec, seed, warm, on_round=keep)
    run = replace(run_of(planned.terms, trained), effort=_effort(planned), made=made.shared)
    known: dict[str, Attempt] = {n: partial(run.attack, n) for n in planned.attacks.names}
    if not set_up.drop:
        return known
    return {
        **known,
        "differencing": lambda: launched(Differencing(), run.view, truth, seed),
        "participation": lambda: run.attack("participation"),
    }


def _rows(set_up: _SetUp, cell: Cell) -> Mapping[str, str]:
    labels = {spec.key: spec.label for spec in every_row(set_up.plan(cell))}
    return {
        key: labels[key.removesuffix(_ONCE)] + ", one release" * key.endswith(_ONCE)
        for key in set_up.rows
    }


def _scene(set_up: _SetUp, title: str, about: str) -> Scene[Prepared]:
    rows, attempts = partial(_rows, set_up), partial(_attempts, set_up)
    return Scene(title, about, rows, partial(_prepare, set_up), attempts)


_MASKED = ("selective-fd-hard", "selective-fd-hard-masks", "selective-fd-hard-masks-dp-label")
FEDERATION = _scene(
    _SetUp(12, 2, ("fedavg", "fedmd-soft", "selective-fd-soft", *_MASKED)),
    "One class a client: sums",
    "The strong split of the comparison, in which every client holds one class, so that "
    "labels have most to hide. Shorter than the comparison: selectors decide before the first "
    "round which votes are read.",
)
DROPOUTS = _scene(
    _SetUp(30, 3, (*_MASKED, f"selective-fd-hard-masks{_ONCE}"), drop=0.2),
    "Clients that drop out: many sums together",
    "The strong split, with every client away from a round with chance .2, half of them "
    "before their votes are in. A sum hides its terms; two sums whose terms differ by one "
    "client, or thirty, do not.",
)
