"""Audit of what is read off the record unit's release: the votes that leave a client.

The claim must hold under every public feature map of norm one, so this audit brings its own: two
pixels, taken as they are. Then one record decides a vote, if anything but the noisy means can.
"""

import os
from functools import cache
from typing import cast

import numpy as np
import torch
from torch import Tensor

from attacks.audit.bounds import Finding, Kind, Worlds, gaussian_shape, printed, prove_shaped
from attacks.audit.record import GAUSSIAN
from attacks.audit.setting import Setting, replaced
from secure_fd.data.images import Images
from secure_fd.knowledge import FloatArray
from secure_fd.privacy import release as record_release
from secure_fd.privacy.guarantees import record_guarantee
from secure_fd.privacy.samplers import Random
from secure_fd.privacy.units import PrivacyUnit
from secure_fd.protection import record as record_unit
from secure_fd.selection.density import (
    FourierFeatures,
    ProxyReference,
    PublicFeatures,
    RatioSolver,
    ReferenceSettings,
)

_TRIALS = 2000
_PROXIES = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]]).reshape(4, 1, 1, 2)


def votes(setting: Setting) -> Finding:
    """Two classes of one record each; one of the two is there or zeroed out."""
    with (
        replaced(record_unit, "shared_reference", _pixels_as_features),
        replaced(record_release, "record_guarantee", cache(record_guarantee)),
    ):
        worlds = Worlds(
            tuple(f"vote on proxy {x} for class {c}" for x in range(len(_PROXIES)) for c in (0, 1)),
            _observed(0.0, setting),
            _observed(1.0, setting),
        )
        claimed = printed(_unit(1.0, setting, os.urandom).guarantee())
    delta, miss, name = setting.delta, setting.miss, "votes read off the release"
    proof, also = prove_shaped(worlds, gaussian_shape(delta), delta, miss)
    return Finding.of(
        proof,
        Kind.MECHANISM,
        PrivacyUnit.RECORD,
        name,
        claimed.epsilon,
        delta,
        miss,
        GAUSSIAN,
        also,
    )


def _unit(feature: float, setting: Setting, random: Random) -> record_unit.RecordUnit:
    pixels = torch.tensor([[0.5, 0.0], [feature, 0.0]]).reshape(2, 1, 1, 2)
    unit = record_unit.RecordUnit(setting.epsilon, setting.delta, random=random)
    unit.prepare(_PROXIES, 2, [Images(pixels, torch.arange(2))])
    return unit


def _observed(feature: float, setting: Setting) -> FloatArray:
    """[N, 8] the vote for each class about each proxy, in N federations."""
    asked = np.arange(len(_PROXIES))
    rows = []
    for _ in range(setting.trials(_TRIALS)):
        released = _unit(feature, setting, setting.random).release(0, asked)
        rows.append((released.weights[:, None] * released.predictions).ravel())
    return np.array(rows)


def _pixels_as_features(
    _proxies: object, settings: ReferenceSettings
) -> tuple[ProxyReference, RatioSolver]:
    """The auditor's public map, in place of the one that is fitted on proxies."""

    def flat(pixels: Tensor) -> Tensor:
        return pixels.reshape(len(pixels), -1)

    def same(inputs: Tensor) -> FloatArray:
        return np.asarray(inputs.double().numpy())

    features = same(flat(_PROXIES))
    made = ProxyReference(
        cast(PublicFeatures, flat),
        cast(FourierFeatures, same),
        features,
        features.T @ features / len(features),
        settings,
    )
    return made, made.solver()
