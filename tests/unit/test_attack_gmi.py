"""GMI as published: its sizes, its gradient penalty and its search, against independent forms."""

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacks.core.base import Images, Labelled, seeded
from attacks.core.images import compare
from attacks.inversion.gmi import InversionSettings, InversionTruth, invert
from attacks.inversion.prior import Prior


def toy() -> tuple[Prior, nn.Module]:
    """Smooth networks of a few weights, whose gradients differ from code to code."""
    paint = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)), 0)
    judge = seeded(lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), 1)
    target = seeded(lambda: nn.Linear(4, 2), 2)
    for network in (paint, judge, target):
        network.double().requires_grad_(False)
    settings = SimpleNamespace(latent=3)
    return Prior(settings, paint, judge), target


def published_search(made: Prior, target: nn.Module, z: Tensor, labels: Tensor) -> Tensor:
    """The update as the published code writes it: velocity, look-ahead, clamp.

    Its loss is the mean over three classes, so three times the rate makes the same step.
    """
    velocity = torch.zeros_like(z)
    for _ in range(40):
        z = z.detach().requires_grad_()
        images = made.generator(z)
        loss = -made.critic(images).mean() + 100 * cross_entropy(target(images), labels)
        (gradient,) = torch.autograd.grad(loss, z)
        before, velocity = velocity, 0.9 * velocity - 3 * 2e-3 * gradient
        z = torch.clamp(z.detach() - 0.9 * before + 1.9 * velocity, -1, 1)
    return z


def codes(n: int, seed: int) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)).clamp(-1, 1).double()


def test_the_search_is_the_published_one(monkeypatch):
    made, target = toy()
    classes, restarts = torch.tensor([0, 1, 1]), 5
    start = codes(len(classes) * restarts, 7)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: start)
    settings = InversionSettings(steps=40, restarts=restarts, per_class=1)
    found = invert(target, made, classes, settings, seed=0)
    by_restart = start.view(len(classes), restarts, 3)
    ends = torch.stack(
        [published_search(made, target, by_restart[:, r], classes) for r in range(restarts)], dim=1
    )
    images = made.generator(ends)
    scores = torch.log_softmax(target(images), dim=2)
    best = torch.stack([scores[i, :, c].argmax() for i, c in enumerate(classes.tolist())])
    expected = images[torch.arange(len(classes)), best]
    torch.testing.assert_close(found.images, expected, rtol=1e-9, atol=1e-12)
    fewer = InversionSettings(steps=39, restarts=restarts, per_class=1)
    assert not torch.allclose(invert(target, made, classes, fewer, 0).images, expected)


def images_of(n: int, seed: int) -> Labelled:
    made = torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return Labelled(made, torch.arange(n) % 5 + 5)


def truth() -> InversionTruth:
    return InversionTruth(images_of(100, 0), images_of(100, 1), lambda x: torch.full((len(x),), 7))


def guess(per_class: int, seed: int) -> Images:
    made = images_of(5 * per_class, seed)
    return Images(made.images, made.labels)


def compared(found: Images, seed: int = 0) -> Mapping[str, float]:
    made = compare(found, truth(), seed)
    assert made is not None
    return made.details


def test_copies_leak_and_what_had_no_access_does_not():
    private = truth().private.take(torch.arange(20))
    copied = compared(Images(private.images, private.labels))
    assert copied["delta_low"] > 80
    assert copied["delta_p_value"] < 0.01
    # The twin: the same images, called held-out, and the same number made without access.
    theirs = truth().held_out.take(torch.arange(20))
    swapped = compared(Images(theirs.images, theirs.labels))
    assert swapped["delta_high"] < -80
    blind = [compared(guess(4, seed), seed) for seed in range(10, 50)]
    # Means of 40 fair p-values have deviation .046; P[Bin(40, .05) > 9] < 1e-4.
    assert np.mean([made["delta_p_value"] for made in blind]) == pytest.approx(0.5, abs=0.2)
    assert sum(made["delta_p_value"] <= 0.05 for made in blind) <= 9
    assert np.mean([made["delta"] for made in blind]) == pytest.approx(0.0, abs=0.05)
