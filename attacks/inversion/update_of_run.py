"""Inversion of one update of a run as it was trained: the schedule, records and noise of the run.

An update of a run mixes hundreds of records over several local steps. It is read as the gradient of
a few records: in closed form where the first layer is fully connected, else by gradient matching
with a small budget.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch

from attacks.core.base import AttackResult, Effort, Images, substream
from attacks.core.images import psnr
from attacks.core.run import Attack, Run, attack_view, labelled, public_of
from attacks.core.scoring import result_of
from attacks.core.statistics import mean
from attacks.core.view import Public, View
from attacks.inversion.one_update import Behind, SetUp, one_update
from attacks.inversion.update_inversion import closed_form, matched, without_access
from attacks.inversion.updates import MEAN_UPDATE, Updates, first_layer, readable_updates
from secure_fd.data.federated import FederatedData
from secure_fd.errors import MissingCapabilityError

_ITERATIONS = 100
_SEARCHED, _READ_OFF = 8, 64
"""Images that an update is read as, by gradient matching and in closed form."""
_UPDATES = 4
"""Updates of one round that are read, at most."""


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
    shown_in = "picture, dB: this run"

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
        return cls(run.public, least, truth=Behind(private), positive=run.shared(cls))

    def estimate(self, view: View, seed: int) -> Images:
        """Return several images an update; MissingCapabilityError where no update is readable."""
        view.require_any(*self.needs)
        newest = _first_readable(view)
        try:
            first_layer(self.public)
        except MissingCapabilityError:
            updates = _some(readable_updates(newest, 1), min(_SEARCHED, self.records))
            return matched(self.public, updates, _ITERATIONS, seed)
        updates = _some(readable_updates(newest, 1), min(_READ_OFF, self.records))
        return closed_form(self.public, updates)

    def score(self, estimate: Images, seed: int) -> AttackResult:
        """Return the PSNR of the best reconstruction of each update, mean over updates."""
        groups = torch.unique(estimate.groups).tolist()
        behind = {group: self.truth.records(group) for group in groups}
        best = np.array([psnr(estimate.of(g).images, behind[g].images).max() for g in groups])
        blind: dict[str, list[float]] = {}
        for own in behind.values():
            for name, made in without_access(self.public, torch.unique(own.labels)).items():
                blind.setdefault(name, []).append(float(psnr(made, own.images).max()))
        counts = [len(own) for own in behind.values()]
        return result_of(
            self,
            estimate,
            mean(best, substream(seed, "updates")),
            max(float(np.mean(values)) for values in blind.values()),
            unit="dB",
            n_members=sum(counts),
            details={
                "updates": float(len(groups)),
                "images_of_an_update": len(estimate.images) / len(groups),
                "records_of_an_update": float(np.mean(counts)),
            },
            caveats=(),
        )


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
    gradients, clients = updates.gradients[kept], updates.clients[kept]
    return replace(updates, gradients=gradients, clients=clients, records=count)
