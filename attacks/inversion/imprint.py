"""Imprint: a server that sends a model of its own reads single records off the masked sum.

The first layer that clients receive compares the record's mean pixel with many thresholds c_i. With
c_1 < c_2 < ... from public images, a record drives all neurons up to its own bin and none beyond.
All neurons feed the next layer alike, so a record adds the same d x to the gradient of each neuron
that it drives. Rows of neighbouring neurons then differ by the records of one bin alone, and if the
bin has one record, the ratio of weights to bias is that record. Masks hide whose it is and nothing
else, since the attack reads sums of gradients (Fowl, Geiping, Czaja, Goldblum and Goldstein,
"Robbing the Fed", ICLR 2022).

Every client receives the same bytes, so the running hash of broadcasts finds nothing wrong. No
client can distinguish a model that is the mean of all from one that is not.
"""

from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from attacks.core.base import Images
from attacks.core.fit import network
from attacks.core.run import Run, public_of
from attacks.core.view import Capability, Public, View
from attacks.inversion.one_update import Lie, SetUp, one_update
from attacks.inversion.update_inversion import UpdateInversion, closed_form, require_updates
from attacks.inversion.updates import FirstLayer, first_layer, invert_rows, mean_update, split_fixed
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.fedavg import model_bytes, read_model
from secure_fd.protocol.transcript import Float32Array
from secure_fd.training.models import flatten

_GAIN = 0.2
"""On the next layer, of each neuron: gradients stand clear of fixed point, and none saturates."""


def imprinted(public: Public, parameters: Float32Array) -> Float32Array:
    """[m] parameters with an imprint in their first two layers, and else as they are.

    Raises MissingCapabilityError where the architecture does not begin with a fully connected layer
    that another follows.
    """
    layer = first_layer(public)
    model = network(public, torch.from_numpy(parameters.copy()))
    fixed, _ = split_fixed(model)
    linear = [each for each in model.modules() if isinstance(each, nn.Linear)]
    if len(linear) < 2:
        raise MissingCapabilityError("missing a second fully connected layer")
    with torch.no_grad():
        seen = fixed(public.proxies).flatten(1).mean(dim=1)
        linear[0].weight.fill_(1 / linear[0].in_features)
        linear[0].bias.copy_(-cuts(seen, layer.outputs))
        linear[1].weight.fill_(_GAIN)
        linear[1].bias.zero_()
    return np.asarray(flatten(model).numpy())


def cuts(seen: Tensor, bins: int) -> Tensor:
    """[bins] rising thresholds, between which about equally many public values [P] lie.

    The first is so low that every record passes it.

    >>> [round(cut, 2) for cut in cuts(torch.tensor([0.0, 1.0, 2.0]), 3).tolist()]
    [-2.0, 0.67, 1.33]
    """
    seen = seen.double()
    found = torch.quantile(seen, torch.arange(bins, dtype=torch.float64) / bins)
    return torch.cat([2 * seen.min()[None] - seen.max()[None], found[1:]])


def lying(public: Public) -> Lie:
    """Return how a malicious server of FedAvg changes its message: it writes an imprint."""

    def lie(truth: bytes) -> bytes:
        return model_bytes(imprinted(public, read_model(truth, len(truth) // 4)))

    return lie


def invert_bins(layer: FirstLayer, gradient: Tensor, records: int) -> Tensor:
    """Images behind one flat gradient [m] at an imprint: a difference of rows is one bin."""
    rows = layer.rows(gradient)
    bins = torch.cat([rows[:-1] - rows[1:], rows[-1:]])
    return invert_rows(layer, bins, records)


class Imprint(UpdateInversion):
    """Reads the cohort's mean update at an imprint of the mean before, which all clients received.

    >>> Imprint.title
    "Imprint: records read off a sum, by a model of the server's own"
    """

    name = "imprint"
    title = "Imprint: records read off a sum, by a model of the server's own"
    needs = (frozenset({Capability.OWN_BROADCAST, Capability.GLOBAL_PARAMETERS}),)

    shown_in = ""
    set_up = SetUp(batch=8)

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Train the set-up with the run's protection, from an imprint."""
        require_updates(run)
        public_of(run.data).pixels()
        lie = lying(cls.set_up.public(run.data, len(run.data.clients)))
        masks = run.transcript.parameters[-1].uploads is None
        return cls.of(
            one_update(cls.set_up, run.data, run.seed, private=run.private, masks=masks, lie=lie)
        )

    def estimate(self, view: View, seed: int) -> Images:  # noqa: ARG002 - a closed form
        """One image a record of the cohort; whose it is, stays unknown."""
        view.require_any(*self.needs)
        start = imprinted(self.public, view.models[-2].result)
        found = closed_form(self.public, mean_update(view, self.batch, start), invert_bins)
        return replace(found, target=f"mean of {view.public.n_clients}", caveats=_CAVEATS)


_CAVEATS = (
    "the server sends all clients a model of its own, which costs that round's training",
    "finds records of the cohort; a match does not say whose they are",
)
