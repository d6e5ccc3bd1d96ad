"""The number of threads with which torch computes while a run trains, and afterwards."""

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from secure_fd.deployment.roster import Terms
from secure_fd.training.trainer import torch_settings_for
from tests.drivers.flower_federation import Courier, World
from tests.small_federation import alike, federation

CPU, GPU = torch.device("cpu"), torch.device("cuda")
THREADS = 3


@pytest.fixture(scope="module")
def data():
    return alike(3)


@pytest.fixture(autouse=True)
def used():
    """The numbers of threads with which networks computed; torch begins with three."""
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(THREADS)
    hook = register_module_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    yield seen
    hook.remove()
    torch.set_num_threads(before)


def test_a_run_computes_with_one_thread_and_between_rounds_the_caller_has_its_own(data, used):
    made = federation(data)
    used.clear()  # a run is checked on one record when it is made
    rounds = made.rounds(2)
    next(rounds)
    seen = [torch.get_num_threads()]
    del rounds
    assert made.accuracies(data.test)
    assert used == {1}
    assert [*seen, torch.get_num_threads()] == [THREADS] * 2


def test_a_site_computes_with_one_thread(data, used, tmp_path):
    world = World(data, tmp_path, Terms(image_set="digits", rounds=1, deadline=5))
    list(world.serve(Courier(world)).run(1))
    assert used == {1}
    assert torch.get_num_threads() == THREADS


def test_a_failure_restores_the_threads(data):
    def fail(_):
        raise RuntimeError("out of memory")

    made = federation(data)
    made.trainer = fail
    with pytest.raises(RuntimeError):
        made.fit(1)
    assert torch.get_num_threads() == THREADS


@pytest.mark.parametrize(
    ("parameters", "shape", "device", "expected"),
    [
        (10_000_000, (3, 64, 64), CPU, 1),
        (10_000_001, (3, 64, 64), CPU, THREADS),
        (10_000_000, (3, 65, 64), CPU, THREADS),
        (10, (1, 28, 28), GPU, THREADS),
    ],
)
def test_large_networks_large_images_and_gpus_keep_the_threads(parameters, shape, device, expected):
    network = nn.Linear(parameters, 1, bias=False, device="meta")
    with torch_settings_for([network], shape, device):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == THREADS
