"""The ablation's own parts: a threshold that keeps its claim, fair figures, resumed cells."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.ablation import study
from experiments.ablation.cells import Case, Cell, grid
from experiments.ablation.choices import CHOICES, Choice
from experiments.ablation.private_threshold import (
    private_thresholds,
    response_epsilon,
    utility,
)
from experiments.ablation.quality import Quality, hardest_half, judge
from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import FloatArray, IntArray, Released, one_hot

PROXIES: FloatArray = np.random.default_rng(0).normal(size=(2000, 1))
CASE = Case("mnist5k", "strong", 4)
QUALITY = Quality(0.5, 0.25, 0.75, 0.5, 0.5)


def draws(own: FloatArray, epsilon: float, count: int = 1, seed: int = 0) -> FloatArray:
    rng, columns = np.random.default_rng(seed), np.zeros(len(own), dtype=np.int64)
    return np.array([
        private_thresholds(PROXIES, own[:, None], columns, 0.25, epsilon, rng)[0]
        for _ in range(count)
    ])  # fmt: skip


def test_a_threshold_without_noise_is_the_quantile_up_to_the_grid() -> None:
    own = np.random.default_rng(1).normal(1.0, 0.3, 400)
    assert draws(own, math.inf)[0] == pytest.approx(np.quantile(own, 0.25), abs=0.02)
    assert draws(own, 5.0)[0] == pytest.approx(np.quantile(own, 0.25), abs=0.1)


@given(
    own=arrays(np.float64, st.integers(1, 12), elements=st.floats(-3, 3)),
    quantile=st.floats(0.01, 0.99),
    at=st.integers(0, 11),
)
@settings(deadline=None)
def test_a_record_moves_a_utility_by_less_than_one(
    own: FloatArray, quantile: float, at: int
) -> None:
    points = np.linspace(-3, 3, 30)
    moved = utility(points, own, quantile) - utility(
        points, np.delete(own, at % len(own)), quantile
    )
    assert np.abs(moved).max() <= max(quantile, 1 - quantile) + 1e-9


def test_some_record_moves_a_utility_by_nearly_one() -> None:
    """So a twin that takes the sensitivity for a half is caught."""
    own, points = np.array([-5.0]), np.array([0.0])
    moved = utility(points, own, 0.01) - utility(points, own[:0], 0.01)
    assert abs(moved[0]) == pytest.approx(0.99)


def test_the_response_and_the_head_share_the_budget() -> None:
    """(epsilon^2 / 8) + 1 / (2 z'^2) with z' = z / sqrt(share) is 1 / (2 z^2) again."""
    for z, share in ((1.158, 0.9), (4.045, 0.5)):
        answer = response_epsilon(z, 1 - share)
        assert answer**2 / 8 + share / (2 * z**2) == pytest.approx(1 / (2 * z**2))
    assert response_epsilon(0.0, 0.1) == math.inf


def test_the_hard_half_is_the_one_between_the_classes() -> None:
    inputs = np.array([[0.0], [0.1], [0.9], [1.0], [3.0], [3.1], [2.2], [2.1]])
    labels: IntArray = np.array([4, 4, 4, 4, 6, 6, 6, 6])
    between = [False, False, True, True]
    assert hardest_half(inputs, labels).tolist() == between * 2


def votes_of(labels: IntArray, weights: FloatArray) -> list[Released]:
    silent = Released(np.zeros(len(labels)), one_hot(labels, 10))
    return [Released(weights, one_hot(labels, 10)), silent]


def test_figures_follow_the_votes(digits: FederatedData) -> None:
    truth = digits.proxies.labels.numpy()
    everyone = np.ones(len(truth))
    perfect = judge(digits, votes_of(truth, everyone))
    assert (perfect.covered, perfect.hard, perfect.precise, perfect.right) == (1, 1, 1, 1)
    assert perfect.student > 0.7
    wrong = judge(digits, votes_of((truth + 1) % 10, everyone))
    assert (wrong.covered, wrong.precise, wrong.right) == (1, 0, 0)
    assert wrong.student < 0.2
    half = judge(digits, votes_of(truth, (np.arange(len(truth)) % 2).astype(float)))
    assert (half.covered, half.precise, half.right) == (0.5, 1, 0.5)


def test_cells_are_kept_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, str]] = []

    def measure(case: Case, seed: int, choice: Choice, data_dir: Path | None) -> Cell:  # noqa: ARG001 - as the real one
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append((seed, choice.name))
        return Cell(case.dataset, case.split, case.epsilon, choice.name, seed, QUALITY)

    monkeypatch.setattr(study, "measure", measure)
    out = tmp_path / "study.json"
    with pytest.raises(KeyboardInterrupt):
        study.run((CASE,), 2, None, out)
    assert [cell.choice for cell in study.Study.read(out).cells] == [c.name for c in CHOICES[:3]]
    asked = [(-1, "")] * 4  # interrupts no more
    found = study.run((CASE,), 2, None, out)
    assert [name for _, name in asked[4:]] == [c.name for _, _, c in grid((CASE,), 2)][3:]
    assert len({cell.key for cell in found.cells}) == 2 * len(CHOICES)
    assert study.Study.read(out).cells == found.cells
    assert "| 50.0 ± 0.0 |" in study.table(found, "right", [CASE])
    assert "not run" in study.table(found, "right", [Case("mnist5k", "weak", 1)])


def test_mistakes_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="datasets: 'mnist6k'"):
        study.chosen("mnist5k, mnist6k", 3)
    with pytest.raises(ConfigurationError, match="seeds: 0"):
        study.chosen("mnist5k", 0)
    other = tmp_path / "other.json"
    other.write_text("no study", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="must be a study or a new file"):
        study.Study.read(other)
