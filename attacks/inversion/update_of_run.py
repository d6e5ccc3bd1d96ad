"""Inversion of one update of a run as it was trained: the schedule, records and noise of the run.

An update of a run mixes hundreds of records over several local steps. It is read as the gradient of
a few records: in closed form where the first layer is fully connected, else by gradient matching
with a small budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from attacks.core.base import Attack, AttackResult, Images, substream
from attacks.core.images import psnr
from attacks.core.statistics import mean
from attacks.core.view import Public, View
from attacks.inversion.updates import (
    MEAN_UPDATE,
    Recipe,
    Search,
    Updates,
    class_means,
    first_layer,
    infer_labels,
    readable_updates,
    search,
)
from attacks.inversion.updates_attack import Behind, closed_form, guess_owners
from secure_fd.errors import MissingCapabilityError

_SEARCH = Search(iterations=100, restarts=1)
_SEARCHED, _READ_OFF = 8, 64
"""Images that an update is read as, by gradient matching and in closed form."""
_UPDATES = 4
"""Updates of one round that are read, at most."""
_BLACK, _AVERAGE, _CLASSES = "black", "public mean", "public class mean"


@dataclass(frozen=True, slots=True, eq=False)
class UpdateOfRun(Attack[Images, Behind]):
    """Read the first update that is readable beside the model that it started from.

    records: of each client, which is public.

    >>> UpdateOfRun.title
    'Inversion of an update of this run'
    """

    name = "update-of-run"
    title = "Inversion of an update of this run"
    figure_name = "PSNR"
    control_name = "best image without an update: black, public mean, or mean of a true class"
    needs: ClassVar = (MEAN_UPDATE,)

    public: Public
    records: int

    @classmethod
    def prepare(cls, public: Public, records: int) -> Self:
        """Raise MissingCapabilityError for records that are no images."""
        public.pixels()
        return cls(public, records)

    def run(self, view: View, seed: int) -> Images:
        """Return several images an update; MissingCapabilityError where no update is readable."""
        view.require_any(*self.needs)
        newest = _first_readable(view)
        try:
            first_layer(self.public)
        except MissingCapabilityError:
            count, dense = min(_SEARCHED, self.records), False
        else:
            count, dense = min(_READ_OFF, self.records), True
        updates = _some(readable_updates(newest, Recipe(count)), count)
        if dense:
            return closed_form(self.public, updates)
        labels = infer_labels(self.public, updates, steps=2)
        chance = substream(seed, "gradient matching")
        found = search(self.public, updates, labels, Recipe(count), _SEARCH, chance)
        return Images(found.flatten(0, 1), guess_owners(updates))

    def score(self, estimate: Images, truth: Behind, seed: int) -> AttackResult:
        """Return the PSNR of the best reconstruction of each update, mean over updates."""
        groups = torch.unique(estimate.groups).tolist()
        behind = {group: truth.records(group) for group in groups}
        best = np.array([psnr(estimate.of(g).images, behind[g].images).max() for g in groups])
        controls = [self._without_access(behind[g].labels, behind[g].images) for g in groups]
        blind = {name: float(np.mean([one[name] for one in controls])) for name in controls[0]}
        figure = mean(best, substream(seed, "updates"))
        counts = [len(own) for own in behind.values()]
        return AttackResult(
            self.name,
            self.title,
            figure.value,
            self.figure_name,
            "dB",
            figure.interval,
            max(blind.values()),
            self.control_name,
            n_members=sum(counts),
            details={
                "A": figure.value,
                "best": float(best.max()),
                "updates": float(len(groups)),
                "images_of_an_update": len(estimate.images) / len(groups),
                "records_of_an_update": float(np.mean(counts)),
                **{f"{name}: A": value for name, value in blind.items()},
            },
            caveats=estimate.caveats,
        )

    def _without_access(self, labels: Tensor, private: Tensor) -> Mapping[str, float]:
        """The best PSNR of each guess that consults no update."""
        average, by_class = self.public.proxies.mean(dim=0), class_means(self.public)
        guesses = {
            _BLACK: torch.zeros_like(average)[None],
            _AVERAGE: average[None],
            _CLASSES: by_class[torch.unique(labels)],
        }
        return {name: float(psnr(made, private).max()) for name, made in guesses.items()}


def _first_readable(view: View) -> View:
    """The view up to the first round with readable uploads and a model before it.

    Without any, up to the second round, whose mean update is read: later ones show less, as the
    network fits its records already.
    """
    later = range(1, len(view.models))
    place = next((i for i in later if view.models[i].uploads), 1)
    return replace(view, models=view.models[: place + 1])


def _some(updates: Updates, count: int) -> Updates:
    """The first few updates, each read as so many records."""
    kept = slice(_UPDATES)
    return replace(
        updates,
        gradients=updates.gradients[kept],
        clients=updates.clients[kept],
        records=count,
    )
