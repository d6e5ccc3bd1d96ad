"""Worst case of membership: small federations that train as a row of the main table does.

Clients of one class hide members behind the class, and one run has no shadow. So each row is played
in eight small runs: three clients hold eleven records of each class, half of 22 candidates each,
and share up to 500 proxies: small mixed sets are where membership shows. Records come from the data
set of a run, or are scikit-learn's digits. Method, labels, selector, secure sum and unit are the
row's own; rounds, steps and the network, one hidden layer of 64, are the game's.

The same runs are attacked by what the server reads, and by an outsider who asks the networks in the
end. The positive controls are overfitted federations of fewer records of the same data, which
nothing protects.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from attacks.core.base import AttackResult, Labelled, require_disjoint, substream
from attacks.core.result import POSITIVE
from attacks.core.run import SumNoise, labelled
from attacks.core.view import Public, View
from attacks.membership.budgets import RUNS, Factory, LeakageGame, bundled_digits, server_sees
from attacks.membership.label_only import deployed
from attacks.membership.label_shadows import QUICK, ShadowedLabels
from attacks.membership.overfitted import all_training, as_images, perceptron
from attacks.membership.shadows import LiRA, ShadowAttack
from experiments.compare.leakage import NOT_RUN, PLAYED, tried
from experiments.core import runs
from experiments.core.run_config import HEADS, Privacy, RowSpec, RunConfig, averages, row_config
from secure_fd.cache import freed_with_owner
from secure_fd.data.federated import FederatedData, first_copies
from secure_fd.data.images import Images, concatenate
from secure_fd.errors import ConfigurationError, MissingCapabilityError, SecureFDError
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import SGD, Schedule

CLIENTS: Final = 3
OF_A_CLASS: Final = 22
"""Candidates of a client, at most."""
PROXIES: Final = 500
DELTA: Final = 1e-5
_OF_A_CLIENT: Final = 220
_FEWEST: Final = 6
_ROUNDS: Final = 2
_FEDAVG_ROUNDS: Final = 12
_SGD: Final = SGD(local_batch=32, distillation_batch=32)
_FEDAVG: Final = Schedule(local_steps=10, proxy_steps=0, sgd=_SGD)
_SCHEDULE: Final = Schedule(
    warmup_steps=150, local_steps=3, proxy_steps=3, proxies_per_round=PROXIES, sgd=_SGD
)
"""Long enough alone that networks overfit."""
Found = Mapping[str, AttackResult | str]
"""Result or reason, by name of `PLAYED`."""
SERVER, BY_PROBABILITIES, BY_LABELS = PLAYED
_QUICK_RUNS = 6
_FEW = 4
"""Candidates of a class at a client of an overfitted federation."""
_LONG = replace(_SCHEDULE, warmup_steps=400, local_steps=10, proxy_steps=1)
_LONG_ROUNDS = 6
_LONG_FEDAVG = replace(_FEDAVG, local_steps=40)
Prepare = Callable[[Public, Labelled, int], ShadowAttack]
"""Makes an attack on one client's candidates."""
_ASKED: Mapping[str, Prepare] = {
    BY_PROBABILITIES: lambda _, own, k: LiRA(own, k),
    BY_LABELS: partial(ShadowedLabels.prepare, settings=QUICK),
}


# Records, and how a row trains on them.


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Drawn:
    """Records of a game. candidates: of each client. proxies: other records."""

    name: str
    n_classes: int
    candidates: tuple[Labelled, ...] = field(repr=False)
    proxies: Images = field(repr=False)

    def __post_init__(self) -> None:
        for own in self.candidates:
            require_disjoint(own, labelled(self.proxies))

    @property
    def details(self) -> dict[str, float]:
        """Numbers of clients, and of members of a class at one client, at most."""
        most = max(int(torch.bincount(own.labels).max()) for own in self.candidates)
        members = float(most // 2)
        return {"game_clients": float(len(self.candidates)), "game_members_of_a_class": members}


@freed_with_owner
def drawn(data: FederatedData, seed: int) -> Drawn:
    """Draw the records of games from training and held-out records, and proxies from proxies.

    Raises:
        MissingCapabilityError: a client of the game would have fewer than three pairs of records.
    """
    chance = torch.Generator().manual_seed(substream(seed, "records of games"))
    shared = data.proxies[torch.randperm(len(data.proxies), generator=chance)[:PROXIES]]
    pool = concatenate([*(client.train for client in data.clients), data.held_out])
    seen: set[bytes] = set()
    first_copies(data.proxies.pixels, seen)
    pool = pool[first_copies(pool.pixels, seen)]
    most = min(OF_A_CLASS, max(2, _OF_A_CLIENT // data.n_classes // 2 * 2))
    parts: list[list[Tensor]] = [[] for _ in range(CLIENTS)]
    for c in range(data.n_classes):
        found = (pool.labels == c).nonzero()[:, 0]
        each = min(most, len(found) // CLIENTS // 2 * 2)
        order = found[torch.randperm(len(found), generator=chance)]
        for k in range(CLIENTS):
            parts[k].append(order[k * each : (k + 1) * each])
    owned = [pool[torch.cat(part)[:_OF_A_CLIENT]] for part in parts]
    if len(owned[0]) < _FEWEST:
        raise MissingCapabilityError(
            f"missing records for a game: {len(pool)} training and held-out records give a client "
            f"{len(owned[0])}, and a game takes {_FEWEST}"
        )
    return Drawn(data.name, data.n_classes, tuple(map(labelled, owned)), shared)


@cache
def digits() -> Drawn:
    """The bundled digits; the same objects, so that features are shared."""
    made = bundled_digits()
    return Drawn("digits", 10, made.clients, Images(made.proxies.images, made.proxies.labels))


def small(config: RunConfig) -> RunConfig:
    """Return a row of the comparison as games train it.

    Raises:
        MissingCapabilityError: for the client unit, which takes a fleet, and for generators.
    """
    if config.privacy is not None and config.privacy.unit == "client":
        raise MissingCapabilityError("missing a small game of a fleet")
    if config.method in ("dafkd", "feddf"):
        raise MissingCapabilityError("missing a small game of this method")
    rounds, schedule = _ROUNDS, _SCHEDULE
    if averages(config.method):
        rounds, schedule = _FEDAVG_ROUNDS, _FEDAVG
    if config.method in HEADS:
        rounds, schedule = config.rounds, config.schedule
    return replace(
        config,
        split="iid",
        clients=CLIENTS,
        rounds=rounds,
        schedule=schedule,
        drop=0.0,
        releases=None,
        min_voters=None if config.min_voters is None else min(config.min_voters, CLIENTS),
    )


def train(config: RunConfig, records: Drawn, members: Sequence[Labelled], seed: int) -> Federation:
    """Train a federation on these records of its clients, to its end."""
    asked = min(config.schedule.proxies_per_round, len(records.proxies))
    config = replace(config, seed=seed, schedule=replace(config.schedule, proxies_per_round=asked))
    inputs = members[0].images[0].numel()
    clients = tuple(
        all_training(Labelled(as_images(own.images), own.labels), records.n_classes)
        for own in members
    )
    nothing = records.proxies[torch.arange(0)]
    data = FederatedData(
        records.name, records.n_classes, clients, records.proxies, nothing, nothing
    )
    networks = [
        perceptron(inputs, records.n_classes, substream(seed, f"network {k}"))
        for k in range(len(clients))
    ]
    run = runs.federation(config, runs.Prepared(data, ()), kept=True, fresh=networks)
    run.fit(config.rounds)
    return run


METHODS: Final[Mapping[str, RowSpec]] = {
    "fedavg": RowSpec("fedavg"),
    "fedmd-soft": RowSpec("fedmd", "soft"),
    "selective-fd-soft": RowSpec("selective-fd", "soft"),
    "selective-fd-hard": RowSpec("selective-fd"),
    "pooled-heads": RowSpec("heads"),
}
"""Rows by the name on the command line, without masks and epsilon."""


def asked(method: str, *, masks: bool, epsilon: float | None) -> RunConfig:
    """Return the run on digits that was asked for by name.

    Raises:
        ConfigurationError: for an unknown method, and an epsilon that is not above 0.
    """
    if method not in METHODS:
        raise ConfigurationError("method", method, f"use one of {', '.join(METHODS)}")
    if epsilon is not None and not epsilon > 0:
        raise ConfigurationError("epsilon", epsilon, "use a number above 0")
    if epsilon is not None and method == "pooled-heads" and not masks:
        raise ConfigurationError("epsilon", epsilon, "shares of noise need masks: ask for them too")
    spec = replace(METHODS[method], secure="masks" if masks else None)
    if epsilon is not None:
        spec = replace(spec, unit="record" if method in ("fedavg", "pooled-heads") else "label")
    base = RunConfig(
        image_set="digits",
        split="iid",
        method="independent",
        selector="ratio",
        seed=0,
        rounds=_ROUNDS,
        schedule=_SCHEDULE,
        clients=CLIENTS,
    )
    return small(row_config(base, spec, Privacy("label", epsilon, DELTA)))


def view_of(records: Drawn, federation: Federation) -> View:
    """Return the server's view of a federation that has run."""
    public = labelled(records.proxies)
    unlabelled = bool((public.labels < 0).any())
    return server_sees(federation, public.images if unlabelled else public, records.n_classes)


def factory(config: RunConfig) -> Factory:
    """Return the factory of a row on digits, with its server's view."""
    return lambda members, seed: view_of(digits(), train(config, digits(), members, seed))


def game(seed: int = 0, count: int = RUNS) -> LeakageGame:
    """Return the game on digits."""
    return LeakageGame.of(digits().candidates, count, seed)


# What attacks find.


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
    row, records = small(config), drawn(runs.data_of(config, data_dir), config.seed)
    left = {name: "a quick look" for name in names if quick and name != SERVER}
    if config.method in HEADS:  # probes ask about thousands of images, and a head maps each
        left[BY_LABELS] = "the head's probabilities leak more than its labels"
    count = _QUICK_RUNS if quick else RUNS
    results = play(row, records, config.seed, [n for n in names if n not in left], runs_of=count)
    found = {name: f"{NOT_RUN}{left[name]}" for name in names if name in left} | results
    facts = {**records.details, "game_runs": float(count)}
    return {name: _named(found[name], name, positive, facts) for name in names}


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
        run = train(row, records, members, run_seed)
        unit = run.protection
        noise[:] = [SumNoise.of(unit) if isinstance(unit, PooledRecordUnit) else None]
        networks.append(deployed(run.transcript, records.proxies.pixels, run.models))
        return view_of(records, run)

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
        row, records = overfitted(row_config(on, spec), drawn(runs.data_of(on, data_dir), on.seed))
    except SecureFDError:  # the rows' own games state it
        return {}
    names = [*_ASKED] if spec.kind == "independent" else [SERVER]
    found = play(row, records, on.seed, names, runs_of=_QUICK_RUNS)
    return {one.name: one.figure for one in found.values() if isinstance(one, AttackResult)}


def overfitted(config: RunConfig, records: Drawn) -> tuple[RunConfig, Drawn]:
    """Return a row that trains far too long, and the few records that it trains on."""
    row = small(config)
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
