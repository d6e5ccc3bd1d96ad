"""A record behind one update is its owner's; masks and noise that are left out are caught."""

from dataclasses import replace

import pytest

from attacks.core.base import AttackResult
from attacks.core.run import attack_view
from attacks.inversion.one_update import OneUpdate, SetUp, behind, one_update
from attacks.inversion.update_inversion import UpdateInversion, UpdateMatching
from attacks.inversion.updates import client_updates
from secure_fd.data.federated import federate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import MissingCapabilityError
from secure_fd.privacy import dp_sgd
from secure_fd.privacy.dp_sgd import PrivateSGD


def made(
    private: PrivateSGD | None = None, *, masks: bool = False, set_up: SetUp | None = None
) -> OneUpdate:
    data = federate(load("mnist5k"), parse_split("strong"), 3, seed=0)
    return one_update(set_up or SetUp(), data, 0, private=private, masks=masks)


def scored(of: OneUpdate) -> AttackResult:
    return attack_view(UpdateInversion.of(of), of.view, 0)


def test_the_records_of_other_clients_are_not_what_was_read():
    own = made()
    swapped = behind({k: own.records[(k + 1) % 3] for k in range(3)})
    result = scored(replace(own, records=swapped))
    assert result.details["share_exact"] == 0.0
    assert result.figure < 25


@pytest.mark.parametrize("applied", [True, False])
def test_masks_that_are_not_applied_are_caught_in_the_words_sent(applied, request):
    """The mutation: the transcript still says that nothing was readable."""
    if not applied:
        request.getfixturevalue("unmasked")
    met = made(masks=True)
    assert met.view.models[-1].uploads is None
    attack = replace(UpdateInversion.of(met), read=client_updates)
    if applied:
        with pytest.raises(MissingCapabilityError):
            attack_view(attack, met.view, 0)
    else:
        assert attack_view(attack, met.view, 0).details["share_exact"] == 1.0


def test_dp_sgd_that_only_clips_is_caught(monkeypatch):
    """A clip scales weights and biases alike, so their ratio stays what it was."""
    hidden = scored(made(PrivateSGD(4.0, 1e-5, 2)))
    assert hidden.figure < hidden.control + 1
    monkeypatch.setattr(dp_sgd, "calibrate", lambda _epsilon, _delta, _plan: 0.0)
    result = scored(made(PrivateSGD(4.0, 1e-5, 2)))
    assert result.details["share_exact"] == 1.0
    assert result.n_members == 3


def test_gradient_matching_reads_a_record_from_a_step_of_a_convolutional_network():
    met = made(set_up=UpdateMatching.set_up)
    found = attack_view(UpdateMatching.of(met), met.view, 0)
    assert found.figure > found.control + 2
