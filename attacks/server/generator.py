"""Membership of records in the training set of the generator that all parties hold.

As in GAN-Leaks (Chen, Yu, Zhang and Fritz, CCS 2020): the nearer a candidate is to what the
generator makes, the likelier it is a member. Distances are Euclidean, to the nearest of many
samples (their full black-box attack), and from there to the nearest that a search in z finds (their
white-box one, for any party that holds the parameters). Their calibration subtracts what makes a
candidate easy for any generator; here that is its distance to the nearest public record.

A generator of features never makes an image: candidates are then features, which any party computes
from an image by the public map.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from attacks.core.base import FloatArray, Labelled, Scores, draw_challenge, match_classes, substream
from attacks.core.run import REFERENCES, Run
from attacks.core.scoring import MembershipAttack
from attacks.core.view import Capability, View
from secure_fd.errors import ConfigurationError
from secure_fd.methods.generator import AdversarialSettings, Generator
from secure_fd.training import models

_SAMPLES, _AT_ONCE = 10_000, 2000
"""Samples of the generator, and those whose distances are computed together."""
_STEPS, _RATE = 200, 0.05
"""Steps and rate of Adam in z, from the nearest sample."""
CAVEATS: Final = (
    "members of all clients together: the generator is a mean over clients",
    "the newest generator alone; clients are sent one after every sum",
)


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorMembership(MembershipAttack):
    """Candidates by how near the generator comes to them, less how near public records do.

    candidates: as the generator makes them, images or features [N, D]. adversarial: settings of the
    run's generator, which are public.
    """

    name = "generator-membership"
    title = "Membership: nearest x of the generator"
    needs = (frozenset({Capability.HOLD_GENERATOR, Capability.PUBLIC_PROXIES}),)

    candidates: Labelled
    adversarial: AdversarialSettings

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Members and held-out records by class, as `REFERENCES` caps them."""
        run.view.require_any(*cls.needs)
        if run.adversarial is None:
            allowed = "give the settings of the method's generator"
            raise ConfigurationError("adversarial", None, allowed)
        sides = match_classes(run.members, run.held_out, run.seed, REFERENCES)
        challenge = draw_challenge(*sides, run.seed)
        return cls(challenge.candidates, run.adversarial, truth=challenge.is_member)

    def estimate(self, view: View, seed: int) -> Scores:
        """Scores of the candidates.

        Raises:
            MissingCapabilityError: no generator is held.
            LocalError: it has another form than the settings.
        """
        view.require_any(*self.needs)
        own, public = self.candidates.images, view.public
        generator = Generator(tuple(own.shape[1:]), public.n_classes, self.adversarial, seed=0)
        models.load_flat(generator, torch.from_numpy(view.generator_parameters().copy()))
        away = nearest_made(generator, own, substream(seed, "samples"))
        known = torch.cdist(own.flatten(1), public.proxies.flatten(1)).min(dim=1).values
        return Scores(known.double().numpy() - away, caveats=CAVEATS)


def nearest_made(generator: Generator, candidates: Tensor, seed: int) -> FloatArray:
    """Return [N] Euclidean distance of each candidate to the nearest x that the search finds."""
    targets = candidates.flatten(1)
    random = torch.Generator().manual_seed(seed)
    best = torch.full((len(targets),), torch.inf)
    codes = torch.zeros(len(targets), generator.latent)
    classes = torch.zeros(len(targets), dtype=torch.int64)
    for _ in range(0, _SAMPLES, _AT_ONCE):
        z, asked = generator.sample(_AT_ONCE, random)
        with torch.no_grad():
            made = generator(z, asked).flatten(1)
        gaps, which = torch.cdist(targets, made).min(dim=1)
        nearer = gaps < best
        best[nearer] = gaps[nearer]
        codes[nearer], classes[nearer] = z[which[nearer]], asked[which[nearer]]
    found = _descended(generator, targets, codes, classes)
    return np.asarray(torch.minimum(best, found).double().numpy())


def _descended(generator: Generator, targets: Tensor, codes: Tensor, classes: Tensor) -> Tensor:
    """Return [N] distances after the search in z."""
    z = codes.clone().requires_grad_()
    optimizer = torch.optim.Adam([z], _RATE)
    for _ in range(_STEPS):
        gaps = (generator(z, classes).flatten(1) - targets).square().sum()
        (z.grad,) = torch.autograd.grad(gaps, z)
        optimizer.step()
    with torch.no_grad():
        made: Tensor = generator(z, classes)
        away: Tensor = torch.linalg.vector_norm(made.flatten(1) - targets, dim=1)
    return away
