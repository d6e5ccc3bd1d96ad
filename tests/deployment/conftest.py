"""Federations of sites that train for moments."""

import logging
from dataclasses import replace

import pytest

from secure_fd import storage
from secure_fd.training.recipes import Recipe
from tests.small_federation import BRIEF


@pytest.fixture
def brief(monkeypatch):
    """Every recipe is of nine brief rounds without a warm-up."""
    made = Recipe(9, replace(BRIEF, warmup_steps=0, remember=True))
    monkeypatch.setattr("secure_fd.simulation.build.named_recipe", lambda *_: made)


@pytest.fixture(autouse=True, scope="module")
def unsynced():
    """Files of parties in this process are not synced: no test here ends the machine."""
    settings = [each.replace("EXTRA", "OFF") for each in storage._SETTINGS]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "_SETTINGS", settings)
        yield


@pytest.fixture(autouse=True)
def logger():
    """A command that runs in this process sets the package's logger up for itself."""
    log = logging.getLogger("secure_fd")
    before = log.handlers, log.propagate, log.level
    yield
    log.handlers, log.propagate = before[:2]
    log.setLevel(before[2])
