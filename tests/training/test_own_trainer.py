"""User-supplied trainers: a callable that runs the clients' training steps."""

import pytest
import torch

from examples.own_trainer import AdamWTrainer
from secure_fd import Recipe, Schedule, simulate
from secure_fd.errors import LocalError
from secure_fd.privacy import dp_sgd
from secure_fd.training.models import flatten
from secure_fd.training.trainer import run_each
from tests.refusals import refused
from tests.small_federation import alike

RECIPE = Recipe(2, Schedule(warmup_steps=4, local_steps=1, proxy_steps=2, proxies_per_round=40))


@pytest.fixture(scope="module")
def data():
    return alike(3, proxies=10, local=20)


@pytest.mark.parametrize("method", ["selective-fd", "fedavg"])
def test_the_steps_of_the_example_are_taken(data, method):
    trainers = (AdamWTrainer(), AdamWTrainer(), None)
    runs = [simulate(data, method=method, recipe=RECIPE, trainer=each) for each in trainers]
    for run in runs:
        run.fit(2)
    first, second, third = (flatten(run.federation.models[0]) for run in runs)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_batches_of_private_records_have_labels_and_of_proxies_predictions(data):
    batches = []

    def watched(jobs):
        batches.extend((job.pixels is None, job.batch()[1].shape[1:]) for job in jobs)
        run_each(jobs)

    simulate(data, recipe=RECIPE, trainer=watched).fit(1)
    assert set(batches) == {(True, ()), (False, (10,))}


def test_steps_under_dp_sgd_give_no_batches(data, monkeypatch):
    monkeypatch.setattr(dp_sgd, "calibrate", lambda *_: 1.1)
    options = {"unit": "record", "epsilon": 4.0, "recipe": RECIPE, "trainer": AdamWTrainer()}
    with pytest.raises(LocalError):
        simulate(data, method="fedavg", **options).fit(1)
    with refused("trainer"):
        simulate(data, recipe=RECIPE, trainer="adam")
