"""The one way to a run: data, warm-up, method, sum and protection become a federation.

ready = {start: prepare(data_dir, start) for start in needs(config)}  # runs share warm-ups
found = run(config, data_dir, ready)
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn

from attacks.membership.server_members import evenly
from attacks.protocol.liars import LIAR, Lie, Lying, honest, lenient
from experiments.core import run_config
from experiments.core.by_network import SelectiveByNetwork
from experiments.core.features import SPREAD
from experiments.core.measures import ACCURACY, BYTES_UP, lost, measured
from experiments.core.own_data import own_federation
from experiments.core.run_config import RunConfig
from experiments.core.study import Point, Result
from experiments.core.timed_sum import TimedSum
from experiments.core.variants import AllClasses, NetworkNamesClasses, TrueLabels, centralised
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import IMAGE_SETS, image_set
from secure_fd.data.images import Images
from secure_fd.data.partition import Split, parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.methods.base import Labels, Method
from secure_fd.methods.dafkd import DaFKD, FedDF
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.generator import AdversarialSettings
from secure_fd.methods.independent import Independent
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.dp_sgd import PrivateBudget
from secure_fd.privacy.guarantee import Guarantee, weakest
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.privacy.samplers import Random, SeededRandom, unmet_by
from secure_fd.protocol.transcript import Float32Array
from secure_fd.secure_sum.base import SecureSum
from secure_fd.selection.selectors import ClientSelector, KulsifSelector, ProxyRatioSelector
from secure_fd.simulation import build as simulation
from secure_fd.simulation.federation import Dropouts, Federation
from secure_fd.simulation.simulate import guarantee_text
from secure_fd.training import models
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.training.recipes import Recipe
from secure_fd.training.trainer import Learner, Trainer, default_device, run_each
from secure_fd.votes.codec import one_hot

PATCHES = "_patches"
"""Suffix of the names of image sets that clients receive as features of `data.patches`."""
_SPREADS = {"cifar10_features": 0.072}
"""Image sets of features whose entries deviate otherwise than those of `data.patches`."""
_PIXELS = 0.3
"""Deviation of a pixel, about."""
_PIXEL_DISCRIMINATOR, _PIXEL_STEPS = 64, 5
"""DaFKD on images: width of discriminators, steps between sums. A row of the comparison has
minutes, and generators of digits that are worth learning from would take hours."""
_SUMS, _MOST_SUMS = 100, 20
"""Sums of generators in a run of DaFKD, and at most in one round."""
_SERVER_STEPS, _PIXEL_SERVER_STEPS, _LEAST_SERVER_STEPS = 2500, 500, 50
"""Steps of DaFKD's server in a run on features and on images, and at least in one round."""
_POINTS = 6
"""Points of a curve where a cell does not set how many rounds lie between them."""
_MOST_TESTED = 2000
"""Test images of a point before the last one: enough for a curve, at a fifth of the time."""


# Data and warm-up.


@lru_cache(maxsize=2)
def federated_data(
    name: str, data_dir: Path | None, split: Split, clients: int, seed: int
) -> FederatedData:
    """The data of one seed, read once a process."""
    return federate(load(name, data_dir), split, clients, seed)


def data_of(config: RunConfig, data_dir: Path | None = None) -> FederatedData:
    """The data of a run."""
    split = parse_split(config.split)
    if config.own is not None:
        return own_federation(config.own, split, config.clients, config.seed)
    return federated_data(config.image_set, data_dir, split, config.clients, config.seed)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Prepared:
    """Data of a run, and every client's parameters after the warm-up."""

    data: FederatedData
    warm: tuple[Float32Array, ...] = field(repr=False)

    def networks(self) -> list[nn.Module]:
        """Fresh networks of all clients, as they were after the warm-up."""
        networks = simulation.fresh_networks(self.data, 0)
        for made, flat in zip(networks, self.warm, strict=True):
            models.load_flat(made, torch.from_numpy(flat.copy()))
        return networks


def needs(config: RunConfig) -> tuple[RunConfig, ...]:
    """The warm-up that a run shares with others; none for methods that average."""
    alone = run_config.averages(config.method) or not config.schedule.warmup_steps
    return () if alone else (config.start,)


def prepare(data_dir: Path | None, start: RunConfig) -> tuple[Float32Array, ...]:
    """Every client's parameters after a warm-up on the data of the run."""
    return warmed_up(data_of(start, data_dir), start)


def warmed_up(data: FederatedData, start: RunConfig) -> tuple[Float32Array, ...]:
    """Every client's parameters after the steps of a warm-up, alone."""
    schedule = start.schedule
    networks = simulation.fresh_networks(data, start.seed)
    train, device = [client.train for client in data.clients], default_device()
    seeds = [1000 * start.seed + k for k in range(start.clients)]
    for made, images, seed in zip(networks, train, seeds, strict=True):
        if start.one_by_one:
            trainer = Trainer(made, images, schedule.sgd, seed, device)
            trainer.take_steps(schedule.warmup_steps)
        else:
            run_each([*Learner(made, images, schedule, seed, device).warm_up()])
    return tuple(models.flatten(made).cpu().numpy() for made in networks)


def prepared(
    config: RunConfig, data_dir: Path | None = None, ready: Mapping[Any, Any] | None = None
) -> Prepared:
    """Return the start of a run. ready: warm-ups; one that is missing is made now."""
    data = data_of(config, data_dir)
    if run_config.averages(config.method):
        return Prepared(data, ())
    warm = (ready or {}).get(config.start) or prepare(data_dir, config.start)
    return Prepared(data, warm)


# Method, sum and protection.


def federation(
    cell: RunConfig,
    made: Prepared,
    kept: bool | Collection[int] = (),
    fresh: Sequence[nn.Module] = (),
) -> Federation:
    """The run of a cell, which goes on from the warm-up; methods that average start from one model.

    kept: rounds whose uploads of parameters the transcript keeps beside the newest. fresh: networks
    in the place of these, which warm up in the run.
    """
    data, parts = made.data, parts_of(cell, made.data, noise_of(cell))
    sums, unit = sum_of(cell, data), parts.protection
    if cell.liar:  # one client votes this multiple of the bound
        if not unit.is_identity:
            raise ConfigurationError("liar", cell.liar, f"use 0 under a {unit.name}")
        sums, unit = lenient(sums), Lying(data.proxies.labels.numpy(), Lie(cell.liar))
    schedule = cell.schedule if fresh else replace(cell.schedule, warmup_steps=0)
    if fresh:
        networks = [*fresh]
    elif parts.method.shares_parameters:  # one fresh network for all clients, from one start
        start = cell.model or simulation.architectures(data.name, 1)[0]
        networks = [models.build(start, data.n_classes, cell.seed) for _ in data.clients]
    else:
        networks = made.networks()
    run = Federation(
        networks,
        data.clients,
        data.proxies.pixels,
        parts.method,
        aggregation=cast(SecureSum, TimedSum(sums)),
        protection=unit,
        schedule=schedule,
        dropouts=Dropouts(0.0 if cell.method == "independent" else cell.drop, cell.seed),
        releases_per_pair=cell.releases,
        seed=cell.seed,
    )
    run.transcript.proxies_bytes, run.transcript.keep_uploads = data.proxy_message_bytes, kept
    return run


def parts_of(
    cell: RunConfig, data: FederatedData, random: Random = os.urandom
) -> simulation.RunParts:
    """Method and protection of a cell; at an infinite epsilon, votes leave without noise.

    random: source of the noise. Raises ConfigurationError for votes under the record unit.
    """
    privacy, noisy = cell.privacy, {}
    if privacy is not None and cell.unit in ("label", "record"):
        noisy = {"unit": privacy.unit, "epsilon": privacy.epsilon, "delta": privacy.delta}
    config = simulation.RunConfig(
        "heads" if cell.method == "heads" and noisy else method_of(cell, data),
        labels=cast(Labels, cell.labels or "hard"),
        secure=cast(simulation.Secure, cell.secure or None),
        recipe=Recipe(cell.rounds, cell.schedule),
        seed=cell.seed,
        **cast(Any, noisy),
    )
    parts = simulation.build_run(config, simulation.PublicFacts.of(data), random=random)
    if privacy is None or cell.unit != "client":
        return parts
    return replace(parts, protection=client_unit(cell, privacy, random))


def method_of(cell: RunConfig, data: FederatedData) -> str | Method:
    """Return the method of a cell, without a privacy unit."""
    if cell.method == "fedavg":
        return FedAvg(random=noise_of(cell))
    if cell.method in ("dafkd", "feddf"):
        return dafkd(cell)
    if cell.method == "heads":
        return heads(cell, data)
    if cell.method == "selective-fd":
        return by_network(cell) if cell.selector in run_config.BY_NETWORK else selective(cell)
    if cell.method == "feded":  # its central network follows from the recipe
        return cell.method
    kind: Any = run_config.method_class(cell.method)
    made: Method = kind(cell.labels) if cell.labels else kind()
    return made


def dafkd(cell: RunConfig) -> DaFKD:
    """DaFKD or FedDF: as many adversarial and distillation steps in all, however many rounds."""
    features = cell.image_set.endswith((PATCHES, "_features"))
    settings = AdversarialSettings(
        discriminator=256 if features else _PIXEL_DISCRIMINATOR,
        steps=20 if features else _PIXEL_STEPS,
        sums=min(_MOST_SUMS, max(1, round(_SUMS / cell.rounds))),
        spread=_SPREADS.get(cell.image_set, SPREAD) if features else _PIXELS,
    )
    kind = FedDF if cell.method == "feddf" else DaFKD
    whole = _SERVER_STEPS if features else _PIXEL_SERVER_STEPS
    steps = max(_LEAST_SERVER_STEPS, round(whole / cell.rounds))
    return kind(steps=steps, adversarial=settings, random=noise_of(cell))


def heads(cell: RunConfig, data: FederatedData) -> PooledHeads:
    """Pooled heads of as many sums as there are rounds."""
    residual = cell.rounds - 1
    if cell.variant == run_config.TRUE_LABELS:
        truth = one_hot(data.proxies.labels.numpy(), data.n_classes)
        return TrueLabels(residual, truth=truth)
    return PooledHeads(residual)


def by_network(cell: RunConfig) -> SelectiveByNetwork:
    """Selective-FD with a selector that reads the client's own network (Fig. 5)."""
    given: dict[str, Any] = {"quantile": cell.quantile, "server_threshold": cell.server_threshold}
    given = {name: value for name, value in given.items() if value is not None}
    selector = cast(Literal["confidence", "energy"], cell.selector)
    return SelectiveByNetwork(cast(Labels, cell.labels), selector, **given)


def selective(cell: RunConfig) -> SelectiveFD:
    """Selective-FD at the cell's thresholds; the paper's selector counts votes."""
    kind = NetworkNamesClasses if cell.class_by == "network" else SelectiveFD
    if cell.variant == "counted votes of all classes":
        kind = AllClasses
    counted = cell.variant or cell.selector == "kulsif" or cell.quantile is not None
    return kind(
        cast(Labels, cell.labels),
        selector_of(cell),
        votes="counted" if counted else "weighed",
        server_threshold=2.0 if cell.server_threshold is None else cell.server_threshold,
        budget=cell.budget,
        min_voters=cell.min_voters or 1,
    )


def selector_of(cell: RunConfig) -> ClientSelector:
    """The paper's, or the density ratio to the proxies, at the cell's tau_client if it has one."""
    if cell.selector == "kulsif":
        return KulsifSelector() if cell.quantile is None else KulsifSelector(cell.quantile)
    return ProxyRatioSelector(cell.quantile)


def sum_of(cell: RunConfig, data: FederatedData) -> SecureSum:
    """Return the secure sum of a cell; every client agrees on its settings.

    Rows with and without masks are about the same proxies, so that masks alone differ. The client
    unit counts on a graph that cannot be foreseen.
    """
    seed = None if cell.unit == "client" else cell.seed
    secure = cast(simulation.Secure, cell.secure) if cell.secure else None
    return simulation.secure_sum(secure, data, seed, repr(cell).encode())


def noise_of(cell: RunConfig) -> Random:
    """Source of a unit's noise: seeded on public image sets, so that every figure can be repeated.

    On the user's own data it is the operating system's.
    """
    return SeededRandom(cell.seed) if seeds_noise(cell) else os.urandom


def seeds_noise(cell: RunConfig) -> bool:
    """Return whether the noise of a cell can be drawn again."""
    return cell.image_set in IMAGE_SETS


def client_unit(cell: RunConfig, privacy: run_config.Privacy, random: Random) -> ClientUnit:
    """Provisioned for as many absent clients as masks open a sum without, and a tenth corrupt."""
    votes = ClientPlan(
        clients=cell.clients,
        proxies=cell.schedule.proxies_per_round,
        rounds=cell.rounds,
        classes=image_set(cell.image_set).n_classes,
        absent=cell.clients // 3,
        corrupt=cell.clients // 10,
    )
    epsilon, small = cast(float, privacy.epsilon), privacy.small_fleet
    return ClientUnit(epsilon, privacy.delta, votes, small_fleet=small, random=random)


_SEEDED = unmet_by(SeededRandom(0))
"""Why the package gives no epsilon to seeded noise: its guarantees are about real data."""


def claimed(runner: Federation, data: FederatedData) -> Guarantee | None:
    """The claim of a run; where its noise is seeded, that of the same mechanism with fresh noise.

    Every other reason against an epsilon stays. Call it after the last round.
    """
    unit = runner.protection
    if isinstance(unit, LabelUnit):
        return weakest(
            [
                unit.mechanism.guarantee(releases=part.released, delta=unit.delta)
                for part in unit.parts.values()
            ]
        )
    if isinstance(unit, PooledRecordUnit | ClientUnit):
        unit.unmet[:] = [reason for reason in unit.unmet if reason not in _SEEDED]
    budgets = dp_sgd_budgets(runner, data)
    spent = [PrivateBudget(budget.settings, n).guarantee() for budget, n in budgets]
    return weakest(spent) if spent else runner.guarantee()


def dp_sgd_budgets(runner: Federation, data: FederatedData) -> list[tuple[PrivateBudget, int]]:
    """Return the budget and the number of records of every client that trains by DP-SGD."""
    learners = [getattr(client.role, "learner", None) for client in runner.clients]
    trainers = [None if learner is None else learner.trainer for learner in learners]
    return [
        (trainer.budget, len(own.train))
        for trainer, own in zip(trainers, data.clients, strict=True)
        if isinstance(trainer, PrivateTrainer)
    ]


def promised(runner: Federation, claim: Guarantee | None, *, seeded: bool) -> str:
    """Return the guarantees of a run in sentences: of its sum, and of its privacy unit."""
    if isinstance(runner.method, Independent):
        return "Nothing of a client crosses the boundary."
    if claim is None or not claim.holds:
        return guarantee_text(runner)
    parts = [
        runner.aggregation.guarantee,
        claim.sentence(),
        *([run_config.SEEDED_NOISE] if seeded else []),
    ]
    return " ".join(parts)


# Running.


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A run after its last round.

    made: data and warm-up. federation: its parties, with the transcript. accuracies: of each
    client, but of a liar. claim: its guarantee, with fresh noise in the place of seeded noise.
    seconds: of CPU, without what runs share.
    """

    config: RunConfig
    made: Prepared = field(repr=False)
    federation: Federation = field(repr=False)
    accuracies: tuple[float, ...]
    curve: tuple[Point, ...]
    claim: Guarantee | None
    seconds: float

    @property
    def data(self) -> FederatedData:
        """Records of all parties."""
        return self.made.data

    @property
    def sum(self) -> TimedSum | None:
        """The secure sum; None where nothing is summed."""
        alone = self.config.method == "independent"
        return None if alone else cast(TimedSum, self.federation.aggregation)

    @property
    def seeded(self) -> bool:
        """True if a claim is about noise that can be drawn again."""
        return self.claim is not None and seeds_noise(self.config)

    @property
    def notes(self) -> dict[str, object]:
        """Guarantees of the run, in sentences and as its privacy unit states them."""
        sentences = promised(self.federation, self.claim, seeded=self.seeded)
        claim = None if self.claim is None else self.claim.to_json()
        return {"guarantee": sentences, "privacy": claim}


def run(
    config: RunConfig,
    data_dir: Path | None = None,
    ready: Mapping[Any, Any] | None = None,
    *,
    attacked: bool = False,
    on_round: Callable[[Federation], None] = lambda _: None,
) -> Trained:
    """Train and test.

    Args:
        config: the run.
        data_dir: folder of image sets.
        ready: warm-ups; see `prepared`.
        attacked: keep the models that attacks read; otherwise the newest alone, as large models of
            every round fill the memory.
        on_round: called after each round, before its test.

    Returns:
        The run; its seconds are CPU seconds without those of tests.

    Raises:
        LocalError: a client refused, but for a liar whose votes were, and for one whose training
            diverged: such a run is none of the row's.
    """
    start, made = time.process_time(), prepared(config, data_dir, ready)
    if config.variant == run_config.ALL_RECORDS:
        made = replace(made, data=centralised(made.data))
    runner = federation(config, made, _kept(config.rounds) if attacked else ())
    test, moved = made.data.test, runner.transcript
    every, some = config.every or max(1, config.rounds // _POINTS), spread(test, _MOST_TESTED)
    points: list[Point] = []
    accuracies: list[float] = []
    testing = 0.0
    for done, _ in enumerate(runner.rounds(config.rounds), start=1):
        on_round(runner)
        last = done == config.rounds
        if last or done % every == 0:
            now = time.process_time()
            every_one = runner.accuracies(test if last else some)
            accuracies = honest(every_one) if config.liar else every_one
            points.append(Point(done, _mean(accuracies), _mean(moved.up), _mean(moved.down)))
            testing += time.process_time() - now
        if not attacked:
            del moved.parameters[:-1]
    planned = lost(runner) | ({LIAR} if config.liar else set())
    for client, why in moved.refused.items():
        if client not in planned:
            raise LocalError(f"client {client} refused, which no row plans for: {why}")
    claim = claimed(runner, made.data)
    seconds = time.process_time() - start - testing
    return Trained(config, made, runner, tuple(accuracies), tuple(points), claim, seconds)


def _kept(rounds: int) -> set[int]:
    """Return the updates that `ServerMembers` uses, of those that a server reads.

    The first has no round before it that the parameters were sent in.

    >>> sorted(_kept(13)), sorted(_kept(1))
    ([1, 5, 8, 12], [])
    """
    return {1 + i for i in evenly(rounds - 1)}


def _mean(values: Sequence[float] | np.ndarray[Any, Any]) -> float:
    return float(np.mean(values))


def spread(images: Images, most: int) -> Images:
    """Return at most `most` images, evenly spaced: test sets are not in random order."""
    if len(images) <= most:
        return images
    return images[torch.from_numpy(np.linspace(0, len(images) - 1, most).astype(np.int64))]


def run_cell(
    data_dir: Path | None,
    cell: RunConfig,
    ready: Mapping[Any, Any],
    on_round: Callable[[Federation], None] = lambda _: None,
) -> Result:
    """Train and measure one cell of a study. on_round: called after each round.

    Under a privacy unit sums are in clear unless the cell sets another sum: masks change no bit.
    """
    found = run(cell, data_dir, ready, on_round=on_round)
    last = found.curve[-1]
    figures = {
        ACCURACY: last.accuracy,
        BYTES_UP: last.up,
        **measured(cell, found.federation, found.made),
    }
    return Result(cell, figures, found.seconds, found.accuracies, found.curve, notes=found.notes)
