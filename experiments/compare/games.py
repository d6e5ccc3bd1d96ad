"""Worst case of membership: small federations, drawn from the run's data and trained as its row is.

Clients of one class hide members behind the class, and one run has no shadow. So each row is played
in eight small runs (`leakage_rows`). The same runs are attacked by what the server reads, and by an
outsider who asks the networks in the end. The positive controls are overfitted federations of fewer
records of the same data, which nothing protects.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from attacks.core.base import POSITIVE, AttackResult, Labelled
from attacks.core.run import SumNoise, labelled
from attacks.core.view import Public, View
from attacks.membership.budgets import RUNS, LeakageGame
from attacks.membership.label_only import deployed
from attacks.membership.label_shadows import QUICK, ShadowedLabels
from attacks.membership.shadows import LiRA, ShadowAttack
from experiments.compare import leakage_rows as small
from experiments.compare.leakage import NOT_RUN, PLAYED, tried
from experiments.compare.leakage_rows import Drawn
from experiments.core import runs
from experiments.core.run_config import RowSpec, RunConfig, row_config
from secure_fd.errors import SecureFDError
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.training.recipes import SGD, Schedule

Found = Mapping[str, AttackResult | str]
"""By name of `PLAYED`."""
SERVER, BY_PROBABILITIES, BY_LABELS = PLAYED
_QUICK_RUNS = 6
_FEW = 4
"""Candidates of a class at a client of an overfitted federation."""
_LONG = Schedule(
    warmup_steps=400,
    local_steps=10,
    proxy_steps=1,
    proxies_per_round=small.PROXIES,
    sgd=SGD(local_batch=32, distillation_batch=32),
)
_LONG_ROUNDS = 6
_LONG_FEDAVG = Schedule(local_steps=40, proxy_steps=0, sgd=SGD(local_batch=32))
Prepare = Callable[[Public, Labelled, int], ShadowAttack]
"""Makes an attack on one client's candidates."""
_ASKED: Mapping[str, Prepare] = {
    BY_PROBABILITIES: lambda _, own, k: LiRA(own, k),
    BY_LABELS: partial(ShadowedLabels.prepare, settings=QUICK),
}


def played(
    data_dir: Path | None,
    config: RunConfig,
    positive: Mapping[str, float],
    names: Sequence[str],
    *,
    quick: bool,
) -> Found:
    """Return the results of a row, by name of `PLAYED`.

    Args:
        data_dir: folder of image sets.
        config: run of the row, whose data the games are drawn from.
        positive: by attack, what it reaches on overfitted federations.
        names: of the attacks.
        quick: fewer runs, and the server alone.

    Raises:
        MissingCapabilityError: there is no such game of this row, or on this data.
    """
    row, records = small.small(config), drawn(data_dir, config)
    left = {name: "a quick look" for name in names if quick and name != SERVER}
    if config.method == "heads":  # probes ask about thousands of images, and a head maps each
        left[BY_LABELS] = "the head's probabilities tell more than its labels"
    count = _QUICK_RUNS if quick else RUNS
    results = play(row, records, config.seed, [n for n in names if n not in left], runs_of=count)
    found = {name: f"{NOT_RUN}{left[name]}" for name in names if name in left} | results
    facts = {**records.details, "game_runs": float(count)}
    return {name: _named(found[name], name, positive, facts) for name in names}


def drawn(data_dir: Path | None, config: RunConfig) -> Drawn:
    """Return the records of games on the data of a run."""
    return small.drawn(runs.data_of(config, data_dir), config.seed)


def _named(
    found: AttackResult | str, name: str, positive: Mapping[str, float], facts: Mapping[str, float]
) -> AttackResult | str:
    """Add the set-up and the positive control."""
    if isinstance(found, str):
        return found
    known = {POSITIVE: positive[found.name]} if found.name in positive else {}
    return replace(found, name=name, details={**found.details, **facts, **known})


def play(
    row: RunConfig, records: Drawn, seed: int, names: Sequence[str], *, runs_of: int = RUNS
) -> dict[str, AttackResult | str]:
    """Play a row; return the results by name of `PLAYED`."""
    made = attempts(row, records, seed, _ASKED, runs_of) if names else {}
    return tried({name: made[name] for name in names})


def attempts(
    row: RunConfig, records: Drawn, seed: int, asked: Mapping[str, Prepare], count: int
) -> dict[str, Callable[[], AttackResult]]:
    """Play `count` runs of a row; return the attacks on them, by SERVER and the names in `asked`.

    asked: attacks by an outsider, who asks the networks in the end.
    """
    game = LeakageGame.of(records.candidates, count, seed)
    networks: list[Sequence[nn.Module]] = []
    noise: list[SumNoise | None] = []

    def seen(members: Sequence[Labelled], run_seed: int) -> View:
        run = small.train(row, records, members, run_seed)
        unit = run.protection
        noise[:] = [SumNoise.of(unit) if isinstance(unit, PooledRecordUnit) else None]
        networks.append(deployed(run.transcript, records.proxies.pixels, run.models))
        return small.seen(records, run)

    views = game.views(seen)
    proxies, labels = labelled(records.proxies).images, views[0].public.labels
    return {
        SERVER: lambda: game.read(views, noise[0]),
        **{
            name: partial(game.outside, prepare, networks, proxies, labels)
            for name, prepare in asked.items()
        },
    }


def control(data_dir: Path | None, on: RunConfig, spec: RowSpec) -> dict[str, float]:
    """Return the AUC of attacks on overfitted federations of a row, the positive controls.

    on: their data and seed. Empty where the data has too few records.
    """
    try:
        row, records = overfitted(row_config(on, spec), drawn(data_dir, on))
    except SecureFDError:  # the rows' own games state it
        return {}
    names = [*_ASKED] if spec.kind == "independent" else [SERVER]
    found = play(row, records, on.seed, names, runs_of=_QUICK_RUNS)
    return {one.name: one.figure for one in found.values() if isinstance(one, AttackResult)}


def overfitted(config: RunConfig, records: Drawn) -> tuple[RunConfig, Drawn]:
    """Return a row that trains far too long, and the few records that it trains on."""
    row = small.small(config)
    if config.method == "fedavg":
        row = replace(row, schedule=_LONG_FEDAVG, rounds=_LONG_ROUNDS)
    elif config.method != "heads":
        row = replace(row, schedule=_LONG, rounds=1)
    return row, _few(records)


def _few(records: Drawn) -> Drawn:
    """The same with the first few candidates of each class."""
    few = []
    for own in records.candidates:
        classes = torch.unique(own.labels).tolist()
        few.append(own.take(torch.cat([(own.labels == c).nonzero()[:_FEW, 0] for c in classes])))
    return replace(records, candidates=tuple(few))
