"""The number of threads with which torch computes while a run trains, and afterwards."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from secure_fd import simulate
from secure_fd.data.federated import FederatedData
from secure_fd.deployment.roster import Terms
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import Recipe
from secure_fd.training.trainer import Steps, torch_settings_for
from tests.drivers.flower_federation import Courier, World
from tests.small_federation import BRIEF, alike, networks

CPU, GPU = torch.device("cpu"), torch.device("cuda")
THREADS = 3


@pytest.fixture(scope="module")
def data():
    return alike(3)


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
    pixels, method = data.proxies.pixels, SelectiveFD("hard")
    made = Federation(networks(3), data.clients, pixels, method, schedule=BRIEF, device="cpu")
    made.trainer = train or made.trainer
    return made


@pytest.mark.parametrize("kind", ["federation", "simulation", "site"])
def test_a_run_computes_with_one_thread(data, used, kind, tmp_path):
    if kind == "simulation" and torch.cuda.is_available():
        pytest.skip("it uses the GPU")
    if kind == "site":
        world = World(data, tmp_path, Terms(image_set="digits", rounds=1, deadline=5))
        list(world.serve(Courier(world)).run(1))
    else:
        run = simulate(data, recipe=Recipe(1, BRIEF)) if kind == "simulation" else federation(data)
        used.clear()  # a run is checked on one record when it is made
        run.fit(1)
        assert run.summary if kind == "simulation" else run.accuracies(data.test)
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
    ("parameters", "shape", "device", "before", "expected"),
    [
        (10_000_000, (3, 64, 64), CPU, THREADS, 1),
        (10_000_001, (3, 64, 64), CPU, THREADS, THREADS),
        (10_000_000, (3, 65, 64), CPU, THREADS, THREADS),
        (10, (1, 28, 28), GPU, THREADS, THREADS),
        (10, (1, 28, 28), CPU, 1, 1),
    ],
)
def test_large_networks_large_images_and_gpus_keep_the_threads(
    parameters, shape, device, before, expected
):
    torch.set_num_threads(before)
    network = nn.Linear(parameters, 1, bias=False, device="meta")
    with torch_settings_for([network], shape, device):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == before
