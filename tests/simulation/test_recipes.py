"""The recipe and the privacy mechanism that a run takes where none is given."""

import numpy as np
import pytest
import torch

from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import Images
from secure_fd.simulation.simulate import simulate
from tests.small_federation import federation

EMPTY = Images(torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("sites", "whole"),
    [
        *((held, True) for held in ([(75, 25), (150, 50)], [(95, 5), (190, 10)])),
        *((held, False) for held in ([(60, 0), (0, 60)], [(95, 5), (100, 0)], [(99, 1), (1, 99)])),
    ],
)
def test_sites_with_every_class_warm_up_at_any_shares(sites, whole):
    """Classes in useful number count, not even shares: 75 to 25 is every class of two."""
    pixels, held = torch.zeros(200, 1, 28, 28), [np.repeat((0, 1), counts) for counts in sites]
    parts = [Images(pixels[: len(labels)], torch.tensor(labels)) for labels in held]
    clients = tuple(ClientData(part, EMPTY, 2) for part in parts)
    proxies = Images(pixels[:64], torch.arange(64) % 2)
    made = FederatedData("digits", 2, clients, proxies, EMPTY, EMPTY)
    for recipe in (federation(made, schedule=None).recipe, simulate(made).recipe):
        assert (recipe.schedule.warmup_steps > 0) == whole


@pytest.mark.parametrize(
    ("asked", "protection"),
    [
        ({"unit": "label"}, "label unit"),
        ({"unit": "record"}, "local record unit"),
        ({"unit": "record", "secure": "masks"}, "pooled record unit"),
    ],
)
def test_a_simulation_gives_each_unit_its_mechanism(asked, protection):
    made = simulate("digits", clients=3, epsilon=4.0, **asked)
    assert made.federation.protection.name == protection
