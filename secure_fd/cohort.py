"""Equal networks that train as one, each on a path of its own, and who runs which steps."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.batched import (
    architecture,
    batched_logits,
    pieces,
    stacked_parameters,
    tie,
)
from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray
from secure_fd.recipes import SGD, Schedule
from secure_fd.training import Learner, Lesson, LocalTrainer, Steps, Trainer, predict

_Batch = tuple[Tensor, Tensor]


def group(models: Sequence[nn.Module]) -> list[list[int]]:
    """Indices of the models that one `Cohort` can train together; one that it cannot is alone."""
    groups: dict[object, list[int]] = {}
    for index, model in enumerate(models):
        known = architecture(model)
        groups.setdefault(index if known is None else known, []).append(index)
    return list(groups.values())


class Cohort:
    """Trainers of equal networks; each takes the steps that it would take alone, within rounding.

    The parameters of the trainers' models, and their momentum, become views of the members' stacked
    ones; read or overwrite parameters at any time between calls. Models that cannot be batched, and
    all on a GPU, are trained one after another by their own trainer. Raises LocalError where models
    that can be batched differ in architecture.
    """

    def __init__(self, trainers: Sequence[Trainer], device: torch.device) -> None:
        self.models = [trainer.model for trainer in trainers]
        known = {architecture(model) for model in self.models}
        if len(known) > 1:
            raise LocalError("the models of a cohort must be of one architecture")
        self._trainers = list(trainers)
        self.learning_rate = trainers[0].settings.learning_rate
        self._momentum = trainers[0].settings.momentum
        together = device.type == "cpu" and None not in known
        self._stacked = stacked_parameters(self.models) if together else []
        self._velocity = [torch.zeros_like(parameter) for parameter in self._stacked]
        if together:
            self._share_velocity()
            _keep_freed_memory()

    def _share_velocity(self) -> None:
        """Take in the members' momentum, and make theirs views of the stacked one."""
        for member, trainer in enumerate(self._trainers):
            views = [stacked[member] for stacked in self._velocity]
            for view, own in zip(views, trainer.velocity, strict=True):
                if own is not None:
                    view.copy_(own)
            if self._momentum:
                trainer.bind_velocity(views)

    def local_steps(
        self, steps: int, present: Sequence[int], lessons: Sequence[Tensor] | None = None
    ) -> None:
        """SGD steps of the present members on their private records.

        lessons: by present member, [classes, classes] targets in the place of labels.
        """
        self._tie()
        given = [None] * len(present) if lessons is None else lessons
        for _ in range(steps):
            pairs = zip(present, given, strict=True)
            self._step(present, [self._trainers[k].local_batch(rows) for k, rows in pairs])

    def distillation_steps(
        self, taught: Sequence[tuple[Tensor, Tensor]], steps: int, present: Sequence[int]
    ) -> None:
        """SGD steps of the present members towards their targets [m, classes] at pixels [m, ...].

        taught: pixels and targets by present member; none may be empty.
        """
        self._tie()
        for _ in range(steps):
            pairs = zip(present, taught, strict=True)
            self._step(present, [self._trainers[k].distillation_batch(*own) for k, own in pairs])

    @torch.inference_mode()
    def predict(self, pixels: Tensor) -> list[FloatArray]:
        """Every member's softmax predictions [N, classes], as float64."""
        if not self._stacked:
            return [predict(model, pixels) for model in self.models]
        self._tie()
        parts = [
            batched_logits(self.models[0], self._stacked, part).softmax(dim=2)
            for part in pieces(pixels[None], len(self.models))
        ]
        return list(np.asarray(torch.cat(parts, dim=1).double().numpy()))

    def _tie(self) -> None:
        if not self._stacked:
            return
        if not all(p.requires_grad for model in self.models for p in model.parameters()):
            raise LocalError("a parameter was frozen after its cohort was made: freeze it before")
        tie(self.models, self._stacked)

    def _step(self, present: Sequence[int], batches: Sequence[_Batch]) -> None:
        if self._stacked and present:
            self._step_together(present, batches)
            return
        for k, batch in zip(present, batches, strict=True):
            self._trainers[k].learning_rate = self.learning_rate
            self._trainers[k].step(*batch)

    def _step_together(self, present: Sequence[int], batches: Sequence[_Batch]) -> None:
        everyone = list(present) == list(range(len(self.models)))
        chosen = torch.tensor(present)
        weights = self._stacked if everyone else [p[chosen] for p in self._stacked]
        for index, gradient in enumerate(self._gradients(weights, batches)):
            step = self._with_momentum(index, chosen, gradient) if self._momentum else gradient
            self._stacked[index].index_add_(0, chosen, step, alpha=-self.learning_rate)

    def _with_momentum(self, index: int, chosen: Tensor, gradient: Tensor) -> Tensor:
        """Nesterov's step, in the form of torch.optim.SGD."""
        velocity = self._momentum * self._velocity[index][chosen] + gradient
        self._velocity[index][chosen] = velocity
        return gradient.add(velocity, alpha=self._momentum)

    def _gradients(self, parameters: list[Tensor], batches: Sequence[_Batch]) -> list[Tensor]:
        """Of each member's mean cross-entropy, in the shapes of the parameters."""
        pixels, targets = (_together(part) for part in zip(*batches, strict=True))
        members, size = len(batches), targets.shape[1]
        leaves = [parameter.detach().requires_grad_() for parameter in parameters]
        rest = targets.expand(members, *targets.shape[1:])
        for part in pieces(pixels, members):
            wanted, rest = rest[:, : part.shape[1]], rest[:, part.shape[1] :]
            logits = batched_logits(self.models[0], leaves, part).flatten(0, 1)
            loss = functional.cross_entropy(logits, wanted.flatten(0, 1), reduction="sum")
            (loss / size).backward()  # type: ignore[no-untyped-call]
        return [leaf.grad for leaf in leaves if leaf.grad is not None]


def _together(parts: Sequence[Tensor]) -> Tensor:
    """[M, ...] of members, or [1, ...] where one tensor serves all of them."""
    shared = all(part is parts[0] for part in parts)
    return parts[0].unsqueeze(0) if shared else torch.stack(list(parts))


def _keep_freed_memory() -> None:
    """Free one block of 28 MiB, after which glibc's allocator gives back only what is beyond 56.

    It gives back what is free beyond twice the largest block freed so far. Each step would have its
    pages handed back and faulted in again, which costs as much as the arithmetic.
    """
    torch.empty(7 * 2**20)


OnSteps = Callable[[int], None]
"""Progress callback: so many more steps are done; one step of each of three networks is three."""


class Alone:
    """Runs each client's training by itself, as on a machine of its own."""

    def __init__(self, on_steps: OnSteps | None = None) -> None:
        self._on_steps = on_steps or _ignore

    def __call__(self, jobs: Sequence[Steps]) -> None:
        """Run all of them, in order."""
        for job in jobs:
            job.run()
            self._on_steps(job.count)


class SideBySide:
    """Runs equal steps of equal networks as one; no record leaves its trainer.

    trainers: those that will train together over the whole run, present in each round or not.
    """

    def __init__(
        self,
        device: torch.device,
        trainers: Sequence[LocalTrainer] = (),
        on_steps: OnSteps | None = None,
    ) -> None:
        self._device = device
        self._on_steps = on_steps or _ignore
        self._places: dict[int, tuple[Cohort, int]] = {}
        self._known: list[LocalTrainer] = []  # keeps them alive, so that ids stay theirs
        self._join(trainers)

    def __call__(self, jobs: Sequence[Steps]) -> None:
        """Run all of them; what no cohort can take runs alone."""
        self._join([job.trainer for job in jobs if id(job.trainer) not in self._places])
        groups: dict[object, list[Steps]] = {}
        for job in jobs:
            found = self._places.get(id(job.trainer))
            kind = (job.lesson is None, job.targets is None)
            key = id(job) if found is None else (id(found[0]), job.count, job.rate, kind)
            groups.setdefault(key, []).append(job)
        for group_of_jobs in groups.values():
            self._run(group_of_jobs)

    def _join(self, trainers: Sequence[LocalTrainer]) -> None:
        """Make cohorts of those that are not in one yet."""
        plain = [t for t in trainers if isinstance(t, Trainer)]
        by_settings: dict[SGD, list[Trainer]] = {}
        for trainer in plain:
            by_settings.setdefault(trainer.settings, []).append(trainer)
        for alike in by_settings.values():
            for members in group([trainer.model for trainer in alike]):
                cohort = Cohort([alike[k] for k in members], self._device)
                for place, k in enumerate(members):
                    self._places[id(alike[k])] = cohort, place
        self._known.extend(trainers)

    def _run(self, jobs: Sequence[Steps]) -> None:
        first = jobs[0]
        if id(first.trainer) not in self._places:
            first.run()
        else:
            cohort = self._places[id(first.trainer)][0]
            cohort.learning_rate = first.rate
            ordered = sorted(jobs, key=lambda job: self._places[id(job.trainer)][1])
            places = [self._places[id(job.trainer)][1] for job in ordered]
            if first.lesson is None:
                rows = [job.targets for job in ordered if job.targets is not None]
                cohort.local_steps(first.count, places, rows or None)
            else:
                cohort.distillation_steps(_shared(ordered), first.count, places)
        self._on_steps(sum(job.count for job in jobs))


def _shared(jobs: Sequence[Steps]) -> list[tuple[Tensor, Tensor]]:
    """By job, pixels and targets of its lesson; equal lessons are one and the same tensors."""
    seen: list[tuple[Lesson, tuple[Tensor, Tensor]]] = []
    found = []
    for job in jobs:
        lesson = job.lesson
        if lesson is None:
            raise LocalError("these steps have no lesson")
        made = next((made for known, made in seen if known.same(lesson)), None)
        if made is None:
            made = lesson.pixels(), lesson.targets
            seen.append((lesson, made))
        found.append(made)
    return found


def warm_up(
    models: Sequence[nn.Module],
    train: Sequence[Images],
    schedule: Schedule,
    seeds: Sequence[int],
    device: torch.device,
    on_steps: OnSteps | None = None,
) -> None:
    """Train clients alone in place, equal networks side by side: see `Learner.warm_up`."""
    learners = [
        Learner(model, images, schedule, seed, device)
        for model, images, seed in zip(models, train, seeds, strict=True)
    ]
    run = SideBySide(device, on_steps=on_steps)
    for jobs in zip(*(learner.warm_up() for learner in learners), strict=True):
        run(jobs)


def _ignore(_: int) -> None:
    """No progress is shown."""
