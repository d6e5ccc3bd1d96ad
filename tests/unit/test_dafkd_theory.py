"""DaFKD's theorems on known densities: what holds, and that each check catches a broken twin."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pages import same

from experiments.dafkd_terms import (
    SETTINGS,
    World,
    alphas,
    deviation,
    distance,
    ensemble_risk,
    excess,
    generated,
    half_squared,
    judge_against_generator,
    judge_against_p,
    measure_cell,
    new_judges,
    optimal,
    rest,
    weighed,
)
from experiments.dafkd_theory import (
    AWAY,
    BOUND,
    F_STAR,
    FROM_P,
    GENERATORS,
    LOSS,
    MAXIMUM_LIKELIHOOD,
    MINIMAX,
    NON_SATURATING,
    NOT_ONE,
    POOLED,
    STUDY,
    TARGET,
    TO_P,
    UNIFORM,
    UNTRAINED,
    VIOLATED,
    Cell,
    Settings,
    by_records,
    cells,
    holds,
    of,
)
from experiments.known_densities import (
    Mixture,
    classes,
    density,
    draw,
    mean_of,
    tile_masses,
    tile_shares,
    variation,
)
from experiments.provenance import ROOT
from experiments.study import Result, gathered, read_results, write_results
from experiments.tables import rendered
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import FloatArray, IntArray, one_hot

ROUNDING = 1e-9
WORLD = World.of(4, 500, 0)
SIDE = 40


def tiles() -> FloatArray:
    """[K, T] mean densities of the clients over equal tiles of the square."""
    return np.stack([SIDE**2 * tile_masses(each, SIDE).ravel() for each in WORLD.mixtures])


# Densities.


def test_values_masses_and_samples_are_of_one_density() -> None:
    """By McDiarmid, a right sample fails here with a probability of 1e-6."""
    at = (np.arange(200) + 0.5) / 200
    x = np.stack(np.meshgrid(at, at, indexing="ij"), axis=-1).reshape(-1, 2)
    count, side, rng = 20_000, 8, np.random.default_rng(0)
    most = math.sqrt(side**2 / count) / 2 + math.sqrt(math.log(1e6) / (2 * count))
    for each, other in pairwise([*WORLD.mixtures, WORLD.mean]):
        masses = tile_masses(each, side)
        means = density(each, x).reshape(side, 25, side, 25).mean(axis=(1, 3)) / side**2
        assert means == pytest.approx(masses, abs=1e-4)
        assert variation(tile_shares(draw(each, count, rng), side), masses) < most
        assert variation(tile_shares(draw(other, count, rng), side), masses) > most  # the twin


def test_the_mean_is_the_mean_of_the_densities() -> None:
    x = WORLD.fresh[:100]
    assert density(WORLD.mean, x) == pytest.approx(WORLD.densities(x).mean(axis=0))
    assert density(mean_of(WORLD.mixtures[:1]), x) == pytest.approx(WORLD.densities(x)[0])


def test_every_client_meets_every_class() -> None:
    assert set(classes(WORLD.fresh)) == {0, 1, 2, 3}


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


@pytest.mark.parametrize("broken", ["uniform", "root", "at rest"])
def test_other_weights_break_equation_19(broken: str) -> None:
    densities = tiles()
    f = {
        "uniform": np.ones_like(densities),
        "root": np.sqrt(optimal(densities)),
        "at rest": densities / (densities + rest(densities, NON_SATURATING)),
    }[broken]
    alpha = alphas(f)
    assert alpha.sum(axis=0) == pytest.approx(np.ones(SIDE**2), abs=ROUNDING)
    assert excess(alpha, densities).max() > 0.01


# Theorem 1.


def divergence(densities: FloatArray, q: FloatArray) -> float:
    """Mean over k and tiles of JSD(p_k || q), which equation 16 says p to make least."""
    middle = (densities + q) / 2
    kept = [
        (a * np.log(np.maximum(a, 1e-300) / b)).mean(axis=1)
        for a, b in ((densities, middle), (np.broadcast_to(q, densities.shape), middle))
    ]
    return float(np.mean(kept))


def test_p_is_not_where_equation_13_leads() -> None:
    """The proof's own objective is lower elsewhere; the mean is the rest of a linear loss alone."""
    densities = tiles()
    p = densities.mean(axis=0)
    found = {how: rest(densities, how) for how in GENERATORS}
    for q in found.values():
        assert q.mean() == pytest.approx(1)
    assert found[MAXIMUM_LIKELIHOOD] == pytest.approx(p, rel=1e-6)
    apart = {how: variation(q, p) / len(q) for how, q in found.items()}
    assert apart[NON_SATURATING] > apart[MINIMAX] > 0.02
    assert divergence(densities, found[MINIMAX]) < divergence(densities, p) - 1e-4
    for share in (0.5, 0.9, 1.1):
        beside = (1 - share) * p + share * found[MINIMAX]
        assert divergence(densities, beside) > divergence(densities, found[MINIMAX])


def test_alike_clients_rest_at_p_by_every_loss() -> None:
    densities = np.repeat(tiles()[:1], 3, axis=0)
    for how in GENERATORS:
        assert rest(densities, how) == pytest.approx(densities[0], rel=1e-6)


def test_f_comes_to_f_star_and_untrained_f_is_caught() -> None:
    densities = WORLD.densities(WORLD.fresh)
    judges, rng = new_judges(WORLD, SETTINGS, 0), np.random.default_rng(0)
    found = [distance(weighed(judges, WORLD.fresh), densities)]
    for steps in (200, 800):
        judge_against_p(judges, WORLD, steps, rng)
        found.append(distance(weighed(judges, WORLD.fresh), densities))
    assert found[0] > 4 * TARGET
    assert found[0] > found[1] > found[2]
    assert found[2] < found[0] / 3
    assert distance(optimal(densities), densities) == 0


def test_a_generator_comes_nearer_to_p() -> None:
    masses = tile_masses(WORLD.mean, 8)
    made = []
    for steps in (0, 250):
        judges = new_judges(WORLD, SETTINGS, 0)
        how = MAXIMUM_LIKELIHOOD
        generator = judge_against_generator(judges, WORLD, how, steps, seed=0)
        made.append(variation(tile_shares(generated(generator, 10_000, 0), 8), masses))
    assert made[1] < made[0] / 2


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
    assert 2 * half_squared(wrong, truth)[0] > 1  # the twin: sigma would be 2


def test_the_deviation_is_kept_by_networks_that_were_fixed_before() -> None:
    """Losses of 0 or 1, the widest there are: the twin with half of sigma is passed too often."""
    clients, records, delta = 4, 100, 0.05
    allowed = deviation(clients, records, delta) / (clients + 1)
    draws = np.random.default_rng(0).random((2000, clients, records)) < 0.5
    worst = np.abs(draws.mean(axis=2) - 0.5).max(axis=1)
    assert (worst > allowed).mean() <= delta
    assert (worst > allowed / 2).mean() > delta


def test_the_ensemble_is_the_weighted_prediction() -> None:
    x = np.array([[0.1, 0.1], [0.9, 0.9]])
    right, wrong = one_hot(classes(x), 4), one_hot((classes(x) + 1) % 4, 4)
    said = np.stack([right, wrong])
    assert ensemble_risk(np.array([[1.0, 1.0], [0.0, 0.0]]), said, x) == 0
    assert ensemble_risk(np.array([[0.0, 0.0], [1.0, 1.0]]), said, x) == 1
    assert ensemble_risk(np.full((2, 2), 0.5), said, x) == 0.25


# The study.


def made_up(records: int, generators: tuple[str, ...] = ()) -> Result:
    """A result with figures that differ, under the names that a cell has."""
    cell = Cell(7, records, 2, 1, 1, 1, generators)
    real = measure_cell(None, cell, None, lambda _: None)
    figures = {name: (i + records) / 1000 for i, name in enumerate(sorted(real.figures))}
    return Result(cell, figures, 1.0, notes=real.notes)


def test_a_study_comes_back_from_its_file_and_shows_its_tables(tmp_path: Path) -> None:
    found = gathered(STUDY, [made_up(20), made_up(40, GENERATORS)])
    write_results(found, tmp_path / "theory.json")
    again = read_results(STUDY, tmp_path / "theory.json")
    assert again.cells == found.cells
    assert STUDY.figure(again) is not None
    same("dafkd_theory.txt", rendered(STUDY.shown(again)))


def test_a_broken_bound_is_not_counted() -> None:
    figures = {BOUND: 0.2, of(F_STAR, LOSS): 0.1, of(FROM_P, LOSS): 0.2}
    cell = Cell(0, 10)
    assert holds(Result(cell, figures, 1.0))
    assert not holds(Result(cell, {**figures, of(F_STAR, LOSS): 0.21}, 1.0))


def test_generators_are_trained_where_there_are_most_records() -> None:
    made = cells(Settings(records="100,300,200", seeds="1,2"))
    assert [(c.seed, c.records) for c in made if c.generators] == [(1, 300), (2, 300)]
    assert len(made) == 6
    quick = cells(Settings(quick=True))
    assert len(quick) == 2
    assert {c.generators for c in quick} == {(), GENERATORS}


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"clients": 1}, "clients"), ({"clients": 21}, "clients"), ({"records": "0"}, "records")],
)
def test_settings_that_mean_nothing_are_refused(changed: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        cells(Settings(**changed))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_committed_figures_say_what_the_page_says_of_them() -> None:
    by = by_records(read_results(STUDY, ROOT / "docs" / "results" / "dafkd_theory.json"))
    for result in (result for found in by.values() for result in found):
        figures = result.figures
        assert figures[of(F_STAR, VIOLATED)] == 0 < figures[of(UNIFORM, VIOLATED)]
        assert figures[of(FROM_P, NOT_ONE)] < ROUNDING
        assert figures[of(UNTRAINED, AWAY)] > TARGET
        assert figures[POOLED] < figures[BOUND]
        assert holds(result)
        if result.cell.generators:
            assert figures[of(FROM_P, AWAY)] <= TARGET
            assert figures[of(NON_SATURATING, TO_P)] > 2 * figures[of(MAXIMUM_LIKELIHOOD, TO_P)]
