"""One picture a client from its newest update, without a prior and without a public image.

Whatever a client trained on, its update is read as the gradient of a single image: the one that
pulls the network the same way. Where clients hold a class each, that is a picture of the class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from attacks.base import Attack, AttackResult, Images, substream
from attacks.inversion import InversionTruth, beyond_pixels, score_inversion
from attacks.updates import CLIENT_UPDATES, Recipe, Search, client_updates, infer_labels, search
from attacks.view import Capability, Public, View

_AS_ONE = Recipe(batch=1)
_SEARCH = Search(iterations=300, restarts=1)
_CAVEATS = (
    "a whole round's update is read as the gradient of one image: a picture of what a client "
    "holds, not of a record",
    "attack accuracy and D speak of classes, not of records",
)


@dataclass(frozen=True, slots=True, eq=False)
class UpdatePicture(Attack[Images, InversionTruth]):
    """Cosine matching of every client's newest update by one image, which starts from grey noise.

    controls: [c] images a class of attackers without access, as `ModelInversion` makes them.
    per_class: starts, each of which leaves an image. Source of the search: Geiping et al. 2020.
    """

    name = "update-picture"
    title = "A client's newest update as one picture"
    figure_name = "Δ PSNR"
    control_name = "Δ of the public-only target"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = CLIENT_UPDATES

    controls: Mapping[str, Images] = field(repr=False)
    per_class: int = 1
    settings: Search = _SEARCH

    def run(self, view: View, seed: int) -> Images:
        """Images of every client whose update can be read, by the class that the update names."""
        view.require_any(*self.needs)
        public, updates = _without_images(view.public), client_updates(view, _AS_ONE)
        named = infer_labels(public, updates, _AS_ONE.steps)
        starts = [substream(seed, f"picture {start}") for start in range(self.per_class)]
        found = [search(public, updates, named, _AS_ONE, self.settings, each) for each in starts]
        groups = named[:, 0].repeat(self.per_class)
        return Images(torch.cat(found)[:, 0], groups, target="newest update")

    def score(self, estimate: Images, truth: InversionTruth, seed: int) -> AttackResult:
        """Δ with its interval; A, A_H, D and attack accuracy beside the controls."""
        details = beyond_pixels("", estimate, truth)
        shown = {"attack": estimate, **self.controls}
        return score_inversion(self, estimate, truth, seed, self.controls, details, shown, _CAVEATS)


def _without_images(public: Public) -> Public:
    """The same shape, architecture and number of classes, but grey in place of every proxy."""
    return replace(public, proxies=torch.full_like(public.proxies, 0.5), labels=None)
