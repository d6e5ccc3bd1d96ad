"""Membership of records in the training set of the generator that all parties hold.

Membership, as in GAN-Leaks (Chen, Yu, Zhang and Fritz, CCS 2020): the nearer a candidate is to what
the generator makes, the likelier it is a member. Distances are Euclidean, to the nearest of many
samples (their full black-box attack), and from there to the nearest that a search in z finds (their
white-box one: whoever holds the parameters can). Their calibration takes off what makes a
candidate easy for any generator; here that is its distance to the nearest public record.

A generator of features never makes an image: candidates are then features, which any party computes
from an image by the public map.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from attacks.core.base import (
    AttackResult,
    BoolArray,
    FloatArray,
    Labelled,
    Scores,
    draw_challenge,
    match_classes,
    substream,
)
from attacks.core.run import REFERENCES, Attack, Run
from attacks.core.scoring import score_scores
from attacks.core.view import Capability, Public, View
from secure_fd.data import images as data
from secure_fd.errors import ConfigurationError
from secure_fd.methods.generator import AdversarialSettings, AdversarialTrainer, Generator
from secure_fd.training import models

NEEDS = (frozenset({Capability.HOLD_GENERATOR, Capability.PUBLIC_PROXIES}),)
LESSON, _QUICK_LESSON = 1000, 50
"""Steps of the generator of public records, whose discriminator starts as the clients' do."""
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
    AdversarialTrainer(made, None, every, settings, seed).take_steps(steps)
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
    generator of public records.
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

    @classmethod
    def prepare(
        cls,
        public: Public,
        candidates: Labelled,
        adversarial: AdversarialSettings,
        seed: int,
        search: Search | None = None,
        lesson: int = LESSON,
    ) -> Self:
        """Train the generator of public records, `lesson` steps, and score candidates by it."""
        chosen, own = search or Search(), candidates.images
        difficulty = nearest_public(public.proxies, own)
        other = public_generator(
            public.proxies, public.n_classes, adversarial, lesson, substream(seed, "public")
        )
        away = nearest_made(other, own, chosen, substream(seed, "control samples"))
        return cls(candidates, adversarial, chosen, difficulty, difficulty - away)

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Members and held-out records by class, as `REFERENCES` caps them."""
        run.view.require_any(*cls.needs)
        if run.adversarial is None:
            allowed = "give the settings of the method's generator"
            raise ConfigurationError("adversarial", None, allowed)
        sides = match_classes(run.members, run.held_out, run.seed, REFERENCES)
        challenge = draw_challenge(*sides, run.seed)
        lesson = _QUICK_LESSON if run.effort == "quick" else LESSON
        made = cls.prepare(
            run.public, challenge.candidates, run.adversarial, run.seed, lesson=lesson
        )
        return made.with_truth(challenge.is_member)

    def estimate(self, view: View, seed: int) -> Scores:
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

    def score(self, estimate: Scores, seed: int) -> AttackResult:
        """AUC; in the details that without calibration. truth: [N]."""
        truth = self.truth
        away = self.difficulty - estimate.values
        details = {"uncalibrated_auc": float(roc_auc_score(truth, -away))}
        return score_scores(self, estimate, truth, seed, details=details, caveats=_MEMBERSHIP)


_MEMBERSHIP = (
    "members of all clients together: the generator is a mean over clients",
    "the newest generator alone; clients are sent one after every sum",
)
