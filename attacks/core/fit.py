"""Networks as an attacker trains them: hard or soft targets, students, evaluators; seeded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacks.core.base import substream
from attacks.core.view import (
    Capability,
    LabelFunction,
    LabelOracle,
    Oracle,
    Public,
    View,
    outsider_view,
)
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.training.models import flatten, load_flat
from secure_fd.training.trainer import default_device, logits, network_device, predict, repeatable

Factory = Callable[[int], nn.Module]
"""Seed -> a fresh network."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Training settings: Adam over shuffled batches. learning_rate: per step."""

    epochs: int = 20
    batch: int = 32
    learning_rate: float = 2e-3


QUICK = Fit(epochs=8)


@contextmanager
def on_device(*models: nn.Module) -> Iterator[torch.device]:
    """Inside, models are on a GPU where there is one; after, where they were.

    On a GPU cuDNN uses its deterministic kernels in full precision.
    """
    chosen = default_device()
    homes = [network_device(model) for model in models]
    for model in models:
        model.to(chosen)
    try:
        with repeatable():
            yield chosen
    finally:
        for model, home in zip(models, homes, strict=True):
            model.to(home)


def fit(factory: Factory, images: Tensor, targets: Tensor, settings: Fit, seed: int) -> nn.Module:
    """A fresh network trained by cross-entropy, in evaluation mode and on the CPU.

    images: [N, 1, H, W]. targets: class ids [N], or distributions [N, C].
    """
    if len(images) != len(targets) or len(images) == 0:
        raise LocalError(f"training needs a target an image, not {len(targets)} for {len(images)}")
    model = factory(substream(seed, "initial weights"))
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate)
    shuffle = torch.Generator().manual_seed(substream(seed, "batches"))
    with on_device(model) as on, torch.random.fork_rng([on] if on.type == "cuda" else []):
        # Dropout draws from the global generators, which are forked: callers keep theirs.
        torch.manual_seed(substream(seed, "dropout"))
        model.train()
        for _ in range(settings.epochs):
            order = torch.randperm(len(images), generator=shuffle)
            for batch in torch.split(order, settings.batch):
                optimizer.zero_grad()
                loss = cross_entropy(model(images[batch].to(on)), targets[batch].to(on))
                torch.autograd.backward(loss)
                optimizer.step()
    return model.eval()


def network(public: Public, parameters: Tensor) -> nn.Module:
    """The shared architecture at parameters [m], in evaluation mode.

    Raises LocalError where their number is not the architecture's.
    """
    model = public.architecture(0)  # every weight is overwritten
    expected = flatten(model).numel()
    if parameters.numel() != expected:
        raise LocalError(
            f"parameters: {parameters.numel()} values, but the architecture has {expected}"
        )
    load_flat(model, parameters)
    return model.eval()


def label_function(model: nn.Module) -> LabelFunction:
    """A network that answers images [N, C, H, W] with class ids [N] alone."""
    return partial(_labels, model)  # no lambda: prepared attacks travel between processes


def _labels(model: nn.Module, images: Tensor) -> Tensor:
    return logits(model, images).argmax(dim=1)


def queried(model: nn.Module, public: Public) -> View:
    """An outsider who asks a deployed network, for probabilities or the class alone."""
    held: dict[Capability, Oracle] = {
        Capability.QUERY_SCORES: Oracle(lambda x: torch.from_numpy(predict(model, x))),
        Capability.QUERY_FINAL_MODEL: LabelOracle(label_function(model)),
    }
    return outsider_view(public, held)


NO_ENSEMBLE = "missing an ensemble prediction that was kept for teaching"


def distil_student(view: View, settings: Fit, seed: int) -> nn.Module:
    """A network images -> logits, trained on the ensembles' predictions for public proxies.

    A reader of ensembles can do what a client does with them: the student is a white-box stand-in
    for the clients' knowledge.

    Raises MissingCapabilityError where the view has no ensembles, or none that may teach.
    """
    view.require(Capability.READ_ENSEMBLES, Capability.PUBLIC_PROXIES)
    indices, targets = kept_answers(view)
    if not len(indices):
        raise MissingCapabilityError(NO_ENSEMBLE)
    return fit(view.public.architecture, view.public.proxies[indices], targets, settings, seed)


def kept_answers(view: View) -> tuple[Tensor, Tensor]:
    """Proxy indices [n], ascending, and distributions [n, C]: each proxy's newest kept answer.

    LocalError where an ensemble is about a proxy that does not exist.
    """
    newest_first = view.ensembles()[::-1]
    indices = np.concatenate([e.indices[e.kept] for e in newest_first])
    answers = np.concatenate([e.predictions[e.kept] for e in newest_first])
    proxies = len(view.public.proxies)
    if len(indices) and indices.max() >= proxies:
        raise LocalError(f"proxy index {indices.max()} is not allowed; {proxies} proxies exist")
    once, first = np.unique(indices, return_index=True)
    return torch.from_numpy(once), torch.tensor(answers[first], dtype=torch.float32)
