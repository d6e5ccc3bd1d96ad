"""Audits of DP-SGD, on a network whose weights show the noisy sum of clipped gradients."""

import math
import os

import numpy as np
import torch
from scipy.stats import chi2, norm
from torch import nn

from attacks.audit.bounds import LARGEST, MISS, UNSEEN, Finding, Setting, epsilon_of, rounded_down
from attacks.audit.noise_level import judged
from secure_fd.data.images import Images
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD, TrainingPlan
from secure_fd.privacy.events import Gaussian, Repeated, SampledGaussian
from secure_fd.privacy.samplers import Random
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.votes.codec import FloatArray

_STEPS = 10
_SHARE = 10
"""A batch contains one record in this many, on average."""
_BRIGHT = 1e3
"""Value of a pixel whose gradient is far above the clip; the weights hardly move."""
_RATE = 1e-6
_PIXELS, _RECORDS, _CROWD = 50, 10, 4000
_RUNS = 100


def training_noise(setting: Setting) -> Finding:
    """Audit steps on black images, which move no weight: all that moves is noise."""
    pixels, labels = torch.zeros(_RECORDS, 1, 1, _PIXELS), torch.zeros(_RECORDS)
    claimed, plan, sums = _trained(pixels, labels, setting)
    return judged(sums.reshape(len(sums), -1), claimed, setting.delta, plan)


def training_batches(setting: Setting) -> Finding:
    """Audit steps on records that are all alike: each sum of clipped gradients is the batch's size.

    A Poisson sample of n records at rate q has a mean of n q and a variance of n q (1 - q). If it
    varies by less, records are not drawn apart from each other, and what sampling saves is not
    granted; if the mean is higher, more of them are drawn, or clipped too late.
    """
    pixels, labels = torch.full((_CROWD, 1, 1, 1), _BRIGHT), torch.ones(_CROWD)
    claimed, plan, sums = _trained(pixels, labels, setting)
    sizes = (sums[:, 0, 0] - sums[:, 1, 0]) / math.sqrt(2)  # along the records' one gradient
    rate, noise, count, part = plan.sample_rate, plan.noise, len(sizes), MISS / 2
    expected = plan.n_records * rate * (1 - rate)
    variance = expected + noise**2

    def price(q: float) -> float:
        event = Repeated(Gaussian(noise) if q == 1 else SampledGaussian(noise, q), plan.steps)
        return min(LARGEST, accountant_for(event).epsilon(event, setting.delta))

    most = float(((sizes - sizes.mean()) ** 2).sum() / chi2.ppf(part, count - 1))
    drawn = sizes.mean() - float(norm.isf(part)) * math.sqrt(variance / count)
    seen = float(chi2.ppf(part, count - 1) / chi2.isf(UNSEEN, count - 1)) * variance - noise**2
    share = math.sqrt(max(0.0, seen / expected))
    least_rate = float(np.clip(drawn / plan.n_records, 1e-9, 1.0))
    return Finding(
        claimed,
        setting.delta,
        bound=price(1.0) if most < variance else price(least_rate),
        ceiling=price(1.0) if share > 0 else 0.0,
        attack=f"a rate of at least {least_rate:.4f}, sizes with at most "
        f"{math.sqrt(most / variance):.3f} of the deviation of Poisson samples",
        trials=count,
        finds=f"sizes {rounded_down(share)}",
    )


def _trained(
    pixels: torch.Tensor, labels: torch.Tensor, setting: Setting
) -> tuple[float, TrainingPlan, FloatArray]:
    """Return the claim of a trainer, its plan, and [N, 2, pixels] noisy sums of all runs."""
    runs = range(setting.trials(_RUNS))
    sums = [_gradient_sums(_trainer(pixels, labels, setting, setting.random)) for _ in runs]
    budget = _trainer(pixels, labels, setting, os.urandom).budget
    plan = TrainingPlan(len(pixels), budget.settings.batch, _STEPS, noise=budget.noise)
    return epsilon_of(budget.guarantee()), plan, np.concatenate(sums)


def _trainer(
    pixels: torch.Tensor, labels: torch.Tensor, setting: Setting, random: Random
) -> PrivateTrainer:
    """Return the trainer of a network of two weights a pixel, without bias.

    A record's gradient has one direction: (1, -1) / sqrt 2 at the record's own pixel, with the sign
    of its label, clipped to norm one. So the weights before and after a step show that pixel's
    noisy sum of gradients.
    """
    linear = nn.Linear(pixels.shape[-1], 2, bias=False)
    nn.init.zeros_(linear.weight)
    batch = len(pixels) // _SHARE
    terms = PrivateSGD(setting.epsilon, setting.delta, _STEPS, learning_rate=_RATE, batch=batch)
    budget = PrivateBudget(terms, len(pixels), random)
    network, records = nn.Sequential(nn.Flatten(), linear), Images(pixels, labels.long())
    return PrivateTrainer(network, records, budget, torch.device("cpu"))


def _gradient_sums(trainer: PrivateTrainer) -> FloatArray:
    """Return [T, 2, pixels] each step's noisy sum of gradients of a run, in clips."""
    (weight,) = trainer.model.parameters()
    path = [weight.detach().double().numpy().copy()]
    for _ in range(_STEPS):
        trainer.take_steps(1)
        path.append(weight.detach().double().numpy().copy())
    batch = trainer.budget.settings.batch
    return np.asarray(np.diff(np.array(path), axis=0) * (-batch / _RATE))
