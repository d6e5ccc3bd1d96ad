"""The file of a site's network: loaded without the source, it answers as the site does."""

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import secure_fd as fd
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import image_set
from secure_fd.deployment import site_network
from secure_fd.deployment.envelope import Answer
from secure_fd.deployment.roster import Terms
from secure_fd.deployment.site_network import SiteNetwork, load_site_network
from secure_fd.errors import ConfigurationError
from secure_fd.methods.pooled_heads import HeadClient, PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.training.models import flatten
from secure_fd.training.trainer import Steps
from tests.flower_federation import Courier, World
from tests.small_federation import alike

SITES = 3


@pytest.fixture(scope="module")
def data():
    return replace(alike(SITES, 20), name="own-1x28x28-10-200")


def _terms(method: str = "selective-fd", **options: Any) -> Terms:
    return Terms(method, image_set="own-1x28x28-10-200", rounds=1, deadline=5, **options)


def _own(data: FederatedData, world: World, k: int) -> tuple[float, SiteNetwork]:
    """A site's accuracy by its own evaluation, and its file."""
    path = world.home(k) / "network.pt"
    assert path.stat().st_mode & 0o077 == 0
    return world.sites[k].role.accuracy(data.test), load_site_network(path)


def _accuracy(network: SiteNetwork, data: FederatedData) -> float:
    found = network(data.test.pixels)
    assert found.shape == (len(data.test), data.n_classes)
    assert torch.allclose(found.sum(dim=1), torch.ones(len(found)))
    return float((found.argmax(dim=1) == data.test.labels).double().mean())


class OneStep:
    """Takes one step where many are due."""

    def __call__(self, jobs: Sequence[Steps]) -> None:
        for job in jobs:
            replace(job, count=1).run()


@pytest.fixture
def one_step(monkeypatch):
    monkeypatch.setattr("secure_fd.deployment.site.run_each", OneStep())


@pytest.mark.usefixtures("one_step")
@pytest.mark.parametrize("method", ["fedmd", "fedavg"])
def test_a_loaded_network_has_the_accuracy_of_its_site(data, tmp_path, method):
    """Also where the last broadcast, and no step after it, made the network."""
    world = World(data, tmp_path, _terms(method))
    list(world.serve(Courier(world)).run(1))
    for k in range(SITES):
        own, network = _own(data, world, k)
        assert _accuracy(network, data) == own
        assert torch.equal(flatten(network.network), flatten(world.sites[k].role.learner.model))
        assert network.classes == world.roster.classes
        assert network.shape == (1, 28, 28)
        assert not any(layer.training for layer in network.modules())
    bare = network.network[1:]
    unscaled = bare(data.test.pixels)
    assert not torch.allclose(torch.softmax(unscaled, dim=1), network(data.test.pixels), atol=1e-3)


@pytest.mark.usefixtures("one_step")
def test_a_site_of_the_record_unit_takes_its_head_with_it(data, tmp_path):
    world = World(data, tmp_path, _terms(unit="record", epsilon=4.0))
    list(world.serve(Courier(world)).run(2))
    for k in range(SITES):
        own, network = _own(data, world, k)
        assert network.answers == "mean"
        assert _accuracy(network, data) == own > 0.3


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "patches": lambda pixels: pixels,
    "given": lambda pixels: pixels.flatten(1)[:, :40, None, None],
}


@pytest.mark.parametrize("chosen", ["network", "head", "mean"])
@pytest.mark.parametrize("features", FEATURES)
def test_whatever_pooled_heads_leave_is_in_the_file(data, tmp_path, chosen, features):
    view, path = FEATURES[features], tmp_path / "network.pt"
    method = PooledHeads(features=ReferenceSettings(n_features=100))
    shape = tuple(view(data.proxies.pixels).shape[1:])

    def seen(images: fd.Images) -> fd.Images:
        return fd.Images(view(images.pixels), images.labels)

    own = f"own-{'x'.join(map(str, shape))}-10-200"
    viewed = replace(
        data,
        name=own,
        clients=tuple(
            fd.ClientData(seen(each.train), seen(each.validation), each.n_classes)
            for each in data.clients
        ),
        proxies=seen(data.proxies),
        test=seen(data.test),
    )
    half = fd.simulate(viewed, method=method).federation.clients[0].role
    assert isinstance(half, HeadClient)
    half.head = np.random.default_rng(0).standard_normal(half.terms.shape)
    half.chosen = chosen
    [architecture, *_] = image_set(own).architectures
    site_network.write(path, half, architecture, tuple("abcdefghij"), shape)
    loaded = load_site_network(path)
    assert loaded.answers == chosen
    found = loaded(viewed.test.pixels).argmax(dim=1) == data.test.labels
    assert float(found.double().mean()) == half.accuracy(viewed.test)


@pytest.mark.usefixtures("one_step")
def test_a_new_process_goes_on_from_the_file_and_not_from_its_warm_up(data, tmp_path):
    """FedMD's schedule has a warm-up, which a new process takes before it reads the file."""
    world = World(data, tmp_path, _terms("fedmd"))
    list(world.serve(Courier(world)).run(1))
    path = world.home(1) / "network.pt"
    before = flatten(load_site_network(path).network)
    after = world.start(1)
    answer = Answer.decode(after.answer(world.greeting(1)))
    assert not answer.refused
    np.testing.assert_array_equal(flatten(after.role.learner.model), before)
    np.testing.assert_array_equal(flatten(load_site_network(path).network), before)


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "network.pt"
    half = fd.simulate(data, method=SelectiveFD("hard")).federation.clients[0].role
    site_network.write(path, half, "cnn-5-5-50@1x28x28", tuple("abcdefghij"), (1, 28, 28))
    return path


@pytest.mark.parametrize(
    "wrong",
    [
        lambda pixels: pixels * 255,
        lambda pixels: pixels[:, :, :27, :27],
        lambda pixels: pixels[0],
        lambda pixels: pixels.double(),
        lambda pixels: pixels.numpy(),
        lambda pixels: pixels + torch.nan,
    ],
)
def test_images_that_the_site_never_saw_the_like_of_are_refused(saved, data, wrong):
    with pytest.raises(ConfigurationError) as refused:
        load_site_network(saved)(wrong(data.test.pixels))
    assert refused.value.field == "images"


class Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (os.system, ("echo it ran",))


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a", "b"]},
        {"classes": 3},
        {"shape": [1, 16, 16]},
        {"shape": ["x"]},
        {"architecture": "nothing"},
        {"architecture": 3},
        {"answers": "mean"},
        {"answers": "anything"},
        {"head": 3, "answers": "head"},
        {"network": {}},
        {"schema": "secure-fd/run/2"},
        {"network": Runs()},
    ],
)
def test_a_file_that_is_no_network_of_a_site_is_refused(saved, tmp_path, change, capfd):
    content = torch.load(saved, weights_only=True)
    path = tmp_path / "network.pt"
    torch.save(content | change, path)
    with pytest.raises(ConfigurationError) as refused:
        load_site_network(path)
    assert refused.value.field == "path"
    path.write_bytes(pickle.dumps(Runs()))
    with pytest.raises(ConfigurationError):
        load_site_network(path)
    torch.save(content["network"], path)  # weights alone, without what they are of
    with pytest.raises(ConfigurationError):
        load_site_network(path)
    assert "it ran" not in capfd.readouterr().out
