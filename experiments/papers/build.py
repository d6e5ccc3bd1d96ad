"""From a cell, its group's data and warm-up to something that runs rounds."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.definitions import dispatched
from experiments.papers.cells import BY_NETWORK, PROXY_LABELS, Cell, Group
from experiments.papers.theorem import FixedLabels, Lesson
from experiments.papers.variants import Refitted, TrueLabels
from secure_fd import models
from secure_fd.aggregation.base import PlainSum, SecureSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.cohort import OnSteps, warm_up
from secure_fd.crypto.public import proxy_commitment
from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.images import Images
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.federation import Federation, Participant, participants_of
from secure_fd.knowledge import one_hot
from secure_fd.messages import proxy_pixels
from secure_fd.methods.base import Labels, Method
from secure_fd.methods.ds_fl import DSFL
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.feded import FedED
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pls import PLS
from secure_fd.methods.selective_fd import ClassBy, SelectiveByNetwork, SelectiveFD, Votes
from secure_fd.recipes import Schedule
from secure_fd.selection.client import (
    ClientSelector,
    KulsifSelector,
    ProxyRatioSelector,
    Selection,
)
from secure_fd.selection.density import Same
from secure_fd.training import default_device
from secure_fd.transcript import Float32Array, Transcript


class Runner(Protocol):
    """What every method's run offers."""

    @property
    def transcript(self) -> Transcript:
        """What crossed the boundary, and its bytes."""

    def rounds(self, count: int) -> Iterator[object]:
        """Run rounds."""

    def accuracies(self, test: Images) -> list[float]:
        """Every client's accuracy."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What the cells of a group share. warm: every client's parameters after the warm-up."""

    data: FederatedData
    warm: tuple[Float32Array, ...] = field(repr=False)

    def networks(self) -> list[nn.Module]:
        """Fresh networks of all clients, as they were after the warm-up."""
        names = architectures(self.data.name, len(self.data.clients))
        made = [models.build(name, self.data.n_classes, 0) for name in names]
        for network, flat in zip(made, self.warm, strict=True):
            models.load_flat(network, torch.from_numpy(flat.copy()))
        return made

    def participants(self) -> list[Participant]:
        """The clients with these networks."""
        pairs = zip(self.networks(), self.data.clients, strict=True)
        return [Participant(network, client) for network, client in pairs]


def architectures(image_set: str, clients: int) -> list[str]:
    """Every client's architecture, as the paper's tables have them."""
    return list(islice(cycle(models.architectures(image_set)), clients))


def data_of(data_dir: Path | None, group: Group) -> FederatedData:
    """The data of a group."""
    source = load(group.image_set, data_dir)
    return federate(source, parse_split(group.split), group.clients, group.seed)


def warmed_up(data_dir: Path | None, group: Group, on_steps: OnSteps | None = None) -> Prepared:
    """The data, and every client trained alone for the steps of the warm-up."""
    data, seeds = data_of(data_dir, group), range(group.clients)
    names = architectures(group.image_set, group.clients)
    networks = [
        models.build(name, data.n_classes, 100 * group.seed + k)
        for name, k in zip(names, seeds, strict=True)
    ]
    warm_up(
        networks,
        [client.train for client in data.clients],
        group.warm_up,
        [1000 * group.seed + k for k in seeds],
        default_device(),
        on_steps,
    )
    return Prepared(data, tuple(models.flatten(network).cpu().numpy() for network in networks))


@dispatched
def runner_of(cell: Cell, made: Prepared, on_steps: OnSteps | None = None) -> Runner:
    """The run of a cell, which goes on from the warm-up; FedAvg starts from one fresh model.

    on_steps: called with the training steps that are done, within rounds too.
    """
    if cell.method == "fedavg":
        return fedavg(cell, made)
    if cell.method == "independent":
        return independent(cell, made)
    if cell.method in PROXY_LABELS:
        return fixed_labels(cell, made)
    return federation(cell, made, on_steps)


def independent(cell: Cell, made: Prepared) -> Federation:
    """Clients that learn alone."""
    steps = _after_warm_up(cell)
    return Federation(made.participants(), None, Independent(), schedule=steps, seed=cell.seed)


def fixed_labels(cell: Cell, made: Prepared) -> FixedLabels:
    """Clients that learn from proxies whose labels never change."""
    lesson, alpha = _lesson(cell, made), cell.alpha or 0.0
    return FixedLabels(made.participants(), lesson, alpha, _after_warm_up(cell), cell.seed)


def federation(cell: Cell, made: Prepared, on_steps: OnSteps | None = None) -> Federation:
    """Clients that share answers about proxies, or class means."""
    data = made.data
    method = method_of(cell, data)
    apart = isinstance(method, FKD | PLS)
    return Federation(
        made.participants(),
        None if apart else data.proxies.pixels,
        method,
        aggregation=_aggregation(cell, data),
        schedule=_after_warm_up(cell),
        proxies_bytes=data.proxy_message_bytes,
        seed=cell.seed,
        on_steps=on_steps,
    )


def _after_warm_up(cell: Cell) -> Schedule:
    return replace(cell.schedule, warmup_steps=0)


@dispatched
def method_of(cell: Cell, data: FederatedData) -> Method | FKD | PLS:
    """What the clients of a distilling cell share, and what its server does."""
    if cell.method == "feded":
        return feded(cell, data)
    if cell.method != "selective-fd":
        simple: Mapping[str, Callable[[Labels], Method | FKD | PLS]]
        simple = {"fedmd": FedMD, "ds-fl": DSFL, "fkd": FKD, "pls": PLS}
        return simple[cell.method](cast(Labels, cell.labels))
    if cell.selector in BY_NETWORK:
        return by_network(cell)
    made = selective(cell)
    if cell.variant == "true labels":
        return TrueLabels(made, one_hot(data.proxies.labels.numpy(), data.n_classes))
    return Refitted(made) if cell.variant == "selector refitted" else made


def feded(cell: Cell, data: FederatedData) -> FedED:
    """The central network is that of the first client, and learns as long as a client does."""
    name = architectures(data.name, 1)[0]
    return FedED(
        cast(Labels, cell.labels),
        data.proxies.pixels,
        models.build(name, data.n_classes, cell.seed),
        sgd=cell.schedule.sgd,
        steps=cell.schedule.proxy_steps,
        warmup=cell.schedule.warmup_steps,
        remember=cell.schedule.remember,
        seed=cell.seed,
    )


def by_network(cell: Cell) -> SelectiveByNetwork:
    """Selective-FD with a selector that reads the client's own network (Fig. 5)."""
    made = SelectiveByNetwork(
        cast(Labels, cell.labels), cast(Literal["confidence", "energy"], cell.selector)
    )
    if cell.quantile is not None:
        made = replace(made, quantile=cell.quantile)
    if cell.server_threshold is not None:
        made = replace(made, server_threshold=cell.server_threshold)
    return made


def selective(cell: Cell) -> SelectiveFD:
    """Selective-FD, or what an ablation makes of it; the paper's selector counts votes."""
    labels, selector = cast(Labels, cell.labels), selector_of(cell)
    counted = cell.selector == "kulsif" or cell.quantile is not None
    class_by = cast(ClassBy, cell.class_by)
    votes: Votes = "counted" if counted else "weighed"
    made = SelectiveFD(labels, selector, votes=votes, class_by=class_by)
    if cell.server_threshold is not None:
        made = replace(made, server_threshold=cell.server_threshold)
    return replace(made, **_CHANGES.get(cell.variant, {}))


_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "counted votes": {"votes": "counted"},
    "counted votes of all classes": {"votes": "counted", "own_classes": False},
    "sharpness 1": {"sharpness": 1.0},
    "ratio alone": {"asks_network": False},
}
"""What a variant changes of the method; the cell itself has all else (see `ablation`)."""


@dispatched
def selector_of(cell: Cell) -> ClientSelector:
    """The client selector, at the cell's tau_client where it has one."""
    return kulsif(cell) if cell.selector == "kulsif" else ratio(cell)


def kulsif(cell: Cell) -> ClientSelector:
    """The paper's."""
    return _Kulsif() if cell.quantile is None else _Kulsif(cell.quantile)


def ratio(cell: Cell) -> ClientSelector:
    """The density ratio to the proxies."""
    if cell.quantile is None:
        return ProxyRatioSelector()
    return ProxyRatioSelector("quantile", cell.quantile)


class _Kulsif(KulsifSelector):
    """Fitted once a process for every client: the cells of a group share the selections."""

    __slots__ = ()

    def select(self, client: ClientData, proxies: Tensor) -> Selection:
        """The selection among the proxies."""
        return _selection(self, Same(client), Same(proxies))


@lru_cache(maxsize=32)
def _selection(
    selector: KulsifSelector, client: Same[ClientData], proxies: Same[Tensor]
) -> Selection:
    return KulsifSelector.select(selector, client.one, proxies.one)


def fedavg(cell: Cell, made: Prepared) -> Federation:
    """One model for all clients, from fresh parameters."""
    data = made.data
    name = cell.model or architectures(data.name, 1)[0]
    shared = [models.build(name, data.n_classes, cell.seed) for _ in data.clients]
    return Federation(
        participants_of(shared, data.clients),
        None,
        FedAvg(),
        schedule=cell.schedule,
        aggregation=_aggregation(cell, data),
        seed=cell.seed,
    )


def _lesson(cell: Cell, made: Prepared) -> Lesson:
    """Proxies with their true labels, or those that the selection mechanism keeps and labels."""
    proxies = made.data.proxies
    if cell.method == "true-labels":
        return Lesson(
            proxies.pixels,
            functional.one_hot(proxies.labels, made.data.n_classes).float(),
            proxies.labels,
        )
    same = replace(cell, method="selective-fd", labels="soft", alpha=None)
    return _selected(Same(made), same)


@lru_cache(maxsize=1)
def _selected(made: Same[Prepared], cell: Cell) -> Lesson:
    """One round about all proxies, in which nobody learns: the ensemble is the labelling."""
    proxies = made.one.data.proxies
    once = replace(
        cell.schedule,
        warmup_steps=0,
        local_steps=0,
        proxy_steps=0,
        proxies_per_round=len(proxies),
    )
    run = Federation(
        made.one.participants(), proxies.pixels, selective(cell), schedule=once, seed=cell.seed
    )
    for _ in run.rounds(1):
        ensemble = run.transcript.distillation[-1].ensemble
    kept = torch.from_numpy(ensemble.indices[ensemble.kept])
    targets = torch.from_numpy(ensemble.predictions[ensemble.kept]).float()
    return Lesson(proxies.pixels[kept], targets, proxies.labels[kept])


def _aggregation(cell: Cell, data: FederatedData) -> SecureSum:
    if not cell.masked:
        return PlainSum(cell.clients)
    proxies = proxy_commitment(proxy_pixels(data.proxies.pixels))
    return MaskedSum(
        cell.clients,
        public_seed=cell.seed,
        configuration=repr(cell).encode(),
        proxies=proxies,
        keep_payloads=False,
    )
