"""A generative prior of public images: the WGAN-GP of GMI (Zhang et al., CVPR 2020), scaled."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attacks.core.base import seeded, substream
from attacks.core.fit import on_device
from secure_fd.errors import ConfigurationError, MissingCapabilityError
from secure_fd.training.trainer import network_device

SMALLEST_SIDE = 16
"""Below it the critic's instance norm would act on single pixels."""


@dataclass(frozen=True, slots=True)
class PriorSettings:
    """Sizes and steps; the defaults take about half a minute on one core for 28 x 28 images.

    steps: of the generator, on batches drawn with replacement.
    """

    latent: int = 32
    channels: int = 12
    steps: int = 380
    critic_steps: int = 3
    batch: int = 32
    learning_rate: float = 1e-3
    penalty: float = 10.0


QUICK_PRIOR = PriorSettings(channels=8, steps=165, batch=16, learning_rate=2e-3)
"""About six seconds on one core: blurred, but digits."""
PUBLISHED_PRIOR = PriorSettings(
    latent=100, channels=64, steps=780, critic_steps=5, batch=64, learning_rate=2e-4
)
"""GMI's own; its 100 passes over half of MNIST-5k make 3,900 batches of the critic. A step of the
generator with its five of the critic takes about 1.8 s on one core."""


class Generator(nn.Module):
    """Latent codes [N, latent] -> images [N, C, side, side] in [0, 1].

    The architecture of GMI scaled by settings: a linear layer and three 5x5 stride-2
    deconvolutions with batch norm, sigmoid (Zhang et al., CVPR 2020, and the code published with
    it). GMI enlarges MNIST to 32 x 32, for which every side doubles; 28 x 28 starts from 4 x 4 as
    well.
    """

    def __init__(self, settings: PriorSettings, side: int, colours: int = 1) -> None:
        super().__init__()
        sides = _halvings(side)
        c = settings.channels
        self._shape = (4 * c, sides[3], sides[3])
        size = 4 * c * sides[3] ** 2
        self.project = nn.Sequential(
            nn.Linear(settings.latent, size, bias=False), nn.BatchNorm1d(size), nn.ReLU()
        )
        self.paint = nn.Sequential(
            _upscale(4 * c, 2 * c, sides[3], sides[2]),
            nn.BatchNorm2d(2 * c),
            nn.ReLU(),
            _upscale(2 * c, c, sides[2], sides[1]),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            _upscale(c, colours, sides[1], sides[0]),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Images of codes z."""
        images: Tensor = self.paint(self.project(z).view(-1, *self._shape))
        return images


class Critic(nn.Module):
    """Images [N, C, side, side] -> realism [N]; larger is more like the public images.

    Three 5x5 stride-2 convolutions, LeakyReLU(.2), instance norm on all but the first, and a layer
    over all that is left of the image, as GMI has them.
    """

    def __init__(self, settings: PriorSettings, side: int, colours: int = 1) -> None:
        super().__init__()
        c = settings.channels
        self.judge = nn.Sequential(
            nn.Conv2d(colours, c, 5, stride=2, padding=2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(c, 2 * c, 5, stride=2, padding=2),
            nn.InstanceNorm2d(2 * c, affine=True),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * c, 4 * c, 5, stride=2, padding=2),
            nn.InstanceNorm2d(4 * c, affine=True),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(4 * c * _halvings(side)[3] ** 2, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Realism of images."""
        realism: Tensor = self.judge(images)[:, 0]
        return realism


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """A trained generator and critic, frozen and in evaluation mode."""

    settings: PriorSettings
    generator: Generator = field(repr=False)
    critic: Critic = field(repr=False)


def train_prior(images: Tensor, settings: PriorSettings, seed: int) -> Prior:
    """Train on public images [N, C, side, side] in [0, 1] alone: WGAN-GP.

    Gradient penalty 10 and Adam betas (.5, .999) as in Gulrajani et al. 2017.
    MissingCapabilityError for feature vectors.
    """
    if images.ndim != 4:
        raise MissingCapabilityError("missing proxies that are images: feature vectors have none")
    side = images.shape[-1]
    if images.shape[2] != side or side < SMALLEST_SIDE:
        raise ConfigurationError(
            "proxies", tuple(images.shape), f"use square images of {SMALLEST_SIDE} pixels or more"
        )
    trainer = _Trainer(images, settings, seed)
    with on_device(trainer.generator, trainer.critic):
        for _ in range(settings.steps):
            for _ in range(settings.critic_steps):
                trainer.step_critic(trainer.batch())
            trainer.step_generator()
    for trained in (trainer.generator, trainer.critic):
        trained.zero_grad()
        trained.requires_grad_(False).eval()
    return Prior(settings, trainer.generator, trainer.critic)


class _Trainer:
    """The two optimisers and the one random stream of a training."""

    def __init__(self, images: Tensor, settings: PriorSettings, seed: int) -> None:
        colours, side = images.shape[1], images.shape[-1]
        generator = seeded(lambda: Generator(settings, side, colours), substream(seed, "generator"))
        critic = seeded(lambda: Critic(settings, side, colours), substream(seed, "critic"))
        self.generator, self.critic = generator, critic
        self._images = images
        self._settings = settings
        self._random = torch.Generator().manual_seed(substream(seed, "prior batches"))
        self._of_generator = _adam(generator, settings)
        self._of_critic = _adam(critic, settings)

    def batch(self) -> Tensor:
        """Indices of one batch, drawn with replacement."""
        size = (self._settings.batch,)
        return torch.randint(0, len(self._images), size, generator=self._random)

    def step_critic(self, picks: Tensor) -> None:
        """Raise realism of public images over generated ones, with slope one between them."""
        n = len(picks)
        real = self._images[picks].to(network_device(self.critic))
        with torch.no_grad():
            fake = self.generator(self._codes(n))
        judged = self.critic(torch.cat([fake, real]))
        loss = judged[:n].mean() - judged[n:].mean()
        share = torch.rand(n, 1, 1, 1, generator=self._random).to(real.device)
        loss = loss + self._settings.penalty * slope_penalty(self.critic, real, fake, share)
        self._of_critic.zero_grad()
        loss.backward()
        self._of_critic.step()

    def step_generator(self) -> None:
        """Raise realism of generated images."""
        self._of_generator.zero_grad()
        codes = self._codes(self._settings.batch)
        (-self.critic(self.generator(codes)).mean()).backward()
        self._of_generator.step()

    def _codes(self, n: int) -> Tensor:
        codes = torch.randn(n, self._settings.latent, generator=self._random)
        return codes.to(network_device(self.generator))


def slope_penalty(critic: nn.Module, real: Tensor, fake: Tensor, share: Tensor) -> Tensor:
    """Mean of (|slope| - 1)², at points `share` [n, 1, 1, 1] of the way from fake to real [n, ...].

    Eq. 3 of Gulrajani et al. 2017 without its factor; the slope is the critic's in the pixels.
    """
    between = (share * real + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return torch.square(torch.linalg.vector_norm(slope.flatten(1), dim=1) - 1).mean()


def _adam(model: nn.Module, settings: PriorSettings) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), settings.learning_rate, betas=(0.5, 0.999))


def _halvings(side: int) -> list[int]:
    """Image sides before each of three stride-2 convolutions, and after the last."""
    return [math.ceil(side / 2**halvings) for halvings in range(4)]


def _upscale(before: int, after: int, low: int, high: int) -> nn.ConvTranspose2d:
    """A 5x5 stride-2 deconvolution from side `low` to exactly side `high`."""
    extra = high - (2 * low - 1)
    return nn.ConvTranspose2d(before, after, 5, stride=2, padding=2, output_padding=extra)
