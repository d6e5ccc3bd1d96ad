"""Membership beside the peers: overfitted clients are caught, masks and noise are not."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.base import AttackResult, Challenge, Labelled, draw_challenge, match_classes
from attacks.fedmia import FedMIA
from attacks.membership import nearest
from attacks.peers import (
    CoopLiRA,
    CoopVotes,
    DistillationLiRA,
    PeerAttack,
    on_challenges,
    one_tailed,
)
from attacks.statistics import auc_bound
from attacks.view import Capability, Oracle, Public, View, server_view
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError
from secure_fd.federation import Federation, participants_of
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fedmd import FedMD
from secure_fd.private_training import PrivateSGD
from secure_fd.protection.label import LabelUnit
from secure_fd.recipes import SGD, Schedule
from secure_fd.training import predict
from tests.attack_games import digits, perceptron

CLIENTS, PROXIES, OWN = 4, 300, 60
# 384 candidates, half of them members: their scores, whose area has a
# deviation of .03 if there is nothing to tell. Four of it are passed once in 30,000, two-sided.
CHANCE = 4 * 0.03
EPSILON, DELTA = 0.1, 1e-5
_STEPS, _ROUNDS = 30, 5


def architecture(seed: int) -> nn.Module:
    return perceptron(64, 64, 10, seed)


@cache
def owned(first: int = PROXIES) -> tuple[Labelled, ...]:
    """By client, records that follow the proxies; a fifth of all labels is wrong."""
    made = []
    for k in range(CLIENTS):
        start = first + k * OWN
        some = digits(8).take(torch.arange(start, start + OWN))
        wrong = torch.arange(OWN) % 5 == 0
        made.append(Labelled(some.images, torch.where(wrong, (some.labels + 3) % 10, some.labels)))
    return tuple(made)


@cache
def challenges(*, strangers: bool = False) -> dict[int, Challenge]:
    """Each client's records among as many of nobody's; strangers: its records are nobody's too."""
    members = owned(1100) if strangers else owned()
    outside = owned(700)
    return {k: draw_challenge(*match_classes(members[k], outside[k], k), k) for k in range(CLIENTS)}


@cache
def public() -> Public:
    shared = digits(8).take(torch.arange(PROXIES))
    return Public(shared.images, CLIENTS, 10, architecture, shared.labels)


def clients() -> list[ClientData]:
    trained = [Images(own.images, own.labels) for own in owned()]
    none = torch.zeros(0, dtype=torch.int64)
    return [ClientData(own, own[none], 10) for own in trained]


@cache
def distilled(*, epsilon: float = math.inf, masked: bool = False) -> View:
    """The server's view of FedMD, with every client's or the summed answers to injected images."""
    run = Federation(
        participants_of([architecture(k) for k in range(CLIENTS)], clients()),
        public().proxies,
        FedMD("soft"),
        aggregation=MaskedSum(CLIENTS, public_seed=0) if masked else None,
        protection=LabelUnit(epsilon, 1e-5, random=np.random.default_rng(0).bytes),
        schedule=Schedule(300, 20, 10, PROXIES, sgd=SGD(0.1, 20, 50)),
        seed=0,
        device=torch.device("cpu"),
    )
    run.fit(2)

    def injected(images: Tensor) -> Tensor:
        said = np.stack([predict(each, images) for each in run.models], axis=1)
        return torch.from_numpy(said.sum(axis=1, keepdims=True) if masked else said)

    oracles = {Capability.INJECT_PROXIES: Oracle(injected, 10_000)}
    return server_view(run.transcript, public(), oracles)


@cache
def averaged(*, masked: bool = False, private: bool = False) -> View:
    """The server's view of FedAvg: all uploads of five rounds."""
    optimiser: SGD | PrivateSGD = SGD(0.3, 20)
    if private:
        optimiser = PrivateSGD(EPSILON, DELTA, _STEPS * _ROUNDS, learning_rate=0.3, batch=20)
    run = Federation(
        participants_of([architecture(0) for _ in range(CLIENTS)], clients()),
        None,
        FedAvg(optimiser, _STEPS),
        aggregation=MaskedSum(CLIENTS, public_seed=0) if masked else None,
        seed=0,
        device=torch.device("cpu"),
        keep_uploads=True,
    )
    run.fit(_ROUNDS)
    return server_view(run.transcript, public())


Maker = Callable[[Labelled, int], PeerAttack]


def coop(candidates: Labelled, client: int) -> CoopVotes:
    pixels = public().proxies.flatten(1).double().numpy()
    own = candidates.images.flatten(1).double().numpy()
    return CoopVotes(candidates, client, neighbours=nearest(pixels, own, 5))


def aimed(make: Maker, view: View, *, strangers: bool = False) -> AttackResult:
    posed = challenges(strangers=strangers)
    attacks = {k: make(each.candidates, k) for k, each in posed.items()}
    return on_challenges(attacks, view, posed, 0)


OF_VOTES: dict[str, tuple[Maker, float]] = {
    "coop": (coop, 0.6),
    "coop-lira": (CoopLiRA, 0.7),
    "distillation-lira": (DistillationLiRA, 0.7),
}


@pytest.mark.parametrize("name", OF_VOTES)
def test_votes_in_clear_tell_members_beside_the_peers(name: str) -> None:
    make, least = OF_VOTES[name]
    caught = aimed(make, distilled())
    assert caught.figure > least
    assert caught.details["p_value"] < 0.001


@pytest.mark.parametrize("name", OF_VOTES)
def test_records_of_nobody_are_a_coin(name: str) -> None:
    blind = aimed(OF_VOTES[name][0], distilled(), strangers=True)
    assert blind.figure == pytest.approx(0.5, abs=CHANCE)


@pytest.mark.parametrize("name", OF_VOTES)
def test_a_masked_sum_gives_no_peer_to_compare_with(name: str) -> None:
    """The twin in clear is caught above."""
    with pytest.raises(MissingCapabilityError, match="clients' uploads in clear"):
        aimed(OF_VOTES[name][0], distilled(masked=True))


def test_an_oracle_of_sums_is_no_oracle_of_clients() -> None:
    sums = distilled(masked=True).oracles
    with pytest.raises(MissingCapabilityError, match="each client's answers"):
        aimed(CoopLiRA, replace(distilled(), oracles=sums))


def test_the_label_units_noise_hides_members() -> None:
    """At epsilon .01 a vote is all but uniform; the twin without noise is caught above."""
    noisy = aimed(coop, distilled(epsilon=0.01))
    assert noisy.figure == pytest.approx(0.5, abs=CHANCE)


def test_updates_in_clear_tell_members_and_dp_sgds_noise_hides_them() -> None:
    """The twin trains without noise. DP-SGD's noise has no seed: its bound, and four deviations."""
    caught = aimed(FedMIA, averaged())
    assert caught.figure > 0.65
    assert caught.details["p_value"] < 0.001
    blind = aimed(FedMIA, averaged(), strangers=True)
    assert blind.figure == pytest.approx(0.5, abs=CHANCE)
    assert aimed(FedMIA, averaged(private=True)).figure < auc_bound(EPSILON, DELTA) + CHANCE
    with pytest.raises(MissingCapabilityError, match="client model parameters in clear"):
        aimed(FedMIA, averaged(masked=True))


def test_all_rounds_tell_more_than_one() -> None:
    """Rounds are chosen evenly, the newest among them."""
    every = aimed(FedMIA, averaged())
    one = aimed(lambda own, k: FedMIA(own, k, most_rounds=1), averaged())
    assert every.figure > one.figure
    few = FedMIA(challenges()[0].candidates, 0, most_rounds=2)
    chosen = [seen.index for _, seen in few._rounds(averaged())]
    assert chosen == [1, 4]


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(LocalError, match="two or more"):
        one_tailed(np.zeros(3), np.zeros((1, 3)))
    some = challenges()[0].candidates
    with pytest.raises(ConfigurationError, match="client"):
        CoopLiRA(some, CLIENTS).run(distilled(), 0)
    with pytest.raises(ConfigurationError, match="students"):
        DistillationLiRA(some, 0, students=1)
    with pytest.raises(ConfigurationError, match="share"):
        DistillationLiRA(some, 0, share=0.0)
    with pytest.raises(ConfigurationError, match="most_rounds"):
        FedMIA(some, 0, most_rounds=0)
