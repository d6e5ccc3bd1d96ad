"""DaFKD and its rival FedDF: one round is two sums, and sums alone are what a server needs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from attacks.core.run import public_of
from attacks.core.view import Capability, server_view
from experiments.core.measures import diagnose
from secure_fd import simulate
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import BudgetError, ConfigurationError, PeerError
from secure_fd.methods.dafkd import DaFKD, DaFKDClient, FedDF
from secure_fd.methods.generator import AdversarialSettings
from secure_fd.privacy import dp_sgd
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.protocol.messages import SumInput
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.training import models
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.training.recipes import Recipe, Schedule
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Stage
from tests import small_federation
from tests.attack_games import client_view

SMALL = AdversarialSettings(hidden=16, discriminator=16, sums=2, steps=2)
QUICK = Schedule(warmup_steps=0, local_steps=2, proxy_steps=0)


def federation(data: FederatedData, method: DaFKD, **options: Any) -> Federation:
    return small_federation.federation(data, method, schedule=QUICK, **options)


def test_the_class_total_of_an_upload_is_the_clients_weight(digits):
    run = federation(digits, DaFKD(generated=32, steps=1, adversarial=SMALL))
    run.fit(1)
    seen = run.transcript.generated[0]
    votes = np.stack([units.reshape(32, 10) for units in seen.uploads.values()])
    f = votes.sum(axis=2) / seen.levels
    assert 0 < f.min() <= f.max() < 1
    even = federation(digits, FedDF(generated=32, steps=1, adversarial=SMALL))
    even.fit(1)
    whole = even.transcript.generated[0]
    assert (whole.total.reshape(32, 10).sum(axis=1) == 4 * whole.levels).all()


def test_votes_on_generated_samples_name_no_proxies(digits):
    """No figure and no attack reads their indices as proxies'; in clear they tell classes."""
    small = DaFKD(generated=64, steps=1, adversarial=SMALL)
    run = simulate(digits, method=small, recipe=Recipe(1, QUICK))
    run.fit(1)
    assert run.transcript.distillation == []
    assert diagnose(run.federation, digits) == {}
    public = public_of(digits)
    server, client = server_view(run.transcript, public), client_view(run.transcript, public)
    assert Capability.READ_GENERATED in server.capabilities - client.capabilities
    assert not {Capability.READ_SUMS, Capability.READ_ENSEMBLES} & server.capabilities
    assert Capability.READ_ENSEMBLES not in client.capabilities
    found = run.attack("label-distribution")
    assert found.details["readable_clients"] == 4
    masked = simulate(digits, method=small, secure="masks", recipe=Recipe(1, QUICK))
    masked.fit(1)
    hidden = masked.attack("label-distribution")
    assert hidden.details["readable_clients"] == 0
    assert found.figure < hidden.figure


def test_every_party_holds_the_generator_that_made_the_x(digits):
    run = federation(digits, DaFKD(generated=16, steps=1, adversarial=SMALL))
    run.fit(2)
    held = run.transcript.generator
    assert sorted(held.uploads) == [0, 1, 2, 3]
    for client in run.clients:
        made = models.flatten(client.role._averaged).numpy()
        assert np.array_equal(made, held.result)
    mean = np.mean([held.uploads[k] for k in range(4)], axis=0)
    # Four sums, each mean weighing .1 of what came before: the newest alone does not make the x.
    assert not np.allclose(held.result, mean, atol=1e-4)


PRIVATE = PrivateSGD(epsilon=4.0, delta=1e-5, steps=6, batch=16)


@pytest.fixture
def uncalibrated(monkeypatch):
    monkeypatch.setattr(dp_sgd, "calibrate", lambda _epsilon, _delta, _plan: 1.1)


def private_halves(digits: FederatedData, train: Images, private: PrivateSGD | None) -> DaFKDClient:
    """The first client, on these records, in the place of its own."""
    data = replace(digits.clients[0], train=train)
    method = DaFKD(generated=8, steps=1, adversarial=SMALL, private=private)
    return federation(replace(digits, clients=(data, *digits.clients[1:])), method).clients[0].role


def first_share(half: DaFKDClient, network: nn.Module) -> UnitArray:
    """What it puts into the first sum, of generators, when no record is drawn by DP-SGD."""
    if isinstance(half.learner.trainer, PrivateTrainer):
        budget = half.learner.trainer.budget
        budget.rate, budget.noise = 0.0, 0.0
    start = models.flatten(network).numpy().astype("<f4").tobytes()
    turn = half.round(bytes(8) + b"n" + start)
    for wanted in turn:
        if isinstance(wanted, SumInput):
            return np.asarray(wanted.values)
        wanted.run()
    raise AssertionError


@pytest.mark.usefixtures("uncalibrated")
def test_records_reach_the_generator_through_noisy_steps_alone(digits):
    """With nobody drawn and no noise, two sets of records give one share; without DP, two."""
    one = digits.clients[0].train
    other = Images(1 - one.pixels, one.labels)
    [network] = small_federation.networks(1)
    for private, same in ((PRIVATE, True), (None, False)):
        shares = [
            first_share(private_halves(digits, train, private), network) for train in (one, other)
        ]
        assert np.array_equal(*shares) == same


@pytest.mark.usefixtures("uncalibrated")
def test_epsilon_covers_both_networks_and_no_further_round(digits):
    """2 local steps and 2 sums of 2 adversarial ones are 6 a round; a second round is too many."""
    method = DaFKD(generated=8, steps=1, adversarial=SMALL, private=PRIVATE)
    assert method.private_steps(QUICK) == PRIVATE.steps
    run = federation(digits, method)
    run.fit(1)
    claim = run.guarantee()
    assert claim.holds
    assert claim.epsilon == 4.0
    with pytest.raises(BudgetError, match="planned for 6 steps"):
        run.fit(1)
    assert federation(digits, DaFKD(adversarial=SMALL)).guarantee() is None


def test_what_is_no_model_is_refused(digits):
    run = federation(digits, DaFKD(generated=16, steps=1, adversarial=SMALL))
    half = run.clients[0].role
    for subject, sentence in (
        (b"short", "use 8"),
        (bytes(8), "no global model"),
        (bytes(11), "neither a network nor"),
        (bytes(8) + b"n123", "are not"),
    ):
        with pytest.raises(PeerError, match=sentence):
            next(half.round(subject))
    size = sum(p.numel() for p in run.models[0].parameters())
    with pytest.raises(PeerError, match="not finite"):
        next(half.round(bytes(8) + b"n" + np.full(size, np.inf, "<f4").tobytes()))


def test_a_name_is_enough_to_run_it_under_masks_with_dp(monkeypatch):
    """Masks and DP-SGD together, planned for the rounds of the recipe."""
    monkeypatch.setattr(dp_sgd, "calibrate", lambda _epsilon, _delta, _plan: 1.1)
    run = simulate("digits", clients=3, method="dafkd", secure="masks", unit="record", epsilon=4.0)
    method = run.federation.method
    assert method.private.steps == 5 * method.private_steps(run.recipe.schedule)
    assert "DP-SGD" not in simulate("digits", clients=3, method="dafkd").guarantee
    assert "epsilon 4" in run.guarantee or "ε = 4" in run.guarantee
    for averaging in ("dafkd", "fedavg"):
        with pytest.raises(ConfigurationError, match="shares no labels"):
            simulate("digits", clients=3, method=averaging, unit="label", epsilon=4.0)


@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASK])
def test_a_round_goes_on_without_a_client_that_fell_silent_in_its_first_sum(digits, stage):
    """It was not told of the next sum, so that must not be opened with it."""
    made = federation(
        digits,
        DaFKD(generated=16, steps=1, adversarial=SMALL),
        aggregation=MaskedSum(4),
        dropouts=small_federation.faults({0: {2: stage}}),
    )
    assert [report.survivors for report in made.rounds(2)] == [(0, 1, 3), (0, 1, 2, 3)]
