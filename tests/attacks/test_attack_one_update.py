"""A record behind one update is read off it, and not where noise stands before it."""

from dataclasses import replace
from functools import cache, partial

import pytest

from attacks.core.base import AttackResult
from attacks.core.run import attack_view
from attacks.core.view import Capability, Public, View
from attacks.inversion.imprint import Imprint, lying
from attacks.inversion.one_update import MLP, OneUpdate, SetUp, behind, one_update
from attacks.inversion.update_inversion import (
    UpdateInversion,
    UpdateInversionOfEight,
    UpdateMatching,
)
from attacks.inversion.updates import client_updates, mean_update
from experiments.core.runs import data_of
from experiments.privacy_compare import Settings, plan
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.errors import MissingCapabilityError
from secure_fd.privacy import dp_sgd
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.training import models

PLAN = replace(plan(Settings(clients=3, quick=True), None).base, seed=0)
PRIVATE = PrivateSGD(4.0, 1e-5, PLAN.rounds)
ONE, EIGHT, CNN = UpdateInversion, UpdateInversionOfEight, UpdateMatching


@cache
def made(
    kind: type[UpdateInversion] = ONE, private: PrivateSGD | None = None, *, masks: bool = False
) -> OneUpdate:
    return one_update(kind.set_up, data_of(PLAN), 0, private=private, masks=masks)


def scored(
    of: OneUpdate, view: View | None = None, kind: type[UpdateInversion] = ONE
) -> AttackResult:
    return attack_view(kind.of(of), view or of.view, 0)


def test_one_record_is_read_to_the_last_grey():
    result = scored(made())
    assert result.figure > 90
    assert result.details["share_exact"] == 1.0
    assert result.interval[0] > result.control + 60
    assert result.control < 25
    assert result.n_members == 3


def test_a_convolutional_network_shows_its_record_by_matching():
    of, hidden = made(CNN), made(CNN, PRIVATE)
    result = scored(of, kind=CNN)
    assert result.interval[0] > result.control + 2
    private = scored(hidden, kind=CNN)
    assert private.figure < private.control + 1.0


def test_the_records_of_other_clients_are_not_what_was_read():
    private = made().records
    swapped = behind({k: private[(k + 1) % 3] for k in range(3)})
    result = scored(replace(made(), records=swapped))
    assert result.details["share_exact"] == 0.0
    assert result.figure < 25


@pytest.mark.parametrize("applied", [True, False])
def test_masks_that_are_not_applied_are_caught_in_the_words_sent(applied, request):
    """The mutation: the transcript still says that nothing was readable."""
    if not applied:
        request.getfixturevalue("unmasked")
    met = made.__wrapped__(masks=True)
    assert met.view.models[-1].uploads is None
    attack = replace(ONE.of(met), read=client_updates)
    if applied:
        with pytest.raises(MissingCapabilityError):
            attack_view(attack, met.view, 0)
    else:
        assert attack_view(attack, met.view, 0).details["share_exact"] == 1.0


def test_a_large_cohort_batch_hides_records_in_its_mean():
    met = one_update(SetUp(batch=64), data_of(PLAN), 0)
    alone = scored(met)
    assert alone.figure > alone.control + 5
    together = attack_view(replace(ONE.of(met), read=mean_update), met.view, 0)
    assert together.figure < together.control + 1  # a masked sum leaves the mean
    assert together.details["share_exact"] == 0


def test_eight_records_a_client_are_read_off_the_mean_that_masks_leave():
    """41 dB of seed 0; without one step of the closed form 23 and 34 dB."""
    of = made(EIGHT, masks=True)
    assert of.view.models[-1].uploads is None
    result = scored(of, kind=EIGHT)
    assert result.figure > 37
    assert result.control < 15
    assert result.title.endswith("(mean of 3)")


def test_dp_sgd_leaves_no_more_than_the_control():
    result = scored(made(ONE, PRIVATE))
    assert result.details["share_exact"] == 0.0
    assert result.figure < result.control + 1.0
    assert made(ONE, PRIVATE).caveats
    assert not made().caveats


def test_dp_sgd_that_only_clips_is_caught(monkeypatch):
    """A clip scales weights and biases alike, so their ratio stays what it was."""
    monkeypatch.setattr(dp_sgd, "calibrate", lambda _epsilon, _delta, _plan: 0.0)
    result = scored(made(ONE, PrivateSGD(4.0, 1e-5, 2)))
    assert result.details["share_exact"] == 1.0
    assert result.n_members == 3


# An imprint: a server's own model reads records off the masked sum.

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


def imprinted(met: OneUpdate) -> AttackResult:
    return attack_view(Imprint.of(met), met.view, SEED)


def test_a_masked_sum_of_eighty_records_is_read_image_by_image():
    found = imprinted(lied_to())
    assert found.figure > 50
    assert found.interval[0] > 40
    assert found.details["share_exact"] > 0.3
    assert found.control < 20
    assert len(lied_to().view.models) == 2  # no client refused, and no round was aborted
    assert Capability.CLIENT_PARAMETERS not in lied_to().view.capabilities


def test_the_mean_that_an_honest_server_sends_shows_no_image():
    """The same clients, records and masks; the closed form reads the newest mean update."""
    set_up = SetUp(batch=BATCH)
    met = one_update(set_up, ten(), SEED, masks=True)
    found = attack_view(UpdateInversion.of(met), met.view, SEED)
    assert found.figure < found.control + 5
    assert found.details["share_exact"] == 0.0
    with pytest.raises(MissingCapabilityError):
        imprinted(met)


def test_dp_sgds_noise_hides_the_bins():
    """Without noise the update is read (above); with noise it is no better than a blank guess."""
    found = imprinted(lied_to(private=True))
    assert found.figure < found.control + 3
    assert found.details["share_exact"] == 0.0
