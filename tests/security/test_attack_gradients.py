"""Inverting real rounds of FedAvg: what a batch, masks and DP-SGD hide, and their broken twins.

Rows are those of the attack suite: four clients of one class each, and beside every figure the
same attack on updates made of other records.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from attacks.inversion.one_update import SetUp, one_update
from attacks.inversion.updates_attack import AnalyticInversion, MeanInversion, OptimisedInversion
from experiments.compare.leakage import tried
from experiments.suite.scenes import Cell
from experiments.suite.scenes.updates import SCENE
from secure_fd.errors import MissingCapabilityError
from secure_fd.privacy import dp_sgd

SEED, CLIENTS = 3, 4
EXACT = AnalyticInversion.name
MEAN = MeanInversion.name
MATCHED = OptimisedInversion.name
CELL = Cell("updates", "", SEED, quick=True)


@cache
def prepared() -> Any:
    return SCENE.prepare(CELL, None)


def trained(row: str) -> Mapping[str, Any]:
    """By attack what it found, or why it is not applicable."""
    return tried(SCENE.attempts(replace(CELL, row=row), prepared()))


attacked = cache(trained)


@pytest.mark.parametrize(
    ("row", "attack"), [("mlp-b1", EXACT), ("mlp-b8", EXACT), ("mlp-b1-masks", MEAN)]
)
def test_few_records_are_recovered_to_the_last_bit_and_the_attacker_knows_which(row, attack):
    """Masks do not hide the records of a cohort of tiny batches: the mean itself shows them."""
    result = attacked(row)[attack]
    assert result.details["share_exact"] == 1.0
    assert result.details["max_abs_error"] == 0.0
    assert result.details["certain"] == result.details["certain_and_right"] == result.n_members
    assert result.n_members >= CLIENTS
    assert result.figure > 100
    assert abs(result.control) < 3


def test_masks_hide_the_clients_update_and_a_large_cohort_batch():
    for row in ("mlp-b1-masks", "mlp-b8-masks"):
        assert "missing client model parameters in clear" in attacked(row)[EXACT]
    alone, together = (attacked("mlp-b64")[attack] for attack in (EXACT, MEAN))
    assert alone.figure > alone.control + 5
    assert alone.details["share_above_20_dB"] > 0.15
    assert abs(together.figure - together.control) < 1  # a masked sum leaves the mean
    assert together.details["share_exact"] == 0


@pytest.mark.parametrize("applied", [True, False])
def test_masks_that_are_not_applied_are_caught_in_the_words_sent(applied, monkeypatch):
    """The twin: the transcript still says that nothing was readable."""
    if not applied:
        monkeypatch.setattr("secure_fd.secagg.client.mask_input", lambda *_: None)
        monkeypatch.setattr("secure_fd.secagg.unmasking.mask_words", lambda *_: None)
    set_up = SetUp(batch=8)
    met = one_update(set_up, prepared().data, SEED, masks=True)
    assert met.view.models[-1].uploads is None
    assert met.view.models[-1].payloads
    attack = AnalyticInversion(met.public, set_up.recipe)
    if applied:
        with pytest.raises(MissingCapabilityError, match="client model parameters in clear"):
            attack.estimate(met.view, 0)
    else:
        estimate = attack.estimate(met.view, 0)
        found = attack.with_truth(met.records).score_images_of(estimate, 0)
        assert found.details["share_exact"] == 1.0


def test_dp_sgd_leaves_the_control():
    result = attacked("mlp-b1-dp-sgd")[EXACT]
    assert result.details["share_exact"] == 0
    assert result.details["certain"] == 0
    assert result.details["share_above_20_dB"] == 0
    assert abs(result.figure - result.control) < 3


def test_dp_sgd_that_only_clips_is_caught(monkeypatch):
    """A clip scales weights and biases alike, so their ratio stays what it was."""
    monkeypatch.setattr(dp_sgd, "calibrate", lambda _epsilon, _delta, _plan: 0.0)
    result = trained("mlp-b1-dp-sgd")[EXACT]
    assert result.details["share_exact"] == 1.0
    assert result.details["certain_and_right"] == CLIENTS


def test_gradient_matching_beats_its_control_on_a_convolutional_network():
    result = attacked("cnn-b1")[MATCHED]
    assert result.interval[0] > 2
    assert result.control < 2
    assert result.figure > result.control + 2


def test_large_batches_wait_for_a_full_run():
    assert "mlp-b64" in SCENE.rows(replace(CELL, quick=False))
    assert "mlp-b64" not in SCENE.rows(CELL)


def test_the_scene_reads_a_masked_sum_by_a_model_of_the_servers_choice():
    """An honest model of the same network, under the same masks, shows no record."""
    imprinted = trained("imprint")["imprint"]
    assert imprinted.figure > 60 > imprinted.details["honest_model_psnr"]
