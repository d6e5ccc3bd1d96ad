"""DaFKD's theorems on known densities: what holds, and that each check catches a broken weight."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.dafkd_theory import (
    BOUND,
    F_STAR,
    LOSS,
    TRAINED,
    Cell,
    Settings,
    alphas,
    answers,
    cells,
    deviation,
    discriminators,
    excess,
    half_squared,
    holds,
    measure_cell,
    of,
    optimal,
    tables,
    train_on_samples,
)
from experiments.known_densities import (
    Mixture,
    classes,
    density,
    draw,
    mean_of,
    random_mixtures,
    tile_masses,
    tile_shares,
    variation,
)
from experiments.study import SCHEMA, Result, Results
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import FloatArray, IntArray, one_hot

ROUNDING = 1e-9
MIXTURES = random_mixtures(4, np.random.default_rng(0))
MEAN = mean_of(MIXTURES)
SIDE = 40


def tiles() -> FloatArray:
    """[K, T] mean densities of the clients over equal tiles of the square."""
    return np.stack([SIDE**2 * tile_masses(each, SIDE).ravel() for each in MIXTURES])


# Densities.


def test_values_masses_and_samples_are_of_one_density() -> None:
    """By McDiarmid, a right sample fails here with a probability of 1e-6."""
    at = (np.arange(200) + 0.5) / 200
    x = np.stack(np.meshgrid(at, at, indexing="ij"), axis=-1).reshape(-1, 2)
    count, side, rng = 20_000, 8, np.random.default_rng(0)
    most = math.sqrt(side**2 / count) / 2 + math.sqrt(math.log(1e6) / (2 * count))
    for each, other in pairwise([*MIXTURES, MEAN]):
        masses = tile_masses(each, side)
        means = density(each, x).reshape(side, 25, side, 25).mean(axis=(1, 3)) / side**2
        assert means == pytest.approx(masses, abs=1e-4)
        assert variation(tile_shares(draw(each, count, rng), side), masses) < most
        assert variation(tile_shares(draw(other, count, rng), side), masses) > most


def test_the_mean_is_the_mean_of_the_densities() -> None:
    x = draw(MEAN, 100, np.random.default_rng(0))
    assert density(MEAN, x) == pytest.approx(
        np.mean([density(each, x) for each in MIXTURES], axis=0)
    )
    assert density(mean_of(MIXTURES[:1]), x) == pytest.approx(density(MIXTURES[0], x))


def test_every_client_meets_every_class() -> None:
    assert set(classes(draw(MEAN, 20_000, np.random.default_rng(0)))) == {0, 1, 2, 3}


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.5, -0.5], [1.0]])
def test_what_is_no_mixture_is_refused(weights: list[float]) -> None:
    with pytest.raises(LocalError):
        Mixture(np.array(weights), np.full((2, 2), 0.5), np.full((2, 2), 0.1))


# Equation 19.


@given(arrays(np.float64, (4, 5), elements=st.floats(0, 100)))
@settings(deadline=None)
def test_equation_19_holds_for_f_star_at_any_densities(densities: FloatArray) -> None:
    assume((densities.sum(axis=0) > 1e-6).all())
    alpha = alphas(optimal(densities))
    assert alpha.sum(axis=0) == pytest.approx(np.ones(5), abs=ROUNDING)
    assert excess(alpha, densities).max() <= ROUNDING


def test_equation_19_is_reached_where_one_client_has_nearly_all() -> None:
    """So no smaller constant than (K + 1) / K would do."""
    densities = np.array([[1e-6], [1e-6], [1e-6], [4.0]])
    times = alphas(optimal(densities)) / (densities / densities.mean(axis=0))
    assert times[0, 0] == pytest.approx(5 / 4, rel=1e-4)


@pytest.mark.parametrize("broken", ["uniform", "root"])
def test_other_weights_break_equation_19(broken: str) -> None:
    densities = tiles()
    f = {
        "uniform": np.ones_like(densities),
        "root": np.sqrt(optimal(densities)),
    }[broken]
    alpha = alphas(f)
    assert alpha.sum(axis=0) == pytest.approx(np.ones(SIDE**2), abs=ROUNDING)
    assert excess(alpha, densities).max() > 0.01


# Theorem 1.


def test_f_comes_to_f_star_and_untrained_f_is_caught() -> None:
    rng = np.random.default_rng(0)
    records = [draw(each, 500, rng) for each in MIXTURES]
    x = draw(MEAN, 20_000, rng)
    best = optimal(np.stack([density(each, x) for each in MIXTURES]))
    judges, found = discriminators(4, 0), []
    for steps in (0, 200, 800):
        for judge, own in zip(judges, records, strict=True):
            train_on_samples(judge, own, MEAN, steps, rng)
        f = np.stack([answers(judge, x) for judge in judges])
        found.append(np.abs(f - best).mean())
    assert found[0] > 0.2
    assert found[0] > found[1] > found[2]
    assert found[2] < found[0] / 3


# Theorem 2.


@given(
    arrays(np.float64, (3, 4), elements=st.floats(0.01, 1)),
    arrays(np.int64, 3, elements=st.integers(0, 3)),
)
@settings(deadline=None)
def test_the_loss_is_convex_and_in_the_unit_interval(said: FloatArray, truth: IntArray) -> None:
    said = said / said.sum(axis=1, keepdims=True)
    each = half_squared(said, truth)
    assert each.min() >= 0
    assert each.max() <= 1
    mean = half_squared(said.mean(axis=0, keepdims=True), truth[:1])
    assert mean[0] <= half_squared(said, np.repeat(truth[:1], 3)).mean() + ROUNDING


def test_a_whole_squared_distance_would_leave_the_unit_interval() -> None:
    wrong, truth = one_hot(np.array([1]), 4), np.array([0])
    assert half_squared(wrong, truth)[0] == 1
    assert 2 * half_squared(wrong, truth)[0] > 1


def test_the_deviation_is_kept_by_networks_that_were_fixed_before() -> None:
    """Losses of 0 or 1, the widest there are: half of the allowance is passed too often."""
    clients, records, delta = 4, 100, 0.05
    allowed = deviation(clients, records, delta) / (clients + 1)
    draws = np.random.default_rng(0).random((2000, clients, records)) < 0.5
    worst = np.abs(draws.mean(axis=2) - 0.5).max(axis=1)
    assert (worst > allowed).mean() <= delta
    assert (worst > allowed / 2).mean() > delta


# The study.


def test_a_run_gives_every_figure_of_its_tables() -> None:
    found = measure_cell(None, Cell(7, 20, 2, 1, 1), None, lambda _: None)
    made = Results(SCHEMA, "dafkd_theory", "2026-01-01T00:00:00+00:00", cells=(found,))
    first, second = tables(made)[:2]
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    assert all(float(value) >= 0 or value for value in (*first.rows[0], *second.rows[0]))


def test_a_broken_bound_is_not_counted() -> None:
    figures = {BOUND: 0.2, of(F_STAR, LOSS): 0.1, of(TRAINED, LOSS): 0.2}
    cell = Cell(0, 10)
    assert holds(Result(cell, figures, 1.0))
    assert not holds(Result(cell, {**figures, of(F_STAR, LOSS): 0.21}, 1.0))


@pytest.mark.parametrize(
    ("changed", "field"), [({"clients": 1}, "clients"), ({"records": "0"}, "records")]
)
def test_settings_that_mean_nothing_are_refused(changed: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        cells(Settings(**changed))  # type: ignore[arg-type]
    assert caught.value.field == field
