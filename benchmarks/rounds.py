"""Client-rounds per CPU second, beside the plain loop.

python benchmarks/rounds.py > rounds.json

A client-round is 512 predictions, one step on 64 private records and ten steps on the proxies, of
128 records or of all 512. Ten clients take it

  plain     one after another: Conv-ReLU-MaxPool, torch's own layers, loop and torch.optim.SGD
  trainer   one after another with secure_fd's Trainer

on random pixels, on one thread. The two take turns, so that a machine that slows down slows all;
medians are reported.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from clock import medians, seconds
from experiments.core.provenance import versions
from secure_fd.data.image_sets import HETEROGENEOUS
from secure_fd.data.images import Images
from secure_fd.training.models import SHARED, build
from secure_fd.training.recipes import SGD
from secure_fd.training.trainer import Trainer, predict

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
    """Return one row: client-rounds per CPU second of each way."""
    torch.set_num_threads(1)
    names, settings = FEDERATIONS[title], SGD(0.1, LOCAL_BATCH, batch)
    task = _Task(names)
    runners: dict[str, Round] = {
        "plain": plain(task, settings),
        "trainer": trainers(task, settings),
    }
    turns = [{name: seconds(run) for name, run in runners.items()} for _ in range(repeats + 1)]
    spent = medians(turns)
    per_second = {name: len(names) / each for name, each in spent.items()}
    return {
        "federation": title,
        "batch": batch,
        "client_rounds_per_s": per_second,
        "trainer_to_plain": per_second["trainer"] / per_second["plain"],
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


def main() -> None:
    """Measure all federations and batches, and print them as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, choices=range(1, 100), metavar="COUNT")
    repeats = parser.parse_args().repeats
    rows = [measure(title, batch, repeats) for title in FEDERATIONS for batch in (128, PROXIES)]
    found = {"environment": versions(), "repeats": repeats, "rows": rows}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
