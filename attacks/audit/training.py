"""Audits of DP-SGD: white-box canaries that read every step, and the worst case for batches.

A network of two weights a pixel, without bias, turns a record into a gradient along one fixed
direction: (1, -1) / sqrt 2 at the record's own pixel, with the sign of its label, clipped to norm
one. Whoever sees the weights before and after a step reads that pixel's noisy sum of gradients.
"""

import math
import os

import numpy as np
import torch
from scipy.special import logsumexp
from torch import nn

from attacks.audit.bounds import (
    Finding,
    Kind,
    Worlds,
    by_inclusion,
    printed,
    prove_shaped,
    sampled_shape,
)
from attacks.audit.setting import Setting
from secure_fd.data.images import Images
from secure_fd.knowledge import FloatArray
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.plans import TrainingPlan
from secure_fd.privacy.samplers import Random
from secure_fd.privacy.units import PrivacyUnit
from secure_fd.private_training import PrivateSGD, PrivateTrainer

STEPS = 10
SAMPLED = "Gaussian steps on Poisson batches"
_SHARE = 10  # a batch expects one record in ten
_CANARIES, _RUNS = 1000, 20
_WORST_CASES = 1500
_RATE = 1e-6
_BRIGHT = 1e3  # a gradient is far above the clip, and the weights hardly move


def canaries(setting: Setting) -> Finding:
    """Records with a pixel of their own, each there by a coin, in runs of the real trainer."""
    runs = max(4, round(_RUNS * setting.size))
    scored = [_canary_run(setting) for _ in range(runs)]
    scores, included = (np.concatenate(part) for part in zip(*scored, strict=True))
    worlds = by_inclusion("likelihood", scores, included)
    return _found("canary gradients", _CANARIES, worlds, setting)


def background(setting: Setting) -> Finding:
    """One record against nine opposite ones, a batch of one: fixed batch sizes would show it."""
    worlds = Worlds(
        ("likelihood, batches of a fixed size", "sum"),
        _worst_cases(0.0, setting),
        _worst_cases(1.0, setting),
    )
    return _found("one against the rest", _SHARE, worlds, setting)


def _found(name: str, records: int, worlds: Worlds, setting: Setting) -> Finding:
    delta, miss = setting.delta, setting.miss
    proof, also = prove_shaped(worlds, sampled_shape(1 / _SHARE, STEPS, delta), delta, miss)
    trainer = _trainer(torch.zeros(records, 1, 1, 1), torch.zeros(records), setting, os.urandom)
    claimed = printed(trainer.guarantee()).epsilon
    title, unit = f"DP-SGD, {name}", PrivacyUnit.RECORD
    return Finding.of(proof, Kind.MECHANISM, unit, title, claimed, delta, miss, SAMPLED, also)


def _canary_run(setting: Setting) -> tuple[FloatArray, FloatArray]:
    """Scores and inclusion [m]: the likelihood ratio of every step's noisy gradient, added up."""
    included = setting.coins(_CANARIES)
    pixels = torch.from_numpy(np.diag(included) * _BRIGHT).float().reshape(-1, 1, 1, _CANARIES)
    trainer = _trainer(pixels, torch.ones(_CANARIES), setting, setting.random)
    noise = _noise(_CANARIES, setting)
    q = 1 / _SHARE
    seen = _steps(trainer, _CANARIES // _SHARE)
    return np.log1p(q * np.expm1((2 * seen - 1) / (2 * noise**2))).sum(axis=0), included


def _worst_cases(marked: float, setting: Setting) -> FloatArray:
    """[N, 2] statistics of N runs; the last record is marked: 1 is there, 0 zeroed out."""
    pixels = torch.full((_SHARE, 1, 1, 1), _BRIGHT)
    pixels[-1] *= marked
    labels = torch.zeros(_SHARE)
    labels[-1] = 1
    trainer = _trainer(pixels, labels, setting, setting.random)
    runs = [_steps(trainer, 1)[:, 0] for _ in range(setting.trials(_WORST_CASES))]
    return _looks(np.array(runs), _noise(_SHARE, setting))


def _noise(records: int, setting: Setting) -> float:
    plan = TrainingPlan(records, records // _SHARE, STEPS)
    return calibrate(setting.epsilon, setting.delta, plan)


def _looks(seen: FloatArray, noise: float) -> FloatArray:
    """[N, 2] of steps [N, T]: what tells most were every batch one record, and the plain sum.

    Each step is then -1, but for one: 1 where the marked record is there, 0 where it is not.
    """
    shift = (seen + 1) / noise**2
    there = logsumexp(2 * shift - 2 / noise**2, axis=1)
    zeroed = logsumexp(shift - 1 / (2 * noise**2), axis=1)
    return np.stack([there - zeroed, seen.sum(axis=1)], axis=1)


def _trainer(
    pixels: torch.Tensor, labels: torch.Tensor, setting: Setting, random: Random
) -> PrivateTrainer:
    linear = nn.Linear(pixels.shape[-1], 2, bias=False)
    nn.init.zeros_(linear.weight)
    terms = PrivateSGD(
        setting.epsilon, setting.delta, STEPS, learning_rate=_RATE, batch=len(pixels) // _SHARE
    )
    records = Images(pixels, labels.long())
    network = nn.Sequential(nn.Flatten(), linear)
    return PrivateTrainer(network, records, terms, torch.device("cpu"), random)


def _steps(trainer: PrivateTrainer, batch: int) -> FloatArray:
    """[T, pixels] one run from zero weights: each step's sum of gradients, in units of the clip."""
    (weight,) = trainer.model.parameters()
    with torch.no_grad():
        weight.zero_()
    path = [np.zeros(tuple(weight.shape))]
    for _ in range(STEPS):
        trainer.local_steps(1)
        path.append(weight.detach().double().numpy().copy())
    moved = np.diff(np.array(path), axis=0) * (-batch / _RATE)
    return np.asarray((moved[:, 0] - moved[:, 1]) / math.sqrt(2))
