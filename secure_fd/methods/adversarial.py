"""A generator for all clients and a discriminator of each, trained against each other (DaFKD).

Equation 13 of the supplement: every client's discriminator tells its records from generated ones,
and the generator is to deceive them all. At the optimum a discriminator outputs
f_k(x) = p_k(x) / (p_k(x) + p(x)), p the mean of the clients' densities (Theorem 1).

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
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.dp_sgd import PrivateBudget
from secure_fd.training.dp_sgd import PrivateGradient
from secure_fd.training.models import Standardise
from secure_fd.training.trainer import LocalTrainer

BETAS = (0.5, 0.999)
_CENTRE: Final = 0.5
"""Of x in [0, 1]."""
_RATE: Final = 1e-3
"""Of both networks' Adam."""
_CLASS_WEIGHT: Final = 0.1
"""Of the classifier's loss beside the discriminator's."""
_BLUR: Final = 0.5
"""Deviation of the noise through which a discriminator sees x, in spreads."""


@dataclass(frozen=True, slots=True)
class AdversarialSettings:
    """latent: length of z. hidden, judge: widths of generator and discriminator.

    sums: of generators, a round. steps: of both, between two sums and at each client. spread:
    deviation of a typical entry of x, by which discriminators scale.

    >>> AdversarialSettings(steps=5).latent
    32
    """

    latent: int = 32
    hidden: int = 128
    judge: int = 256
    sums: int = 20
    steps: int = 20
    batch: int = 64
    spread: float = 0.3

    def __post_init__(self) -> None:
        for name in ("latent", "hidden", "judge", "sums", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "use 1 or more")
        if not 0 < self.spread < math.inf:
            raise ConfigurationError("spread", self.spread, "use a finite number above 0")


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


class Adversary(LocalTrainer):
    """One client's discriminator, and its copy of the generator.

    model: the generator, which the server's mean replaces after every sum. classifier: the
    client's, which is read and not trained here; None where classes mean nothing. seed: of
    discriminator, batches and noise. budget: where the discriminator is to learn by DP-SGD. Then
    nothing else reads a record, and classes are drawn as if the client held each of its own as
    often.
    """

    def __init__(
        self,
        model: Generator,
        classifier: nn.Module | None,
        train: Images,
        settings: AdversarialSettings,
        seed: int,
        device: torch.device,
        budget: PrivateBudget | None = None,
    ) -> None:
        self.model = model.to(device)
        self.settings, self.learning_rate = settings, _RATE
        self.judge = discriminator(model.shape, settings, seed).to(device)
        self._generator, self._classifier = model, classifier
        self._train, self._device = train.to(device), device
        self._random = torch.Generator().manual_seed(seed)
        self._judges = torch.optim.Adam(self.judge.parameters(), _RATE, BETAS, fused=True)
        self._makes = torch.optim.Adam(model.parameters(), _RATE, BETAS, fused=True)
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
        if self._classifier is not None:
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
            records = self._train.pixels[drawn.to(self._device)]
            judge_step(self.judge, self._judges, self._blur(records), self._blur(made))
            return
        self._private.fill(self._on_records)
        told: Tensor = functional.softplus(self.judge(self._blur(made))).mean()
        told.backward()  # type: ignore[no-untyped-call]
        self._judges.step()

    def _on_records(self, judge: nn.Module, batch: Images) -> Tensor:
        return functional.softplus(-judge(self._blur(batch.pixels))).sum()

    def _blur(self, x: Tensor) -> Tensor:
        """With the noise through which a discriminator sees it."""
        return x + _BLUR * self.settings.spread * torch.randn(x.shape, generator=self._random).to(
            x.device
        )

    def _deceive(self, made: Tensor, classes: Tensor) -> Tensor:
        """Log(1 - f), plus the weight times the classifier's cross-entropy with the class."""
        loss: Tensor = -functional.softplus(self.judge(self._blur(made))[:, 0]).mean()
        if self._classifier is None:
            return loss
        taught = functional.cross_entropy(self._classifier(made), classes)
        return loss + _CLASS_WEIGHT * taught

    @torch.no_grad()
    def weigh(self, x: Tensor) -> Tensor:
        """f_k(x), [n] in (0, 1)."""
        logits: Tensor = self.judge(x)[:, 0]
        return logits.sigmoid()
