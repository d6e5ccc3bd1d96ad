"""Effect of one lying client on sums of votes, with networks of one layer that train quickly."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest

from attacks.protocol.liars import LIAR, Lie, Lying, honest, lenient
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.methods.base import Method
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.protocol.transcript import RoundReport
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.secure_sum.validated import Prio3Sum
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.votes.codec import IntArray, KnowledgeCodec, UnitArray, WordArray
from tests.small_federation import CPU, Unsurveyed, participants

CLIENTS = 10
LEARNING = Schedule(
    warmup_steps=40,
    local_steps=0,
    proxy_steps=40,
    proxies_per_round=200,
    sgd=SGD(0.05, 16, 16, momentum=0.9),
)
SIZES = Sizes(proxies=20, test=20, held_out=1, local=20)


class Taking(Lie):
    """A lie that also takes as much from the right class."""

    def votes(self, right: IntArray, n_classes: int, bound: int) -> WordArray:
        sent = super().votes(right, n_classes, bound).view(np.int64).reshape(-1, n_classes)
        sent[np.arange(len(right)), right] -= self.strength * bound
        return sent.reshape(-1).view(np.uint64)


@dataclass(frozen=True, slots=True)
class Spending(Lie):
    """A lie that keeps to a budget: over the proxies as drawn, or on one class after the other."""

    spend: Literal["spread", "classes"] = "spread"
    slack: float = 1.5

    def votes(self, right: IntArray, n_classes: int, bound: int) -> WordArray:
        sent = Lie.votes(self, right, n_classes, bound).reshape(-1, n_classes)
        order = np.arange(len(right))
        if self.spend == "classes":
            order = np.argsort(right, kind="stable")
        codec = KnowledgeCodec(n_classes, bound)
        budget = codec.budget(self.slack, len(right), CLIENTS)
        sent[order] = codec.within(sent[order].reshape(-1), budget, place=0.0).reshape(sent.shape)
        return sent.reshape(-1)


@pytest.fixture(scope="module")
def ten():
    return federate(load("digits"), parse_split("iid"), CLIENTS, seed=20, sizes=SIZES)


def lied(
    data: FederatedData, lie: Lie | None, sums: SecureSum, method: Method, schedule: Schedule
) -> tuple[Federation, RoundReport]:
    """One round with a client that lies."""
    truth = data.proxies.labels.numpy()
    made = Federation(
        *participants(data),
        data.proxies.pixels,
        method,
        aggregation=lenient(sums),
        protection=None if lie is None else Lying(truth, lie),
        schedule=schedule,
        device=CPU,
    )
    [report] = made.fit(1)
    return made, report


@pytest.mark.parametrize(
    ("sums", "lie", "least", "most"),
    [
        (MaskedSum, None, 0.6, 1.0),
        (MaskedSum, Lie(), 0.45, 1.0),  # nine honest votes hold
        (MaskedSum, Lie(3), 0.0, 0.2),
        (MaskedSum, Taking(3), 0.4, 1.0),  # the round is aborted: nothing wrong is distilled
        (PlainSum, Lie(3), 0.6, 1.0),
        (Prio3Sum, Lie(3), 0.6, 1.0),
        (Prio3Sum, Lie(10), 0.6, 1.0),
    ],
)
def test_a_liar_beyond_the_bound_is_named_wherever_votes_are_checked(ten, sums, lie, least, most):
    """Under masks alone the sum is all that is seen: the control of validated votes."""
    made, report = lied(ten, lie, sums(CLIENTS), SelectiveFD("hard"), LEARNING)
    assert least < np.mean(honest(made.accuracies(ten.test))) < most
    assert bool(report.aborted) == isinstance(lie, Taking)
    named = [] if sums is MaskedSum else [LIAR]
    assert [client for client, _ in report.refused] == named
    if sums is Prio3Sum:
        assert made.transcript.distillation[-1].uploads is None
    if named:
        assert report.survivors == tuple(range(1, CLIENTS))


def cast(lie: Lie, slack: float | None) -> tuple[UnitArray, RoundReport]:
    """The liar's votes in the strong split under a budget, validated."""
    strong = federate(load("digits"), parse_split("strong"), CLIENTS, seed=20, sizes=SIZES)
    method = Unsurveyed("hard", budget=slack)
    brief = replace(LEARNING, warmup_steps=1, proxy_steps=1)
    made, report = lied(strong, lie, Prio3Sum(CLIENTS), method, brief)
    return made.transcript.distillation[-1].total.reshape(-1, 10), report


@pytest.mark.parametrize("spend", ["spread", "classes"])
def test_a_liar_that_keeps_to_its_budget_is_not_named_and_reaches_no_further(spend):
    total, report = cast(Spending(spend=spend), slack=1.5)
    assert report.refused == ()
    assert int(total.sum()) <= CLIENTS * 30 * 3  # 1.5 of a tenth of 200 proxies, 3 units a vote


def test_a_liar_that_claims_all_proxies_is_named_where_there_is_a_budget():
    """Without a budget, the mutant claims every proxy, and is not named."""
    assert [client for client, _ in cast(Lie(), slack=1.5)[1].refused] == [LIAR]
    total, report = cast(Lie(), slack=None)
    assert report.refused == ()
    assert int(total.sum(axis=1).min()) >= 3
    assert len(total) == 200
