"""A generator for all clients and a discriminator of each, trained against each other (DaFKD).

Equation 13 of the supplement: every client's discriminator tells its records from generated ones,
and the generator is to deceive them all. At the optimum a discriminator outputs
f_k(x) = p_k(x) / (p_k(x) + p(x)), p the mean of the clients' densities (Theorem 1).

Where the supplement is silent:
- The generator's loss is the non-saturating one of Goodfellow et al. (2014), -log f, in the place
  of log(1 - f): the same fixed point, and a gradient where the discriminator is ahead.
- The generator is given a class beside its noise, and is taught to make what client k's classifier
  gives that class, weighted by f_k, as in FedGen (Zhu et al., 2021).
- Both learn by Adam with betas (.5, .999), as in DCGAN (Radford et al., 2016).
"""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError

_BETAS = (0.5, 0.999)


@dataclass(frozen=True, slots=True)
class AdversarialSettings:
    """latent: length of z. hidden, judge: widths of generator and discriminator.

    steps: of both, a round and client. class_weight: of the classifier's loss beside -log f.

    >>> AdversarialSettings(steps=5).latent
    32
    """

    latent: int = 32
    hidden: int = 256
    judge: int = 128
    steps: int = 20
    batch: int = 64
    rate: float = 1e-3
    class_weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("latent", "hidden", "judge", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "use 1 or more")
        for name, least in (("rate", "above 0"), ("class_weight", "of 0 or more")):
            value = getattr(self, name)
            if not 0 <= value < math.inf or (name == "rate" and value == 0):
                raise ConfigurationError(name, value, f"use a finite number {least}")


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
            nn.Linear(math.prod(shape), settings.judge),
            nn.LeakyReLU(0.2),
            nn.Linear(settings.judge, 1),
        )


class Adversary:
    """One client's discriminator, and its copy of the generator. A `LocalTrainer` of both.

    model: the generator, which the server's mean replaces every round. classifier: the client's,
    which is read and not trained here. seed: of discriminator, batches and noise.
    """

    def __init__(
        self,
        model: Generator,
        classifier: nn.Module,
        train: Images,
        settings: AdversarialSettings,
        seed: int,
        device: torch.device,
    ) -> None:
        self.model: nn.Module = model.to(device)
        self.settings, self.learning_rate = settings, settings.rate
        self.judge = discriminator(model.shape, settings, seed).to(device)
        self._generator, self._classifier = model, classifier
        self._train, self._device = train.to(device), device
        self._random = torch.Generator().manual_seed(seed)
        self._judges = torch.optim.Adam(self.judge.parameters(), settings.rate, _BETAS)
        self._makes = torch.optim.Adam(model.parameters(), settings.rate, _BETAS)

    def restart(self) -> None:
        """Forget the generator's moments: they were those of a generator that has been replaced."""
        self._makes.state.clear()

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
        """One step of each on one batch."""
        size = self.settings.batch
        drawn = torch.randint(len(self._train), (size,), generator=self._random)
        z, classes = (part.to(self._device) for part in self._generator.sample(size, self._random))
        made = self._generator(z, classes)
        self.judge_step(self._train.pixels[drawn.to(self._device)], made.detach())
        self._makes.zero_grad(set_to_none=True)
        self._deceive(made, classes).backward()  # type: ignore[no-untyped-call]
        self._makes.step()

    def judge_step(self, records: Tensor, made: Tensor) -> None:
        """One step of the discriminator: -log f(record) - log(1 - f(generated))."""
        loss = functional.softplus(-self.judge(records)).mean()
        loss = loss + functional.softplus(self.judge(made)).mean()
        self._judges.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._judges.step()

    def _deceive(self, made: Tensor, classes: Tensor) -> Tensor:
        """-log f, plus the weight times f CE(classifier(x), class)."""
        logits: Tensor = self.judge(made)[:, 0]
        loss = functional.softplus(-logits).mean()
        if not self.settings.class_weight:
            return loss
        taught = functional.cross_entropy(self._classifier(made), classes, reduction="none")
        weighted: Tensor = (logits.detach().sigmoid() * taught).mean()
        return loss + self.settings.class_weight * weighted

    @torch.no_grad()
    def weigh(self, x: Tensor) -> Tensor:
        """f_k(x), [n] in (0, 1)."""
        logits: Tensor = self.judge(x)[:, 0]
        return logits.sigmoid()
