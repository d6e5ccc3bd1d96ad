"""Learning from fixed proxy labels (Fig. 10 of Shao, Wu and Zhang, 2023)."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.core.measures import ACCURACY, DISTILLED_PROXIES
from experiments.core.run_config import RunConfig
from experiments.core.runs import Prepared, federation, prepared
from experiments.core.study import Result
from secure_fd.data.images import Images
from secure_fd.training.trainer import accuracy, default_device

Labelled = tuple[Tensor, Tensor]
"""Proxies [m, ...] and their labels [m, C] in the simplex."""


def train(network: nn.Module, own: Images, proxies: Labelled, cell: RunConfig, seed: int) -> None:
    """Take all steps of a client, each on a batch of both: alpha L_local + (1 - alpha) L_proxy.

    That is the empirical risk of Theorem 2 (Shao, Wu and Zhang, 2023), in cross entropy. A round
    has as many steps as one of a distilling client, and nothing crosses the boundary in it.
    """
    alpha, sgd, device = cell.alpha or 0.0, cell.schedule.sgd, default_device()
    optimiser = torch.optim.SGD(network.to(device).parameters(), sgd.learning_rate)
    generator = torch.Generator().manual_seed(seed)
    parts = (
        (alpha, sgd.local_batch, own.pixels, own.labels),
        (1 - alpha, sgd.distillation_batch, *proxies),
    )
    for _ in range(cell.rounds * cell.schedule.fedavg_steps):
        optimiser.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=device)
        for weight, size, pixels, targets in parts:
            drawn = torch.randint(len(pixels), (size,), generator=generator)
            if weight > 0:
                answers = network(pixels[drawn].to(device))
                wanted = targets[drawn].to(device)
                loss = loss + weight * functional.cross_entropy(answers, wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def labelled(cell: RunConfig, made: Prepared) -> Labelled:
    """Proxies with their true labels, or those that the selection mechanism keeps and labels.

    That is one round about all proxies in which no network is trained.
    """
    proxies = made.data.proxies
    if cell.method == "true-labels":
        targets = functional.one_hot(proxies.labels, made.data.n_classes).float()
        return proxies.pixels, targets
    once = replace(cell.schedule, local_steps=0, proxy_steps=0, proxies_per_round=len(proxies))
    run = federation(
        replace(cell, method="selective-fd", labels="soft", alpha=None, schedule=once), made
    )
    run.fit(1)
    ensemble = run.transcript.distillation[-1].result
    kept = torch.from_numpy(ensemble.indices[ensemble.kept])
    targets = torch.from_numpy(ensemble.predictions[ensemble.kept]).float()
    return proxies.pixels[kept], targets


def measure(data_dir: Path | None, cell: RunConfig, ready: Mapping[Any, Any]) -> Result:
    """Train on fixed labels, and test."""
    start, made = time.process_time(), prepared(cell, data_dir, ready)
    proxies, networks = labelled(cell, made), made.networks()
    for k, network in enumerate(networks):
        train(network, made.data.clients[k].train, proxies, cell, 1000 * cell.seed + k)
    test = made.data.test.to(default_device())
    found = tuple(accuracy(network, test) for network in networks)
    share = len(proxies[0]) / len(made.data.proxies)
    figures = {ACCURACY: float(np.mean(found)), DISTILLED_PROXIES: share}
    return Result(cell, figures, time.process_time() - start, found)
