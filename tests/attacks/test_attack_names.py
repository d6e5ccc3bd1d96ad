"""Every attack answers by name on a finished run: with a figure, or with what is missing."""

from dataclasses import replace
from typing import NoReturn

import pytest
import torch

from attacks import load, registry
from attacks.core.base import AttackResult
from secure_fd import cli
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import Images
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load as load_images
from secure_fd.errors import MissingCapabilityError
from secure_fd.simulation.simulate import simulate
from secure_fd.training.recipes import Recipe, Schedule
from tests.refusals import refused


@pytest.fixture(scope="module")
def data() -> FederatedData:
    sizes = Sizes(proxies=40, test=10, held_out=4, local=100)
    return federate(load_images("digits"), parse_split("iid"), 3, seed=0, sizes=sizes)


def coloured(data: FederatedData) -> FederatedData:
    """The same records, in three colours of 16 x 16 pixels."""

    def shown(grey: Images) -> Images:
        pixels = grey.pixels[:, :, 6:22, 6:22].repeat(1, 3, 1, 1) * torch.rand(3, 1, 1)
        return Images(pixels, grey.labels)

    clients = [
        replace(own, train=shown(own.train), validation=shown(own.validation))
        for own in data.clients
    ]
    parts = {name: shown(getattr(data, name)) for name in ("proxies", "test", "held_out")}
    return replace(data, name="own-3x16x16-10-40", clients=tuple(clients), **parts)


@pytest.fixture(scope="module")
def unseen(data):
    """A run before its first round: the server has seen nothing."""
    return simulate(data, method="independent")


@pytest.mark.parametrize("name", sorted(registry().keys() - {"label-only", "label-only-gap"}))
def test_an_attack_says_in_one_sentence_what_a_run_lacks(unseen, name, monkeypatch):
    assert load(name).name == name
    # The preparations of attacks, which take half a minute.
    for slow in ("update_inversion.one_update", "prior.train_prior"):
        monkeypatch.setattr(f"attacks.inversion.{slow}", _unseen)
    with pytest.raises(MissingCapabilityError):
        unseen.attack(name)


def _unseen(*_: object, **__: object) -> NoReturn:
    raise MissingCapabilityError("missing all of it")


ON_VOTES = ("label-distribution", "differencing", "participation")
WITH_UPLOADS = ("label-distribution", "update-inversion-8", "update-of-run", "label-only")


@pytest.mark.parametrize(
    ("method", "names"), [("selective-fd", ON_VOTES), ("fedavg", WITH_UPLOADS)]
)
def test_a_run_is_attacked_by_name(data, method, names):
    short = Schedule(warmup_steps=5, local_steps=5, proxy_steps=5)
    run = simulate(
        coloured(data) if method == "fedavg" else data, method=method, recipe=Recipe(2, short)
    )
    run.transcript.keep_uploads = True
    run.fit(2)
    found = [run.attack(name) for name in names]
    assert [result.name for result in found] == list(names)
    assert all(isinstance(result, AttackResult) for result in found)


def test_an_attack_of_ones_own_needs_every_part():
    assert load("attacks.server.differencing:Differencing") is load("differencing")
    places = ("no.such.module:Mine", "attacks.core.base:NoSuchClass", "attacks.core.base:Labelled")
    for place in (*places, "attacks.core.run:Attack"):
        with refused("attack"):
            load(place)


def test_the_command_lists_every_attack(capsys):
    assert cli.main(["attacks"]) == 0
    assert {line.split(":")[0] for line in capsys.readouterr().out.splitlines()} >= set(registry())
