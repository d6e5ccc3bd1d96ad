"""A federation that is deleted leaves no private image in the memory of its process."""

import gc
import weakref

import pytest
import torch

from secure_fd.cache import freed_with_owner
from secure_fd.data.federated import federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from tests.small_federation import SMALL, federation, record_unit


def weak():
    sizes = Sizes(proxies=60, test=10, held_out=10, local=60)
    return federate(load("digits"), parse_split("weak"), 3, seed=0, sizes=sizes)


@pytest.mark.parametrize(
    ("method", "noisy"),
    [(SelectiveFD("soft"), False), (PooledHeads(0, features=SMALL), False), (PooledHeads(0), True)],
)
def test_no_record_is_reachable_after_its_federation_is_deleted(method, noisy):
    data = weak()
    made = federation(data, method, protection=record_unit(data, honest=1) if noisy else None)
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
    assert not [one for one in private if one() is not None]


def test_public_proxies_share_no_memory_with_private_images():
    """They are kept for later runs, and a view of all images would keep these as well."""
    pixels = weak().proxies.pixels
    assert pixels.untyped_storage().nbytes() == pixels.nbytes


def test_values_are_kept_as_long_as_their_owner_and_no_longer():
    made, values = [], []

    @freed_with_owner
    def value(_, key):
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
