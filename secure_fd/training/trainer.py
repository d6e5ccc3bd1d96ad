"""Local steps, distillation steps and prediction: the only place where networks learn.

Training batches, of proxies and private records alike, are seen through random views. A client
predicts the images as they are.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.nn import functional

from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.views import View, view_named
from secure_fd.votes.codec import FloatArray

_PREDICT_BATCH = 1024


def default_device() -> torch.device:
    """Return a GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LocalTrainer:
    """A network that takes training steps.

    Attributes:
        model: the network.
        learning_rate: of the next step.
    """

    model: nn.Module
    learning_rate: float

    def take_steps(
        self, count: int, pixels: Tensor | None = None, targets: Tensor | None = None
    ) -> None:
        """Take steps, as the fields of `Steps` describe them.

        Raises LocalError for steps that this trainer does not take, such as those of DP-SGD on
        proxies.
        """
        raise NotImplementedError

    def reset_momentum(self) -> None:
        """Reset momentum, after the parameters on which it was gathered were replaced."""


class Trainer(LocalTrainer):
    """SGD steps of one client's network.

    Batches are drawn with replacement from the trainer's own generator, so that a client's path
    depends on its seed and its data alone.

    Args:
        model: the network.
        train: the private records.
        optimiser: rates and sizes of batches.
        seed: of the batches and views.
        device: where the network trains.
        view: the random view of each batch; None for the images as they are.
    """

    checkpointed = ("_generator", "_sgd")

    def __init__(
        self,
        model: nn.Module,
        train: Images,
        optimiser: SGD,
        seed: int,
        device: torch.device,
        view: View | None = None,
    ) -> None:
        # Convolutions of few channels take a third less time with the channels last in memory.
        self.model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.learning_rate = optimiser.learning_rate
        self._train = train.to(device)
        self._settings = optimiser
        self._sgd = torch.optim.SGD(
            model.parameters(),
            lr=optimiser.learning_rate,
            momentum=optimiser.momentum,
            nesterov=optimiser.momentum > 0,
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device
        self._view = view

    def reset_momentum(self) -> None:
        """Reset all momentum."""
        self._sgd.state.clear()

    def take_steps(
        self, count: int, pixels: Tensor | None = None, targets: Tensor | None = None
    ) -> None:
        """Take SGD steps, on private records or on proxies [m, ...]; none where m = 0."""
        self._sgd.param_groups[0]["lr"] = self.learning_rate
        for _ in range(count if pixels is None or len(pixels) else 0):
            seen, wanted = self.batch(pixels, targets)
            self._sgd.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(self.model(seen).float(), wanted)
            loss.backward()  # type: ignore[no-untyped-call]
            self._sgd.step()

    def batch(
        self, pixels: Tensor | None = None, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw private records and their labels, or the rows of targets for these; or proxies."""
        if pixels is None or targets is None:
            seen, wanted = self._records(self._settings.local_batch)
            if targets is not None:
                wanted = targets[wanted]
        else:
            seen, wanted = self._proxies(pixels, targets)
        return seen if self._view is None else self._view(seen, self._generator), wanted

    def _proxies(self, pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """A batch of proxies, all of them where they fit into one; private records join it."""
        size = self._settings.distillation_batch
        if len(pixels) > size:
            chosen = self._draw(len(pixels), size)
            pixels, targets = pixels[chosen], targets[chosen]
        if self._settings.smoothing:
            even = torch.full_like(targets, 1 / targets.shape[1])
            targets = targets.lerp(even, self._settings.smoothing)
        if self._settings.own_batch:
            own, labels = self._records(self._settings.own_batch)
            known = functional.one_hot(labels, targets.shape[1]).to(targets.dtype)
            pixels, targets = torch.cat([pixels, own]), torch.cat([targets, known])
        return pixels, targets

    def _records(self, size: int) -> tuple[Tensor, Tensor]:
        chosen = self._draw(len(self._train.labels), size)
        return self._train.pixels[chosen], self._train.labels[chosen]

    def _draw(self, population: int, size: int) -> Tensor:
        drawn = torch.randint(population, (size,), generator=self._generator)
        return drawn.to(self._device)


_SMALL_NETWORK = 10_000_000
_SMALL_RECORD = 3 * 64 * 64


repeatable = partial(cudnn.flags, enabled=True, deterministic=True, allow_tf32=False)
"""Context in which cuDNN uses its deterministic kernels, in full precision."""


def network_device(model: nn.Module) -> torch.device:
    """Return where a network's parameters are; the CPU for one without any."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@contextmanager
def torch_settings_for(
    networks: Sequence[nn.Module], shape: Sequence[int], device: torch.device
) -> Iterator[None]:
    """Compute repeatably, and with one thread where the networks are small; then restore.

    On a GPU cuDNN uses its deterministic kernels in full precision: equal seeds give equal
    networks, and an update is what the same records give again on the CPU.

    One thread is for networks on the CPU. Small is at most 10 million parameters in each network
    and 3 x 64 x 64 values in each record. The steps of such networks are short. Where other
    processes use the cores, two threads wait for each other in each operation: a step took 3 to 30
    times the time of one thread. On two idle cores two threads are faster, 20 s against at most
    36 s for ten networks of Table 3. Larger networks keep the threads of torch.

    Args:
        networks: of the parties that train in this process.
        shape: of one record, [channels, height, width].
        device: where the networks are.
    """
    before, values = torch.get_num_threads(), math.prod(shape)
    largest = max(sum(p.numel() for p in network.parameters()) for network in networks)
    small = device.type == "cpu" and largest <= _SMALL_NETWORK and values <= _SMALL_RECORD
    torch.set_num_threads(1 if small else before)
    try:
        with repeatable():
            yield
    finally:
        torch.set_num_threads(before)


class TrainingMode(AbstractContextManager[None]):
    """Context in which networks train; outside of it they are in evaluation mode.

    Inside, each layer is in the mode in which it was given. A network that was given in evaluation
    mode as a whole trains in training mode.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._networks = networks
        self._modes = [
            (layer, layer.training or not network.training)
            for network in networks
            for layer in network.modules()
        ]

    def __enter__(self) -> None:
        for layer, training in self._modes:
            layer.training = training

    def __exit__(self, *_: object) -> None:
        for network in self._networks:
            network.eval()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set a network to evaluation mode; restore the mode of each layer afterwards."""
    before = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for layer, training in before:
            layer.training = training


@torch.inference_mode()
def logits(model: nn.Module, pixels: Tensor) -> Tensor:
    """Return logits [N, C] on the device of the pixels, computed on that of the network."""
    device = network_device(model)
    with evaluating(model):
        answers = [model(part.to(device)) for part in torch.split(pixels, _PREDICT_BATCH)]
        return torch.cat(answers).to(pixels.device)


def predict(model: nn.Module, pixels: Tensor) -> FloatArray:
    """Return softmax predictions [N, C] as float64."""
    return np.asarray(functional.softmax(logits(model, pixels), dim=1).double().cpu().numpy())


def accuracy(model: nn.Module, images: Images) -> float:
    """Return the share of images whose label the model predicts."""
    correct = logits(model, images.pixels).argmax(dim=1) == images.labels
    return float(correct.double().mean())


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Training that is due.

    Attributes:
        trainer: takes the steps.
        count: of steps.
        rate: the learning rate.
        pixels: [m, ...] proxies to distil at; None for steps on private records.
        targets: [m, C] what to distil; on private records [C, C], a row for each class, or None
            for the labels.

    >>> import torch
    >>> from secure_fd import SGD, Images, models
    >>> network = models.build("cnn-5-5-50", 10, seed=0)
    >>> records = Images(torch.zeros(8, 1, 28, 28), torch.arange(8))
    >>> trainer = Trainer(network, records, SGD(), seed=0, device=torch.device("cpu"))
    >>> Steps(trainer, count=5, rate=0.1).count
    5
    """

    trainer: LocalTrainer
    count: int
    rate: float
    pixels: Tensor | None = field(default=None, repr=False)
    targets: Tensor | None = field(default=None, repr=False)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return the batch of the next step, for a user-supplied trainer.

        Returns:
            Pixels [B, channels, H, W], and targets: classes [B] or rows of the simplex [B, C].

        Raises:
            LocalError: the trainer takes steps of another kind, such as DP-SGD.
        """
        if not isinstance(self.trainer, Trainer):
            raise LocalError("this client's steps are not of batches: call run() for them")
        return self.trainer.batch(self.pixels, self.targets)

    def run(self) -> None:
        """Take the steps."""
        self.trainer.learning_rate = self.rate
        self.trainer.take_steps(self.count, self.pixels, self.targets)


def run_each(jobs: Sequence[Steps]) -> None:
    """Run the training of one client after another, in order."""
    for job in jobs:
        job.run()


_WARM_UP = 2**30
"""Offset of the seeds of warm-up batches from those of the rounds; generators read 32 bits."""
_FEW_CLASSES = 2.5
"""Below it, momentum drives a network that trains alone so far that its units die."""


class Learner:
    """One client's network and records under a schedule: everything that trains, as values.

    Args:
        model: the network.
        train: the private records.
        schedule: of steps and rates.
        seed: of the batches, so that a client's path depends on its own seed and data alone.
        device: where the network trains.
        private: another trainer, such as DP-SGD, which takes steps on private records alone.

    >>> import torch
    >>> from secure_fd import Images, Schedule, models
    >>> network = models.build("cnn-5-5-50", 10, seed=0)
    >>> records = Images(torch.zeros(8, 1, 28, 28), torch.arange(8))
    >>> plan = Schedule(local_steps=2)
    >>> learner = Learner(network, records, plan, seed=0, device=torch.device("cpu"))
    >>> [steps.count for steps in learner.local()]
    [2]
    """

    def __init__(
        self,
        model: nn.Module,
        train: Images,
        schedule: Schedule,
        seed: int,
        device: torch.device,
        private: LocalTrainer | None = None,
    ) -> None:
        self.model, self.schedule, self.round, self.device = model, schedule, -1, device
        self._train, self._seed = train, seed
        self._view = view_named(schedule.augment)
        self.trainer = private or Trainer(model, train, schedule.sgd, seed, device, self._view)

    def warm_up(self) -> Iterator[Steps]:
        """Yield steps on private records before the first round.

        Clients of few classes take them without momentum: nothing would hold a network back.
        """
        if not self.schedule.warmup_steps:
            return
        sgd = self.schedule.sgd
        if effective_classes(self._train) < _FEW_CLASSES:
            sgd = replace(sgd, momentum=0.0)
        seed = self._seed + _WARM_UP
        trainer = Trainer(self.model, self._train, sgd, seed, self.device, self._view)
        for count, rate in self.schedule.warmup_rates:
            yield Steps(trainer, count, rate)

    def local(self, count: int | None = None, targets: Tensor | None = None) -> Iterator[Steps]:
        """Yield steps on private records at this round's rate; by default those of the schedule."""
        steps = self.schedule.local_steps if count is None else count
        if steps:
            yield Steps(self.trainer, steps, self.schedule.rate(self.round), targets=targets)

    def distil(self, pixels: Tensor, targets: Tensor) -> Iterator[Steps]:
        """Yield the round's steps towards targets [m, C] at pixels [m, ...]; none where m = 0."""
        for count, rate in self.schedule.rates(self.round, self.schedule.proxy_steps):
            if len(pixels):
                yield Steps(self.trainer, count, rate, pixels, targets)


_USEFUL = 0.25
"""Share of a class at a client, against that among all records, from which on it is useful."""


def classes_held(parts: Sequence[Images], n_classes: int) -> float:
    """Return how many classes a client holds, mean over clients with these records.

    A client of which each class is at least a quarter as large a share as among all records holds
    n_classes, however uneven these shares are. Any other holds its `effective_classes`.
    """
    counts = np.stack([np.bincount(part.labels.cpu(), minlength=n_classes) for part in parts])
    shares, pooled = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    useful = (counts > 0) & (shares >= _USEFUL * pooled)
    held = [
        float(n_classes) if every else effective_classes(part)
        for part, every in zip(parts, useful.all(axis=1), strict=True)
    ]
    return float(np.mean(held))


def effective_classes(images: Images) -> float:
    """Return how many classes of equal size would be as varied; a few strays make no class."""
    shares = torch.bincount(images.labels).double() / len(images)
    return float(1 / shares.square().sum())
