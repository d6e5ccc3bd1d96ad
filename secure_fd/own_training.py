"""How clients take steps where that is not the schedule's SGD: optimiser, loss, rate, precision.

Who trains so, and in whose batches, stays as the method has it. One pass over a copy of a network
finds what does not fit before anything trains.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.errors import ConfigurationError

Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimiser of a network's parameters, such as a partial of `torch.optim.AdamW`."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits [B, C] and targets, classes [B] or rows of the simplex [B, C], to one number."""
Scheduler = Callable[[Any], Any]
"""Makes one of `torch.optim.lr_scheduler` of an optimiser; it moves on with every step."""
Precision = Literal["float32", "mixed", "bfloat16"]
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Training:
    """What a client's steps are made of; what is None is as the schedule has it.

    optimiser: made anew for the warm-up, and kept over the rounds. scheduler: sets the rate of
    every step, in the place of the schedule's; it needs an optimiser. loss: also of what is taught,
    whose targets are rows of numbers that need not sum to 1 where rare classes weigh more.
    precision: "mixed" computes in bfloat16 on a GPU and in float32 elsewhere; parameters, losses
    and answers are float32 always.

    >>> from functools import partial
    >>> adam = partial(torch.optim.AdamW, lr=1e-3)
    >>> Training(optimiser=adam).precision
    'float32'
    """

    optimiser: Optimiser | None = None
    loss: Loss | None = None
    scheduler: Scheduler | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        for name in ("optimiser", "loss", "scheduler"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise ConfigurationError(name, given, "use a function that makes or measures it")
        if self.scheduler is not None and self.optimiser is None:
            raise ConfigurationError("scheduler", "alone", "it needs an optimiser of yours")
        if self.precision not in ("float32", "mixed", "bfloat16"):
            raise ConfigurationError("precision", self.precision, "use float32, mixed or bfloat16")

    @property
    def name(self) -> str:
        """What it is made of, by the names of its functions.

        >>> USUAL.name, Training(loss=functional.cross_entropy).name
        ('float32', 'loss cross_entropy, float32')
        """
        parts = ("optimiser", "scheduler", "loss")
        own = [f"{part} {_named(made)}" for part in parts if (made := getattr(self, part))]
        return ", ".join([*own, self.precision])

    def half(self, device: torch.device) -> bool:
        """Whether products are of bfloat16 on this device."""
        return self.precision == "bfloat16" or (self.precision == "mixed" and device.type == "cuda")

    def measured(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        return (self.loss or functional.cross_entropy)(logits.float(), targets)

    def check(self, network: nn.Module, pixels: Tensor, labels: Tensor, n_classes: int) -> None:
        """Take a step on a copy, about labels and about soft targets.

        Raises ConfigurationError, one sentence, where a part does not fit.
        """
        copy = deepcopy(network).train()
        shown, known = pixels[:_SHOWN], labels[:_SHOWN]
        device = next(copy.parameters()).device
        shown, known = shown.to(device), known.to(device)
        optimiser = self._made("optimiser", self.optimiser, copy.parameters())
        if not (optimiser is None or isinstance(optimiser, torch.optim.Optimizer)):
            allowed = "it must make a torch.optim.Optimizer"
            raise ConfigurationError("optimiser", type(optimiser).__name__, allowed)
        scheduler = self._made("scheduler", self.scheduler, optimiser)
        if scheduler is not None and not callable(getattr(scheduler, "step", None)):
            raise ConfigurationError("scheduler", type(scheduler).__name__, "it must have a step")
        soft = functional.one_hot(known, n_classes).float()
        for targets, kind in ((known, "classes"), (soft, "rows of the simplex")):
            self._check_loss(copy, shown, targets, kind)
        for part in (optimiser, scheduler):
            self._made("optimiser" if part is optimiser else "scheduler", _step_of, part)

    def _check_loss(self, network: nn.Module, shown: Tensor, targets: Tensor, kind: str) -> None:
        with torch.autocast(shown.device.type, torch.bfloat16, enabled=self.half(shown.device)):
            logits = network(shown)
        found = self._made("loss", lambda both: self.measured(*both), (logits, targets))
        if not isinstance(found, Tensor) or found.dim() != 0 or not found.requires_grad:
            allowed = f"of targets that are {kind} it must be one number with a gradient"
            raise ConfigurationError("loss", type(found).__name__, allowed)
        if not found.isfinite():
            raise ConfigurationError("loss", float(found), f"it must be finite of {kind}")
        found.backward()  # type: ignore[no-untyped-call]

    def _made(self, name: str, make: Callable[[Any], Any] | None, given: object) -> Any:  # noqa: ANN401 - of each part its own
        if make is None or given is None:
            return None
        try:
            return make(given)
        except Exception as error:  # whatever a function of one's own may raise
            said = (str(error).splitlines() or [type(error).__name__])[0][:90]
            raise ConfigurationError(name, _named(getattr(self, name)), f"it fails: {said}") from (
                error
            )


def _step_of(part: Any) -> None:  # noqa: ANN401 - an optimiser or a scheduler
    part.step()


def _named(made: object) -> str:
    """A function as one knows it; a partial by what it is of."""
    of = getattr(made, "func", made)
    return str(getattr(of, "__name__", type(of).__name__))


USUAL = Training()
"""Nothing of one's own."""
