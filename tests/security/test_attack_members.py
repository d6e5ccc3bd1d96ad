"""Members by what a server reads: found in clear, not under masks or noise, nor where none are.

The federations are those of the positive control: 120 members of four clients and as many digits
of nobody, whose area has a deviation of .037 if there is nothing to tell. Four of it are passed
once in 15,000, two-sided. All is seeded but DP-SGD's noise, which has its bound.
"""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from attacks.core.base import POSITIVE, AttackResult, Challenge, Labelled
from attacks.core.run import Run, attack_view
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
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.label import LabelUnit
from secure_fd.simulation.build import fresh_networks
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import Schedule
from tests.attack_games import digits, perceptron

CHANCE = 4 * 0.037
EPSILON, DELTA = 0.1, 1e-5
PROXIES = 300


@cache
def public() -> Public:
    shared = digits(8).take(torch.arange(PROXIES))
    return Public(shared.images, 4, 10, lambda seed: perceptron(64, 64, 10, seed), shared.labels)


def sides() -> tuple[Labelled, Labelled]:
    members, others = (digits(8).take(torch.arange(at, at + 400)) for at in (PROXIES, 800))
    return members, others


@cache
def posed() -> dict[int, Challenge]:
    return overfitted.posed(*sides(), 0)


@cache
def updates(*, masks: bool = False) -> View:
    return overfitted.trained(public(), posed(), FedAvg(), 0, masks=masks)[0]


@cache
def votes(*, masks: bool = False) -> View:
    return overfitted.trained(public(), posed(), FedMD("soft"), 0, masks=masks)[0]


def asked(view: View, challenges: Mapping[int, Challenge] | None = None) -> AttackResult:
    given = posed() if challenges is None else challenges
    return attack_view(ServerMembers.prepare(public(), given), view, 0)


def strangers() -> dict[int, Challenge]:
    """Candidates that nobody trained on, half of them called members."""
    members, others = (digits(8).take(torch.arange(at, at + 300)) for at in (1200, 1497))
    return overfitted.posed(members, others, 0)


@pytest.mark.parametrize(("view", "read"), [(updates, UPDATES), (votes, VOTES)])
def test_members_are_found_in_clear_and_strangers_are_not(view, read):
    caught = asked(view())
    assert read in caught.title
    assert caught.figure > 0.65
    assert caught.interval[0] > 0.5
    assert asked(view(), strangers()).figure == pytest.approx(0.5, abs=CHANCE)


@pytest.mark.parametrize(
    ("method", "prepare"),
    [
        (FedAvg(), lambda known, asked, _: ServerMembers.prepare(known, asked)),
        (FedMD("soft"), lambda known, asked, _: ServerMembers.prepare(known, asked)),
        (PooledHeads(0), Tracing.among),
        (Independent(), FinalLabels.of_networks),
    ],
    ids=["updates", "votes", "class sums", "final labels"],
)
def test_every_attack_finds_the_members_of_an_over_trained_federation(method, prepare):
    """One record of each class a client, all in clear: the positive control."""
    few = overfitted.posed(*sides(), 0, 1)
    view, networks = overfitted.trained(public(), few, method, 0)
    attack = prepare(public(), few, networks)
    assert attack_view(attack, attack.view or view, 0).figure >= 0.8


@pytest.mark.parametrize("view", [updates, votes])
def test_shuffled_members_are_a_coin(view):
    """The same scores, whose true areas are caught above."""
    order = np.random.default_rng(0)
    mixed = {
        k: replace(each, is_member=order.permutation(each.is_member)) for k, each in posed().items()
    }
    assert asked(view(), mixed).figure == pytest.approx(0.5, abs=CHANCE)


@pytest.mark.parametrize(("view", "read"), [(updates, SUMMED_UPDATES), (votes, SUMMED_VOTES)])
def test_under_masks_the_sum_tells_less(view, read):
    """Of few clients it tells something; the twin in clear is caught above."""
    hidden = asked(view(masks=True))
    assert read in hidden.title
    assert "no peer" in hidden.caveats[0]
    assert hidden.figure < asked(view()).figure - 0.1


def test_votes_of_a_sum_are_a_coin():
    assert asked(votes(masks=True)).figure == pytest.approx(0.5, abs=CHANCE)


def test_noise_hides_members():
    """The label unit at epsilon .01, whose votes are all but uniform, and DP-SGD to its bound."""
    unit = LabelUnit(0.01, DELTA, random=np.random.default_rng(0).bytes)
    votes, _ = overfitted.trained(public(), posed(), FedMD("soft"), 0, protection=unit)
    noisy = asked(votes)
    assert noisy.figure == pytest.approx(0.5, abs=CHANCE)
    steps = overfitted.STEPS * overfitted.ROUNDS
    private = PrivateSGD(EPSILON, DELTA, steps, learning_rate=0.1, batch=16)
    updates, _ = overfitted.trained(public(), posed(), FedAvg(private=private), 0)
    hidden = asked(updates)
    assert hidden.figure < auc_bound(EPSILON, DELTA) + CHANCE


@cache
def data() -> FederatedData:
    sizes = Sizes(proxies=60, test=1, held_out=40, local=20)
    return federate(load("digits"), parse_split("iid"), 4, 0, sizes)


@pytest.mark.parametrize(
    ("method", "rounds", "title"),
    [
        (FedAvg(), 3, f"{ServerMembers.title} ({UPDATES})"),
        (FedMD("soft"), 1, f"{ServerMembers.title} ({VOTES})"),
        (PooledHeads(0), 1, Tracing.title),
    ],
)
def test_a_run_is_asked_as_its_server_can(method, rounds, title):
    """Beside what the same attack finds among clients that know their records by heart."""
    networks = fresh_networks(data(), 0, shared=isinstance(method, FedAvg))
    made = Federation(
        networks,
        data().clients,
        data().proxies.pixels,
        method,
        schedule=Schedule(warmup_steps=5, local_steps=1, proxy_steps=1, proxies_per_round=60),
    )
    made.transcript.keep_uploads = True
    made.fit(rounds)
    found = Run.of(data(), made, 0).attack("server-members")
    assert found.title == title
    assert found.control == 0.5
    assert found.details[POSITIVE] > 0.6
    kept = pickle.loads(pickle.dumps(made.transcript))  # noqa: S301 - of this test
    again = Run(data(), kept, 0).attack("server-members")  # what was received is all that it reads
    assert (again.figure, again.interval) == (found.figure, found.interval)


def test_what_shares_nothing_tells_nothing():
    with pytest.raises(MissingCapabilityError):
        asked(replace(updates(), models=updates().models[:1]))
    with pytest.raises(MissingCapabilityError):
        asked(replace(updates(masks=True), models=updates().models[:1]))
