"""Every attack answers by name on a finished run: with a figure, or with what is missing."""

import pickle
from typing import NoReturn

import pytest
import torch

from attacks import registry
from attacks.core.base import AttackResult
from attacks.core.fit import label_function
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import MissingCapabilityError
from secure_fd.simulation.simulate import simulate
from secure_fd.training.recipes import Recipe, Schedule


@pytest.fixture(scope="module")
def data() -> FederatedData:
    sizes = Sizes(proxies=40, test=10, held_out=4, local=100)
    return federate(load("digits"), parse_split("iid"), 3, seed=0, sizes=sizes)


@pytest.fixture(scope="module")
def unseen(data):
    """A run before its first round: the server has seen nothing."""
    return simulate(data, method="independent")


@pytest.mark.parametrize("name", sorted(registry().keys() - {"label-only", "label-only-gap"}))
def test_an_attack_says_in_one_sentence_what_a_run_lacks(unseen, name, monkeypatch):
    # The preparations of attacks, which take half a minute.
    for slow in ("update_inversion.one_update", "prior.train_prior"):
        monkeypatch.setattr(f"attacks.inversion.{slow}", _unseen)
    with pytest.raises(MissingCapabilityError):
        unseen.attack(name)


def _unseen(*_: object, **__: object) -> NoReturn:
    raise MissingCapabilityError("missing all of it")


ON_VOTES = ("label-distribution", "differencing", "participation", "server-members")
WITH_UPLOADS = ("label-distribution", "update-inversion-8", "update-of-run", "label-only")


@pytest.mark.parametrize(
    ("method", "names"), [("selective-fd", ON_VOTES), ("fedavg", WITH_UPLOADS)]
)
def test_a_run_is_attacked_by_name(data, method, names):
    short = Schedule(warmup_steps=5, local_steps=5, proxy_steps=5)
    run = simulate(data, method=method, recipe=Recipe(2, short))
    run.transcript.keep_uploads = True
    run.fit(2)
    found = [run.attack(name) for name in names]
    assert [result.name for result in found] == list(names)
    assert all(isinstance(result, AttackResult) for result in found)


def test_the_evaluator_of_a_prepared_attack_travels_between_processes():
    """The comparison prepares an attack in one worker, and attacks rows with it in others."""
    images = torch.rand(3, 1, 28, 28)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    kept = pickle.loads(pickle.dumps(label_function(model)))  # noqa: S301 - of this test
    assert torch.equal(kept(images), model(images).argmax(dim=1))
