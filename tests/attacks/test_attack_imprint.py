"""A server's own model reads records off the masked sum; an honest one and DP-SGD show none."""

from functools import cache, partial

import pytest

from attacks.core.base import AttackResult
from attacks.core.run import attack_view
from attacks.core.view import Capability, Public
from attacks.inversion.imprint import Imprint, lying
from attacks.inversion.one_update import MLP, OneUpdate, SetUp, one_update
from attacks.inversion.update_inversion import UpdateInversion
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.errors import MissingCapabilityError
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.training import models

SEED, BATCH = 20, 8


@cache
def ten() -> FederatedData:
    sizes = Sizes(proxies=60, test=1, held_out=40, local=60)
    return federate(load("mnist5k"), Split("iid"), 10, SEED, sizes)


def public() -> Public:
    data = ten()
    architecture = partial(models.build, MLP, data.n_classes)
    return Public(
        data.proxies.pixels, len(data.clients), data.n_classes, architecture, data.proxies.labels
    )


@cache
def lied_to(*, private: bool = False) -> OneUpdate:
    """Ten clients under masks whose newest step, on eight records, starts from an imprint."""
    dp = PrivateSGD(4.0, 1e-5, 2) if private else None
    set_up = SetUp(batch=BATCH)
    return one_update(set_up, ten(), SEED, private=dp, masks=True, lie=lying(public()))


def read(met: OneUpdate) -> AttackResult:
    return attack_view(Imprint.of(met), met.view, SEED)


def test_a_masked_sum_of_eighty_records_is_read_image_by_image():
    found = read(lied_to())
    assert found.figure > 50
    assert found.interval[0] > 40
    assert found.details["share_exact"] > 0.3
    assert found.control < 20
    assert len(lied_to().view.models) == 2  # no client refused, and no round was void
    assert Capability.CLIENT_PARAMETERS not in lied_to().view.capabilities


def test_the_mean_that_an_honest_server_sends_shows_no_image():
    """The same clients, records and masks; the closed form reads the newest mean update."""
    set_up = SetUp(batch=BATCH)
    met = one_update(set_up, ten(), SEED, masks=True)
    found = attack_view(UpdateInversion.of(met), met.view, SEED)
    assert found.figure < found.control + 5
    assert found.details["share_exact"] == 0.0
    with pytest.raises(MissingCapabilityError):
        read(met)


def test_dp_sgds_noise_hides_the_bins():
    """The twin without noise is read above. What noise leaves is no better than a blank guess."""
    found = read(lied_to(private=True))
    assert found.figure < found.control + 3
    assert found.details["share_exact"] == 0.0
