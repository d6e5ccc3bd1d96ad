"""The model of a site: it answers as the site does, also in plain PyTorch."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import secure_fd as fd
from secure_fd.cli import main
from secure_fd.data.image_sets import image_set
from secure_fd.deployment import model
from secure_fd.deployment.envelope import Answer
from secure_fd.deployment.roster import Terms
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.training.models import flatten
from tests.drivers.flower_federation import Courier, World
from tests.refusals import refused
from tests.small_federation import alike

SITES, CLASSES = 3, tuple("abcdefghij")
NAME = "own-1x28x28-10-200"


@pytest.fixture(scope="module")
def data():
    return replace(alike(SITES, 20), name=NAME)


@pytest.fixture
def trained(data, tmp_path, monkeypatch):
    """A federation after its rounds, in which one step is taken where many are due."""

    def one_step(jobs):
        for job in jobs:
            replace(job, count=1).run()

    monkeypatch.setattr("secure_fd.deployment.site.run_each", one_step)

    def world(method, **terms):
        made = World(data, tmp_path, Terms(method, image_set=NAME, rounds=2, deadline=5, **terms))
        list(made.serve(Courier(made)).run(2))
        return made

    return world


def _accuracy(network, test):
    found = network(test.pixels)
    assert found.shape == (len(test), len(CLASSES))
    assert torch.allclose(found.sum(dim=1), torch.ones(len(found)))
    return float((found.argmax(dim=1) == test.labels).double().mean())


@pytest.mark.parametrize(
    ("method", "terms", "answers"),
    [
        ("fedmd", {}, "network"),
        ("fedavg", {}, "network"),  # the last broadcast, and no step after it, made the network
        ("selective-fd", {"unit": "record", "epsilon": 4.0}, "mean"),
    ],
)
def test_a_loaded_network_has_the_accuracy_of_its_site(data, trained, method, terms, answers):
    world = trained(method, **terms)
    for k, site in world.sites.items():
        path = world.home(k) / "network.pt"
        assert path.stat().st_mode & 0o077 == 0
        network = model.load(path)
        assert _accuracy(network, data.test) == site.role.accuracy(data.test)
        assert torch.equal(flatten(network.network), flatten(site.role.learner.model))
        assert (network.answers, network.shape) == (answers, (1, 28, 28))
        assert network.classes == world.roster.classes
        assert not any(layer.training for layer in network.modules())


def test_a_new_process_goes_on_from_the_file_and_not_from_its_warm_up(trained):
    """FedMD's schedule has a warm-up, which a new process takes before it reads the file."""
    world = trained("fedmd")
    path = world.home(1) / "network.pt"
    before = flatten(model.load(path).network)
    after = world.start(1)
    assert not Answer.decode(after.answer(world.greeting(1))).refused
    np.testing.assert_array_equal(flatten(after.role.learner.model), before)
    np.testing.assert_array_equal(flatten(model.load(path).network), before)


def _written(data, path, answers):
    """Write the file of a client of pooled heads; returns its role."""
    method = PooledHeads(features=ReferenceSettings(n_features=100))
    role = fd.simulate(data, method=method).federation.clients[0].role
    role.head = np.random.default_rng(0).standard_normal(role.terms.shape)
    role.chosen = answers
    [architecture, *_] = image_set(NAME).architectures
    model.write(path, role, architecture, CLASSES, (1, 28, 28))
    return role


@pytest.mark.parametrize("answers", ["network", "head", "mean"])
def test_the_exported_program_answers_as_the_site_does(data, tmp_path, answers):
    """In plain PyTorch, for a batch of any length and images of any size."""
    path, folder, images = tmp_path / "network.pt", tmp_path / "model", data.test.pixels[:7]
    role = _written(data, path, answers)
    made = model.load(path)
    assert _accuracy(made, data.test) == role.accuracy(data.test)
    model.export(made, folder, {"rounds": 3})
    program = torch.export.load(folder / "model.pt2").module()
    probabilities = program(images)
    assert torch.allclose(probabilities, made(images), atol=1e-6)
    own = torch.nn.functional.softmax(role.learner.model(images), dim=1)
    assert torch.allclose(own, probabilities, atol=1e-5) is (answers == "network")
    doubled = images.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    near = program(doubled)  # scaled back to the size of the records
    assert (near.argmax(dim=1) == probabilities.argmax(dim=1)).double().mean() >= 5 / 7
    card = json.loads((folder / "card.json").read_text())
    assert (card["classes"], card["size"], card["rounds"]) == (list(CLASSES), 28, 3)
    assert not any(file.stat().st_mode & 0o077 for file in folder.iterdir())


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "network.pt"
    _written(data, path, "network")
    model.export(model.load(path), path.parent / "model", {})
    return path


@pytest.fixture(scope="module")
def exported(saved):
    return saved.parent / "model"


PLAIN = """
import sys, torch
assert not any(name.startswith("secure_fd") for name in sys.modules)
program = torch.export.load(sys.argv[1]).module()
print(tuple(program(torch.full((1, 1, 40, 50), 0.5)).shape))
"""


def test_the_program_loads_where_this_package_is_not_there(exported):
    command = [sys.executable, "-I", "-c", PLAIN, str(exported / "model.pt2")]
    assert subprocess.check_output(command) == b"(1, 10)\n"  # noqa: S603


def test_predict_prints_a_line_an_image(exported, tmp_path, capsys):
    for name, size in (("a.png", (28, 28)), ("b.png", (300, 200))):
        Image.new("L", size, 100).save(tmp_path / name)
    assert main(["predict", str(exported), str(tmp_path), str(tmp_path / "a.png")]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [Path(name).name for name, *_ in lines] == ["a.png", "b.png", "a.png"]
    assert all(label in CLASSES and 0.1 <= float(share) <= 1 for _, label, share in lines)


@pytest.mark.parametrize(
    ("folder", "image", "field"),
    [
        ("nowhere", "a.png", "model"),
        ("damaged", "a.png", "model"),
        ("model", "nowhere.png", "images"),
        ("model", "model/card.json", "images"),
    ],
)
def test_predict_refuses_what_is_no_model_or_no_image(exported, folder, image, field, capsys):
    root, damaged = exported.parent, exported.parent / "damaged"
    shutil.copytree(exported, damaged, dirs_exist_ok=True)
    (damaged / "model.pt2").write_bytes(b"nothing")
    Image.new("L", (28, 28)).save(root / "a.png")
    assert main(["predict", str(root / folder), str(root / image)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {field}: ")


class Runs:
    def __reduce__(self):
        return (os.system, ("echo it ran",))


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a", "b"]},
        {"shape": [1, 16, 16]},
        {"shape": ["x"]},
        {"architecture": "nothing"},
        {"answers": "mean"},
        {"head": 3, "answers": "head"},
        {"network": {}},
        {"schema": "secure-fd/run/2"},
        {"network": Runs()},
    ],
)
def test_a_file_that_is_no_network_of_a_site_is_refused(saved, tmp_path, change, capfd):
    content, path = torch.load(saved, weights_only=True), tmp_path / "network.pt"
    writers = (
        lambda: torch.save(content | change, path),
        lambda: path.write_bytes(pickle.dumps(Runs())),
        lambda: torch.save(content["network"], path),  # weights alone, without what they are of
    )
    for write in writers:
        write()
        with refused("path"):
            model.load(path)
    assert "it ran" not in capfd.readouterr().out
