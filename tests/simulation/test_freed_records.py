"""A federation that is deleted leaves no private image in the memory of its process."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from secure_fd.cache import freed_with_owner
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.simulation.federation import Federation
from tests.small_federation import federation, record_unit

SMALL = ReferenceSettings(rank=5, n_features=20)
SIZES = Sizes(proxies=60, test=10, held_out=10, local=60)


def selective(data: FederatedData) -> Federation:
    return federation(data, SelectiveFD("soft"))


def heads(data: FederatedData) -> Federation:
    return federation(data, PooledHeads(0, features=SMALL))


def noisy_heads(data: FederatedData) -> Federation:
    unit = record_unit(data, features=SMALL, honest=1)
    return federation(data, PooledHeads(0), protection=unit)


def left_behind(make: Callable[[FederatedData], Federation]) -> int:
    """Private tensors that can still be reached after a run was deleted."""
    data = federate(load("digits"), parse_split("weak"), 3, seed=0, sizes=SIZES)
    made = make(data)
    made.fit(1)
    made.accuracies(data.test)
    private = [
        weakref.ref(part)
        for client in data.clients
        for images in (client.train, client.validation)
        for part in (images.pixels, images.labels)
    ]
    assert all(one() is not None for one in private)
    del data, made
    gc.collect()
    return sum(one() is not None for one in private)


@pytest.mark.parametrize("make", [selective, heads, noisy_heads])
def test_no_record_is_reachable_after_its_federation_is_deleted(make):
    assert left_behind(make) == 0


def test_public_proxies_share_no_memory_with_private_images():
    """They are kept for later runs, and a view of all images would keep these as well."""
    data = federate(load("digits"), parse_split("weak"), 3, seed=0, sizes=SIZES)
    pixels = data.proxies.pixels
    assert pixels.untyped_storage().nbytes() == pixels.nbytes


def test_values_are_kept_as_long_as_their_owner_and_no_longer():
    made, values = list[str](), list[weakref.ref]()

    @freed_with_owner
    def value(_: torch.Tensor, key: str) -> torch.Tensor:
        made.append(key)
        values.append(weakref.ref(new := torch.zeros(1)))
        return new

    owner, other = torch.zeros(2), torch.zeros(2)
    assert value(owner, "a") is value(owner, "a") is not value(other, "a")
    value(owner, "b")
    assert made == ["a", "a", "b"]  # equal tensors are two owners
    del owner
    gc.collect()
    assert [one() is None for one in values] == [True, False, True]
