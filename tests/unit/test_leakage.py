"""Attack figures: on disk, over seeds, and what is told apart from a control."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from leakage_sample import MISSING, findings, inversion, leakage, membership
from scipy.stats import ttest_rel

from attacks.core.base import AttackResult
from attacks.core.images import SHUFFLES
from attacks.core.statistics import mean
from experiments.compare.leakage import Found, Leakage, Measured, holm, stored, together
from experiments.core.study import Result, Store, load
from secure_fd.errors import ConfigurationError

SEEDS = (10, 11, 12)


def one(found: Leakage, row: str, attack: str) -> Measured:
    measured = found.figure(row, attack)
    assert measured is not None
    return measured


def alone(result: AttackResult, *others: str) -> Measured:
    """A figure of seed 10, and sentences of later seeds."""
    found: list[tuple[int, Found]] = [(10, result), *enumerate(others, 11)]
    made = together(found)
    assert isinstance(made, Measured)
    return made


def test_figures_over_seeds_are_means_with_paired_intervals():
    found = one(leakage(SEEDS), "fedavg", "lira")
    every = [membership(2.0, seed, "lira") for seed in SEEDS]
    figures, controls = [r.figure for r in every], [r.control for r in every]
    assert found.figure == pytest.approx(np.mean(figures))
    assert found.control == pytest.approx(np.mean(controls))
    expected = ttest_rel(figures, controls).confidence_interval(0.95)
    assert found.difference.interval == pytest.approx((expected.low, expected.high))
    assert len(found.every) == len(SEEDS)
    assert found.side == 1
    assert one(leakage(SEEDS), "hard", "inversion").side == 0


def test_one_seed_is_judged_by_its_interval_over_records():
    result = membership(1.0, 10)
    found = alone(result)
    assert found.interval == result.interval
    assert found.difference.interval is None
    assert found.side == 1
    assert alone(membership(-1.5, 10)).side == -1
    close = replace(result, control=result.interval[0] - 0.001)
    assert alone(close).side == 0  # an interval that just misses it is no proof


def test_false_alarms_over_seeds_are_as_many_as_stated():
    rng, alarms, result = np.random.default_rng(3), 0, inversion(0.0, 10)
    for _ in range(300):
        noise = rng.normal(0.5, 0.02, (3, 2))
        every = [replace(result, figure=figure, control=control) for figure, control in noise]
        found = together(list(enumerate(every)))
        assert isinstance(found, Measured)
        alarms += found.side != 0
    # P[Bin(300, .05) > 29] < 1e-3; deciding by the normal quantile would give about 57.
    assert alarms <= 29


# Holm's correction over a table.

FIGURES = 52
"""Of the comparison's default table."""


def null(rng: np.random.Generator, n: int) -> AttackResult:
    """A bootstrapped mean over n records, beside a control of as many others, of one law."""
    here, there = rng.normal(0.6, 0.1, (2, n))
    rate = mean(here, int(rng.integers(2**31)))
    value, control = rate.value, float(there.mean())
    names = {
        "name": "a",
        "title": "A",
        "figure_name": "AUC",
        "unit": "",
        "control_name": "no access",
    }
    return AttackResult(figure=value, interval=rate.interval, control=control, n_members=n, **names)


def table(figures: Sequence[AttackResult]) -> Leakage:
    """Figures in rows of seven attacks."""
    rows = {f"row {i}": figures[i : i + 7] for i in range(0, len(figures), 7)}
    found = {row: [(0, {f"a{k}": one for k, one in enumerate(of)})] for row, of in rows.items()}
    return Leakage.of({row: row for row in rows}, found)


def stars(found: Leakage) -> list[Measured]:
    return [one for attack in found.attacks for one in found.measured(attack).values() if one.leaks]


def test_a_table_of_nothing_has_a_star_in_at_most_one_of_twenty():
    """P[Bin(100, .05) > 11] < .01; without the correction nearly every table has stars."""
    rng, alarms, without = np.random.default_rng(7), 0, 0
    for _ in range(100):
        found = table([null(rng, int(rng.choice([3, 10, 40]))) for _ in range(FIGURES)])
        alarms += bool(stars(found.corrected()))
        without += bool(stars(found))
    assert alarms <= 11
    assert without > 50


def test_a_strong_effect_keeps_its_star_among_many_figures():
    rng = np.random.default_rng(1)
    quiet = [null(rng, 40) for _ in range(FIGURES - 3)]
    known = replace(quiet[0], title="known", figure=0.0, interval=(0.0, 0.0), n_members=3)
    error = replace(known, figure_name="TV error", control=0.9)
    membership_found = membership(1.0, 10)
    inverted = inversion(2.0, 10)
    sure = {"delta_p_value": 1 / (1 + SHUFFLES)}  # no shuffle comes near
    inverted = replace(inverted, details={**inverted.details, **sure})
    found = table([*quiet, error, membership_found, inverted]).corrected()
    assert {one.first.title for one in stars(found)} == {
        *("known", membership_found.title, inverted.title)
    }


def test_an_adjusted_p_value_is_holm_s():
    """By the definition: the largest of the corrected ones so far, in rising order."""
    p_values = np.random.default_rng(2).random(30) ** 3
    order = p_values.argsort()
    corrected = np.minimum(1.0, np.arange(30, 0, -1) * p_values[order])
    found = holm(dict(enumerate(p_values.tolist())))
    assert [found[i] for i in order] == pytest.approx(np.maximum.accumulate(corrected))


def test_one_record_is_told_from_nothing():
    alone_there = replace(null(np.random.default_rng(0), 10), figure=9.0, interval=(9.0, 9.0))
    assert alone_there.p_value == 0.0
    assert replace(alone_there, n_members=1).p_value == 1.0
    assert replace(alone_there, control=9.0).p_value == 1.0


# In cells.

STUDY = load("experiments.paper.heterogeneity")
CELL = STUDY.cells(STUDY.settings(quick=True))[0]


def attacked() -> Result:
    figures, pictures = stored(findings((10,))["fedavg", 10] | {"other": MISSING})
    return Result(CELL, {}, 1.5, attacks=figures, pictures=pictures)


def test_figures_and_pictures_come_back_as_they_were(tmp_path):
    store = Store(tmp_path, STUDY)
    store.save(attacked())
    found = Store(tmp_path, STUDY).find(CELL)
    assert found == attacked()
    assert found.attacks["other"] == MISSING
    assert set(found.pictures) == set(attacked().pictures) != set()
    assert np.array_equal(found.pictures["inversion/black"], attacked().pictures["inversion/black"])


@pytest.mark.parametrize(("old", "new"), [('"queries"', '"asked"'), ("AUC", '", "x')])
def test_a_damaged_figure_is_refused(tmp_path, old, new):
    store = Store(tmp_path, STUDY)
    store.save(attacked())
    whole = store.lines.read_text(encoding="utf-8")
    assert old in whole
    store.lines.write_text(whole.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigurationError):
        Store(tmp_path, STUDY)
