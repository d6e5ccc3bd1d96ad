"""Generator of DaFKD and a discriminator for each client, trained against each other.

Equation 13 of the supplement: every client's discriminator separates its records from generated
ones, and the generator is to deceive them all. At the optimum a discriminator outputs
f_k(x) = p_k(x) / (p_k(x) + p(x)), p the mean of the clients' densities (Theorem 1).

Choices made here, as the supplement is silent:
- The generator receives a class beside its noise, and is trained to make images to which client k's
  classifier gives that class; client k draws classes as often as it holds them. Both as in FedGen
  (Zhu et al., 2021).
- A discriminator receives records and generated x with noise added, which keeps it from
  outrunning a generator that has few steps (Arjovsky and Bottou, 2017).
- Both are trained by Adam with betas (.5, .999), as in DCGAN (Radford et al., 2016).
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.dp_sgd import PrivateBudget
from secure_fd.training.dp_sgd import PrivateGradient
from secure_fd.training.models import Standardise
from secure_fd.training.trainer import LocalTrainer, network_device

BETAS = (0.5, 0.999)
_LATENT: Final = 32
"""Length of z."""
_BATCH: Final = 64
_CENTRE: Final = 0.5
"""Middle of x in [0, 1]."""
_RATE: Final = 1e-3
"""Learning rate of Adam for both networks."""
_CLASS_WEIGHT: Final = 0.1
"""Weight of the classifier's loss beside the discriminator's."""
_BLUR: Final = 0.5
"""Deviation of the noise that is added to x before a discriminator, in spreads."""


@dataclass(frozen=True, slots=True)
class AdversarialSettings:
    """Sizes of generator and discriminators, and their steps.

    Attributes:
        hidden: width of the generator's layers.
        discriminator: width of a discriminator's layer.
        sums: of generators, a round.
        steps: of both networks at each client, between two sums.
        spread: deviation of a typical entry of x, by which discriminators scale.
    """

    hidden: int = 128
    discriminator: int = 256
    sums: int = 20
    steps: int = 20
    spread: float = 0.3

    def __post_init__(self) -> None:
        for name in ("hidden", "discriminator", "sums", "steps"):
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
        self.shape, self.n_classes, self.latent = shape, n_classes, _LATENT
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Linear(_LATENT + n_classes, settings.hidden),
                nn.ReLU(),
                nn.Linear(settings.hidden, settings.hidden),
                nn.ReLU(),
                nn.Linear(settings.hidden, math.prod(shape)),
                nn.Sigmoid(),
            )

    def forward(self, z: Tensor, classes: Tensor) -> Tensor:
        """Generate x, on the device of the network."""
        asked = functional.one_hot(classes.to(z.device), self.n_classes).to(z.dtype)
        made: Tensor = self.layers(torch.cat([z, asked], dim=1).to(network_device(self)))
        return made.view(-1, *self.shape)

    def draw(self, count: int, seed: bytes, index: int) -> tuple[Tensor, Tensor]:
        """Draw z and classes of a round, the same for all parties that have the seed."""
        digest = hashlib.sha256(b"generated" + seed + index.to_bytes(8, "big")).digest()
        return self.sample(count, torch.Generator().manual_seed(int.from_bytes(digest[:7], "big")))

    def sample(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw standard normal z [count, latent], and classes [count], each equally likely."""
        z = torch.randn(count, self.latent, generator=random)
        return z, torch.randint(self.n_classes, (count,), generator=random)


def discriminator(shape: tuple[int, ...], settings: AdversarialSettings, seed: int) -> nn.Module:
    """Build a network x [n, *shape] in [0, 1] -> logits [n, 1] of "a record, not generated".

    >>> discriminator((4,), AdversarialSettings(), seed=0)(torch.zeros(2, 4)).shape
    torch.Size([2, 1])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            Standardise(_CENTRE, settings.spread),
            nn.Linear(math.prod(shape), settings.discriminator),
            nn.LeakyReLU(0.2),
            nn.Linear(settings.discriminator, 1),
        )


def discriminator_step(
    network: nn.Module, optimiser: torch.optim.Optimizer, records: Tensor, made: Tensor
) -> None:
    """Take a step down -log f(record) - log(1 - f(generated)), means over both (equation 13).

    >>> network = discriminator((4,), AdversarialSettings(), seed=0)
    >>> optimiser = torch.optim.SGD(network.parameters(), 0.1)
    >>> discriminator_step(network, optimiser, torch.ones(2, 4), torch.zeros(2, 4))
    >>> bool(network(torch.ones(1, 4)) > network(torch.zeros(1, 4)))
    True
    """
    loss = functional.softplus(-network(records)).mean() + functional.softplus(network(made)).mean()
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


class AdversarialTrainer(LocalTrainer):
    """One client's discriminator, and its copy of the generator.

    Args:
        generator: replaced by the server's mean after every sum. The discriminator is beside it.
        classifier: the client's, which is read and not trained here; None if classes mean nothing.
        train: the private records.
        settings: sizes of the discriminator.
        seed: of discriminator, batches and noise.
        budget: of DP-SGD for the discriminator. Then nothing else reads a record, and classes are
            drawn as if the client held each of its own as often.
    """

    def __init__(
        self,
        generator: Generator,
        classifier: nn.Module | None,
        train: Images,
        settings: AdversarialSettings,
        seed: int,
        budget: PrivateBudget | None = None,
    ) -> None:
        self.model, self.learning_rate = generator, _RATE
        device = network_device(generator)
        self.discriminator = discriminator(generator.shape, settings, seed).to(device)
        self._generator, self._classifier = generator, classifier
        self._train, self._device, self._blur = train.to(device), device, _BLUR * settings.spread
        self._random = torch.Generator().manual_seed(seed)
        self._discriminates, self._generates = (
            torch.optim.Adam(network.parameters(), _RATE, BETAS, fused=True)
            for network in (self.discriminator, generator)
        )
        held = torch.bincount(train.labels.cpu(), minlength=generator.n_classes).float()
        self._held = held if budget is None else (held > 0).float()
        self._private: PrivateGradient | None = None
        if budget is not None:
            self._private = PrivateGradient(self.discriminator, self._train, budget)

    def take_steps(
        self,
        count: int,
        pixels: Tensor | None = None,  # noqa: ARG002 - neither proxies
        targets: Tensor | None = None,  # noqa: ARG002 - nor labels are learnt
    ) -> None:
        """Take steps of the discriminator, and of the generator against it, in turns."""
        if self._classifier is not None:
            self._classifier.eval()
        for _ in range(count):
            with torch.no_grad():
                made = self._generator(*self._generator.sample(_BATCH, self._random))
            self._step_discriminator(made)
            self._step_generator()

    @torch.no_grad()
    def domain(self, x: Tensor) -> Tensor:
        """Return f_k(x), [n] in (0, 1)."""
        logits: Tensor = self.discriminator(x)[:, 0]
        return logits.sigmoid()

    def _blurred(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=self._random)
        return x + self._blur * noise.to(x.device)

    def _step_discriminator(self, made: Tensor) -> None:
        if self._private is None:
            drawn = torch.randint(len(self._train), (len(made),), generator=self._random)
            records = self._blurred(self._train.pixels[drawn.to(self._device)])
            made = self._blurred(made)
            discriminator_step(self.discriminator, self._discriminates, records, made)
            return
        self._private.fill(self._loss_on_records)
        loss: Tensor = functional.softplus(self.discriminator(self._blurred(made))).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self._discriminates.step()

    def _loss_on_records(self, network: nn.Module, batch: Images) -> Tensor:
        return functional.softplus(-network(self._blurred(batch.pixels))).sum()

    def _step_generator(self) -> None:
        """Step down log(1 - f), plus the weight times the classifier's cross-entropy."""
        z, _ = self._generator.sample(_BATCH, self._random)
        drawn = torch.multinomial(self._held, _BATCH, replacement=True, generator=self._random)
        made = self._generator(z, drawn)
        loss: Tensor = -functional.softplus(self.discriminator(self._blurred(made))[:, 0]).mean()
        if self._classifier is not None:
            known = functional.cross_entropy(self._classifier(made), drawn.to(self._device))
            loss = loss + _CLASS_WEIGHT * known
        parameters = list(self._generator.parameters())
        # Of the generator alone: discriminator and classifier are read, not trained.
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self._generates.step()
