"""Networks in a file: read back as they were, written whole, and no code is run from a file."""

import os
import pickle
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.protocol.transcript import Float32Array
from secure_fd.simulation import saved
from secure_fd.simulation.federation import Federation
from secure_fd.simulation.simulate import Simulation, simulate
from secure_fd.training.models import flatten
from secure_fd.training.recipes import Recipe
from tests.small_dafkd import SmallDaFKD
from tests.small_federation import BRIEF

RECIPE = Recipe(2, BRIEF)


def run(data: FederatedData, seed: int = 0) -> Simulation:
    return simulate(data, method="independent", recipe=Recipe(1, BRIEF), seed=seed)


def test_networks_are_read_back_into_a_run_of_the_same_form(digits, tmp_path):
    path, first, second = tmp_path / "networks.pt", run(digits), run(digits, seed=1)
    first.fit(1)
    first.save_networks(path)
    assert path.stat().st_mode & 0o077 == 0
    second.load_networks(path)
    for one, other in zip(first.federation.models, second.federation.models, strict=True):
        assert torch.equal(flatten(one), flatten(other))
    saved.write(path, saved.read(path) | {"architectures": ["another"]})
    with pytest.raises(ConfigurationError, match="other architectures"):
        second.load_networks(path)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "networks.pt"
    saved.write(path, {"networks": 1})
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        saved.write(path, {"networks": 2})
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "method",
    [FedAvg(), SmallDaFKD()],
    ids=["fedavg", "dafkd"],
)
def test_loaded_networks_are_where_shared_parameters_start(digits, tmp_path, method):
    """As in a federation that was made of these networks, bit for bit."""
    path, schedule = tmp_path / "networks.pt", replace(BRIEF, proxy_steps=0)
    plan: dict[str, Any] = {"method": method, "recipe": Recipe(4, schedule)}
    first = simulate(digits, seed=1, **plan)
    first.fit(2)
    first.save_networks(path)
    loaded = simulate(digits, **plan)
    loaded.load_networks(path)
    start, reached = _parameters(first.federation), _parameters(loaded.federation)
    np.testing.assert_array_equal(start, reached)
    networks = [deepcopy(model) for model in first.federation.models]
    direct = Federation(networks, digits.clients, digits.proxies.pixels, method, schedule=schedule)
    loaded.fit(1)
    direct.fit(1)
    np.testing.assert_array_equal(_parameters(direct), _parameters(loaded.federation))
    assert not np.array_equal(start, _parameters(direct))
    with pytest.raises(ConfigurationError) as begun:
        loaded.load_networks(path)
    assert begun.value.field == "run"


def test_networks_that_differ_or_start_dp_sgd_are_refused(digits, tmp_path):
    path = tmp_path / "networks.pt"
    first = simulate(digits, method="fedavg", recipe=RECIPE)
    first.fit(1)
    first.save_networks(path)
    noisy = simulate(digits, method="fedavg", unit="record", epsilon=4.0, seed=1, recipe=RECIPE)
    before = _parameters(noisy.federation)
    with pytest.raises(ConfigurationError) as uncovered:
        noisy.load_networks(path)
    with torch.no_grad():
        next(first.federation.models[1].parameters()).add_(1.0)
    first.save_networks(path)
    other = simulate(digits, method="fedavg", seed=1, recipe=RECIPE)
    with pytest.raises(ConfigurationError) as differ:
        other.load_networks(path)
    assert {uncovered.value.field, differ.value.field} == {"networks"}
    for refused in (noisy, other):
        np.testing.assert_array_equal(before, _parameters(refused.federation))
        np.testing.assert_array_equal(before, flatten(refused.federation.models[0]).cpu().numpy())


def _parameters(federation: Federation) -> Float32Array:
    found = federation.global_parameters
    return found.copy()


class Runs:
    """What a hostile pickle would do."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (print, ("it ran",))


def test_a_file_that_would_run_code_is_refused(digits, tmp_path, capsys):
    path, made = tmp_path / "networks.pt", run(digits)
    for write in (
        lambda: torch.save({"schema": saved.SCHEMA, "networks": Runs()}, path),
        lambda: path.write_bytes(pickle.dumps(Runs())),
        lambda: torch.save({"schema": "other"}, path),
        lambda: path.write_bytes(b""),
    ):
        write()
        with pytest.raises(ConfigurationError) as refused:
            made.load_networks(path)
        assert refused.value.field == "path"
    assert "it ran" not in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match="no such file"):
        made.load_networks(tmp_path / "missing.pt")
