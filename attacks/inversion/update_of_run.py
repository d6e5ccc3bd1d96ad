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

from attacks.core.base import AttackResult, Effort, Images, Labelled, substream
from attacks.core.images import psnr
from attacks.core.run import Attack, Run, attack_view, labelled
from attacks.core.scoring import result_of
from attacks.core.statistics import mean
from attacks.core.view import Public, View
from attacks.inversion.one_update import SetUp, behind, one_update
from attacks.inversion.update_inversion import by_column, closed_form, matched, without_access
from attacks.inversion.updates import MEAN_UPDATE, Updates, readable_updates
from secure_fd.data.federated import FederatedData
from secure_fd.errors import MissingCapabilityError

_ITERATIONS = 100
_SEARCHED, _READ_OFF = 8, 64
"""Images that an update is read as, by gradient matching and in closed form."""
_UPDATES = 4
"""Updates of one round that are read, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class UpdateOfRun(Attack[Images, Mapping[int, Labelled]]):
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
        """Return the figure on one step of a fully connected network, in clear."""
        clear = one_update(SetUp(), data, seed)
        return attack_view(cls(clear.public, 1, truth=clear.records), clear.view, seed).figure

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Read an update of the run; all training records of its client may be behind it."""
        run.view.require_any(*cls.needs)
        private = {k: labelled(client.train) for k, client in enumerate(run.data.clients)}
        least = min(len(own) for own in private.values())
        return cls(run.public, least, truth=behind(private), positive=run.shared(cls))

    def estimate(self, view: View, seed: int) -> Images:
        """Return several images an update; MissingCapabilityError where no update is readable."""
        view.require_any(*self.needs)
        newest = _first_readable(view)
        updates = readable_updates(newest, 1)
        try:
            return closed_form(self.public, _some(updates, min(_READ_OFF, self.records)))
        except MissingCapabilityError:  # the first layer is not fully connected
            searched = _some(updates, min(_SEARCHED, self.records))
            return matched(self.public, searched, _ITERATIONS, seed)

    def score(self, estimate: Images, seed: int) -> AttackResult:
        """Return the PSNR of the best reconstruction of each update, mean over updates."""
        groups = torch.unique(estimate.groups).tolist()
        truths = [self.truth[group] for group in groups]
        pairs = zip(groups, truths, strict=True)
        best = np.array([psnr(estimate.of(g).images, own.images).max() for g, own in pairs])
        result = result_of(
            self,
            estimate,
            mean(best, substream(seed, "updates")),
            without_access(
                self.public, truths, lambda made, own: psnr(torch.unique(made, dim=0), own).max()
            ),
            unit="dB",
            n_members=sum(map(len, truths)),
            values=len(best),
            details={},
            caveats=(),
        )
        return by_column(self.public, result)


def _first_readable(view: View) -> View:
    """The view up to the first round with readable uploads and a model before it.

    Without any, up to the second round, whose mean update is read: later ones show less, as the
    network fits its records already.
    """
    later = range(1, len(view.models))
    place = next((i for i in later if view.models[i].uploads), 1)
    return replace(view, models=view.models[: place + 1])


def _some(updates: Updates, count: int) -> Updates:
    """Return the first few updates, each read as the mean over `count` records."""
    kept = slice(_UPDATES)
    gradients, owners = updates.gradients[kept], updates.owners[kept]
    return replace(updates, gradients=gradients, owners=owners, records=count)
