"""DaFKD and FedDF: rounds of several sums, generated samples, and DP-SGD of both networks."""

from dataclasses import replace

import numpy as np
import pytest

from secure_fd import simulate
from secure_fd.data.images import Images
from secure_fd.methods.dafkd import DaFKD
from secure_fd.methods.generator import AdversarialSettings
from secure_fd.privacy import dp_sgd
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.protocol.messages import SumInput
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.training import models
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.wire import Stage
from tests import small_federation

SMALL = AdversarialSettings(hidden=16, discriminator=16, sums=2, steps=2)
QUICK = Schedule(warmup_steps=0, local_steps=2, proxy_steps=0)
PRIVATE = PrivateSGD(epsilon=4.0, delta=1e-5, steps=6, batch=16)


def federation(data, method, **options):
    return small_federation.federation(data, method, schedule=QUICK, **options)


@pytest.fixture
def uncalibrated(monkeypatch):
    monkeypatch.setattr(dp_sgd, "calibrate", lambda _epsilon, _delta, _plan: 1.1)


def client_with(digits, train, private):
    """Role of the first client, with these records in place of its own."""
    data = replace(digits.clients[0], train=train)
    method = DaFKD(generated=8, steps=1, adversarial=SMALL, private=private)
    return federation(replace(digits, clients=(data, *digits.clients[1:])), method).clients[0].role


def first_share(role, network):
    """Input of the first sum, of generators, when DP-SGD draws no record and adds no noise."""
    if isinstance(role.learner.trainer, PrivateTrainer):
        budget = role.learner.trainer.budget
        budget.rate, budget.noise = 0.0, 0.0
    start = models.flatten(network).numpy().astype("<f4").tobytes()
    turn = role.round(bytes(8) + b"n" + start)
    for wanted in turn:
        if isinstance(wanted, SumInput):
            return np.asarray(wanted.values)
        wanted.run()
    raise AssertionError


@pytest.mark.usefixtures("uncalibrated")
def test_records_reach_the_generator_through_noisy_steps_alone(digits):
    """Without drawn records and noise two sets of records give one share; without DP, two."""
    one = digits.clients[0].train
    other = Images(1 - one.pixels, one.labels)
    [network] = small_federation.networks(1)
    for private, same in ((PRIVATE, True), (None, False)):
        shares = [
            first_share(client_with(digits, train, private), network) for train in (one, other)
        ]
        assert np.array_equal(*shares) == same


@pytest.mark.usefixtures("uncalibrated")
def test_dp_sgd_is_planned_for_the_rounds_of_the_recipe():
    run = simulate("digits", clients=3, method="dafkd", secure="masks", unit="record", epsilon=4.0)
    method = run.federation.method
    assert method.private.steps == 5 * method.private_steps(run.recipe.schedule)


def test_a_client_that_diverges_shares_the_global_network(digits):
    made = federation(digits, DaFKD(generated=16, steps=1, adversarial=SMALL))
    roles = [client.role for client in made.clients]
    roles[0].learner.schedule = replace(QUICK, sgd=SGD(learning_rate=1e30))
    assert [len(report.survivors) for report in made.rounds(2)] == [4, 4]
    assert [role.diverged for role in roles] == [2, 0, 0, 0]


@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASK])
def test_a_round_goes_on_without_a_client_that_was_silent_in_its_first_sum(digits, stage):
    """It received no request for the next sum, so that must not be opened with it."""
    made = federation(
        digits,
        DaFKD(generated=16, steps=1, adversarial=SMALL),
        aggregation=MaskedSum(4),
        dropouts=small_federation.faults({0: {2: stage}}),
    )
    assert [report.survivors for report in made.rounds(2)] == [(0, 1, 3), (0, 1, 2, 3)]
