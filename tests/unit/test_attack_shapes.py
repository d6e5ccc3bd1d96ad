"""Colour images and feature vectors are attacked wherever an attack has no need of grey pixels."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from attacks.core.base import Labelled
from attacks.core.fit import Fit
from attacks.core.view import Capability, LabelOracle, Public, outsider_view, server_view
from attacks.inversion.gmi import InversionSettings as Search
from attacks.inversion.gmi import ModelInversion
from attacks.inversion.prior import PriorSettings, train_prior
from attacks.inversion.update_inversion import UpdateInversion
from attacks.membership.hop_skip_jump import HopSkipJump
from attacks.membership.label_only import LabelOnlyGap
from attacks.membership.label_shadows import ProbeSettings, ShadowedLabels
from attacks.membership.shadows import UploadLiRA
from secure_fd.errors import MissingCapabilityError
from secure_fd.protocol.transcript import ObservedRound, Transcript
from secure_fd.training.models import flatten
from tests.attack_games import perceptron

SHAPES = {"colour": (3, 16, 16), "vectors": (24,)}
every_shape = pytest.mark.parametrize("kind", SHAPES)
CLASSES = 3


def records(kind: str, count: int, seed: int) -> Labelled:
    """Vectors lie outside [0, 1] as well."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    shape = SHAPES[kind]
    shift = labels.view(-1, *[1] * len(shape)) / CLASSES
    if kind == "colour":
        return Labelled((shift + torch.rand(count, *shape, generator=random)) / 2, labels)
    return Labelled(3 * shift + torch.randn(count, *shape, generator=random), labels)


def network(kind: str, seed: int) -> nn.Module:
    return perceptron(int(np.prod(SHAPES[kind])), 32, CLASSES, seed)


def public(kind: str) -> Public:
    known = records(kind, 60, 0)
    return Public(known.images, 2, CLASSES, lambda seed: network(kind, seed), known.labels)


def one_step(kind: str) -> tuple[Transcript, Labelled]:
    """A round in which one client takes one step on one record."""
    record, model = records(kind, 1, 5), network(kind, 3)
    start = flatten(model).numpy()
    loss = cross_entropy(model(record.images), record.labels)
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    moved = start - 0.1 * torch.cat([slope.flatten() for slope in slopes]).numpy()
    history = Transcript(2)
    for index, (uploads, end) in enumerate(((None, start), ({0: moved}, moved))):
        history.add_parameters(ObservedRound(index, end, uploads))
    return history, record


@every_shape
def test_the_closed_form_needs_no_image_shape(kind):
    history, record = one_step(kind)
    attack = UpdateInversion(public(kind))
    found = attack.estimate(server_view(history, public(kind)), 0)
    torch.testing.assert_close(found.images, record.images, atol=1e-3, rtol=1e-3)
    seen = UploadLiRA(record, 0).observe(server_view(history, public(kind)), 0)
    assert seen.shape == (1,)


SETTINGS = ProbeSettings(
    rotation=1, sigmas=(0.3,), samples=2, boundary=HopSkipJump(budget=60), starts=10
)


@every_shape
def test_label_only_attacks_ask_colours_and_the_gap_asks_anything(kind):
    own = records(kind, 6, 2)
    oracle = LabelOracle(lambda images: torch.zeros(len(images), dtype=torch.int64), 10_000)
    view = outsider_view(public(kind), {Capability.QUERY_FINAL_MODEL: oracle})
    assert len(LabelOnlyGap(own).estimate(view, 0).values) == 6
    if kind == "vectors":
        with pytest.raises(MissingCapabilityError):
            ShadowedLabels.prepare(public(kind), own, 0, SETTINGS)
        return
    probes = ShadowedLabels.prepare(public(kind), own, 0, SETTINGS)
    assert probes.observe(view, 0).shape == (6, 4)


def test_a_prior_paints_in_colour_and_refuses_vectors():
    small = PriorSettings(latent=4, channels=2, steps=2, batch=8)
    trained = train_prior(public("colour").proxies, small, 0)
    assert trained.generator(torch.zeros(2, 4)).shape == (2, 3, 16, 16)
    attack = ModelInversion.prepare(
        public("colour"), trained, 0, Search(steps=2, restarts=1, per_class=1), Fit(epochs=1)
    )
    view = server_view(one_step("colour")[0], public("colour"))
    assert attack.estimate(view, 0).images.shape == (CLASSES, 3, 16, 16)
    with pytest.raises(MissingCapabilityError):
        train_prior(public("vectors").proxies, small, 0)
