"""A client's update shows what it holds, without a prior; a masked sum shows no client's."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch

from attacks.update_picture import UpdatePicture
from attacks.updates import Search
from attacks.view import Public, View, server_view
from secure_fd import models
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.errors import MissingCapabilityError
from secure_fd.federation import Federation, participants_of
from secure_fd.methods.fedavg import FedAvg
from secure_fd.recipes import schedule

ATTACK = UpdatePicture({}, settings=Search(iterations=60, restarts=1))
LEAST = 6
"""Pictures of ten that come nearest to their own class: by chance as many in 1 run of 6,000."""


@cache
def data() -> FederatedData:
    return federate(load("digits"), Split("strong"), 10, 0)


@cache
def view(*, masks: bool = False) -> View:
    """What FedAvg's server saw of five rounds."""
    architecture = partial(models.build, models.SHARED, 10)
    run = Federation(
        participants_of([architecture(0) for _ in range(10)], data().clients),
        None,
        FedAvg(),
        schedule=schedule("digits", "strong"),
        aggregation=MaskedSum(10) if masks else None,
    )
    run.fit(5)
    proxies = data().proxies
    return server_view(
        run.transcript, Public(proxies.pixels, 10, 10, architecture, labels=proxies.labels)
    )


def recognised(seen: View) -> int:
    """Of ten pictures, those that are nearer to the mean of their own class than to any other."""
    found = ATTACK.run(seen, 0)
    held_out = data().held_out
    means = torch.stack([held_out.pixels[held_out.labels == c].mean(dim=0) for c in range(10)])
    apart = (found.images.flatten(1)[:, None] - means.flatten(1)[None]).square().sum(dim=2)
    return int((apart.argmin(dim=1) == found.groups).sum())


def test_updates_show_the_class_of_each_client() -> None:
    assert ATTACK.run(view(), 0).groups.tolist() == list(range(10))
    assert recognised(view()) >= LEAST


def test_updates_that_are_noise_alone_show_nothing() -> None:
    newest, noise = view().models[-1], np.random.default_rng(0)
    assert newest.uploads is not None
    drowned = {
        k: (flat + noise.normal(0, 10, len(flat))).astype(np.float32)
        for k, flat in newest.uploads.items()
    }
    models_seen = (*view().models[:-1], replace(newest, uploads=drowned))
    assert recognised(replace(view(), models=models_seen)) < LEAST


def test_neither_images_nor_labels_of_proxies_are_used() -> None:
    """Other proxies of the same shape leave the same picture."""
    public = view().public
    others = replace(public, proxies=1 - public.proxies, labels=None)
    mine, same = (ATTACK.run(replace(view(), public=p), 0).images for p in (public, others))
    assert torch.equal(mine, same)


def test_masks_leave_no_client_s_update() -> None:
    with pytest.raises(MissingCapabilityError, match="client model parameters in clear"):
        ATTACK.run(view(masks=True), 0)
