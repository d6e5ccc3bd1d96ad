"""The names of attacks that a run accepts, and the names that the README lists."""

import re
from pathlib import Path
from typing import NoReturn

import pytest

from attacks import ATTACKS, ON_A_RUN
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError, MissingCapabilityError
from secure_fd.simulation.simulate import simulate

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run():
    """A run before its first round: the server has seen nothing."""
    sizes = Sizes(proxies=40, test=10, held_out=4, local=100)
    data: FederatedData = federate(load("digits"), parse_split("iid"), 3, seed=0, sizes=sizes)
    return simulate(data, method="independent")


def test_a_run_accepts_the_listed_attacks_and_refuses_all_others_by_name(run, monkeypatch):
    # The preparations of accepted attacks, which take half a minute.
    for slow in ("on_run.one_update", "inversion.prior.train_prior"):
        monkeypatch.setattr(f"attacks.{slow}", _unseen)
    refused = []
    for name in ATTACKS:
        try:
            run.attack(name)
        except MissingCapabilityError:
            pass
        except ConfigurationError as error:
            assert error.field == "attack"
            refused.append(name)
    assert set(refused) == set(ATTACKS) - set(ON_A_RUN)


def _unseen(*_: object, **__: object) -> NoReturn:
    raise MissingCapabilityError("nothing was seen")


def test_the_readme_lists_the_attacks_that_a_run_accepts():
    text = (ROOT / "README.md").read_text()
    [sentence] = re.findall(
        r"`run\.attack` takes (.*?), or `package\.module:Name`", text, re.DOTALL
    )
    assert re.findall(r"`([^`]+)`", sentence) == list(ON_A_RUN)
