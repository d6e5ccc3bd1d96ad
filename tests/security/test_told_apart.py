"""A lying server against real federations of masked sums: refused as shipped, and its twin is read.

Both end in a void round: the others' signatures are not about what the target was told, so it does
not help to unmask; its masks do not cancel; what opens is no sum.
"""

from contextlib import nullcontext

import numpy as np
import pytest

from attacks.inversion.one_update import Lie
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.methods.fedavg import FedAvg, model_bytes, parameter_codec, read_model
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.protocol.transcript import RoundReport
from secure_fd.simulation.federation import Federation
from secure_fd.training import models
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.votes.codec import IntArray, KnowledgeCodec
from secure_fd.votes.fixed_point import record_shares
from tests.small_federation import Unsurveyed
from tests.told_apart import OverheardSum, TwoStories, all_is, dead_layer, hash_left_out

TARGET, AT, CLIENTS = 0, 0, 10
"""AT: the round of the lie; the next sum is read."""
SIZES = Sizes(proxies=30, test=1, held_out=1, local=30)
LEARNING = Schedule(
    warmup_steps=60,
    local_steps=0,
    proxy_steps=40,
    proxies_per_round=300,
    remember=False,
    sgd=SGD(0.02, 32, 32, momentum=0.9),
)
Read = tuple[tuple[RoundReport, ...], IntArray | None, IntArray, int]
"""Of both rounds the reports; the target's vector as read, None where no sum opened, and as sent;
how many units off it may be read."""


@pytest.fixture(scope="module")
def ten():
    return federate(load("digits"), parse_split("iid"), CLIENTS, seed=20, sizes=SIZES)


def lied(
    data: FederatedData, method: SelectiveFD | FedAvg, lie: Lie, *, bound: bool
) -> tuple[Federation, OverheardSum, tuple[RoundReport, ...]]:
    shared = isinstance(method, FedAvg)
    networks = [
        models.build(models.SHARED, data.n_classes, 20 if shared else 2000 + k)
        for k in range(CLIENTS)
    ]
    sums = OverheardSum(CLIENTS, public_seed=20)
    made = Federation(
        networks,
        data.clients,
        data.proxies.pixels,
        method,
        aggregation=sums,
        schedule=LEARNING,
        seed=20,
    )
    TwoStories.install(made.server, target=TARGET, at=AT, lie=lie)
    with nullcontext() if bound else hash_left_out():
        return made, sums, tuple(made.fit(AT + 2))


def split_ensemble(data: FederatedData, *, bound: bool) -> Read:
    """All but the target are told "everything is class 0": outside it the next sum is its own."""
    method = Unsurveyed("hard")
    lie = all_is(0, KnowledgeCodec(data.n_classes, method.levels), len(data.proxies), CLIENTS)
    made, sums, reports = lied(data, method, lie, bound=bound)
    sent = _but_class_0(sums.said[TARGET, AT + 1], data.n_classes)
    totals = {r.index: r.total for r in made.transcript.distillation}
    after = totals.get(AT + 1)
    read = None if after is None else _but_class_0(after.astype(np.int64), data.n_classes)
    return reports, read, sent, 0


def _but_class_0(vector: IntArray, classes: int) -> IntArray:
    return vector.reshape(-1, classes)[:, 1:].reshape(-1)


def dead_model(data: FederatedData, *, bound: bool) -> Read:
    """All but the target return a dead first layer: the rest of the next sum is its own."""
    first = models.build(models.SHARED, data.n_classes, 20)
    weight, bias, *_ = (p.numel() for p in first.parameters())
    n, told = weight + bias, flatten(first).numpy()
    lie = dead_layer(n, bias)
    dead = read_model(lie(model_bytes(told)), len(told))[:n]
    made, sums, reports = lied(data, FedAvg(), lie, bound=bound)
    codec = parameter_codec(record_shares([len(client.train) for client in data.clients]))
    means = {r.index: r.result for r in made.transcript.parameters}
    after, shares = means.get(AT + 1), codec.shares
    read, resolution = None, codec.levels / (2 * codec.limit)
    if after is not None:
        rest = after[:n].astype(np.float64) * sum(shares) - dead * (sum(shares) - shares[TARGET])
        read = np.rint((rest + codec.limit) * resolution).astype(np.int64)
    return reports, read, sums.said[TARGET, AT + 1][:n], round(1e-6 * resolution)


LIES = pytest.mark.parametrize("lie", [split_ensemble, dead_model])


@LIES
def test_nothing_of_the_target_is_read_and_the_round_is_void(ten, lie):
    reports, read, _, _ = lie(ten, bound=True)
    assert [report.aborted for report in reports] == [False, True]
    [(refused, why)] = reports[1].refused
    assert refused == TARGET
    assert "of the committee signed" in why
    assert read is None


@LIES
def test_without_the_hash_the_target_s_vector_is_read(ten, lie):
    """The twin."""
    reports, read, sent, off = lie(ten, bound=False)
    assert not any(report.aborted or report.refused for report in reports)
    assert read is not None
    assert (sent > 0).sum() > 100
    assert (np.abs(read - sent) <= off)[sent > 0].mean() > 0.99
