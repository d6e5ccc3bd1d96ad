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
from secure_fd.methods.fedavg import FedAvg
from secure_fd.simulation import saved
from secure_fd.simulation.federation import Federation
from secure_fd.simulation.simulate import Simulation, simulate
from secure_fd.training.models import flatten
from secure_fd.training.recipes import Recipe
from tests.refusals import refused
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
    with refused("path"):
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


@pytest.mark.parametrize("method", [FedAvg(), SmallDaFKD()], ids=["fedavg", "dafkd"])
def test_a_run_starts_from_loaded_networks(digits, tmp_path, method):
    """As in a federation that was made of these networks, bit for bit."""
    path, schedule = tmp_path / "networks.pt", replace(BRIEF, proxy_steps=0)
    plan: dict[str, Any] = {"method": method, "recipe": Recipe(4, schedule)}
    first = simulate(digits, seed=1, **plan)
    first.fit(2)
    first.save_networks(path)
    loaded = simulate(digits, **plan)
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


def test_networks_that_differ_or_start_dp_sgd_are_refused(digits, tmp_path):
    path = tmp_path / "networks.pt"
    first = simulate(digits, method="fedavg", recipe=RECIPE)
    first.fit(1)
    first.save_networks(path)
    noisy = simulate(digits, method="fedavg", unit="record", epsilon=4.0, seed=1, recipe=RECIPE)
    other = simulate(digits, method="fedavg", seed=1, recipe=RECIPE)
    before = noisy.federation.global_parameters.copy()
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

    def __reduce__(self) -> tuple[Any, tuple[str]]:
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
def test_a_file_that_would_run_code_or_is_none_is_refused(digits, tmp_path, capsys, write):
    path = tmp_path / "networks.pt"
    write(path)
    with refused("path"):
        run(digits).load_networks(path)
    assert "it ran" not in capsys.readouterr().out
