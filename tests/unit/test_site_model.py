"""The model of a site: it answers as the site does, also in plain PyTorch."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import secure_fd as fd
from secure_fd.cli import main
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import image_set
from secure_fd.deployment import model
from secure_fd.deployment.envelope import Answer
from secure_fd.deployment.model import SiteModel
from secure_fd.deployment.roster import Terms
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


def _own(data: FederatedData, world: World, k: int) -> tuple[float, SiteModel]:
    """A site's accuracy by its own evaluation, and its file."""
    path = world.home(k) / "network.pt"
    assert path.stat().st_mode & 0o077 == 0
    return world.sites[k].role.accuracy(data.test), model.load(path)


def _accuracy(network: SiteModel, data: FederatedData) -> float:
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
    model.write(path, half, architecture, tuple("abcdefghij"), shape)
    loaded = model.load(path)
    assert loaded.answers == chosen
    found = loaded(viewed.test.pixels).argmax(dim=1) == data.test.labels
    assert float(found.double().mean()) == half.accuracy(viewed.test)


@pytest.mark.usefixtures("one_step")
def test_a_new_process_goes_on_from_the_file_and_not_from_its_warm_up(data, tmp_path):
    """FedMD's schedule has a warm-up, which a new process takes before it reads the file."""
    world = World(data, tmp_path, _terms("fedmd"))
    list(world.serve(Courier(world)).run(1))
    path = world.home(1) / "network.pt"
    before = flatten(model.load(path).network)
    after = world.start(1)
    answer = Answer.decode(after.answer(world.greeting(1)))
    assert not answer.refused
    np.testing.assert_array_equal(flatten(after.role.learner.model), before)
    np.testing.assert_array_equal(flatten(model.load(path).network), before)


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "network.pt"
    half = fd.simulate(data, method=SelectiveFD("hard")).federation.clients[0].role
    model.write(path, half, "cnn-5-5-50@1x28x28", tuple("abcdefghij"), (1, 28, 28))
    return path


@pytest.mark.parametrize("answers", ["network", "head", "mean"])
def test_the_exported_program_answers_as_the_site_does(data, tmp_path, answers):
    """In plain PyTorch, for a batch of any length and images of any size."""
    method = PooledHeads(features=ReferenceSettings(n_features=100))
    half = fd.simulate(data, method=method).federation.clients[0].role
    half.head = np.random.default_rng(0).standard_normal(half.terms.shape)
    half.chosen = answers
    path = tmp_path / "network.pt"
    model.write(path, half, "cnn-5-5-50@1x28x28", tuple("abcdefghij"), (1, 28, 28))
    made = model.load(path)
    model.export(made, tmp_path / "model", {"rounds": 3})
    program = torch.export.load(tmp_path / "model" / "model.pt2").module()
    images = data.test.pixels[:7]
    probabilities = program(images)
    assert torch.allclose(probabilities, made(images), atol=1e-6)
    own = torch.nn.functional.softmax(half.learner.model(images), dim=1)
    assert torch.allclose(own, probabilities, atol=1e-5) is (answers == "network")
    doubled = images.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    near = program(doubled)  # scaled back to the size of the records
    assert (near.argmax(dim=1) == probabilities.argmax(dim=1)).double().mean() >= 5 / 7
    card = json.loads((tmp_path / "model" / "card.json").read_text())
    assert card["classes"] == list("abcdefghij")
    assert (card["size"], card["rounds"]) == (28, 3)
    for file in (tmp_path / "model").iterdir():
        assert file.stat().st_mode & 0o077 == 0


PLAIN = """
import sys, torch
assert not any(name.startswith("secure_fd") for name in sys.modules)
program = torch.export.load(sys.argv[1]).module()
image = torch.full((1, 1, 40, 50), 0.5)
print(tuple(program(image).shape))
"""


def test_the_program_loads_where_this_package_is_not_there(saved, tmp_path):
    model.export(model.load(saved), tmp_path / "model", {})
    program = str(tmp_path / "model" / "model.pt2")
    command = [sys.executable, "-I", "-c", PLAIN, program]
    assert subprocess.check_output(command) == b"(1, 10)\n"  # noqa: S603


@pytest.fixture(scope="module")
def exported(saved, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    model.export(model.load(saved), folder, {})
    return folder


def test_predict_prints_a_line_an_image(exported, tmp_path, capsys):
    for name, size in (("a.png", (28, 28)), ("b.png", (300, 200))):
        Image.new("L", size, 100).save(tmp_path / name)
    assert main(["predict", str(exported), str(tmp_path), str(tmp_path / "a.png")]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [Path(name).name for name, *_ in lines] == ["a.png", "b.png", "a.png"]
    assert all(label in "abcdefghij" and 0.1 <= float(share) <= 1 for _, label, share in lines)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda folder: [str(folder / "nowhere"), "x.png"], "model"),
        (lambda folder: [str(folder), "nowhere.png"], "images"),
        (lambda folder: [str(folder), str(folder / "card.json")], "images"),
    ],
)
def test_predict_refuses_what_is_no_model_or_no_image(exported, wrong, field, capsys):
    assert main(["predict", *wrong(exported)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {field}: ")


def test_predict_refuses_a_program_that_is_damaged(exported, tmp_path, capsys):
    broken = tmp_path / "model"
    broken.mkdir()
    (broken / "card.json").write_bytes((exported / "card.json").read_bytes())
    (broken / "model.pt2").write_bytes(b"nothing")
    Image.new("L", (28, 28)).save(tmp_path / "a.png")
    assert main(["predict", str(broken), str(tmp_path / "a.png")]) == 2
    assert capsys.readouterr().err.startswith("error: model: ")


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
        model.load(path)
    assert refused.value.field == "path"
    path.write_bytes(pickle.dumps(Runs()))
    with pytest.raises(ConfigurationError):
        model.load(path)
    torch.save(content["network"], path)  # weights alone, without what they are of
    with pytest.raises(ConfigurationError):
        model.load(path)
    assert "it ran" not in capfd.readouterr().out
