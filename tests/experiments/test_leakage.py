"""Attack figures over seeds, corrected over a table, and on disk."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t, ttest_rel

from attacks.core.base import AttackResult
from attacks.core.statistics import mean
from experiments.compare.leakage import Leakage, Measured, holm, stored, together
from experiments.core.study import Result, Store, load

SEEDS = (10, 11, 12)


def null(rng: np.random.Generator, n: int, shift: float = 0.0) -> AttackResult:
    """A bootstrapped mean over n records, beside a control of as many others, of one law.

    shift: of the records' law, in deviations.
    """
    here, there = rng.normal(0.6, 0.1, (2, n))
    rate = mean(here + shift / 10, int(rng.integers(2**31)))
    value, control = rate.value, float(there.mean())
    names = {
        "name": "a",
        "title": "A",
        "figure_name": "AUC",
        "unit": "",
        "control_name": "no access",
    }
    return AttackResult(figure=value, interval=rate.interval, control=control, n_members=n, **names)


def over_seeds(results: Sequence[AttackResult]) -> Measured:
    return together(list(zip(SEEDS, results, strict=False)))


def test_figures_over_seeds_are_means_with_paired_intervals():
    rng = np.random.default_rng(0)
    every = [null(rng, 200, shift=1.0) for _ in SEEDS]
    found = over_seeds(every)
    figures, controls = [r.figure for r in every], [r.control for r in every]
    assert found.figure == pytest.approx(np.mean(figures))
    assert found.control == pytest.approx(np.mean(controls))
    expected = ttest_rel(figures, controls).confidence_interval(0.95)
    assert found.difference.interval == pytest.approx((expected.low, expected.high))
    mean, deviation = np.mean(figures), np.std(figures, ddof=1)
    assert found.interval == pytest.approx(t.interval(0.95, 2, mean, deviation / np.sqrt(3)))
    assert found.side == 1


def test_one_seed_is_judged_by_its_interval_over_records():
    rng = np.random.default_rng(0)
    result = null(rng, 200, shift=1.0)
    found = over_seeds([result])
    assert (found.interval, found.difference.interval, found.side) == (result.interval, None, 1)
    assert over_seeds([null(rng, 200, shift=-1.5)]).side == -1
    close = replace(result, control=result.interval[0] - 0.001)
    assert over_seeds([close]).side == 0  # an interval that just misses it is no proof


def test_false_alarms_over_seeds_are_as_many_as_stated():
    """P[Bin(300, .05) > 29] < 1e-3; deciding by the normal quantile would give about 57."""
    rng, alarms = np.random.default_rng(3), 0
    result = null(rng, 40)
    for _ in range(300):
        noise = rng.normal(0.5, 0.02, (3, 2))
        alarms += over_seeds([replace(result, figure=f, control=c) for f, c in noise]).side != 0
    assert alarms <= 29


# Holm's correction over a table.

FIGURES = 52
"""Figures of the comparison's default table."""


def table(figures: Sequence[AttackResult]) -> Leakage:
    """Figures in rows of seven attacks."""
    rows = {f"row {i}": figures[i : i + 7] for i in range(0, len(figures), 7)}
    found = {row: [(0, {f"a{k}": one for k, one in enumerate(of)})] for row, of in rows.items()}
    return Leakage.of({row: row for row in rows}, found)


def stars(found: Leakage) -> list[Measured]:
    return [one for attack in found.attacks for one in found.measured(attack).values() if one.leaks]


def test_a_table_of_nothing_has_a_star_in_at_most_one_of_twenty():
    """P[Bin(60, .05) > 8] < .01; without the correction nearly every table has stars."""
    rng, alarms, without = np.random.default_rng(7), 0, 0
    for _ in range(60):
        found = table([null(rng, int(rng.choice([3, 10, 40]))) for _ in range(FIGURES)])
        alarms += bool(stars(found.corrected()))
        without += bool(stars(found))
    assert alarms <= 8
    assert without > 30


def test_an_adjusted_p_value_is_holm_s():
    """Definition: the largest of the corrected values so far, in rising order."""
    p_values = np.random.default_rng(2).random(30) ** 3
    order = p_values.argsort()
    corrected = np.minimum(1.0, np.arange(30, 0, -1) * p_values[order])
    found = holm(dict(enumerate(p_values.tolist())))
    assert [found[i] for i in order] == pytest.approx(np.maximum.accumulate(corrected))


def test_one_record_differs_from_no_control():
    alone_there = replace(null(np.random.default_rng(0), 10), figure=9.0, interval=(9.0, 9.0))
    assert alone_there.p_value == 0.0
    assert replace(alone_there, n_members=1).p_value == 1.0
    assert replace(alone_there, values=1).p_value == 1.0  # one update of ten records
    assert replace(alone_there, control=9.0).p_value == 1.0


# In cells.

STUDY = load("experiments.paper.heterogeneity")
CELL = STUDY.cells(STUDY.settings(quick=True))[0]


def attacked() -> Result:
    pictures = {"attack": np.random.default_rng(0).random((12, 14, 14), dtype=np.float32)}
    found = replace(null(np.random.default_rng(0), 40), queries=1000, images=pictures)
    figures, kept = stored({"a": found, "other": "not applicable: missing uploads"})
    return Result(CELL, {}, 1.5, attacks=figures, pictures=kept)


def test_figures_and_pictures_come_back_as_they_were(tmp_path):
    Store(tmp_path, STUDY).save(attacked())
    found = Store(tmp_path, STUDY).find(CELL)
    assert found == attacked()
    assert found.attacks["other"] == attacked().attacks["other"]
    assert np.array_equal(found.pictures["a/attack"], attacked().pictures["a/attack"])
