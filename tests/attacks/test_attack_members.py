"""Members by what a server reads: found in clear, not under masks or noise, nor where none are.

The federations are those of the positive control: 120 members of four clients and as many digits
of no client, whose area has a deviation of .037 if nothing leaks. Four of it are passed
once in 15,000, two-sided. All is seeded but DP-SGD's noise, which has its bound.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from attacks.core.base import AttackResult, Challenge, Labelled
from attacks.core.result import POSITIVE
from attacks.core.run import attack_view
from attacks.core.statistics import auc_bound
from attacks.core.view import Public, View
from attacks.membership import overfitted
from attacks.membership.label_only import FinalLabels
from attacks.membership.server_members import (
    SUMMED_UPDATES,
    SUMMED_VOTES,
    UPDATES,
    VOTES,
    ServerMembers,
)
from attacks.membership.tracing import Tracing
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.label import LabelUnit
from secure_fd.simulation.simulate import simulate
from secure_fd.training.recipes import Recipe, Schedule
from tests.attack_games import digits, perceptron
from tests.privacy.audit_mutations import less_training_noise
from tests.small_federation import alike

CHANCE = 4 * 0.037
EPSILON, DELTA = 0.1, 1e-5
AVERAGED, DISTILLED = FedAvg(), FedMD("soft")


def part(start: int, stop: int) -> Labelled:
    return digits(8).take(torch.arange(start, stop))


@cache
def public() -> Public:
    shared = part(0, 300)
    return Public(shared.images, 4, 10, lambda seed: perceptron(64, 64, 10, seed), shared.labels)


@cache
def member_challenges() -> dict[int, Challenge]:
    return overfitted.overfitted_challenges(part(300, 700), part(800, 1200), 0)


@cache
def strangers() -> dict[int, Challenge]:
    """Candidates that no client trained on."""
    return overfitted.overfitted_challenges(part(1200, 1500), part(1497, 1797), 0)


@cache
def ended(method: object, *, masks: bool = False) -> tuple[View, list[nn.Module]]:
    return overfitted.trained(public(), member_challenges(), method, 0, masks=masks)


def trained(method: object, *, masks: bool = False) -> View:
    return ended(method, masks=masks)[0]


def asked(view: View, challenges: Mapping[int, Challenge] | None = None) -> AttackResult:
    return attack_view(ServerMembers.prepare(public(), challenges or member_challenges()), view, 0)


@pytest.mark.parametrize(
    ("method", "in_clear", "of_sums"),
    [(AVERAGED, UPDATES, SUMMED_UPDATES), (DISTILLED, VOTES, SUMMED_VOTES)],
    ids=["updates", "votes"],
)
def test_members_are_found_in_clear_and_less_under_masks(method, in_clear, of_sums):
    """The sum of few clients' updates leaks something; the sum of votes leaks nothing.

    So do candidates that no client trained on, and the same scores with the members shuffled.
    """
    caught, hidden = asked(trained(method)), asked(trained(method, masks=True))
    assert in_clear in caught.title
    assert of_sums in hidden.title
    assert caught.figure > 0.65
    assert caught.interval[0] > 0.5
    assert hidden.figure < caught.figure - 0.1
    order = np.random.default_rng(0)
    shuffled = {
        k: replace(each, is_member=order.permutation(each.is_member))
        for k, each in member_challenges().items()
    }
    coins = [asked(trained(method), others) for others in (strangers(), shuffled)]
    for coin in [*coins, *([hidden] if method is DISTILLED else [])]:
        assert coin.figure == pytest.approx(0.5, abs=CHANCE)


def by_labels(networks: list[nn.Module], challenges: Mapping[int, Challenge]) -> AttackResult:
    """Ask deployed networks for labels alone."""
    attack = FinalLabels.of_networks(public(), challenges, networks)
    return attack_view(attack, attack.view, 0)


def test_labels_alone_show_members_and_no_others():
    """A constant predictor shows nothing either, as classes are matched, and is named."""
    networks = ended(Independent())[1]
    caught, coin = (by_labels(networks, of) for of in (member_challenges(), strangers()))
    assert caught.figure > 0.65
    assert caught.interval[0] > 0.5
    assert coin.figure == pytest.approx(0.5, abs=CHANCE)
    constant = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for weights in constant.parameters():
        nn.init.zeros_(weights)
    named = by_labels([constant] * 4, member_challenges())
    assert any("constant predictor" in words for words in named.caveats)
    assert named.figure == 0.5


def test_noise_hides_members():
    """The label unit at epsilon .01, whose votes are all but uniform, and DP-SGD to its bound."""
    unit = LabelUnit(0.01, DELTA, random=np.random.default_rng(0).bytes)
    votes, _ = overfitted.trained(public(), member_challenges(), DISTILLED, 0, protection=unit)
    assert asked(votes).figure == pytest.approx(0.5, abs=CHANCE)
    steps = overfitted.STEPS * overfitted.ROUNDS
    private = PrivateSGD(EPSILON, DELTA, steps, learning_rate=0.1, batch=16)

    def figure() -> float:
        updates, _ = overfitted.trained(public(), member_challenges(), FedAvg(private=private), 0)
        return asked(updates).figure

    allowed = auc_bound(EPSILON, DELTA) + CHANCE
    assert figure() < allowed
    with less_training_noise(0.0):  # clipped gradients alone
        assert figure() > allowed


@pytest.mark.parametrize(
    ("method", "rounds", "attack", "title"),
    [
        (AVERAGED, 3, "server-members", f"{ServerMembers.title} ({UPDATES})"),
        (DISTILLED, 1, "server-members", f"{ServerMembers.title} ({VOTES})"),
        (PooledHeads(0), 1, "server-members", Tracing.title),
        (Independent(), 1, "label-only", FinalLabels.title),
    ],
    ids=["updates", "votes", "class sums", "final labels"],
)
def test_a_run_is_asked_as_its_server_can(method, rounds, attack, title):
    """Beside what the same attack finds among clients that know their records by heart."""
    brief = Schedule(warmup_steps=5, local_steps=1, proxy_steps=1, proxies_per_round=60)
    data = alike(4, proxies=60, local=20)
    run = simulate(data, method=method, recipe=Recipe(rounds, brief))
    run.transcript.keep_uploads = True
    run.fit()
    found = run.attack(attack)
    assert found.title == title
    assert found.control == 0.5
    assert found.details[POSITIVE] >= 0.8


@pytest.mark.parametrize("masks", [False, True])
def test_what_shares_nothing_tells_nothing(masks):
    view = trained(AVERAGED, masks=masks)
    with pytest.raises(MissingCapabilityError):
        asked(replace(view, models=view.models[:1]))
