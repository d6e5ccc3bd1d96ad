"""The mean accuracy over sites is one more masked sum, where all sites allow it."""

from dataclasses import replace

import numpy as np
import pytest

from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.deployment.roster import Terms
from secure_fd.deployment.shared_accuracy import NOT_COVERED
from tests.drivers.flower_federation import Courier, World
from tests.small_federation import alike

pytestmark = pytest.mark.usefixtures("brief")


@pytest.fixture(scope="module")
def data():
    """Sites with five, six and seven validation records."""
    made = alike(3, 40)

    def parted(cut, client):
        pixels, labels = client.train.pixels, client.train.labels
        held_out = Images(pixels[:cut], labels[:cut])
        return ClientData(Images(pixels[cut:], labels[cut:]), held_out, client.n_classes)

    return replace(made, clients=tuple(map(parted, (5, 6, 7), made.clients)))


@pytest.fixture
def made(data, tmp_path):
    def world(method="fedavg", *, share=True, **terms):
        given = {"image_set": "digits", "rounds": 3, "deadline": 5, **terms}
        agreed = Terms(method, share_accuracy=share, **given)
        return World(data, tmp_path / str(share), agreed)

    return world


@pytest.mark.parametrize("method", ["selective-fd", "fedavg", "fedmd"])
def test_the_mean_is_that_of_the_sites_images_after_the_round(data, made, method):
    """A server that starts again asks on; without the option there is one sum less."""
    world, plain = made(method), made(method, share=False)
    [without] = plain.serve(Courier(plain)).run(1)
    counts = np.array([len(client.validation) for client in data.clients])
    courier = Courier(world)
    first = next(world.serve(courier).run(3))
    assert len(first.sums) == len(without.sums) + 1
    for index, outcome in enumerate(world.serve(courier).run(3), 1):
        assert (outcome.index, outcome.aborted) == (index, False)
        right = [site.accuracy for site in world.sites.values()] @ counts
        assert outcome.accuracy == pytest.approx(right / counts.sum())
    assert {site.mean_accuracy for site in world.sites.values()} == {outcome.accuracy}
    assert len({site.digest for site in world.sites.values()}) == 1


def test_the_guarantee_says_that_epsilon_does_not_cover_it(made):
    world = made("selective-fd", unit="record", epsilon=4.0, rounds=1)
    list(world.serve(Courier(world)).run(1))
    claim, own = world.sites[0]._party().role.guarantee(), world.sites[0].role.guarantee()
    assert NOT_COVERED in claim.not_covered
    assert NOT_COVERED not in own.not_covered
    assert (claim.epsilon, claim.parts) == (own.epsilon, own.parts)
