"""Client-rounds per CPU second, beside the plain loop and beside the arithmetic.

python benchmarks/run.py rounds > rounds.json

A client-round is 512 predictions, one step on 64 private records and ten steps on the proxies, of
128 records or of all 512. Ten clients take it

  plain     one after another: Conv-ReLU-MaxPool, torch's own layers, loop and torch.optim.SGD
  trainer   one after another with secure_fd's Trainer

on random pixels, on one thread. The two take turns, so that a machine that slows down slows all;
medians are reported. The limit is the arithmetic of the layers that have weights, forward and
backward, at the rate of a large matrix product that is timed in the same turns.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.image_sets import HETEROGENEOUS
from secure_fd.data.images import Images
from secure_fd.training.models import SHARED, build
from secure_fd.training.recipes import SGD
from secure_fd.training.trainer import Trainer, predict
from secure_sums import medians, seconds

CPU = torch.device("cpu")
PROXIES = 512
RECORDS = 3_000
PROXY_STEPS = 10
LOCAL_BATCH = 64
FEDERATIONS: Mapping[str, tuple[str, ...]] = {
    f"ten {SHARED}": (SHARED,) * 10,
    "Table 3": HETEROGENEOUS,
}
Round = Callable[[], object]
Report = dict[str, object]


def measure(title: str, batch: int, repeats: int) -> Report:
    """One row: client-rounds per CPU second of each way, and what the arithmetic would allow."""
    torch.set_num_threads(1)
    names, settings = FEDERATIONS[title], SGD(0.1, LOCAL_BATCH, batch)
    task = _Task(names)
    runners: dict[str, Round] = {
        "plain": plain(task, settings),
        "trainer": trainers(task, settings),
        "product": product,
    }
    turns = [{name: seconds(run) for name, run in runners.items()} for _ in range(repeats + 1)]
    spent = medians(turns)
    speed = PRODUCT_FLOP / spent.pop("product")
    limit = speed * len(names) / sum(round_flop(build(name, 10, 0), batch) for name in names)
    per_second = {name: len(names) / each for name, each in spent.items()}
    return {
        "federation": title,
        "batch": batch,
        "client_rounds_per_s": per_second,
        "trainer_to_plain": per_second["trainer"] / per_second["plain"],
        "limit_client_rounds_per_s": limit,
        "matmul_gflop_per_s": speed / 1e9,
    }


class _Task:
    """The clients' records, the proxies and what is taught of them: random, the same for all."""

    def __init__(self, names: Sequence[str]) -> None:
        chance = torch.Generator().manual_seed(0)
        self.names = names
        self.records = [_images(chance) for _ in names]
        self.proxies = torch.rand(PROXIES, 1, 28, 28, generator=chance)
        self.targets = torch.rand(PROXIES, 10, generator=chance).softmax(dim=1)

    def models(self) -> list[nn.Module]:
        return [build(name, 10, seed) for seed, name in enumerate(self.names)]


def _images(chance: torch.Generator) -> Images:
    pixels = torch.rand(RECORDS, 1, 28, 28, generator=chance)
    return Images(pixels, torch.randint(10, (RECORDS,), generator=chance))


def plain(task: _Task, settings: SGD) -> Round:
    """The loop that everybody writes first."""

    def client(model: nn.Module, records: Images) -> None:
        optimiser = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)

        def step(pixels: Tensor, targets: Tensor) -> None:
            optimiser.zero_grad()
            functional.cross_entropy(model(pixels), targets).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

        with torch.no_grad():
            model(task.proxies).softmax(dim=1)
        drawn = torch.randint(RECORDS, (LOCAL_BATCH,))
        step(records.pixels[drawn], records.labels[drawn])
        for _ in range(PROXY_STEPS):
            if settings.distillation_batch == PROXIES:
                step(task.proxies, task.targets)
            else:
                drawn = torch.randint(PROXIES, (settings.distillation_batch,))
                step(task.proxies[drawn], task.targets[drawn])

    clients = [
        partial(client, as_written(model), records)
        for model, records in zip(task.models(), task.records, strict=True)
    ]
    return lambda: [run() for run in clients]


def as_written(model: nn.Module) -> nn.Sequential:
    """The paper's order, Conv-ReLU-MaxPool, where the registry has Conv-MaxPool-ReLU."""
    layers = list(model.children())
    for place in range(len(layers) - 1):
        if isinstance(layers[place], nn.MaxPool2d) and isinstance(layers[place + 1], nn.ReLU):
            layers[place : place + 2] = layers[place + 1], layers[place]
    return nn.Sequential(*layers)


def trainers(task: _Task, settings: SGD) -> Round:
    """`Trainer`, one client after another."""
    clients = [
        Trainer(model, records, settings, seed, CPU)
        for seed, (model, records) in enumerate(zip(task.models(), task.records, strict=True))
    ]

    def run() -> None:
        for client in clients:
            predict(client.model, task.proxies)
            client.take_steps(1)
            client.take_steps(PROXY_STEPS, task.proxies, task.targets)

    return run


_SQUARE = torch.ones(1024, 1024)
PRODUCT_FLOP = 10 * 2 * 1024**3


def product() -> None:
    """Ten products of two square matrices that fit the cache: the machine's rate."""
    for _ in range(10):
        torch.mm(_SQUARE, _SQUARE)


def round_flop(model: nn.Module, batch: int) -> float:
    """Floating-point operations of a client-round: a product and a sum are two."""
    forward, first = record_flop(model)
    step = 3 * forward - first  # weights' and inputs' gradients; nobody asks for the pixels'
    return PROXIES * forward + (LOCAL_BATCH + PROXY_STEPS * batch) * step


def record_flop(model: nn.Module) -> tuple[float, float]:
    """Of one record's way forward: of all layers, and of the first that has weights."""
    x, counts = torch.zeros(1, 1, 28, 28), []
    with torch.no_grad():
        for layer in model.children():
            x = layer(x)
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                counts.append(2.0 * x[0].numel() * layer.weight[0].numel())
    return sum(counts), counts[0]
