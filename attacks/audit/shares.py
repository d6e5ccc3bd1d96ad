"""Audits of the units that hide in a sum: shares of as few honest clients as the plan counts on."""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from attacks.audit.bounds import Finding, Setting, epsilon_of
from attacks.audit.noise_level import judged
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.record import UNITS, PooledRecordUnit, sums_for
from secure_fd.privacy.samplers import Random
from secure_fd.secure_sum.base import SumGuarantee
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.votes.codec import FloatArray

_ENTRIES, _CLASSES, _POOLED_UNITS = 100, 2, 400
_FLEET = ClientPlan(clients=10, proxies=20, rounds=2, classes=4, absent=3, corrupt=1)
_CLIENT_UNITS = 1000
_SEEN = 5
"""Entries of each client's share that are compared with those of the others."""


class StandInForMasks(SumGuarantee):
    """States that it hides, as a masked sum does, and sums nothing: masks are not audited."""

    name = "stand-in"
    hides = True
    guarantee = "none: the auditor adds up what clients send"

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients


def masked_unit(setting: Setting, plan: ClientPlan, random: Random) -> ClientUnit:
    """Return a unit of any fleet whose votes are summed under masks."""
    unit = ClientUnit(setting.epsilon, setting.delta, plan, small_fleet=True, random=random)
    unit.check_sum(StandInForMasks(plan.clients))
    return unit


def client_noise(setting: Setting) -> Finding:
    """Audit rounds in which client 0 votes about all proxies, and all others abstain."""

    def unit(random: Random) -> ClientUnit:
        return masked_unit(setting, _FLEET, random)

    plan = unit(os.urandom).plan
    known = np.zeros((plan.honest, plan.proxies, plan.classes), dtype=np.uint64)
    known[0, :, 0] = plan.scale
    votes = known.reshape(plan.honest, -1)
    return _audited(
        unit,
        lambda part, client: part.perturb(votes[client]),
        votes.astype(np.float64),
        float(np.linalg.norm(votes[0])),
        plan.rounds,
        setting.trials(_CLIENT_UNITS),
        setting,
    )


def pooled_noise(setting: Setting) -> Finding:
    """Audit pooled sums of records that no head is wrong about: clients send their noise alone."""
    shape = _ENTRIES, _CLASSES
    nothing = [(np.eye(_ENTRIES), np.zeros(shape))]
    sums = sums_for(setting.epsilon)

    def unit(random: Random) -> PooledRecordUnit:
        made = PooledRecordUnit(
            setting.epsilon,
            setting.delta,
            records=(300,) * 10,
            n_proxies=1000,
            n_classes=_CLASSES,
            sums=sums,
            features=ReferenceSettings(n_features=_ENTRIES),
            random=random,
        )
        made.check_sum(StandInForMasks(10))
        return made

    return _audited(
        unit,
        lambda part, _: part.release_sums(nothing, shape),
        np.zeros(1),
        float(UNITS),
        sums,
        setting.trials(_POOLED_UNITS),
        setting,
    )


def _audited(
    unit: Callable[[Random], Any],
    send: Callable[[Any, int], Any],
    known: FloatArray,
    sensitivity: float,
    sums: int,
    units: int,
    setting: Setting,
) -> Finding:
    """Judge the noise of the honest clients' sums, and of a few entries of each client's share.

    Two clients with one noise add more of it to the sum, and one of them can subtract both.

    Args:
        unit: makes one with this source of noise.
        send: one share [d] of a client's part, by the client's number.
        known: [honest, d] what the clients send beside their noise.
        sensitivity: L2 norm of what one neighbour adds to a sum.
        sums: of one unit.
        units: that are made.
        setting: terms of the audit.
    """
    rows, secret = [], unit(os.urandom)
    plan = secret.plan
    for _ in range(units):
        drawn = unit(setting.random)
        parts = [drawn.client(k) for k in range(plan.honest)]
        rows += [[send(part, k) for k, part in enumerate(parts)] for _ in range(sums)]
    shares = (np.array(rows) - known) / sensitivity
    scaled = shares[:, :, :_SEEN] * math.sqrt(plan.honest)
    send(secret.client(0), 0)
    claimed = epsilon_of(secret.guarantee())
    each = scaled.reshape(len(scaled), -1)
    return judged(shares.sum(axis=1), claimed, setting.delta, plan, each)
