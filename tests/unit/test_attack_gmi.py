"""GMI as published: its sizes, its gradient penalty and its search, against independent forms."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacks import inversion as gmi
from attacks import prior as priors
from attacks.base import Images, Labelled, seeded
from attacks.images import compare
from attacks.inversion import RAW_PSNR, InversionSettings, InversionTruth, invert, raw_psnr
from attacks.prior import Critic, Generator, Prior, PriorSettings, slope_penalty, train_prior
from secure_fd.errors import ConfigurationError


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layers(network: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [layer for layer in network.modules() if isinstance(layer, kind)]


@pytest.mark.parametrize("side", [28, 32])
def test_the_published_networks(side: int) -> None:
    """Linear 100 -> 256 x 4 x 4, then 128, 64, 1; critic 64, 128, 256, then 4 x 4 -> 1."""
    generator, critic = (
        Generator(priors.PUBLISHED_PRIOR, side),
        Critic(priors.PUBLISHED_PRIOR, side),
    )
    (project,) = layers(generator, nn.Linear)
    assert project.weight.shape == (256 * 4 * 4, 100)
    assert project.bias is None
    paint = layers(generator, nn.ConvTranspose2d)
    assert [tuple(p.weight.shape) for p in paint] == [
        (256, 128, 5, 5),
        (128, 64, 5, 5),
        (64, 1, 5, 5),
    ]
    assert all(p.stride == (2, 2) and p.padding == (2, 2) for p in paint)
    judge = layers(critic, nn.Conv2d)
    assert [c.out_channels for c in judge] == [64, 128, 256]
    assert all(c.kernel_size == (5, 5) and c.stride == (2, 2) for c in judge)
    # Not on the first layer; a 4 x 4 convolution without padding is the linear layer here.
    assert [n.num_features for n in layers(critic, nn.InstanceNorm2d)] == [128, 256]
    assert all(n.affine for n in layers(critic, nn.InstanceNorm2d))
    assert {r.negative_slope for r in layers(critic, nn.LeakyReLU)} == {0.2}
    assert layers(critic, nn.Linear)[0].weight.shape == (1, 256 * 4 * 4)
    made = generator.eval()(random(2, 100))
    assert made.shape == (2, 1, side, side)
    assert critic(made).shape == (2,)


def test_the_published_schedules() -> None:
    chosen = priors.PUBLISHED_PRIOR
    assert (chosen.batch, chosen.critic_steps, chosen.learning_rate) == (64, 5, 2e-4)
    assert (chosen.penalty, chosen.epochs) == (10.0, 100)
    assert chosen.critic_batches(30_596) == 100 * 478  # MNIST's digits 0-4
    assert chosen.critic_batches(40) == 100  # a set below a batch is one
    assert PriorSettings(steps=7, critic_steps=3).critic_batches(500) == 21
    search = gmi.PUBLISHED
    assert (search.steps, search.restarts, search.rate) == (1500, 5, 1e-2)
    assert (search.momentum, search.weight, search.averaged) == (0.9, 100.0, True)
    with pytest.raises(ConfigurationError, match=r"prior\.epochs"):
        PriorSettings(epochs=0)


def test_epochs_pass_over_every_image_and_train_every_fifth_batch() -> None:
    settings = PriorSettings(latent=4, channels=2, batch=4, critic_steps=5, epochs=5)
    images = torch.rand(10, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    trainer = priors._Trainer(images, settings, seed=1)
    stream = trainer.batches()
    first, second = next(stream), next(stream)
    assert len(torch.unique(torch.cat([first, second]))) == 8  # without replacement
    heard: list[float] = []
    made = train_prior(images, settings, 1, heard.append)
    assert heard == [0.5, 1.0]  # ten batches, two steps of the generator
    assert torch.equal(made.sample(3, 0), train_prior(images, settings, 1).sample(3, 0))


def test_the_penalty_of_a_linear_critic_is_closed() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(16, 1, bias=False), nn.Flatten(0))
    weight = linear[1].weight
    with torch.no_grad():
        weight.copy_(3.0 * weight / weight.norm())
    real, fake = random(5, 1, 4, 4, seed=1), random(5, 1, 4, 4, seed=2)
    share = torch.rand(5, 1, 1, 1, generator=torch.Generator().manual_seed(3))
    penalty = slope_penalty(linear, real, fake, share)
    assert penalty.item() == pytest.approx((3 - 1) ** 2, rel=1e-5)
    # d/dw (|w| - 1)^2 = 2 (|w| - 1) w / |w|: the penalty can be learnt from.
    penalty.backward()
    torch.testing.assert_close(weight.grad, 2 * 2 * weight.detach() / 3.0, rtol=1e-5, atol=1e-6)


def test_the_penalty_agrees_with_finite_differences() -> None:
    critic = seeded(lambda: Critic(PriorSettings(channels=2), 16), 0).double()
    real, fake = torch.rand(2, 1, 16, 16).double(), torch.rand(2, 1, 16, 16).double()
    share = torch.tensor([0.3, 0.8]).double().view(2, 1, 1, 1)
    between, step = share * real + (1 - share) * fake, 1e-6
    nudges = step * torch.eye(256).double().view(256, 1, 1, 16, 16)
    with torch.no_grad():
        rise = torch.stack([critic(between + n) - critic(between - n) for n in nudges])
    slopes = (rise / (2 * step)).norm(dim=0)
    expected = torch.square(slopes - 1).mean().item()
    assert slope_penalty(critic, real, fake, share).item() == pytest.approx(expected, rel=1e-4)


def toy() -> tuple[Prior, nn.Module]:
    """Smooth networks of a few weights, whose gradients differ from code to code."""
    paint = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)), 0)
    judge = seeded(lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), 1)
    target = seeded(lambda: nn.Linear(4, 2), 2)
    for network in (paint, judge, target):
        network.double().requires_grad_(False)
    settings = SimpleNamespace(latent=3)
    return Prior(settings, paint, judge), target  # type: ignore[arg-type]


def published_search(made: Prior, target: nn.Module, z: Tensor, labels: Tensor) -> Tensor:
    """The update as the published code writes it: velocity, look-ahead, clamp; a mean loss."""
    velocity = torch.zeros_like(z)
    for _ in range(40):
        z = z.detach().requires_grad_()
        images = made.generator(z)
        loss = -made.critic(images).mean() + 100 * cross_entropy(target(images), labels)
        (gradient,) = torch.autograd.grad(loss, z)
        before, velocity = velocity, 0.9 * velocity - 1e-2 * gradient
        z = torch.clamp(z.detach() - 0.9 * before + 1.9 * velocity, -1, 1)
    return z


def codes(n: int, seed: int) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)).clamp(-1, 1).double()


def test_the_search_is_the_published_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made, target = toy()
    classes, restarts = torch.tensor([0, 1, 1]), 5
    start = codes(len(classes) * restarts, 7)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: start)
    settings = InversionSettings(steps=40, restarts=restarts, per_class=1, rate=1e-2, averaged=True)
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
    # The twin: a summed loss takes three times the step, and ends elsewhere.
    summed = InversionSettings(steps=40, restarts=restarts, per_class=1, rate=1e-2)
    assert not torch.allclose(invert(target, made, classes, summed, 0).images, expected)
    third = InversionSettings(steps=40, restarts=restarts, per_class=1, rate=1e-2 / 3)
    torch.testing.assert_close(invert(target, made, classes, third, 0).images, expected)


def test_codes_stay_in_the_box() -> None:
    made, target = toy()
    seen: list[Tensor] = []
    made.generator.register_forward_hook(lambda _, given, __: seen.append(given[0].abs().max()))
    made.generator.float(), made.critic.float(), target.float()
    settings = InversionSettings(steps=20, restarts=2, per_class=1, rate=10.0)
    invert(target, made, torch.tensor([0, 1]), settings, 0)
    assert max(seen) == 1.0


def images_of(n: int, seed: int) -> Labelled:
    made = torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return Labelled(made, torch.arange(n) % 5 + 5)


def truth() -> InversionTruth:
    return InversionTruth(images_of(100, 0), images_of(100, 1), lambda x: torch.full((len(x),), 7))


def guess(per_class: int, seed: int) -> Images:
    made = images_of(5 * per_class, seed)
    return Images(made.images, made.labels)


def compared(found: Images, seed: int = 0) -> Mapping[str, float]:
    made = compare(found, truth().originals, seed)
    assert made is not None
    return made.details


def test_copies_leak_and_what_had_no_access_does_not() -> None:
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


def test_a_class_that_nobody_holds_is_no_leak() -> None:
    elsewhere = Images(guess(1, 0).images, torch.arange(5))
    assert compare(elsewhere, truth().originals, 0) is None
    both = Images(torch.cat([elsewhere.images, guess(1, 2).images]), torch.arange(10))
    told, same = compared(both), compared(guess(1, 2))
    assert {**told, "reconstructions": 5.0} == same


def test_raw_psnr_is_read_beside_a_control_that_beats_it() -> None:
    grey = torch.full((5, 1, 8, 8), 0.5)
    controls = {"grey": Images(grey, torch.arange(5, 10)), "noise": guess(2, 3)}
    result = raw_psnr(guess(3, 4), "a test", controls, truth(), 0)
    assert result.name == RAW_PSNR
    assert result.control_name == "PSNR of the grey"
    assert result.control > result.figure + 2  # blur wins, without any access
    low, high = result.interval
    assert low < result.figure < high
    assert result.details["A"] == result.figure > result.details["mean_psnr"]
    assert abs(result.details["grey: delta"]) < 0.3
    assert result.images is not None
    originals = result.images["originals"]
    known = {image.numpy().tobytes() for image in truth().private.images}
    assert originals.shape == (5, 8, 8)
    assert all(image.tobytes() in known for image in originals)
