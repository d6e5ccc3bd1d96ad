"""User-supplied trainers: a callable that runs the clients' training steps."""

from collections.abc import Sequence

import pytest
import torch

from examples.own_trainer import AdamWTrainer
from secure_fd import Recipe, Schedule, Steps, federate, load, parse_split, simulate
from secure_fd.errors import LocalError
from secure_fd.methods.fedavg import flatten
from secure_fd.training.trainer import run_each
from tests.refusals import refused

RECIPE = Recipe(2, Schedule(warmup_steps=4, local_steps=1, proxy_steps=2, proxies_per_round=60))


@pytest.fixture(scope="module")
def digits():
    return federate(load("digits"), parse_split("weak"), 3, seed=0)


class Counting:
    """Runs every step as it is; records whether a batch is of private records, and its shape."""

    def __init__(self) -> None:
        self.batches: list[tuple[bool, tuple[int, ...]]] = []

    def __call__(self, jobs: Sequence[Steps]) -> None:
        self.batches += [(job.pixels is None, tuple(job.batch()[1].shape)) for job in jobs]
        run_each(jobs)


@pytest.mark.parametrize("method", ["selective-fd", "fedavg"])
def test_the_steps_of_the_example_are_taken(digits, method):
    trainers = (AdamWTrainer(), AdamWTrainer(), None)
    runs = [simulate(digits, method=method, recipe=RECIPE, trainer=each) for each in trainers]
    for run in runs:
        run.fit(2)
    first, second, third = (flatten(run.federation.models[0]) for run in runs)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_batches_of_private_records_have_labels_and_of_proxies_predictions(digits):
    trainer = Counting()
    simulate(digits, recipe=RECIPE, trainer=trainer).fit(1)
    assert {len(shape) for alone, shape in trainer.batches if alone} == {1}
    assert {shape[1] for alone, shape in trainer.batches if not alone} == {digits.n_classes}


def test_steps_under_dp_sgd_give_no_batches(digits):
    options = {"unit": "record", "epsilon": 4.0, "recipe": RECIPE, "trainer": AdamWTrainer()}
    with pytest.raises(LocalError):
        simulate(digits, method="fedavg", **options).fit(1)
    with refused("trainer"):
        simulate(digits, recipe=RECIPE, trainer="adam")
