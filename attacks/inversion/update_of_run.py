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

from attacks.core.base import POSITIVE, AttackResult, Effort, Images, substream
from attacks.core.images import psnr
from attacks.core.run import Attack, Run, attack_view, labelled, public_of
from attacks.core.statistics import mean
from attacks.core.view import Public, View
from attacks.inversion.one_update import SetUp, one_update
from attacks.inversion.update_truth import Behind
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
from attacks.inversion.updates_attack import closed_form, guess_owners
from secure_fd.data.federated import FederatedData
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
    default = True

    public: Public
    records: int

    @classmethod
    def for_data(cls, data: FederatedData, seed: int, effort: Effort = "full") -> float:  # noqa: ARG003 - one search
        """Return the figure on one step of a fully connected network, in clear.

        Raises:
            MissingCapabilityError: for records that are no images.
        """
        public_of(data).pixels()
        clear = one_update(SetUp(), data, seed)
        return attack_view(cls(clear.public, 1, truth=clear.records), clear.view, seed).figure

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Read an update of the run; all training records of its client may be behind it."""
        run.view.require_any(*cls.needs)
        private = {k: labelled(client.train) for k, client in enumerate(run.data.clients)}
        least = min(len(own) for own in private.values())
        return cls(run.public, least, truth=Behind(private, {}), positive=run.shared(cls))

    def estimate(self, view: View, seed: int) -> Images:
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

    def score(self, estimate: Images, seed: int) -> AttackResult:
        """Return the PSNR of the best reconstruction of each update, mean over updates."""
        groups = torch.unique(estimate.groups).tolist()
        behind = {group: self.truth.records(group) for group in groups}
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
                **({} if self.positive is None else {POSITIVE: self.positive}),
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
