"""DP-SGD at the price it says: calibration, clipping, noise and sampling."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secure_fd.data.images import Images
from secure_fd.errors import BudgetError, ConfigurationError
from secure_fd.privacy import dp_sgd
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD, TrainingPlan
from secure_fd.privacy.samplers import FloatGaussian, Random, SeededRandom
from secure_fd.training.dp_sgd import PrivateGradient, PrivateTrainer
from secure_fd.training.models import flatten
from secure_fd.training.trainer import accuracy
from tests.toy import network, toy

CPU = torch.device("cpu")
SETTINGS = PrivateSGD(epsilon=4.0, delta=1e-5, steps=30, batch=16)

given_noise = pytest.mark.usefixtures("uncalibrated")
"""For tests that do not ask what the noise is worth: finding it takes a second or two."""


@pytest.fixture
def uncalibrated(monkeypatch):
    monkeypatch.setattr(dp_sgd, "calibrate", lambda _epsilon, _delta, _plan: 1.1)


def private(
    data: Images | None = None, random: Random = os.urandom, **changes: float
) -> PrivateTrainer:
    settings = replace(SETTINGS, **changes)
    records = data or toy()
    return PrivateTrainer(network(), records, PrivateBudget(settings, len(records), random), CPU)


def noiseless(made: PrivateTrainer) -> PrivateTrainer:
    """The twin without noise: sampling and clipping alone."""
    made.budget.noise = 0.0
    return made


def test_the_guarantee_is_that_of_the_calibration():
    made = private()
    claim = made.budget.guarantee()
    assert claim.holds
    assert claim.epsilon == 4.0
    assert claim.delta == pytest.approx(1e-5)
    assert claim.delta >= 1e-5
    assert made.budget.noise == calibrate(4.0, 1e-5, TrainingPlan(100, 16, 30))
    assert "30 steps at sampling rate 0.16" in claim.accountant


@given_noise
def test_steps_beyond_the_planned_ones_are_refused():
    made = private(steps=3)
    made.take_steps(3)
    with pytest.raises(BudgetError, match="planned for 3 steps"):
        made.take_steps(1)
    assert made.budget.guarantee().holds


def batches(made: PrivateTrainer, steps: int) -> list[Tensor]:
    """The records drawn in each of these steps, which add no noise."""
    seen: list[Tensor] = []
    noiseless(made)._gradient._wrapped.register_forward_pre_hook(
        lambda _module, given: seen.append(given[0])
    )
    made.take_steps(steps)
    return seen


@given_noise
def test_batches_and_noise_differ_between_runs():
    """Batches that a seed repeats would undo the amplification that the accountant grants."""
    one, other = ([x.numpy().tobytes() for x in batches(private(), 3)] for _ in range(2))
    assert one != other
    runs = [private(), private()]
    for made in runs:
        made.budget.rate = 0.0  # noise alone
        made.take_steps(1)
    assert not torch.equal(*(flatten(r.model) for r in runs))


@given_noise
def test_keys_that_agree_in_32_bits_give_other_noise():
    """torch keeps 32 bits of a seed, which can be searched; every bit of this key must count."""
    keys = (bytes(28) + bytes([1, 2, 3, 4]), bytes([1]) + bytes(27) + bytes([1, 2, 3, 4]))
    drawn = [FloatGaussian(lambda size, key=key: key[:size]).normal(100) for key in keys]
    assert not np.array_equal(*drawn)
    assert len(np.intersect1d(*drawn)) == 0


@given_noise
def test_a_seeded_key_voids_the_guarantee():
    made = private(random=SeededRandom(1))
    made.take_steps(1)
    assert not made.budget.guarantee().holds
    assert made.budget.guarantee().unmet == ("the noise was drawn from a seeded generator",)


def updates(made: PrivateTrainer, count: int) -> Tensor:
    """[count, parameters] one step's update each, from the same starting point."""
    start, rows = flatten(made.model), []
    for _ in range(count):
        before = flatten(made.model)
        made.take_steps(1)
        rows.append(flatten(made.model) - before)
    assert not torch.equal(start, flatten(made.model))
    return torch.stack(rows)


@given_noise
def test_noise_has_the_calibrated_size():
    """On records that give no gradient an update is noise: lr z clip / batch an entry.

    154 parameters, 60 steps: 9,240 draws estimate the deviation to 0.74 %, and five times that
    is allowed: false alarm below one in a million, and z off by a tenth is always seen.
    """
    made = private(steps=60, learning_rate=0.1, clip=0.5)
    for parameter in made.model.parameters():
        parameter.data.zero_()
    made._train = Images(torch.zeros(100, 1, 4, 4), torch.arange(100) % 2)
    made.budget.rate = 0.0  # nobody is drawn: all 60 batches are empty, and all must carry noise
    drawn = updates(made, 60)
    expected = 0.1 * made.budget.noise * 0.5 / 16
    assert drawn.numel() == 9240
    assert float(drawn.std()) == pytest.approx(expected, rel=0.037)
    assert abs(float(drawn.mean())) < 5 * expected / math.sqrt(9240)


@given_noise
def test_an_empty_batch_is_a_step_of_noise():
    """With one record and a rate of 1/100 nearly all batches are empty."""
    made = private(data=toy(100), batch=1)
    drawn = updates(made, 30)
    assert (drawn.abs().sum(dim=1) > 0).all()
    assert torch.isfinite(drawn).all()
    assert made.budget.guarantee().holds
    twin = noiseless(private(data=toy(100), batch=1))
    still = updates(twin, 30).abs().sum(dim=1) == 0
    assert 3 < int(still.sum()) < 25  # (1 - 1/100)^100 = 0.37 of them, so 11 +- 2.6


@given_noise
def test_batches_are_poisson_samples():
    """Sizes of 200 batches at rate 0.16 of 100: mean 16, variance 13.4; shuffling has none."""
    sizes = [len(drawn) for drawn in batches(private(steps=200), 200)]
    assert len(sizes) == 200
    assert abs(np.mean(sizes) - 16) < 5 * math.sqrt(13.44 / 200)
    assert 8 < np.var(sizes) < 20


@given_noise
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_an_absurd_record_moves_an_update_by_at_most_its_clip(size):
    """Adding a record moves the noiseless sum of gradients by at most clip, the update by lr/16."""
    base = toy(20)
    absurd = Images(size * torch.ones(1, 1, 4, 4), torch.tensor([1]))
    joined = Images(
        torch.cat([base.pixels, absurd.pixels]), torch.cat([base.labels, absurd.labels])
    )

    def update(data: Images, clip: float) -> Tensor:
        made = noiseless(private(data=data, clip=clip, learning_rate=1.0))
        made.budget.rate = 1.0  # everyone is drawn, so that only the record differs
        made._gradient._clipper.expected_batch_size = 16
        return updates(made, 1)[0]

    for clip in (0.1, 1.0):
        moved = float((update(joined, clip) - update(base, clip)).norm())
        assert moved <= clip / 16 * (1 + 1e-4)
        assert moved > 0.99 * clip / 16  # its gradient is far above the clip: it moves by all of it
    # Without clipping the same record moves the update without bound.
    assert float((update(joined, 1e12) - update(base, 1e12)).norm()) > 10 / 16


@given_noise
def test_a_record_that_overflows_moves_nothing(monkeypatch):
    """A server that chooses the weights could make one record's gradient NaN, and so the model."""
    base = toy(20)
    dark = torch.zeros(20, 1, 4, 4)
    dark[..., 1:, :] = base.pixels[..., 1:, :]  # nobody lights the first row but the target
    target = torch.ones(1, 1, 4, 4)
    data = Images(torch.cat([dark, target]), torch.cat([base.labels, torch.tensor([1])]))

    def stepped(held: Images) -> Tensor:
        made = noiseless(private(data=held))
        made.budget.rate = 1.0
        with torch.no_grad():
            made.model[1].weight[:, :4] = 3e38
        made.take_steps(1)
        return flatten(made.model)

    without = stepped(Images(dark, base.labels))
    assert torch.allclose(stepped(data), without, atol=1e-6)
    monkeypatch.setattr(PrivateGradient, "_drop_what_is_not_finite", lambda _: None)
    assert not stepped(data).isfinite().all()  # the twin that clips alone shows who was there


@given_noise
@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(16),
        nn.BatchNorm1d(16, affine=False),
        nn.BatchNorm1d(16, affine=False, track_running_stats=False),
        nn.InstanceNorm1d(16, track_running_stats=True),
    ],
)
def test_layers_that_mix_records_are_refused(layer):
    mixing = nn.Sequential(nn.Flatten(), layer, nn.Linear(16, 2))
    with pytest.raises(ConfigurationError, match=r"Norm1d 1. is not allowed; use layers"):
        PrivateTrainer(mixing, toy(), PrivateBudget(SETTINGS, len(toy())), CPU)


@given_noise
def test_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    private().take_steps(3)
    assert torch.equal(before, torch.get_rng_state())


def test_private_training_learns_at_epsilon_4():
    made = private(data=toy(1000), batch=100, learning_rate=1.0)
    made.take_steps(30)
    assert accuracy(made.model, toy(seed=1)) > 0.9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("epsilon", value) for value in (0.0, -1.0, math.inf, math.nan)),
        *(("delta", 0.0), ("delta", 1.0), ("steps", 0), ("batch", 0)),
        *(("clip", 0.0), ("clip", math.inf), ("learning_rate", -0.1)),
    ],
)
def test_private_settings_are_checked(field, value):
    with pytest.raises(ConfigurationError, match=f"^{field}: ") as caught:
        replace(SETTINGS, **{field: value})
    assert caught.value.field == field
