"""How many threads torch computes with while a run trains, and afterwards."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from secure_fd import simulate
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.deployment.roster import Terms
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import Recipe
from secure_fd.training.trainer import Steps, torch_settings_for
from tests.flower_federation import Courier, World
from tests.small_federation import BRIEF, networks

CPU, GPU = torch.device("cpu"), torch.device("cuda")
THREADS = 3


@pytest.fixture(scope="module")
def data():
    sizes = Sizes(proxies=40, test=10, held_out=4, local=100)
    return federate(load("digits"), parse_split("iid"), 3, seed=0, sizes=sizes)


@pytest.fixture(autouse=True)
def used():
    """The numbers of threads with which networks computed; torch begins with three."""
    before, seen = torch.get_num_threads(), set[int]()
    torch.set_num_threads(THREADS)
    hook = register_module_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    yield seen
    hook.remove()
    torch.set_num_threads(before)


def federation(
    data: FederatedData, train: Callable[[Sequence[Steps]], None] | None = None
) -> Federation:
    people = networks(3), data.clients
    proxies, method = data.proxies.pixels, SelectiveFD("hard")
    made = Federation(*people, proxies, method, schedule=BRIEF, device="cpu")
    made.trainer = train or made.trainer
    return made


def test_a_federation_computes_with_one_thread(data, used):
    made = federation(data)
    used.clear()  # a run is checked on one record when it is made
    made.fit(1)
    made.accuracies(data.test)
    assert used == {1}
    assert torch.get_num_threads() == THREADS


@pytest.mark.skipif(torch.cuda.is_available(), reason="it uses the GPU")
def test_a_simulation_computes_with_one_thread(data, used):
    run = simulate(data, recipe=Recipe(1, BRIEF))
    used.clear()
    run.fit()
    assert used == {1}
    assert run.summary
    assert used == {1}
    assert torch.get_num_threads() == THREADS


def test_a_site_computes_with_one_thread(data, tmp_path, used):
    world = World(data, tmp_path, Terms(image_set="digits", rounds=1, deadline=5))
    list(world.serve(Courier(world)).run(1))
    assert used == {1}
    assert torch.get_num_threads() == THREADS


def test_between_rounds_the_threads_are_those_of_the_caller(data):
    seen = []
    made = federation(data)
    for _ in made.rounds(2):
        seen.append(torch.get_num_threads())
    rounds = made.rounds(2)
    next(rounds)
    seen.append(torch.get_num_threads())
    del rounds
    assert [*seen, torch.get_num_threads()] == [THREADS] * 4


def test_a_failure_restores_the_threads(data):
    def fail(_: Sequence[Steps]) -> None:
        assert torch.get_num_threads() == 1
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        federation(data, fail).fit(1)
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


def test_a_caller_that_uses_one_thread_keeps_it():
    torch.set_num_threads(1)
    with torch_settings_for(networks(1), (1, 28, 28), CPU):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1
