"""Label-only membership, each candidate by shadow runs of its own: four probes as one score."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from torch import Tensor

from attacks.core.base import FloatArray, Labelled, substream
from attacks.core.view import Capability, Public, View
from attacks.membership.hop_skip_jump import HopSkipJump, boundary_distances
from attacks.membership.label_only import moved_copies, noisy_copies, share_right
from attacks.membership.shadows import ShadowAttack, discriminant


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Questions about a candidate.

    rotation: of moved copies, in degrees. sigmas: of noise, each with `samples`
    copies. boundary: of the distance. starts: public images that it starts from.

    >>> ProbeSettings().boundary.budget
    40
    """

    rotation: int = 9
    sigmas: tuple[float, ...] = (0.2, 0.3, 0.5)
    samples: int = 3
    boundary: HopSkipJump = field(
        default_factory=lambda: HopSkipJump(budget=40, evaluations=10, halvings=2)
    )
    starts: int = 200


QUICK = ProbeSettings(
    rotation=3,
    sigmas=(0.3,),
    samples=2,
    boundary=HopSkipJump(budget=25, evaluations=6, halvings=2),
    starts=60,
)
"""Half the queries: all four probes, the distance by one step."""


@dataclass(frozen=True, slots=True, eq=False)
class ShadowedLabels(ShadowAttack):
    """Four label-only probes (Choquette-Choo et al. 2021), calibrated on whole shadow runs.

    Any network gets some records wrong, and others right however they are moved. One threshold for
    all records takes the former for non-members and the latter for members. So each candidate is
    compared with its own answers in runs with it and without it, as in LiRA, and Fisher's
    discriminant weighs the probes: one direction for all candidates. starts: [S, C, H, W].

    >>> ShadowedLabels.name
    'label-only-shadows'
    """

    name = "label-only-shadows"
    title = "Label-only membership: calibrated per candidate"
    needs = (frozenset({Capability.QUERY_FINAL_MODEL, Capability.PUBLIC_PROXIES}),)
    judge = staticmethod(discriminant)

    settings: ProbeSettings = field(default_factory=ProbeSettings, kw_only=True)
    starts: Tensor = field(kw_only=True, repr=False)

    @classmethod
    def prepare(
        cls,
        public: Public,
        candidates: Labelled,
        client: int | None = None,
        settings: ProbeSettings | None = None,
    ) -> Self:
        """The attack on one client's candidates; distances start from the first proxies."""
        known = settings or ProbeSettings()
        starts = public.pixels()[: known.starts]
        return cls(candidates, client, settings=known, starts=starts)

    def observe(self, view: View, seed: int) -> FloatArray:
        """[N, 4] right or wrong, shares of copies that stay right, and the distance."""
        view.require_any(*self.needs)
        ask, records = view.oracle(Capability.QUERY_FINAL_MODEL), self.candidates
        known, own = self.settings, substream(seed, "noisy copies")
        images, labels = records.pixels(), records.labels
        right = (ask(images) == labels).double().numpy()
        copies = moved_copies(images, known.rotation)
        moved = share_right(ask, labels, [images, *copies])
        noise = [[images, *noisy_copies(images, s, known.samples, own)] for s in known.sigmas]
        noisy = np.mean([share_right(ask, labels, each) for each in noise], axis=0)
        walks = substream(seed, "walks")
        far = boundary_distances(ask, records, self.starts, known.boundary, walks)
        return np.stack([right, moved, noisy, far], axis=1)
