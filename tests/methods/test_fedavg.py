"""FedAvg: parameters as integers, their average by records, and clients that diverge."""

from dataclasses import replace

import numpy as np
import pytest

from secure_fd.errors import LocalError
from secure_fd.methods.fedavg import FedAvg, FedAvgClient, parameter_codec
from secure_fd.simulation.federation import Federation
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Trainer
from secure_fd.wire import Stage
from tests.small_federation import faults, federation, networks, run


def local(sgd, steps):
    return Schedule(local_steps=steps, proxy_steps=0, sgd=sgd)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 16.001])
def test_diverged_parameters_are_refused(bad):
    with pytest.raises(LocalError, match="diverged"):
        parameter_codec((1.0,)).encode(0, np.array([0.0, bad], dtype=np.float32))


def test_the_average_is_by_records_of_the_clients_in_the_sum(digits, monkeypatch):
    """Without a step of training the average of different networks is known in advance."""
    client = digits.clients[0]
    data = [replace(client, train=client.train[:size]) for size in (5, 20, 9, 7)]
    models = networks(4)
    plan = faults({0: {1: Stage.UNMASK, 2: Stage.INPUT, 3: Stage.PREPARE}})
    schedule = local(SGD(learning_rate=0.0), 1)
    made = Federation(models, data, None, FedAvg(), schedule=schedule, dropouts=plan, device="cpu")
    start = flatten(models[0]).numpy().copy()
    monkeypatch.setattr(FedAvgClient, "load", lambda _: None)  # clients keep their own
    other = flatten(models[1]).numpy().copy()
    [report] = made.rounds(1)
    assert report.survivors == (0, 1)
    wanted = (5 * start + 20 * other) / 25
    assert np.abs(made.transcript.parameters[0].result - wanted).max() < 1e-6
    assert np.abs(start - wanted).max() > 1e-3


def test_a_client_that_diverges_shares_the_global_model(digits):
    made, well = (
        federation(digits, FedAvg(), schedule=local(SGD(rate), 11)) for rate in (1e30, 0.1)
    )
    start = flatten(made.models[0]).numpy().copy()
    for one, diverged in ((made, 2), (well, 0)):
        run(one)
        assert [client.role.diverged for client in one.clients] == [diverged] * 4
    assert np.abs(made.global_parameters - start).max() < 1e-5


def test_momentum_begins_anew_after_averaging(digits, monkeypatch):
    """Two rounds of one step with momentum are two plain steps. The mutant keeps its momentum."""

    def result(momentum, rate=0.1):
        schedule = local(SGD(learning_rate=rate, momentum=momentum), 1)
        made = run(federation(digits, FedAvg(), schedule=schedule))
        return made.global_parameters.astype(np.float64)

    plain, reset = result(0.0, 0.1 * 1.5), result(0.5)  # Nesterov's first step is (1 + momentum)
    monkeypatch.setattr(Trainer, "reset_momentum", lambda _: None)
    kept = result(0.5)
    assert np.abs(reset - plain).max() < 1e-5
    assert np.abs(kept - plain).max() > 1e-4
