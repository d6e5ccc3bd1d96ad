"""The state of a method's server role, from which a server of sites that starts again goes on."""

import io

import pytest
import torch

from secure_fd import simulate
from secure_fd.errors import ConfigurationError
from secure_fd.methods.registry import METHODS
from secure_fd.protocol.messages import ServerRole
from secure_fd.simulation.saved import load, restore, state_of
from secure_fd.training.recipes import Recipe, Schedule

SHORT = Recipe(1, Schedule(local_steps=1, proxy_steps=1, proxies_per_round=20))


def role(name: str, seed: int) -> ServerRole:
    run = simulate("digits", method=name, clients=3, recipe=SHORT, seed=seed)
    return run.federation.server.role


def written(made: ServerRole) -> bytes:
    file = io.BytesIO()
    torch.save(state_of(made), file)
    return file.getvalue()


@pytest.mark.parametrize("name", METHODS)
def test_every_server_role_goes_on_from_its_state_in_a_file(name):
    kept, other = written(role(name, seed=0)), role(name, seed=1)
    restore(other, load(io.BytesIO(kept)))
    assert written(other) == kept


def test_a_file_of_something_else_is_refused():
    made = role("fedavg", seed=0)
    for state in (None, 5, ["_parameters", "_sent"], {}):
        with pytest.raises(ConfigurationError):
            restore(made, state)
