"""A generator for all clients and a discriminator of each, trained against each other (DaFKD).

Equation 13 of the supplement: every client's discriminator tells its records from generated ones,
and the generator is to deceive them all. At the optimum a discriminator outputs
f_k(x) = p_k(x) / (p_k(x) + p(x)), p the mean of the clients' densities (Theorem 1); whether
the generator comes to p, experiments/dafkd_theory.py measures for each of the three losses.

Where the supplement is silent:
- The generator is given a class beside its noise, and is taught to make what client k's classifier
  gives that class; client k draws classes as often as it holds them. Both as in FedGen (Zhu et
  al., 2021).
- A discriminator sees records and generated x through noise of its own, which keeps it from
  outrunning a generator that has few steps (Arjovsky and Bottou, 2017).
- Both learn by Adam with betas (.5, .999), as in DCGAN (Radford et al., 2016).
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.models import Standardise
from secure_fd.private_training import PrivateBudget, PrivateGradient

BETAS = (0.5, 0.999)
_CENTRE: Final = 0.5
"""Of x in [0, 1]."""
_MOST_LOGIT: Final = 3.0
"""Where the density ratio ends, in the loss that is linear in it."""

Deceive = Literal["minimax", "non-saturating", "likelihood"]
LOSSES: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "minimax": lambda logits: -functional.softplus(logits),
    "non-saturating": lambda logits: functional.softplus(-logits),
    "likelihood": lambda logits: -logits.clamp(max=_MOST_LOGIT).exp(),
}
"""A generator's loss from the logits of f: log(1 - f) of equation 13, -log f of Goodfellow et al.
(2014), -f / (1 - f) of maximum likelihood (Goodfellow, 2014), the one that rests at p."""


@dataclass(frozen=True, slots=True)
class AdversarialSettings:
    """latent: length of z. hidden, judge: widths of generator and discriminator.

    sums: of generators, a round. steps: of both, between two sums and at each client. deceive: the
    generator's loss, log(1 - f) of equation 13 by default, -log f, or -f / (1 - f).
    class_weight: of the classifier's loss beside it. spread: deviation of a typical entry of x, by
    which discriminators scale. blur: deviation of their noise, in spreads. inertia: in [0, 1), of
    the generator that makes the distilled x: a mean over sums, each this much less than the next.

    >>> AdversarialSettings(steps=5).latent
    32
    """

    latent: int = 32
    hidden: int = 128
    judge: int = 256
    sums: int = 20
    steps: int = 20
    batch: int = 64
    rate: float = 1e-3
    deceive: Deceive = "minimax"
    class_weight: float = 0.1
    spread: float = 0.3
    blur: float = 0.5
    inertia: float = 0.9

    def __post_init__(self) -> None:
        for name in ("latent", "hidden", "judge", "sums", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "use 1 or more")
        for name, least in (
            ("rate", "above 0"),
            ("spread", "above 0"),
            ("class_weight", "of 0 or more"),
            ("blur", "of 0 or more"),
        ):
            value = getattr(self, name)
            if not 0 <= value < math.inf or (least == "above 0" and value == 0):
                raise ConfigurationError(name, value, f"use a finite number {least}")
        if not 0 <= self.inertia < 1:
            raise ConfigurationError("inertia", self.inertia, "use a number in [0, 1)")
        if self.deceive not in get_args(Deceive):
            allowed = f"use one of {', '.join(get_args(Deceive))}"
            raise ConfigurationError("deceive", self.deceive, allowed)


class Generator(nn.Module):
    """z [n, latent] and classes [n] -> x [n, *shape] in [0, 1], as records are.

    >>> made = Generator((1, 28, 28), 10, AdversarialSettings(), seed=0)
    >>> made(*made.draw(3, b"seed", 0)).shape
    torch.Size([3, 1, 28, 28])
    """

    def __init__(
        self, shape: tuple[int, ...], n_classes: int, settings: AdversarialSettings, seed: int
    ) -> None:
        super().__init__()
        self.shape, self.n_classes, self.latent = shape, n_classes, settings.latent
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Linear(settings.latent + n_classes, settings.hidden),
                nn.ReLU(),
                nn.Linear(settings.hidden, settings.hidden),
                nn.ReLU(),
                nn.Linear(settings.hidden, math.prod(shape)),
                nn.Sigmoid(),
            )

    def forward(self, z: Tensor, classes: Tensor) -> Tensor:
        """Generated x."""
        asked = functional.one_hot(classes, self.n_classes).to(z.dtype)
        made: Tensor = self.layers(torch.cat([z, asked], dim=1))
        return made.view(-1, *self.shape)

    def draw(self, count: int, seed: bytes, index: int) -> tuple[Tensor, Tensor]:
        """z and classes of round `index` that everybody who knows the seed draws alike."""
        digest = hashlib.sha256(b"generated" + seed + index.to_bytes(8, "big")).digest()
        return self.sample(count, torch.Generator().manual_seed(int.from_bytes(digest[:7], "big")))

    def sample(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal z [count, latent], and classes [count], each equally likely."""
        z = torch.randn(count, self.latent, generator=random)
        return z, torch.randint(self.n_classes, (count,), generator=random)


def discriminator(shape: tuple[int, ...], settings: AdversarialSettings, seed: int) -> nn.Module:
    """x [n, *shape] in [0, 1] -> logits [n, 1] of "a record, not generated".

    >>> discriminator((4,), AdversarialSettings(), seed=0)(torch.zeros(2, 4)).shape
    torch.Size([2, 1])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            Standardise(_CENTRE, settings.spread),
            nn.Linear(math.prod(shape), settings.judge),
            nn.LeakyReLU(0.2),
            nn.Linear(settings.judge, 1),
        )


def judge_loss(judge: nn.Module, records: Tensor, made: Tensor) -> Tensor:
    """-log f(record) - log(1 - f(generated)), means over both (equation 13).

    >>> judge_loss(nn.Identity(), torch.zeros(2), torch.zeros(3)).item().__round__(3)
    1.386
    """
    told: Tensor = functional.softplus(-judge(records)).mean()
    return told + functional.softplus(judge(made)).mean()


def judge_step(
    judge: nn.Module, optimiser: torch.optim.Optimizer, records: Tensor, made: Tensor
) -> None:
    """One step of a discriminator down `judge_loss`.

    >>> judge = discriminator((4,), AdversarialSettings(), seed=0)
    >>> optimiser = torch.optim.SGD(judge.parameters(), 0.1)
    >>> judge_step(judge, optimiser, torch.ones(2, 4), torch.zeros(2, 4))
    >>> bool(judge(torch.ones(1, 4)) > judge(torch.zeros(1, 4)))
    True
    """
    loss = judge_loss(judge, records, made)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


class Adversary:
    """One client's discriminator, and its copy of the generator. A `LocalTrainer` of both.

    model: the generator, which the server's mean replaces after every sum. classifier: the
    client's, which is read and not trained here. seed: of discriminator, batches and noise.
    budget: where the discriminator is to learn by DP-SGD. Then nothing else reads a record, and
    classes are drawn as if the client held each of its own as often.
    """

    def __init__(
        self,
        model: Generator,
        classifier: nn.Module,
        train: Images,
        settings: AdversarialSettings,
        seed: int,
        device: torch.device,
        budget: PrivateBudget | None = None,
    ) -> None:
        self.model: nn.Module = model.to(device)
        self.settings, self.learning_rate = settings, settings.rate
        self.judge = discriminator(model.shape, settings, seed).to(device)
        self._generator, self._classifier = model, classifier
        self._train, self._device = train.to(device), device
        self._random = torch.Generator().manual_seed(seed)
        self._judges = torch.optim.Adam(self.judge.parameters(), settings.rate, BETAS, fused=True)
        self._makes = torch.optim.Adam(model.parameters(), settings.rate, BETAS, fused=True)
        held = torch.bincount(train.labels.cpu(), minlength=model.n_classes).float()
        self._held = held if budget is None else (held > 0).float()
        self._private: PrivateGradient | None = None
        if budget is not None:
            self._private = PrivateGradient(self.judge, self._train, budget)

    def local_steps(self, steps: int, lessons: Tensor | None = None) -> None:
        """So many steps of the discriminator, and of the generator against it, in turns.

        Raises LocalError for lessons.
        """
        if lessons is not None:
            raise LocalError("a discriminator learns from records and generated samples alone")
        self._classifier.eval()
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """One step of the discriminator, against x of every class; one of the generator."""
        size, random = self.settings.batch, self._random
        with torch.no_grad():
            made = self._make(*self._generator.sample(size, random))
        self._judge(made)
        z, _ = self._generator.sample(size, random)
        classes = torch.multinomial(self._held, size, replacement=True, generator=random)
        loss = self._deceive(self._make(z, classes), classes.to(self._device))
        parameters = list(self._generator.parameters())
        # Of the generator alone: discriminator and classifier are read, not trained.
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            parameter.grad = gradient
        self._makes.step()

    def _make(self, z: Tensor, classes: Tensor) -> Tensor:
        made: Tensor = self._generator(z.to(self._device), classes.to(self._device))
        return made

    def _judge(self, made: Tensor) -> None:
        if self._private is None:
            size = len(made)
            drawn = torch.randint(len(self._train), (size,), generator=self._random)
            self.judge_step(self._train.pixels[drawn.to(self._device)], made)
            return
        self._private.fill(self._on_records)
        told: Tensor = functional.softplus(self.judge(self._blur(made))).mean()
        told.backward()  # type: ignore[no-untyped-call]
        self._judges.step()

    def _on_records(self, judge: nn.Module, batch: Images) -> Tensor:
        return functional.softplus(-judge(self._blur(batch.pixels))).sum()

    def judge_step(self, records: Tensor, made: Tensor) -> None:
        """One step of the discriminator: -log f(record) - log(1 - f(generated))."""
        judge_step(self.judge, self._judges, self._blur(records), self._blur(made))

    def _blur(self, x: Tensor) -> Tensor:
        """With the noise through which a discriminator sees it."""
        deviation = self.settings.blur * self.settings.spread
        if not deviation:
            return x
        return x + deviation * torch.randn(x.shape, generator=self._random).to(x.device)

    def _deceive(self, made: Tensor, classes: Tensor) -> Tensor:
        """The loss of f, plus the weight times the classifier's cross-entropy with the class."""
        loss = LOSSES[self.settings.deceive](self.judge(self._blur(made))[:, 0]).mean()
        if not self.settings.class_weight:
            return loss
        taught = functional.cross_entropy(self._classifier(made), classes)
        return loss + self.settings.class_weight * taught

    @torch.no_grad()
    def weigh(self, x: Tensor) -> Tensor:
        """f_k(x), [n] in (0, 1)."""
        logits: Tensor = self.judge(x)[:, 0]
        return logits.sigmoid()
