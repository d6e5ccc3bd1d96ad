"""Client-rounds per CPU second, beside the plain loop.

A client-round is 512 predictions, one step on 64 private records and ten steps on the proxies, of
128 records or of all 512. One client of each kind of network takes it

  plain          one after another: Conv-ReLU-MaxPool, torch's own layers, layout, loop and SGD
  channels_last  the same loop, with the weights of convolutions in that layout
  trainer        one after another with secure_fd's Trainer, which has this layout, and pools before
                 ReLU

on random pixels, on one thread. The three take turns, so that a machine that slows down slows all;
medians are reported.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from clock import medians, seconds
from secure_fd.data.image_sets import TABLE_3
from secure_fd.data.images import Images
from secure_fd.training.models import SHARED, build
from secure_fd.training.recipes import SGD
from secure_fd.training.trainer import Trainer, predict

CPU = torch.device("cpu")
PROXIES = 512
RECORDS = 3_000
PROXY_STEPS = 10
LOCAL_BATCH = 64
NETWORKS: Mapping[str, tuple[str, ...]] = {SHARED: (SHARED,), "all five of Table 3": TABLE_3}
Round = Callable[[], None]


class Public(NamedTuple):
    """Proxies and the labels that are learnt of them: random, the same for all."""

    proxies: Tensor
    targets: Tensor


def rows(repeats: int) -> list[dict[str, object]]:
    """Return client-rounds per CPU second of each way, by networks and size of a batch."""
    return [measure(name, batch, repeats) for name in NETWORKS for batch in (128, PROXIES)]


def measure(title: str, batch: int, repeats: int) -> dict[str, object]:
    """Return one row, after a warm-up."""
    torch.set_num_threads(1)
    names, settings = NETWORKS[title], SGD(0.1, LOCAL_BATCH, batch)
    chance = torch.Generator().manual_seed(0)
    records = [_records(chance) for _ in names]
    proxies = torch.rand(PROXIES, 1, 28, 28, generator=chance)
    public = Public(proxies, torch.rand(PROXIES, 10, generator=chance).softmax(dim=1))
    ways = {
        way.__name__: [
            way(build(name, 10, k), records[k], public, settings) for k, name in enumerate(names)
        ]
        for way in (plain, channels_last, trainer)
    }
    turns = [
        {name: sum(map(seconds, clients)) for name, clients in ways.items()}
        for _ in range(repeats + 1)
    ]
    per_second = {name: len(names) / spent for name, spent in medians(turns[1:]).items()}
    return {"networks": title, "batch": batch, "client_rounds_per_s": per_second}


def _records(chance: torch.Generator) -> Images:
    pixels = torch.rand(RECORDS, 1, 28, 28, generator=chance)
    return Images(pixels, torch.randint(10, (RECORDS,), generator=chance))


def plain(model: nn.Module, records: Images, public: Public, settings: SGD) -> Round:
    """The loop that comes first to mind."""
    return _loop(as_written(model), records, public, settings)


def channels_last(model: nn.Module, records: Images, public: Public, settings: SGD) -> Round:
    """The same loop with the layout of the package's trainer."""
    network = as_written(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return _loop(network, records, public, settings)


def _loop(network: nn.Module, records: Images, public: Public, settings: SGD) -> Round:
    optimiser = torch.optim.SGD(network.parameters(), lr=settings.learning_rate)

    def step(pixels: Tensor, targets: Tensor, size: int) -> None:
        if size < len(pixels):
            drawn = torch.randint(len(pixels), (size,))
            pixels, targets = pixels[drawn], targets[drawn]
        optimiser.zero_grad()
        functional.cross_entropy(network(pixels), targets).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    def run() -> None:
        with torch.no_grad():
            network(public.proxies).softmax(dim=1)
        step(records.pixels, records.labels, LOCAL_BATCH)
        for _ in range(PROXY_STEPS):
            step(*public, settings.distillation_batch)

    return run


def as_written(model: nn.Module) -> nn.Sequential:
    """The paper's order, Conv-ReLU-MaxPool, where the registry has Conv-MaxPool-ReLU."""
    layers = list(model.children())
    for place in range(len(layers) - 1):
        if isinstance(layers[place], nn.MaxPool2d) and isinstance(layers[place + 1], nn.ReLU):
            layers[place : place + 2] = layers[place + 1], layers[place]
    return nn.Sequential(*layers)


def trainer(model: nn.Module, records: Images, public: Public, settings: SGD) -> Round:
    """The package's `Trainer`."""
    client = Trainer(model, records, settings, 0, CPU)

    def run() -> None:
        predict(model, public.proxies)
        client.take_steps(1)
        client.take_steps(PROXY_STEPS, *public)

    return run
