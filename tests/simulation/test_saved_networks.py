"""Networks and states in a file: read back as they were, written whole, and no code is run."""

import io
import os
import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from secure_fd.errors import ConfigurationError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.registry import METHODS
from secure_fd.simulation import saved
from secure_fd.simulation.federation import Federation
from secure_fd.simulation.simulate import simulate
from secure_fd.training.models import flatten
from secure_fd.training.recipes import Recipe
from tests.refusals import refused
from tests.small_dafkd import SmallDaFKD
from tests.small_federation import BRIEF

RECIPE = Recipe(2, replace(BRIEF, proxies_per_round=20))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "networks.pt"


def run(data, method="independent", **options):
    return simulate(data, method=method, recipe=RECIPE, **options)


def test_networks_are_read_back_into_a_run_of_the_same_form(digits, path):
    first, second = run(digits), run(digits, seed=1)
    first.fit(1)
    first.save_networks(path)
    assert path.stat().st_mode & 0o077 == 0
    second.load_networks(path)
    for one, other in zip(first.federation.models, second.federation.models, strict=True):
        assert torch.equal(flatten(one), flatten(other))
    saved.write(path, saved.read(path) | {"architectures": ["another"]})
    with refused("path"):
        second.load_networks(path)


def test_a_write_that_fails_leaves_the_file_as_it_was(path, monkeypatch):
    saved.write(path, {"networks": 1})
    before = path.read_bytes()

    def full(_):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        saved.write(path, {"networks": 2})
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize("method", [FedAvg(), SmallDaFKD()], ids=["fedavg", "dafkd"])
def test_a_run_starts_from_loaded_networks(digits, path, method):
    """As in a federation that was made of these networks, bit for bit."""
    schedule = replace(BRIEF, proxy_steps=0)
    plan = {"method": method, "recipe": Recipe(4, schedule)}
    first, loaded = simulate(digits, seed=1, **plan), simulate(digits, **plan)
    first.fit(2)
    first.save_networks(path)
    loaded.load_networks(path)
    start = first.federation.global_parameters.copy()
    np.testing.assert_array_equal(start, loaded.federation.global_parameters)
    networks = [deepcopy(model) for model in first.federation.models]
    direct = Federation(networks, digits.clients, digits.proxies.pixels, method, schedule=schedule)
    for made in (loaded, direct):
        made.fit(1)
    np.testing.assert_array_equal(direct.global_parameters, loaded.federation.global_parameters)
    assert not np.array_equal(start, direct.global_parameters)
    with refused("run"):
        loaded.load_networks(path)


def test_networks_that_differ_or_start_dp_sgd_are_refused(digits, path):
    first, other = run(digits, "fedavg"), run(digits, "fedavg", seed=1)
    noisy = run(digits, "fedavg", unit="record", epsilon=4.0, seed=1)
    before = noisy.federation.global_parameters.copy()
    first.save_networks(path)
    with refused("networks"):
        noisy.load_networks(path)
    with torch.no_grad():
        next(first.federation.models[1].parameters()).add_(1.0)
    first.save_networks(path)
    with refused("networks"):
        other.load_networks(path)
    for made in (noisy, other):
        np.testing.assert_array_equal(before, made.federation.global_parameters)
        np.testing.assert_array_equal(before, flatten(made.federation.models[0]).cpu().numpy())


class Runs:
    """A hostile pickle: it would run code."""

    def __reduce__(self):
        return (print, ("it ran",))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save({"schema": saved.SCHEMA, "networks": Runs()}, path),
        lambda path: path.write_bytes(pickle.dumps(Runs())),
        lambda path: torch.save({"schema": "other"}, path),
        lambda path: path.write_bytes(b""),
        lambda _: None,
    ],
)
def test_a_file_that_would_run_code_or_is_none_is_refused(digits, path, capsys, write):
    write(path)
    with refused("path"):
        run(digits).load_networks(path)
    assert "it ran" not in capsys.readouterr().out


# The state of a server's role, from which a server of sites that starts again goes on.


def written(role):
    file = io.BytesIO()
    torch.save(saved.state_of(role), file)
    return file.getvalue()


@pytest.mark.parametrize("name", METHODS)
def test_every_server_role_goes_on_from_its_state_in_a_file(digits, name):
    one, other = (run(digits, name, seed=seed).federation.server.role for seed in (0, 1))
    kept = written(one)
    saved.restore(other, saved.load(io.BytesIO(kept)))
    assert written(other) == kept


def test_a_state_of_something_else_is_refused(digits):
    role = run(digits, "fedavg").federation.server.role
    for state in (None, 5, ["_parameters", "_sent"], {}):
        with pytest.raises(ConfigurationError):
            saved.restore(role, state)
