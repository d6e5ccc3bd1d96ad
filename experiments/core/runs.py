"""The one way to a run: data, warm-up, method, sum and protection of a cell become a federation.

made = {part: prepare(data_dir, part) for part in needs(cell)}  # the warm-up, once a group
found = run_cell(data_dir, cell, made)                          # for a study
row = run_row(terms, RowSpec("selective-fd"), seed, warm)       # for a table with attacks
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

from attacks.core.run import SumNoise
from attacks.membership.server_members import evenly
from attacks.protocol.liars import LIAR, Lie, Lying, honest, lenient
from experiments.core import run_config
from experiments.core.features import SPREAD
from experiments.core.measures import ACCURACY, BYTES_UP, diagnose, lost, measured
from experiments.core.own_data import own_federation
from experiments.core.run_config import RunConfig
from experiments.core.study import Point, Result
from experiments.core.timed_sum import TimedSum
from experiments.core.variants import AllClasses, NetworkNamesClasses, TaughtTruth, centralised
from experiments.rivals.by_network import SelectiveByNetwork
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import IMAGE_SETS, image_set
from secure_fd.data.images import Images
from secure_fd.data.partition import Split, parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.methods.base import Labels, Method
from secure_fd.methods.dafkd import DaFKD, FedDF
from secure_fd.methods.fedavg import AveragesParameters, FedAvg
from secure_fd.methods.generator import AdversarialSettings
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.base import PrivacyMechanism
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD
from secure_fd.privacy.guarantee import Guarantee, weakest
from secure_fd.privacy.label import LabelUnit, RandomizedResponse
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.privacy.samplers import Random, SeededRandom, unmet_by
from secure_fd.protocol.transcript import Float32Array, Transcript
from secure_fd.secure_sum.base import SecureSum
from secure_fd.selection.selectors import (
    ClientSelector,
    KulsifSelector,
    ProxyRatioSelector,
)
from secure_fd.simulation import build as simulation
from secure_fd.simulation.federation import Dropouts, Federation
from secure_fd.simulation.simulate import promise
from secure_fd.training import models
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.training.recipes import Recipe
from secure_fd.training.trainer import Learner, Trainer, default_device, run_each
from secure_fd.votes.codec import one_hot

PATCHES = "_patches"
"""How the names of image sets end that clients see through `data.patches`."""
_PIXELS = 0.3
"""Deviation of a pixel, about."""
_PIXEL_DISCRIMINATOR, _PIXEL_STEPS = 64, 5
"""Of DaFKD on images: width of discriminators, steps between sums. A row of the comparison has
minutes, and generators of digits that are worth learning from would take hours."""
_SUMS, _MOST_SUMS = 100, 20
"""Of generators, in a run of DaFKD, and in one round."""
_TAUGHT, _LEAST_TAUGHT = 2500, 50
"""Steps of DaFKD's server in a run, and in one round."""
_POINTS = 6
"""Points of a curve where a cell does not say how many rounds lie between them."""
_MOST_TESTED = 2000
"""Test images of a point before the last one: enough for a curve, at a fifth of the time."""


# Data and warm-up.


@lru_cache(maxsize=2)
def federated_data(
    name: str, data_dir: Path | None, split: Split, clients: int, seed: int
) -> FederatedData:
    """The data of one seed, read once a process."""
    return federate(load(name, data_dir), split, clients, seed)


def data_of(terms: run_config.Terms, seed: int) -> FederatedData:
    """The data of one seed."""
    if terms.own is not None:
        return own_federation(terms.own, terms.split, terms.clients, seed)
    return federated_data(terms.dataset, terms.data_dir, terms.split, terms.clients, seed)


def check_data(terms: run_config.Terms, seed: int) -> None:
    """Load the data of a seed and check what only the data can tell.

    Raises ConfigurationError where delta exceeds one over a client's records: it would allow to
    publish one of them outright.
    """
    largest = max(len(c.train) + len(c.validation) for c in data_of(terms, seed).clients)
    if terms.epsilon is not None and terms.delta * largest >= 1:
        raise ConfigurationError(
            "dp_delta", terms.delta, f"use less than 1 / {largest}, one over the records"
        )


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Prepared:
    """What the cells of a group share. warm: every client's parameters after the warm-up."""

    data: FederatedData
    warm: tuple[Float32Array, ...] = field(repr=False)

    def networks(self) -> list[nn.Module]:
        """Fresh networks of all clients, as they were after the warm-up."""
        names = simulation.architectures(self.data.name, len(self.data.clients))
        pairs = zip(names, self.warm, strict=True)
        return [network(name, self.data.n_classes, flat) for name, flat in pairs]


def network(name: str, n_classes: int, flat: Float32Array) -> nn.Module:
    """A network with these parameters."""
    made = models.build(name, n_classes, 0)
    models.load_flat(made, torch.from_numpy(flat.copy()))
    return made


def prepare(data_dir: Path | None, group: run_config.Group) -> tuple[Float32Array, ...]:
    """Every client's parameters after the warm-up that cells of a group share."""
    return warmed_up(group_data(data_dir, group), group)


def group_data(data_dir: Path | None, group: run_config.Group) -> FederatedData:
    """The data that cells of a group share."""
    split = parse_split(group.split)
    return federated_data(group.image_set, data_dir, split, group.clients, group.seed)


def needs(cell: RunConfig) -> tuple[run_config.Group, ...]:
    """The warm-up of a cell's group; none for methods that average."""
    return () if run_config.averages(cell.method) else (cell.group,)


def warmed_up(
    data: FederatedData, group: run_config.Group, *, one_by_one: bool = False
) -> tuple[Float32Array, ...]:
    """Every client's parameters after the steps of the warm-up, alone.

    one_by_one: on the batches that their rounds would draw, as in the comparison; by default on
    batches of the warm-up's own.
    """
    networks = simulation.fresh_networks(data, group.seed)
    train, device = [client.train for client in data.clients], default_device()
    seeds = [1000 * group.seed + k for k in range(group.clients)]
    for made, images, seed in zip(networks, train, seeds, strict=True):
        if one_by_one:
            trainer = Trainer(made, images, group.warm_up.sgd, seed, device)
            trainer.take_steps(group.warm_up.warmup_steps)
        else:
            run_each([*Learner(made, images, group.warm_up, seed, device).warm_up()])
    return tuple(models.flatten(made).cpu().numpy() for made in networks)


# Method, sum and protection.


def federation(
    cell: RunConfig,
    made: Prepared,
    protection: PrivacyMechanism | None = None,
    kept: Collection[int] = (),
) -> Federation:
    """The run of a cell, which goes on from the warm-up; methods that average start from one model.

    protection: in the place of the cell's own. kept: rounds whose uploads of parameters the
    transcript keeps beside the newest.
    """
    data, parts = made.data, parts_of(cell, made.data, noise_of(cell))
    sums, unit = sum_of(cell, data), protection or parts.protection
    if cell.liar:  # one client, so many times the bound
        if not unit.is_identity:
            raise ConfigurationError("liar", cell.liar, f"use 0 under a {unit.name}")
        sums, unit = lenient(sums), Lying(data.proxies.labels.numpy(), Lie(cell.liar))
    if parts.method.shares_parameters:  # one fresh network for all clients, from one start
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
        schedule=replace(cell.schedule, warmup_steps=0),
        dropouts=Dropouts(cell.drop, cell.seed),
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
    terms, noisy = cell.privacy, {}
    if terms is not None and terms.epsilon is not None and terms.unit != "client":
        noisy = {"unit": terms.unit, "epsilon": terms.epsilon, "delta": terms.delta}
    config = simulation.RunConfig(
        "heads" if cell.method == "heads" and noisy else method_of(cell, data),
        labels=cast(Labels, cell.labels or "hard"),
        secure=cast(simulation.Secure, cell.secure or None),
        recipe=Recipe(cell.rounds, cell.schedule),
        seed=cell.seed,
        **cast(Any, noisy),
    )
    parts = simulation.build_run(config, simulation.PublicFacts.of(data), random=random)
    if terms is None or terms.epsilon is None or terms.unit != "client":
        return parts
    return replace(parts, protection=client_unit(cell, terms, random))


def method_of(cell: RunConfig, data: FederatedData) -> str | Method:
    """What the clients of a cell share, and what its server does, without a privacy unit."""
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
    features = cell.image_set.endswith(PATCHES)
    settings = AdversarialSettings(
        discriminator=256 if features else _PIXEL_DISCRIMINATOR,
        steps=20 if features else _PIXEL_STEPS,
        sums=min(_MOST_SUMS, max(1, round(_SUMS / cell.rounds))),
        spread=SPREAD if features else _PIXELS,
    )
    kind = FedDF if cell.method == "feddf" else DaFKD
    steps = max(_LEAST_TAUGHT, round(_TAUGHT / cell.rounds))
    return kind(steps=steps, adversarial=settings, random=noise_of(cell))


def heads(cell: RunConfig, data: FederatedData) -> PooledHeads:
    """Pooled heads of as many sums as there are rounds."""
    residual = cell.rounds - 1
    if cell.variant == run_config.TRUE_LABELS:
        truth = one_hot(data.proxies.labels.numpy(), data.n_classes)
        return TaughtTruth(residual, truth=truth)
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
    """How the server of a cell sums; every client agrees on all that the cell says.

    Rows with and without masks are about the same proxies, so that masks alone differ. The client
    unit counts on a graph that cannot be foreseen.
    """
    unforeseen = cell.privacy is not None and cell.privacy.unit == "client"
    seed = None if unforeseen else cell.seed
    secure = cast(simulation.Secure, cell.secure) if cell.secure else None
    return simulation.secure_sum(secure, data, seed, repr(cell).encode())


def noise_of(cell: RunConfig) -> Random:
    """Source of a unit's noise: seeded on public image sets, so that every figure can be repeated.

    On the user's own data it is the operating system's.
    """
    return SeededRandom(cell.seed) if seeds_noise(cell) else os.urandom


def seeds_noise(cell: RunConfig) -> bool:
    """Whether the noise of a cell can be drawn again."""
    return cell.image_set in IMAGE_SETS


def client_unit(cell: RunConfig, terms: run_config.Privacy, random: Random) -> ClientUnit:
    """Provisioned for as many absent clients as masks open a sum without, and a tenth corrupt."""
    votes = ClientPlan(
        clients=cell.clients,
        proxies=cell.schedule.proxies_per_round,
        rounds=cell.rounds,
        classes=image_set(cell.image_set).n_classes,
        absent=cell.clients // 3,
        corrupt=cell.clients // 10,
    )
    epsilon, small = cast(float, terms.epsilon), terms.small_fleet
    return ClientUnit(epsilon, terms.delta, votes, small_fleet=small, random=random)


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
        unit.voids[:] = [reason for reason in unit.voids if reason not in _SEEDED]
    budgets = dp_sgd_budgets(runner, data)
    spent = [PrivateBudget(budget.settings, n).guarantee() for budget, n in budgets]
    return weakest(spent) if spent else runner.guarantee()


def dp_sgd_budgets(runner: Federation, data: FederatedData) -> list[tuple[PrivateBudget, int]]:
    """Of every client that trains by DP-SGD, its budget and its number of records."""
    learners = [getattr(client.role, "learner", None) for client in runner.clients]
    trainers = [None if learner is None else learner.trainer for learner in learners]
    return [
        (trainer.budget, len(own.train))
        for trainer, own in zip(trainers, data.clients, strict=True)
        if isinstance(trainer, PrivateTrainer)
    ]


def promised(runner: Federation, claim: Guarantee | None, *, seeded: bool) -> str:
    """What a run promises, in sentences: of its sum, and of its privacy unit."""
    if claim is None or not claim.holds:
        return promise(runner)
    parts = [
        runner.aggregation.guarantee,
        claim.sentence(),
        *([run_config.SEEDED_NOISE] if seeded else []),
    ]
    return " ".join(parts)


# A cell of a study.


def run_cell(data_dir: Path | None, cell: RunConfig, parts: Mapping[Any, Any]) -> Result:
    """Train, test and measure one cell, and say what it promises.

    Under a privacy unit sums are in clear unless the cell says otherwise: masks change no bit.
    """
    start = time.process_time()
    made = Prepared(group_data(data_dir, cell.group), next(iter(parts.values()), ()))
    if cell.variant == run_config.ALL_RECORDS:
        made = replace(made, data=centralised(made.data))
    runner, test = federation(cell, made), made.data.test

    def on_round() -> None:
        del runner.transcript.parameters[:-1]  # a large model every round fills the memory

    accuracies, points = trained(runner, cell, spread(test, _MOST_TESTED), test, on_round)
    figures = {
        ACCURACY: points[-1].accuracy,
        BYTES_UP: points[-1].up,
        **measured(cell, runner, made),
    }
    claim = claimed(runner, made.data)
    notes: dict[str, object] = {
        "guarantee": promised(runner, claim, seeded=seeds_noise(cell)),
        "privacy": None if claim is None else claim.to_json(),
    }
    seconds = time.process_time() - start
    return Result(cell, figures, seconds, accuracies, points, notes=notes)


def trained(
    runner: Federation,
    cell: RunConfig,
    some: Images,
    test: Images,
    on_round: Callable[[], None] = lambda: None,
) -> tuple[tuple[float, ...], tuple[Point, ...]]:
    """Run all rounds: accuracies after the last one, and a curve.

    some: the images that earlier points are tested on. on_round: called after each.
    Raises LocalError where a client refused, but for a liar whose votes were, and for one whose
    training diverged: such a run is none of the row's.
    """
    every, points = cell.every or max(1, cell.rounds // _POINTS), []
    accuracies: list[float] = []
    for done, _ in enumerate(runner.rounds(cell.rounds), start=1):
        last, moved = done == cell.rounds, runner.transcript
        if last or done % every == 0:
            every_one = runner.accuracies(test if last else some)
            accuracies = honest(every_one) if cell.liar else every_one
            points.append(Point(done, _mean(accuracies), _mean(moved.up), _mean(moved.down)))
        on_round()
    planned = lost(runner) | ({LIAR} if cell.liar else set())
    for client, why in runner.transcript.refused.items():
        if client in planned:
            continue
        raise LocalError(f"client {client} refused, which no row plans for: {why}")
    return tuple(accuracies), tuple(points)


def _mean(values: Sequence[float] | np.ndarray[Any, Any]) -> float:
    return float(np.mean(values))


def spread(images: Images, most: int) -> Images:
    """At most so many images, evenly spaced: published test sets are not in random order."""
    if len(images) <= most:
        return images
    return images[torch.from_numpy(np.linspace(0, len(images) - 1, most).astype(np.int64))]


# A row of the comparison.


@dataclass(frozen=True, slots=True, eq=False)
class WarmUp:
    """Every client's parameters after the warm-up, which all rows but FedAvg share."""

    parameters: tuple[Float32Array, ...] = field(repr=False)
    seconds: float


def warm_up(terms: run_config.Terms, seed: int) -> WarmUp:
    """Train every client alone for the schedule's warm-up steps."""
    start, group = time.process_time(), terms.run(run_config.RowSpec("independent"), seed).group
    parameters = warmed_up(data_of(terms, seed), group, one_by_one=True)
    return WarmUp(parameters, time.process_time() - start)


@dataclass(frozen=True, slots=True, eq=False)
class RowRun:
    """A trained row. curve: on the whole test set. seconds: of CPU, with the warm-up where networks
    take it: heads do not.

    aggregation: name of the secure sum, None where nothing is summed. aggregation_seconds: of CPU,
    inside the sums of all rounds.
    networks: (architecture, parameters) of every client. response: the mechanism of the label unit,
    whose parameters everybody knows. private: DP-SGD of shared parameters. noise: of pooled sums,
    what is public. seeded: whether its noise is, and can be drawn again.
    """

    spec: run_config.RowSpec
    seed: int
    accuracies: tuple[float, ...]
    curve: tuple[Point, ...]
    transcript: Transcript
    seconds: float
    aggregation: str | None
    aggregation_seconds: float
    guarantee: str
    privacy: Guarantee | None
    seeded: bool
    insecure: tuple[str, ...]
    diagnostics: dict[str, float]
    networks: tuple[tuple[str, Float32Array], ...] = field(repr=False)
    response: RandomizedResponse | None
    private: PrivateSGD | None
    noise: SumNoise | None


def run_row(
    terms: run_config.Terms,
    spec: run_config.RowSpec,
    seed: int,
    warm: WarmUp | None,
    chosen: PrivacyMechanism | None = None,
    on_round: Callable[[Federation], None] = lambda _: None,
) -> RowRun:
    """Train one row.

    warm: the networks that it goes on from, None for FedAvg, which begins anew. chosen: the
    protection, where it is not what the terms give the row. on_round: called after each round.
    """
    start, cell = time.process_time(), terms.run(spec, seed)
    if run_config.averages(spec.kind):
        warm = None
    made = Prepared(data_of(terms, seed), () if warm is None else warm.parameters)
    test = made.data.test
    runner = federation(cell, made, chosen, _kept(cell.rounds))
    accuracies, curve = trained(runner, cell, test, test, lambda: on_round(runner))
    alone, unit, method = spec.kind == "independent", runner.protection, runner.method
    before = 0.0 if warm is None or spec.kind in run_config.HEADS else warm.seconds
    claim = None if alone else claimed(runner, made.data)
    seeded = claim is not None and chosen is None and seeds_noise(cell)
    return RowRun(
        spec=spec,
        seed=seed,
        accuracies=accuracies,
        curve=curve,
        transcript=runner.transcript,
        seconds=time.process_time() - start + before,
        aggregation=None if alone else runner.aggregation.name,
        aggregation_seconds=0.0 if alone else cast(Any, runner.aggregation).seconds,
        guarantee=_NOTHING if alone else promised(runner, claim, seeded=seeded),
        privacy=claim,
        seeded=seeded,
        insecure=() if alone else tuple(runner.aggregation.caveats),
        diagnostics=diagnose(runner, made.data),
        networks=_deployed(runner, made.data),
        response=unit.mechanism if isinstance(unit, LabelUnit) else None,
        private=method.private if isinstance(method, AveragesParameters) else None,
        noise=SumNoise.of(unit) if isinstance(unit, PooledRecordUnit) else None,
    )


def _kept(rounds: int) -> set[int]:
    """Of the updates that a server reads, those that `ServerMembers` asks about: large models of
    every round fill the memory. The first has no round before it that the parameters were sent in.

    >>> sorted(_kept(13)), sorted(_kept(1))
    ([1, 5, 8, 12], [])
    """
    return {1 + i for i in evenly(rounds - 1)}


_NOTHING = "Nothing of a client crosses the boundary."


def _deployed(runner: Federation, data: FederatedData) -> tuple[tuple[str, Float32Array], ...]:
    """Architecture and parameters that each client deploys after the last round."""
    known = runner.global_parameters
    names = simulation.architectures(data.name, len(data.clients), shared=known is not None)
    if known is not None:
        return tuple((name, np.asarray(known)) for name in names)
    flat = [models.flatten(model).cpu().numpy() for model in runner.models]
    return tuple(zip(names, flat, strict=True))
