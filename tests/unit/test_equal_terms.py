"""The table at equal terms: equal steps and views, at the settings that validation chose."""

import pytest
import torch

from experiments.core.grid import HOSPITALS
from experiments.core.run_config import RunConfig
from experiments.core.variants import centralised
from experiments.rivals.equal_terms import CHOSEN, ROWS, STEPS, cell_of
from secure_fd.training.recipes import Schedule

PLACES = [("mnist", "strong"), ("fashion_mnist", "iid"), ("chest_xray", HOSPITALS)]
TRAINED = [key for key, (_, own) in ROWS.items() if "schedule" not in own]


def steps_of(cell: RunConfig) -> int:
    """Of one network, in all."""
    plan: Schedule = cell.schedule
    lessons = 1 if cell.method == "heads" else cell.rounds
    return plan.warmup_steps + lessons * plan.fedavg_steps


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("steps", [STEPS, STEPS // 2])
def test_every_network_takes_as_many_steps_through_the_same_views(place, steps):
    made = [cell_of(key, *place, 0, CHOSEN[place][key], steps) for key in TRAINED]
    assert {steps_of(cell) for cell in made} == {steps}
    for part in ("augment", "proxies_per_round", "anneal_warmup"):
        assert len({getattr(cell.schedule, part) for cell in made}) == 1, part
    for part in ("local_batch", "distillation_batch", "momentum", "smoothing"):
        assert len({getattr(cell.schedule.sgd, part) for cell in made}) == 1, part
    taught = [cell for cell in made if cell.labels]
    assert len({cell.schedule.sgd.own_batch for cell in taught if cell.schedule.proxy_steps}) == 1
    for cell in made:  # the rate falls to zero over the rounds, or within the one lesson
        assert cell.schedule.anneal_over == (1 if cell.method == "heads" else cell.rounds)


def test_records_of_all_clients_are_with_each(digits):
    made = centralised(digits)
    assert len(made.clients) == len(digits.clients)
    for client in made.clients:
        assert len(client.train) == sum(len(one.train) for one in digits.clients)
        assert client.classes == (0, 1, 2, 3)
    assert torch.equal(made.clients[1].train.pixels[:3], digits.clients[0].train.pixels[:3])
    assert made.test is digits.test
