"""Inverting real rounds of FedAvg: what a batch, masks and DP-SGD hide, and their mutations.

Rows are those of the attack suite: four clients of one class each.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from attacks.core.base import AttackResult
from attacks.core.run import attack_view
from attacks.inversion.one_update import SetUp, one_update
from attacks.inversion.update_inversion import UpdateInversion
from attacks.inversion.updates import client_updates, mean_update
from experiments.suite.scenes import Cell
from experiments.suite.scenes.updates import SCENE
from secure_fd.errors import MissingCapabilityError
from secure_fd.privacy import dp_sgd

SEED, CLIENTS = 3, 4
CELL = Cell("updates", "", SEED, quick=True)


@cache
def prepared() -> Any:
    return SCENE.prepare(CELL, None)


def attacked(row: str) -> AttackResult:
    """The one attack on a row."""
    (attempt,) = SCENE.attempts(replace(CELL, row=row), prepared()).values()
    result = attempt()
    assert isinstance(result, AttackResult)
    return result


@pytest.mark.parametrize("row", ["mlp-b1", "mlp-b8", "mlp-b1-masks"])
def test_few_records_are_recovered_to_the_last_bit(row):
    """Masks do not hide the records of a cohort of tiny batches: the mean itself shows them."""
    result = attacked(row)
    assert result.details["share_exact"] == 1.0
    assert result.n_members >= CLIENTS
    assert result.figure > 100
    assert result.control < 25


@pytest.mark.parametrize("batch", [1, 8])
def test_masks_hide_the_clients_update(batch):
    met = one_update(SetUp(batch=batch), prepared().strong, SEED, masks=True)
    attack = replace(UpdateInversion.of(met), read=client_updates)
    with pytest.raises(MissingCapabilityError, match="client model parameters in clear"):
        attack_view(attack, met.view, SEED)


def test_a_large_cohort_batch_hides_records_in_its_mean():
    met = one_update(SetUp(batch=64), prepared().strong, SEED)
    alone = UpdateInversion.of(met)
    result = attack_view(alone, met.view, SEED)
    assert result.figure > result.control + 5
    together = attack_view(replace(alone, read=mean_update), met.view, SEED)
    assert together.figure < together.control + 1  # a masked sum leaves the mean
    assert together.details["share_exact"] == 0


@pytest.mark.parametrize("applied", [True, False])
def test_masks_that_are_not_applied_are_caught_in_the_words_sent(applied, monkeypatch):
    """The mutation: the transcript still says that nothing was readable."""
    if not applied:
        monkeypatch.setattr("secure_fd.secagg.client.mask_input", lambda *_: None)
        monkeypatch.setattr("secure_fd.secagg.unmasking.mask_words", lambda *_: None)
    met = one_update(SetUp(batch=8), prepared().strong, SEED, masks=True)
    assert met.view.models[-1].uploads is None
    assert met.view.models[-1].payloads
    attack = replace(UpdateInversion.of(met), read=client_updates)
    if applied:
        with pytest.raises(MissingCapabilityError, match="client model parameters in clear"):
            attack_view(attack, met.view, 0)
    else:
        assert attack_view(attack, met.view, 0).details["share_exact"] == 1.0


def test_dp_sgd_leaves_the_control():
    result = attacked("mlp-b1-dp-sgd")
    assert result.details["share_exact"] == 0
    assert result.figure < result.control + 1


def test_dp_sgd_that_only_clips_is_caught(monkeypatch):
    """A clip scales weights and biases alike, so their ratio stays what it was."""
    monkeypatch.setattr(dp_sgd, "calibrate", lambda _epsilon, _delta, _plan: 0.0)
    result = attacked("mlp-b1-dp-sgd")
    assert result.details["share_exact"] == 1.0
    assert result.n_members == CLIENTS


def test_gradient_matching_beats_its_control_on_a_convolutional_network():
    result = attacked("cnn-b1")
    assert result.figure > result.control + 4
    assert result.interval[0] > result.control + 2


def test_large_batches_wait_for_a_full_run():
    assert "mlp-b64" in SCENE.rows(replace(CELL, quick=False))
    assert "mlp-b64" not in SCENE.rows(CELL)


def test_the_scene_reads_a_masked_sum_by_a_model_of_the_servers_choice():
    """An honest model of the same network, under the same masks, shows no record."""
    imprinted = attacked("imprint")
    assert imprinted.figure > 60 > imprinted.details["honest_model_psnr"]
