"""The front table: what a cell keeps, and when a method has passed the best."""

from dataclasses import replace

import numpy as np
import pandas as pd

from attacks.core.result import AttackResult
from experiments.core.equal_steps import equal_cell, setting
from experiments.report.tables import NONE
from experiments.rivals.equal_terms import _shortened, _until

PICTURE = AttackResult(
    "inversion", "Inversion", 0.1, "Δ PSNR", "dB", (0.05, 0.15), 0.0, "Δ of the black", 9, 40, 40
)


def test_a_shortened_picture_keeps_its_p_value():
    details = {"delta_p_value": 0.4, "black: A": 9.0, "black: delta": 0.2, "A_H": 0.1}
    full = replace(PICTURE, details=details, caveats=("a sentence",))
    kept = _shortened(full)
    assert kept.p_value == full.p_value == 0.4
    assert set(kept.details) == {"delta_p_value", "black: A", "black: delta"}


def test_a_time_is_the_mean_of_all_seeds_or_none():
    seeds = pd.Series([10.0, 20.0, np.nan])
    assert _until(seeds[:2]) == "15"
    assert _until(seeds) == "2 of 3 seeds"
    assert _until(seeds[2:]) == NONE


def test_private_records_are_among_the_images_of_a_step():
    own = {"method": "selective-fd", "labels": "hard"}
    for place in (("mnist", "strong"), ("chest_xray", "hospitals")):
        chosen = setting("selective-fd-hard", *place)
        sgd = equal_cell(own, chosen, *place, 0, quick=False).schedule.sgd
        assert sgd.own_batch > 0
        assert sgd.own_batch + sgd.distillation_batch == 128
