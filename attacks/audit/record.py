"""Audits of the record unit: the one noisy release of class means, and the votes read off it."""

import os
import re
from dataclasses import replace
from functools import cache

import numpy as np

from attacks.audit.bounds import (
    Finding,
    Kind,
    Worlds,
    bold,
    by_inclusion,
    gaussian_shape,
    printed,
    prove,
    prove_one_run,
    prove_shaped,
)
from attacks.audit.setting import Setting, replaced
from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray
from secure_fd.privacy import release as record_release
from secure_fd.privacy.calibration import epsilon
from secure_fd.privacy.guarantees import record_guarantee
from secure_fd.privacy.plans import RecordPlan
from secure_fd.privacy.release import UNIT, NoisyClassMeans
from secure_fd.privacy.samplers import Random
from secure_fd.privacy.units import Guarantee, PrivacyUnit

KNOWN = 3
"""Records beside the audited one, all with the same feature: a wrong divisor moves them most."""
GAUSSIAN = "noise of Gaussian shape"
_UNIT = PrivacyUnit.RECORD
_RELEASES = 40_000
_CLASSES, _FEATURES = 200, 50


def mechanism(setting: Setting) -> Finding:
    """One record, opposite to all others, present or zeroed out, in the release itself."""
    worlds = Worlds(
        ("shift", "off the grid", "difference of two clients"),
        _observed(0.0, setting),
        _observed(-1.0, setting),
    )
    claimed = printed(_release(_rows(-1.0), setting).guarantee).epsilon
    return _finding("class means", claimed, setting, worlds)


def replace_one(setting: Setting) -> Finding:
    """One record replaced by its opposite, against what is printed for that relation."""
    worlds = Worlds(("shift",), _observed(1.0, setting)[:, :1], _observed(-1.0, setting)[:, :1])
    claim = printed(_release(_rows(1.0), setting).guarantee)
    return _finding("class means, replace-one", _replaced(claim), setting, worlds)


def _replaced(claim: Guarantee) -> float:
    """The epsilon that is printed for replace-one neighbours, read as a reader would."""
    found = re.search(r"for replace-one neighbours .* epsilon ([\d.,]+)$", "\n".join(claim.caveats))
    if found is None:
        raise LocalError("the claim names no epsilon for replace-one neighbours")
    return float(found[1].replace(",", ""))


def one_run(setting: Setting) -> Finding:
    """Thousands of records with features of their own, each there by a coin, in one release.

    Never fewer than a full audit has: fewer could not refute the claim, were all guesses right.
    """
    setting = replace(setting, size=max(1.0, setting.size))
    scores, included, noise = _canaries(setting)
    plan, delta = RecordPlan(n_records=len(scores), noise=noise), setting.one_run_delta
    claimed = epsilon(plan, delta)
    guesses = bold(len(scores), 1 / noise, delta, setting.miss, claimed)
    proof = prove_one_run(scores, included, guesses, delta, setting.miss)
    name = "canary features"
    return Finding.of(proof, Kind.ONE_RUN, _UNIT, name, claimed, delta, setting.miss)


def one_run_gaussian(setting: Setting) -> Finding:
    """The same canaries, each a trial of its own: right noise has each of them on its own."""
    scores, included, _ = _canaries(setting)
    delta, miss = setting.delta, setting.miss
    proof = prove(by_inclusion("score", scores, included), gaussian_shape(delta), miss)
    claimed = printed(_release(_rows(1.0), setting).guarantee).epsilon
    name = "canary features, each a trial"
    return Finding.of(proof, Kind.ONE_RUN, _UNIT, name, claimed, delta, miss, GAUSSIAN)


def _canaries(setting: Setting) -> tuple[FloatArray, FloatArray, float]:
    """Scores and inclusion [m] of canaries in one release, and its noise multiplier."""
    classes = max(4, round(_CLASSES * min(1.0, setting.size)))
    included = setting.coins(classes * _FEATURES)
    released = record_release.release_class_means(
        np.tile(np.eye(_FEATURES), (classes, 1)) * included[:, None],
        np.repeat(np.arange(classes), _FEATURES),
        classes,
        epsilon=setting.epsilon,
        delta=setting.delta,
        random=setting.random,
    )
    return released.means.ravel() * len(included), included, released.noise_multiplier


def _finding(name: str, claimed: float, setting: Setting, worlds: Worlds) -> Finding:
    delta, miss = setting.delta, setting.miss
    proof, also = prove_shaped(worlds, gaussian_shape(delta), delta, miss)
    return Finding.of(proof, Kind.MECHANISM, _UNIT, name, claimed, delta, miss, GAUSSIAN, also)


def _rows(feature: float) -> FloatArray:
    rows = np.ones((KNOWN + 1, 1))
    rows[-1] = feature
    return rows


def _release(rows: FloatArray, setting: Setting, random: Random = os.urandom) -> NoisyClassMeans:
    labels = np.zeros(len(rows), dtype=np.int64)
    return record_release.release_class_means(
        rows, labels, 1, epsilon=setting.epsilon, delta=setting.delta, random=random
    )


def _observed(feature: float, setting: Setting) -> FloatArray:
    """[N, 3] statistics of so many releases of a client, each beside one of a client all known."""
    own, known = _rows(feature), _rows(0.0)
    # The claim is the same each time, and takes longer than the release.
    with replaced(record_release, "record_guarantee", cache(record_guarantee)):
        means = np.array([
            [_release(rows, setting, setting.random).means[0, 0] for rows in (own, known)]
            for _ in range(setting.trials(_RELEASES))
        ])  # fmt: skip
    sums = means * (KNOWN + 1)
    units = sums[:, 0] * UNIT
    return np.stack([sums[:, 0], np.abs(units - np.rint(units)), sums[:, 0] - sums[:, 1]], axis=1)
