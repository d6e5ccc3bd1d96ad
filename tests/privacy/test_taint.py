"""All that a client sends follows from its release: other records behind it send no other byte.

All pixels of client 0, of training and validation records, are drawn anew and its labels are
permuted; what its noisy release gave the first time is given again. The networks train at home on
what they have, so they come out different, and every byte that any client sends must not. Public
facts stay: numbers of records and classes.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import Images
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import LocalError
from secure_fd.methods import pooled_heads as heads
from secure_fd.methods.base import Setting
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.privacy.base import PrivacyMechanism
from secure_fd.privacy.record import Features, NoisyClassSums, PooledRecordUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import SumInput
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.training.models import flatten
from secure_fd.votes.codec import IntArray, UnitArray
from secure_fd.wire import Stage
from tests.small_federation import faults, federation, record_unit

SMALL = ReferenceSettings(rank=20, n_features=100)
FAULTS = {0: {1: Stage.INPUT}, 1: {2: Stage.UNMASK}}


@pytest.fixture(scope="module")
def mixed():
    """Four clients of two classes each, so that a permutation of labels changes something."""
    sizes = Sizes(proxies=20, test=4, held_out=4, local=100)
    return federate(load("digits"), parse_split("weak"), 4, seed=0, sizes=sizes)


def tainted(data: FederatedData) -> FederatedData:
    """The same but for all pixels and the order of labels of client 0."""
    rng = torch.Generator().manual_seed(7)

    def other(images: Images) -> Images:
        order = torch.randperm(len(images), generator=rng)
        return Images(torch.rand(images.pixels.shape, generator=rng), images.labels[order])

    first: ClientData = data.clients[0]
    changed = replace(first, train=other(first.train), validation=other(first.validation))
    assert not torch.equal(changed.train.labels, first.train.labels)
    return replace(data, clients=(changed, *data.clients[1:]))


# What leaves, and the release that is held.


class Tapped:
    """A client that keeps what it sends."""

    def __init__(self, client: Client) -> None:
        self._client, self.sent = client, list[bytes]()

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._client, name)
        if name not in ("start", "alone", "receive", "resume"):
            return made

        def tapped(*given: bytes) -> list[bytes]:
            sent: list[bytes] = made(*given)
            self.sent += sent
            return sent

        return tapped


@contextmanager
def held(made: list[object]) -> Iterator[None]:
    """Within it the real release runs, and gives what the call of the same number gave first."""
    release, calls = NoisyClassSums.release_sums, count()

    def replayed(*given: Any, **named: Any) -> object:
        found, number = release(*given, **named), next(calls)
        if number == len(made):
            made.append(found)
        return made[number]

    with patch.object(NoisyClassSums, "release_sums", replayed):
        yield


@dataclass(frozen=True, slots=True)
class Case:
    """A protection and the method that it runs under."""

    protection: Callable[[FederatedData], PrivacyMechanism]
    method: Callable[[], PooledHeads]

    def sent(
        self,
        data: FederatedData,
        aggregation: SecureSum,
        script: Mapping[int, Mapping[int, Stage]] | None = None,
    ) -> tuple[list[list[bytes]], np.ndarray[Any, Any]]:
        """All bytes by client, and client 0's parameters in the end."""
        made = federation(
            data,
            self.method(),
            aggregation=aggregation,
            protection=self.protection(data),
            dropouts=faults(script or {}),
        )
        taps = [Tapped(client) for client in made.clients]
        made.clients[:] = taps
        refused = [why for report in made.rounds(2) for _, why in report.refused]
        if refused:
            raise LocalError(refused[0])
        return [tap.sent for tap in taps], flatten(made.models[0]).numpy()

    def both(
        self,
        data: FederatedData,
        aggregation: Callable[[], SecureSum],
        *,
        hold: bool = True,
        script: Mapping[int, Mapping[int, Stage]] | None = None,
    ) -> bool:
        """Compare the bytes, which may be equal; the networks must not be."""
        runs, releases = [], list[object]()
        for records in (data, tainted(data)):
            with held(releases) if hold else nullcontext():
                runs.append(self.sent(records, aggregation(), script))
        (sent, network), (again, other) = runs
        assert min(map(len, sent)) >= 2
        assert not np.array_equal(network, other)
        return sent == again


def masked() -> MaskedSum:
    """Keys and masks from a seed, so that only inputs can differ."""
    return MaskedSum(4, random=insecure_bytes(11), hybrid=False)


def clear() -> PlainSum:
    """A session of its own would be in every message."""
    with patch.object(os, "urandom", bytes):
        return PlainSum(4)


def pooled_unit(
    data: FederatedData, kind: type[PooledRecordUnit] = PooledRecordUnit, honest: int | None = None
) -> PooledRecordUnit:
    """With a small public map: what leaves follows from the release under any."""
    random = SeededRandom(3)
    return record_unit(data, kind=kind, sums=2, honest=honest, features=SMALL, random=random)


def pooled_heads() -> PooledHeads:
    return PooledHeads(1, features=SMALL)


LOCAL = Case(lambda data: pooled_unit(data, honest=1), pooled_heads)
POOLED = Case(pooled_unit, pooled_heads)


@pytest.mark.parametrize(
    ("case", "aggregation", "script"),
    [
        (LOCAL, clear, None),
        (LOCAL, masked, None),
        (LOCAL, masked, FAULTS),
        (POOLED, masked, None),
        (POOLED, masked, FAULTS),
    ],
)
def test_other_records_behind_the_same_release_send_the_same_bytes(
    mixed, case, aggregation, script
):
    assert case.both(mixed, aggregation, script=script)


@pytest.mark.parametrize("case", [LOCAL, POOLED])
def test_without_holding_the_release_the_bytes_differ(mixed, case):
    """The check has power: the release is what the bytes follow."""
    assert not case.both(mixed, masked, hold=False)


# Mutations: one thing besides the release gets out.


Records = tuple[Features, Features]


class BesideTheNoise(PooledRecordUnit):
    """One entry carries the sum of the raw features as well."""

    def _part(self, number: int) -> NoisyClassSums:
        made = super()._part(number)
        release = made.release_sums

        def leaking(parts: Iterable[Records], *given: Any) -> IntArray:
            kept = list(parts)
            found: IntArray = release(kept, *given).copy()
            found[0] += round(1000 * sum(float(features.sum()) for features, _ in kept))
            return found

        made.release_sums = leaking
        return made


@pytest.mark.parametrize("aggregation", [clear, masked])
def test_a_local_unit_that_lets_more_out_is_caught(mixed, aggregation):
    leaking = replace(LOCAL, protection=lambda data: pooled_unit(data, BesideTheNoise, honest=1))
    assert not leaking.both(mixed, aggregation)


class Surveying(PooledHeads):
    """Reads records beside the noisy sums, to find known proxies."""

    __slots__ = ()

    def surveys(self, setting: Setting) -> bool:  # noqa: ARG002
        return True


def any_share(values: UnitArray, bound: int, **named: str) -> SumInput:
    """Accept sums without noise, which are refused where there is room for noise."""
    return SumInput(values.astype(np.int64), bound, **named)


def test_a_pooled_unit_beside_a_survey_is_caught(mixed):
    surveying = replace(POOLED, method=lambda: Surveying(1, features=SMALL))
    with pytest.raises(LocalError, match="values must be int64"):
        surveying.both(mixed, masked)
    with patch.object(heads, "SumInput", any_share):
        assert not surveying.both(mixed, masked)
