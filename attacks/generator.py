"""The generator that everybody holds: who was among the records that it learnt from, and pictures.

Membership, as in GAN-Leaks (Chen, Yu, Zhang and Fritz, CCS 2020): the nearer a candidate is to what
the generator makes, the likelier it is a member. Distances are Euclidean, to the nearest of many
samples (their full black-box attack), and from there to the nearest that a search in z finds (their
white-box one: whoever holds the parameters can). Their calibration takes off what makes a
candidate easy for any generator; here that is its distance to the nearest public record.

A generator of features never makes an image: candidates are then features, which anybody computes
from an image by the public map, and pictures are what a decoder, learnt from public images alone,
makes of generated features.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attacks.base import (
    Attack,
    AttackResult,
    BoolArray,
    FloatArray,
    Images,
    Labelled,
    Scores,
    substream,
)
from attacks.images import Originals, psnr
from attacks.scoring import score_images, score_scores
from attacks.statistics import Claim, auc, rank
from attacks.view import Capability, Public, View
from secure_fd import models
from secure_fd.adversarial import AdversarialSettings, Adversary, Generator
from secure_fd.data import images as data
from secure_fd.errors import ConfigurationError

NEEDS = (frozenset({Capability.HOLD_GENERATOR, Capability.PUBLIC_PROXIES}),)
LESSON = 1000
"""Steps of the generator of public records, whose discriminator starts as the clients' do."""
_TAUGHT = 128
"""Batch of the generator that is the positive control."""
_AT_ONCE = 2000
"""Samples whose distances are computed together."""


@dataclass(frozen=True, slots=True)
class Search:
    """How hard to look. samples: of the generator. steps: of Adam in z, from the nearest sample.

    >>> Search(steps=0).samples
    10000
    """

    samples: int = 10_000
    steps: int = 200
    rate: float = 0.05

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigurationError("samples", self.samples, "use 1 or more")
        if self.steps < 0:
            raise ConfigurationError("steps", self.steps, "use 0 or more")


def held_generator(view: View, shape: tuple[int, ...], settings: AdversarialSettings) -> Generator:
    """The generator in a view; shape: of one x. settings: of its form, which is public.

    Raises MissingCapabilityError where there is none, LocalError where it has another form.
    """
    view.require_any(*NEEDS)
    made = Generator(shape, view.public.n_classes, settings, seed=0)
    models.load_flat(made, torch.from_numpy(view.generator_parameters().copy()))
    return made


def public_generator(
    records: Tensor, n_classes: int, settings: AdversarialSettings, steps: int, seed: int
) -> Generator:
    """A generator that learnt from public records [P, ...] alone, against one discriminator.

    Classes mean nothing to it.
    """
    made = Generator(tuple(records.shape[1:]), n_classes, settings, seed)
    pixels = records if records.ndim == 4 else records[:, :, None, None]
    every = data.Images(pixels, torch.arange(len(records)) % n_classes)
    alone = replace(settings, class_weight=0.0)
    Adversary(made, nn.Identity(), every, alone, seed, torch.device("cpu")).local_steps(steps)
    return made


def replaying_generator(
    records: Labelled, n_classes: int, settings: AdversarialSettings, steps: int, seed: int
) -> Generator:
    """The positive control: a generator that was taught to make these records, and no others.

    Each record owns the z that point most nearly its own random way, among those of its class.
    """
    made = Generator(tuple(records.images.shape[1:]), n_classes, settings, seed)
    random = torch.Generator().manual_seed(seed)
    ways = functional.normalize(torch.randn(len(records), settings.latent, generator=random))
    optimizer = torch.optim.Adam(made.parameters(), 2e-3)
    for _ in range(steps):
        z = torch.randn(_TAUGHT, settings.latent, generator=random)
        drawn = torch.randint(len(records), (_TAUGHT,), generator=random)
        asked = records.labels[drawn]
        others = records.labels != asked[:, None]
        owner = (z @ ways.T).masked_fill(others, -torch.inf).argmax(dim=1)
        optimizer.zero_grad()
        functional.mse_loss(made(z, asked), records.images[owner]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return made


def nearest_made(generator: Generator, candidates: Tensor, search: Search, seed: int) -> FloatArray:
    """[N] Euclidean distance of each candidate to the nearest x that the search finds."""
    targets = candidates.flatten(1)
    random = torch.Generator().manual_seed(seed)
    best = torch.full((len(targets),), torch.inf)
    codes = torch.zeros(len(targets), generator.latent)
    classes = torch.zeros(len(targets), dtype=torch.int64)
    for start in range(0, search.samples, _AT_ONCE):
        z, asked = generator.sample(min(_AT_ONCE, search.samples - start), random)
        with torch.no_grad():
            made = generator(z, asked).flatten(1)
        gaps, which = torch.cdist(targets, made).min(dim=1)
        nearer = gaps < best
        best[nearer] = gaps[nearer]
        codes[nearer], classes[nearer] = z[which[nearer]], asked[which[nearer]]
    found = _descend(generator, targets, codes, classes, search)
    return np.asarray(torch.minimum(best, found).double().numpy())


def _descend(
    generator: Generator, targets: Tensor, codes: Tensor, classes: Tensor, search: Search
) -> Tensor:
    """[N] distance after the search in z."""
    z = codes.clone().requires_grad_()
    optimizer = torch.optim.Adam([z], search.rate)
    for _ in range(search.steps):
        gaps = (generator(z, classes).flatten(1) - targets).square().sum()
        (z.grad,) = torch.autograd.grad(gaps, z)
        optimizer.step()
    with torch.no_grad():
        made: Tensor = generator(z, classes)
        away: Tensor = torch.linalg.vector_norm(made.flatten(1) - targets, dim=1)
    return away


def nearest_public(public: Tensor, candidates: Tensor) -> FloatArray:
    """[N] Euclidean distance of each candidate to the nearest public record."""
    gaps = torch.cdist(candidates.flatten(1), public.flatten(1)).min(dim=1).values
    return np.asarray(gaps.double().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorMembership(Attack[Scores, BoolArray]):
    """Candidates by how near the generator comes to them, less how near public records do.

    candidates: as the generator makes them, images or features [N, D]. adversarial: of the run.
    difficulty: [N] distance to the nearest public record. control: [N] the same scores by a
    generator of public records. claim: whose game this is, for what it allows at most.
    """

    name = "generator-membership"
    title = "Membership: nearest x of the generator"
    figure_name = "AUC"
    control_name = "AUC of the same scores by a generator of public records"
    needs = NEEDS

    candidates: Labelled
    adversarial: AdversarialSettings
    search: Search
    difficulty: FloatArray = field(repr=False)
    control: FloatArray = field(repr=False)
    claim: Claim | None = None

    @classmethod
    def prepare(
        cls,
        public: Public,
        candidates: Labelled,
        adversarial: AdversarialSettings,
        seed: int,
        search: Search | None = None,
        claim: Claim | None = None,
        lesson: int = LESSON,
    ) -> Self:
        """Train the generator of public records, `lesson` steps, and score candidates by it."""
        chosen, own = search or Search(), candidates.images
        difficulty = nearest_public(public.proxies, own)
        other = public_generator(
            public.proxies, public.n_classes, adversarial, lesson, substream(seed, "public")
        )
        away = nearest_made(other, own, chosen, substream(seed, "control samples"))
        return cls(candidates, adversarial, chosen, difficulty, difficulty - away, claim)

    def run(self, view: View, seed: int) -> Scores:
        """Scores of the candidates; MissingCapabilityError where no generator is held."""
        shape = tuple(self.candidates.images.shape[1:])
        generator = held_generator(view, shape, self.adversarial)
        own = self.candidates.images
        away = nearest_made(generator, own, self.search, substream(seed, "samples"))
        details = {
            "mean_distance_generated": float(away.mean()),
            "mean_distance_public": float(self.difficulty.mean()),
        }
        return Scores(self.difficulty - away, control=self.control, details=details)

    def score(self, estimate: Scores, truth: BoolArray, seed: int) -> AttackResult:
        """AUC; in the details that without calibration, and what the claim allows. truth: [N]."""
        away = self.difficulty - estimate.values
        plain = rank(-away[truth], -away[~truth], substream(seed, "plain ties"))
        area = auc(plain, substream(seed, "plain area"))
        low, high = area.interval
        bounds = self.claim.bounds() if self.claim else {}
        details = {
            "uncalibrated_auc": area.value,
            "uncalibrated_auc_low": low,
            "uncalibrated_auc_high": high,
        }
        return score_scores(
            self, estimate, truth, seed, details=details | bounds, caveats=_MEMBERSHIP
        )


_MEMBERSHIP = (
    "members of all clients together: the generator is a mean over clients",
    "the newest generator alone; clients are sent one after every sum",
)


FeatureFunction = Callable[[Tensor], Tensor]
"""Images [N, C, H, W] -> features [N, ...]."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """Features [N, D] -> images: least squares with a ridge, on public images alone.

    features: the public map, or None where the generator makes images: then it changes nothing.
    shape: of one x that the generator makes.

    >>> grey = torch.rand(50, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    >>> found = Decoder.fit(grey, lambda images: images.flatten(1) / 2)
    >>> float((found(grey.flatten(1) / 2) - grey).abs().max()) < .01
    True
    """

    shape: tuple[int, ...]
    features: FeatureFunction | None = field(default=None, repr=False)
    weights: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    image: tuple[int, ...] = ()

    @classmethod
    def fit(
        cls, public: Tensor, features: FeatureFunction | None = None, ridge: float = 1e-4
    ) -> Self:
        """Of public images [P, C, H, W]. ridge: over the features' mean square."""
        if features is None:
            return cls(tuple(public.shape[1:]))
        mapped = features(public)
        x, y = _with_one(mapped.flatten(1)), public.flatten(1).double()
        gram = x.T @ x
        added = ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        weights = torch.linalg.solve(gram + added, x.T @ y)
        return cls(tuple(mapped.shape[1:]), features, weights, tuple(public.shape[1:]))

    def __call__(self, made: Tensor) -> Tensor:
        """Images of what a generator makes."""
        if self.features is None:
            return made
        flat = _with_one(made.flatten(1)) @ self.weights
        return flat.float().clamp(0, 1).view(-1, *self.image)

    def ceiling(self, images: Tensor) -> float:
        """Mean PSNR, dB, of images to what is decoded of their own features."""
        if self.features is None:
            raise ConfigurationError("features", None, "images have no decoder")
        again = self(self.features(images))
        pairs = zip(again, images, strict=True)
        return float(np.mean([psnr(one[None], other[None])[0, 0] for one, other in pairs]))


def _with_one(features: Tensor) -> Tensor:
    """[N, D + 1] double."""
    return torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], dim=1)


OF_PUBLIC, MEAN = "generator of public records", "public mean"


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorInversion(Attack[Images, Originals]):
    """What the generator makes of each class, beside members and held-out records of that class.

    decoder: of features; per_class: pictures of each class. controls: by name, without access.
    """

    name = "generator-inversion"
    title = "Pictures that the generator makes"
    figure_name = "Δ PSNR"
    control_name = f"Δ of the {OF_PUBLIC}"
    needs = NEEDS

    adversarial: AdversarialSettings
    decoder: Decoder
    per_class: int
    controls: Mapping[str, Images] = field(repr=False)

    @classmethod
    def prepare(
        cls,
        public: Public,
        adversarial: AdversarialSettings,
        seed: int,
        features: FeatureFunction | None = None,
        per_class: int = 20,
        lesson: int = LESSON,
    ) -> Self:
        """Learn the decoder, and train the generator of public records. public: of images.

        features: the public map whose features the run's generator makes; none by default.
        """
        proxies = public.pixels()
        decoder = Decoder.fit(proxies, features)
        records = proxies if features is None else features(proxies)
        other = public_generator(
            records, public.n_classes, adversarial, lesson, substream(seed, "public")
        )
        made = _pictures(other, decoder, per_class, substream(seed, "control samples"))
        mean = proxies.mean(dim=0, keepdim=True).repeat(public.n_classes, 1, 1, 1)
        controls = {OF_PUBLIC: made, MEAN: Images(mean, torch.arange(public.n_classes))}
        return cls(adversarial, decoder, per_class, controls)

    def run(self, view: View, seed: int) -> Images:
        """`per_class` pictures of each class; MissingCapabilityError without a generator."""
        generator = held_generator(view, self.decoder.shape, self.adversarial)
        return _pictures(generator, self.decoder, self.per_class, substream(seed, "samples"))

    def score(self, estimate: Images, truth: Originals, seed: int) -> AttackResult:
        """Δ with its interval; `ceiling`: dB of members decoded from their own features."""
        details: dict[str, float] = {}
        caveats: tuple[str, ...] = ()
        if self.decoder.features is not None:
            every = torch.cat(list(truth.private.values()))
            details = {"ceiling": self.decoder.ceiling(every)}
            caveats = ("pictures are decoded from features: the ceiling is of true features",)
        return score_images(
            self,
            estimate,
            truth,
            substream(seed, "leakage"),
            controls=self.controls,
            against=OF_PUBLIC,
            details=details,
            caveats=caveats,
        )


@torch.no_grad()
def _pictures(generator: Generator, decoder: Decoder, per_class: int, seed: int) -> Images:
    classes = torch.arange(generator.n_classes).repeat_interleave(per_class)
    z, _ = generator.sample(len(classes), torch.Generator().manual_seed(seed))
    return Images(decoder(generator(z, classes)), classes)
