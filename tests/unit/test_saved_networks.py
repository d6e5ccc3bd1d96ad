"""Networks in a file: read back as they were, written whole, and no code is run from a file."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fd import saved
from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError
from secure_fd.models import flatten
from secure_fd.recipes import Recipe
from secure_fd.simulation import Simulation, simulate
from tests.small_federation import BRIEF


def run(data: FederatedData, seed: int = 0) -> Simulation:
    return simulate(data, method="independent", recipe=Recipe(1, BRIEF), seed=seed)


def test_networks_are_read_back_into_a_run_of_the_same_form(
    digits: FederatedData, tmp_path: Path
) -> None:
    path, first, second = tmp_path / "networks.pt", run(digits), run(digits, seed=1)
    first.fit(1)
    first.save_networks(path)
    assert path.stat().st_mode & 0o077 == 0
    second.load_networks(path)
    for one, other in zip(first.federation.models, second.federation.models, strict=True):
        assert torch.equal(flatten(one), flatten(other))


def test_networks_of_other_architectures_are_refused(digits: FederatedData, tmp_path: Path) -> None:
    path, made = tmp_path / "networks.pt", run(digits)
    made.save_networks(path)
    content = saved.read(path)
    saved.write(path, content | {"architectures": ["another"]})
    with pytest.raises(ConfigurationError, match="other architectures"):
        made.load_networks(path)


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


class Runs:
    """What a hostile pickle would do."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (print, ("it ran",))


def test_a_file_that_would_run_code_is_refused(
    digits: FederatedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
