"""Votes in clear draw a picture of each client's class; shuffled or masked ones do not."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch

from attacks.paired_logits import Decoding, PairedLogits
from attacks.view import Public, View, server_view
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError, MissingCapabilityError
from secure_fd.federation import Federation, participants_of
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.recipes import Schedule
from tests.attack_games import perceptron

ATTACK = PairedLogits({}, Decoding(steps=200))
CLIENTS = 10
LEAST = 6
"""Pictures of ten that come nearest to their own class: by chance as many in 1 run of 6,000."""


network = partial(perceptron, 784, 64, 10)


@cache
def data() -> FederatedData:
    return federate(load("digits"), Split("strong"), CLIENTS, 0)


@cache
def view(*, masks: bool = False) -> View:
    """What Selective-FD's server saw of one round about all proxies, of one digit a client."""
    proxies = data().proxies
    run = Federation(
        participants_of([network(k) for k in range(CLIENTS)], data().clients),
        proxies.pixels,
        SelectiveFD("soft"),
        schedule=Schedule(40, 1, 1, len(proxies)),
        aggregation=MaskedSum(CLIENTS, public_seed=0) if masks else None,
    )
    run.fit(1)
    public = Public(proxies.pixels, CLIENTS, 10, network)
    return server_view(run.transcript, public)


def recognised(seen: View) -> int:
    """Of ten pictures, those that are nearer to the mean of their client's digit than to others."""
    images, held_out = ATTACK.run(seen, 0).images, data().held_out
    means = torch.stack([held_out.pixels[held_out.labels == c].mean(dim=0) for c in range(10)])
    apart = (images.flatten(1)[:, None] - means.flatten(1)[None]).square().sum(dim=2)
    own = torch.tensor([client.classes[0] for client in data().clients])
    return int((apart.argmin(dim=1) == own).sum())


def test_votes_in_clear_draw_each_clients_class() -> None:
    assert ATTACK.run(view(), 0).groups.tolist() == [c.classes[0] for c in data().clients]
    assert recognised(view()) >= LEAST


def test_votes_about_other_images_draw_nothing() -> None:
    """The twin: the same votes, each about a proxy drawn at random."""
    order = np.random.default_rng(0).permutation(len(data().proxies))
    shuffled = [
        replace(seen, ensemble=replace(seen.ensemble, indices=order[seen.ensemble.indices]))
        for seen in view().rounds
    ]
    assert recognised(replace(view(), rounds=tuple(shuffled))) < LEAST


def test_masks_leave_no_clients_votes() -> None:
    with pytest.raises(MissingCapabilityError, match="clients' uploads in clear"):
        ATTACK.run(view(masks=True), 0)


def test_what_makes_no_pair_is_refused() -> None:
    alone = replace(view(), public=replace(view().public, n_clients=1))
    with pytest.raises(MissingCapabilityError, match="second client"):
        ATTACK.run(alone, 0)
    with pytest.raises(ConfigurationError, match="decoding"):
        Decoding(steps=0)
