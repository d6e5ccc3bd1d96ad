"""A server that tells clients different things: split ensembles, dead models, and their twins."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from attacks.base import AttackResult
from attacks.on_run import public_of
from attacks.told_apart import (
    DeadModel,
    OverheardSum,
    SplitEnsemble,
    TwoStories,
    all_is,
    dead_layer,
    hash_left_out,
)
from attacks.view import server_view
from experiments.leakage import Attempt
from experiments.scenes import Job, Progress, Scene, Turn, launched, noted
from secure_fd import models
from secure_fd.broadcasts import Listener, Teller
from secure_fd.crypto.primitives import SIGNATURE_BYTES, IdentityKey
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.exchange import Kind
from secure_fd.federation import Federation, participants_of
from secure_fd.knowledge import KnowledgeCodec
from secure_fd.methods.fedavg import FedAvg, ParameterCodec, model_bytes, read_model
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.models import flatten
from secure_fd.recipes import SGD, Schedule, Sizes
from secure_fd.transcript import RoundReport

TARGET: Final = 0
_CLIENTS = 10
_AT = 0
"""The round of the lie; the next sum is read."""
SIZES: Final = Sizes(proxies=30, test=1, held_out=1, local=30)
_LEARNING = Schedule(
    warmup_steps=60,
    local_steps=0,
    proxy_steps=40,
    remember=False,
    sgd=SGD(0.02, 32, 32, momentum=0.9),
)
_STEPS = 5
"""Of FedAvg, between two models."""


@dataclass(frozen=True, slots=True)
class Lied:
    """One attack's result, and the reports of the rounds before and after the lie."""

    result: AttackResult
    reports: tuple[RoundReport, ...]


def split_ensemble(data: FederatedData, seed: int, *, bound: bool) -> Lied:
    """All but the target are told "everything is class 0". bound: as shipped; else the twin."""
    method, proxies = SelectiveFD("hard", none_of_mine=False), len(data.proxies)
    lie = all_is(0, KnowledgeCodec(data.n_classes, method.levels), proxies, len(data.clients))
    made, sums = _federation(data, seed, method, replace(_LEARNING, proxies_per_round=proxies), lie)
    reports = _run(made, bound=bound)
    attack = SplitEnsemble(_AT)
    view = server_view(made.transcript, public_of(data), told_apart=True)
    truth = attack.entries(sums.said[TARGET, _AT + 1], data.n_classes)
    return Lied(launched(attack, view, truth, seed), reports)


def dead_model(data: FederatedData, seed: int, *, bound: bool) -> Lied:
    """All but the target are told a model whose first layer is dead."""
    weight, bias, *_ = (
        p.numel() for p in models.build(models.SHARED, data.n_classes, 0).parameters()
    )
    lie = dead_layer(weight + bias, bias)
    made, sums = _federation(data, seed, FedAvg(local_steps=_STEPS), _LEARNING, lie)
    dead = read_model(
        lie(model_bytes(flatten(made.models[0]).numpy())), len(flatten(made.models[0]))
    )
    reports = _run(made, bound=bound)
    codec = ParameterCodec.by_records([len(client.train) for client in data.clients])
    attack = DeadModel(TARGET, dead[: weight + bias], codec, _AT)
    view = server_view(made.transcript, public_of(data), told_apart=True)
    truth = sums.said[TARGET, _AT + 1][: weight + bias]
    return Lied(launched(attack, view, truth, seed), reports)


def _federation(
    data: FederatedData,
    seed: int,
    method: SelectiveFD | FedAvg,
    schedule: Schedule,
    lie: Callable[[bytes], bytes],
) -> tuple[Federation, OverheardSum]:
    shared = isinstance(method, FedAvg)
    networks = [
        models.build(models.SHARED, data.n_classes, seed if shared else 100 * seed + k)
        for k in range(len(data.clients))
    ]
    sums = OverheardSum(len(data.clients), public_seed=seed)
    made = Federation(
        participants_of(networks, data.clients),
        data.proxies.pixels,
        method,
        aggregation=sums,
        schedule=schedule,
        seed=seed,
        serve=partial(TwoStories, target=TARGET, at=_AT, lie=lie),
    )
    return made, sums


def _run(made: Federation, *, bound: bool) -> tuple[RoundReport, ...]:
    with nullcontext() if bound else hash_left_out():
        return tuple(made.fit(_AT + 2))


def binding_cost(size: int, repeats: int = 50) -> dict[str, float]:
    """What it costs to bind and sign a broadcast of so many bytes: bytes, and CPU microseconds."""
    key, body = IdentityKey.generate(np.random.bytes), bytes(size)
    teller, listener = Teller(bytes(32), key), Listener(bytes(32), key.public)
    start = time.process_time()
    told = [teller.write(Kind.TELL, 0, body) for _ in range(repeats)]
    middle = time.process_time()
    for data in told:
        listener.read(data)
    end = time.process_time()
    return {
        "binding_bytes_a_broadcast": float(SIGNATURE_BYTES),
        "binding_us_at_the_server": 1e6 * (middle - start) / repeats,
        "binding_us_at_a_client": 1e6 * (end - middle) / repeats,
    }


_ATTACKS: Final[Mapping[str, tuple[str, Callable[..., Lied]]]] = {
    "votes": ("Selective-FD hard + masks", split_ensemble),
    "model": ("FedAvg + masks", dead_model),
}
_UNBOUND: Final = "-unbound"


def _rows(job: Job) -> Mapping[str, str]:  # noqa: ARG001 - the same in every job
    """Both protocols as shipped, and each without the hash: the positive control."""
    return {
        f"{key}{tail}": label + words
        for key, (label, _) in _ATTACKS.items()
        for tail, words in (("", ""), (_UNBOUND, ", told hash left out"))
    }


def _prepare(job: Job, seed: int, progress: Progress) -> FederatedData:
    source = load(job.dataset, job.data_dir)
    progress(50)
    return federate(source, Split("iid"), _CLIENTS, seed, SIZES)


def _attempts(turn: Turn[FederatedData]) -> Mapping[str, Attempt]:
    """One attack a row, with void rounds and what binding costs."""
    key = turn.row.removesuffix(_UNBOUND)
    lied = _ATTACKS[key][1](turn.made, turn.seed, bound=key == turn.row)
    turn.progress(100)
    sizes = {"votes": len(turn.made.proxies), "model": 4 * 10_000}
    found = noted(lied.result, binding_cost(sizes[key]))
    return {found.name: lambda: found}


SCENE = Scene(
    name="told-apart",
    title="A server that tells clients different things",
    about="IID, ten clients, masks. In one round all but client 0 are told a lie, and the next sum "
    "is read as client 0's vector. The rows without the hash are the same parties with the one "
    "protection taken out.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
