"""What one lying client does to sums of votes, with networks of one layer that learn in moments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest

from attacks.protocol.liars import LIAR, Lie, Lying, honest, lenient
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError
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
        said = super().votes(right, n_classes, bound).view(np.int64).reshape(-1, n_classes)
        said[np.arange(len(right)), right] -= self.strength * bound
        return said.reshape(-1).view(np.uint64)


@dataclass(frozen=True, slots=True)
class Spending(Lie):
    """A lie that keeps to a budget: over the proxies as drawn, or on one class after the other."""

    spend: Literal["spread", "classes"] = "spread"
    slack: float = 1.5

    def votes(self, right: IntArray, n_classes: int, bound: int) -> WordArray:
        said = Lie.votes(self, right, n_classes, bound).reshape(-1, n_classes)
        order = np.arange(len(right))
        if self.spend == "classes":
            order = np.argsort(right, kind="stable")
        codec = KnowledgeCodec(n_classes, bound)
        budget = codec.budget(self.slack, len(right), CLIENTS)
        said[order] = codec.within(said[order].reshape(-1), budget, place=0.0).reshape(said.shape)
        return said.reshape(-1)


LIES: Mapping[str, Lie | None] = {
    "nobody": None,
    "bound": Lie(),
    "beyond": Lie(3),
    "off": Taking(3),
}


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


def taught(data: FederatedData, lie: Lie | None, sums: SecureSum) -> tuple[Federation, RoundReport]:
    return lied(data, lie, sums, SelectiveFD("hard"), LEARNING)


@pytest.fixture(scope="module")
def outcomes(ten):
    found = {}
    for name, lie in LIES.items():
        made, report = taught(ten, lie, MaskedSum(CLIENTS, public_seed=0))
        found[name] = (float(np.mean(honest(made.accuracies(ten.test)))), report)
    return found


def test_within_the_bound_nine_honest_votes_hold_and_beyond_it_they_do_not(outcomes):
    """No round is void and nobody is named: masks show the sum alone."""
    accuracy = {name: outcomes[name][0] for name in ("nobody", "bound", "beyond")}
    assert accuracy["nobody"] > 0.6
    assert accuracy["bound"] > accuracy["nobody"] - 0.2
    assert accuracy["beyond"] < 0.2
    assert not any(outcomes[name][1].aborted or outcomes[name][1].refused for name in accuracy)


def test_a_liar_that_takes_too_much_off_makes_the_round_void(outcomes):
    accuracy, report = outcomes["off"]
    assert report.aborted
    assert report.refused == ()
    assert accuracy > 0.4  # nobody was taught anything wrong


def test_in_clear_a_liar_beyond_the_bound_is_named_and_left_out(ten):
    """The twin of masks: every value is seen."""
    made, report = taught(ten, Lie(3), PlainSum(CLIENTS))
    assert [client for client, _ in report.refused] == [LIAR]
    assert report.survivors == tuple(range(1, CLIENTS))
    assert np.mean(honest(made.accuracies(ten.test))) > 0.6


@pytest.mark.parametrize("strength", [3, 10])
def test_among_proven_votes_a_liar_beyond_the_bound_is_named_and_left_out(ten, strength):
    """As in clear, and nobody sees a vote: the twin is the masked sum, above."""
    made, report = taught(ten, Lie(strength), Prio3Sum(CLIENTS))
    assert [client for client, _ in report.refused] == [LIAR]
    assert "votes of client 0 are refused" in report.refused[0][1]
    assert report.survivors == tuple(range(1, CLIENTS))
    assert made.transcript.distillation[-1].uploads is None
    assert np.mean(honest(made.accuracies(ten.test))) > 0.6


def cast(lie: Lie, slack: float | None) -> tuple[UnitArray, RoundReport]:
    """What the liar casts in the strong split under a budget, in clear."""
    strong = federate(load("digits"), parse_split("strong"), CLIENTS, seed=20, sizes=SIZES)
    method, brief = (
        Unsurveyed("hard", budget=slack),
        replace(LEARNING, warmup_steps=1, proxy_steps=1),
    )
    made, report = lied(strong, lie, Prio3Sum(CLIENTS), method, brief)
    return made.transcript.distillation[-1].total.reshape(-1, 10), report


@pytest.mark.parametrize("spend", ["spread", "classes"])
def test_a_liar_that_keeps_to_its_budget_is_not_named_and_reaches_no_further(spend):
    total, report = cast(Spending(spend=spend), slack=1.5)
    assert report.refused == ()
    assert int(total.sum()) <= CLIENTS * 30 * 3  # 1.5 of a tenth of 200 proxies, 3 units a vote


def test_a_liar_that_claims_all_proxies_is_named_where_there_is_a_budget():
    assert [client for client, _ in cast(Lie(), slack=1.5)[1].refused] == [LIAR]


def test_twin_without_a_budget_it_claims_every_proxy_and_is_not_named():
    total, report = cast(Lie(), slack=None)
    assert report.refused == ()
    assert int(total.sum(axis=1).min()) >= 3
    assert len(total) == 200


def test_a_lenient_sum_without_a_lie_changes_nothing(ten):
    both = []
    for lie in (None, Lie()):
        made, _ = taught(ten, lie, PlainSum(CLIENTS))
        both.append(made.transcript.distillation[-1])
    truth, lied = both
    assert truth.uploads is not None
    assert lied.uploads is not None
    same = [np.array_equal(truth.uploads[k], lied.uploads[k]) for k in range(CLIENTS)]
    assert same == [k != LIAR for k in range(CLIENTS)]
    votes = np.asarray(lied.uploads[LIAR]).reshape(-1, 10)
    right = ten.proxies.labels.numpy()[lied.result.indices]
    assert (votes.argmax(axis=1) == (right + 1) % 10).all()


def test_a_lie_has_a_strength():
    with pytest.raises(ConfigurationError, match="strength"):
        Lie(0)
