"""The mean accuracy over sites is one more masked sum, where all sites allow it."""

from dataclasses import replace

import numpy as np
import pytest

from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.deployment.roster import Terms
from secure_fd.deployment.shared_accuracy import NOT_COVERED
from tests.flower_federation import Courier, World
from tests.small_federation import alike

SITES = (0, 1, 2)


@pytest.fixture(scope="module")
def data():
    """Sites with five, six and seven validation records."""
    made = alike(len(SITES), 40)

    def parted(k: int, client: ClientData) -> ClientData:
        pixels, labels = client.train.pixels, client.train.labels
        cut = 5 + k
        held_out = Images(pixels[:cut], labels[:cut])
        return ClientData(Images(pixels[cut:], labels[cut:]), held_out, client.n_classes)

    return replace(made, clients=tuple(parted(k, each) for k, each in enumerate(made.clients)))


def _world(data, tmp_path, **terms):
    options = {"image_set": "digits", "rounds": 2, "deadline": 5, "share_accuracy": True, **terms}
    return World(data, tmp_path, Terms(**options))


@pytest.mark.parametrize("method", ["selective-fd", "fedavg", "fedmd"])
def test_the_mean_is_that_of_the_sites_images_after_the_round(data, tmp_path, method):
    world = _world(data, tmp_path, method=method)
    counts = np.array([len(client.validation) for client in data.clients])
    for outcome in world.serve(Courier(world)).run(2):
        assert not outcome.aborted
        right = [world.sites[k].accuracy * counts[k] for k in SITES]
        assert outcome.accuracy == pytest.approx(sum(right) / counts.sum())
    for site in world.sites.values():
        assert site.mean_accuracy == outcome.accuracy
    assert len({site.digest for site in world.sites.values()}) == 1


def test_a_twin_that_does_not_share_it_has_no_further_sum(data, tmp_path):
    def sums(share: bool) -> int:
        world = _world(data, tmp_path / str(share), rounds=1, share_accuracy=share)
        [outcome] = world.serve(Courier(world)).run(1)
        return len(outcome.sums)

    assert sums(True) == sums(False) + 1


def test_the_guarantee_says_that_epsilon_does_not_cover_it(data, tmp_path):
    world = _world(data, tmp_path, unit="record", epsilon=4.0, rounds=2)
    list(world.serve(Courier(world)).run(2))
    claim = world.sites[0]._party().role.guarantee()
    assert claim is not None
    assert NOT_COVERED in claim.not_covered
    own = world.sites[0].role.guarantee()
    assert own is not None
    assert (claim.epsilon, claim.parts) == (own.epsilon, own.parts)


def test_a_server_that_starts_again_asks_on(data, tmp_path):
    world = _world(data, tmp_path, method="fedavg", rounds=3)
    courier = Courier(world)
    played = world.serve(courier).run(3)
    first = next(played)
    again = world.serve(courier).run(3)
    for outcome in again:
        assert outcome.index > first.index
        assert outcome.accuracy is not None
