"""The record unit's rules read public facts alone, and each does what its docstring says."""

import math

import numpy as np
import pytest
import torch

from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import BudgetError, ConfigurationError
from secure_fd.knowledge import FloatArray
from secure_fd.privacy import release as record_release
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.protection import record as record_unit
from secure_fd.protection.record import (
    SIZES,
    RecordRules,
    RecordUnit,
    ridge_for,
    size_for,
    thresholds_for,
    votes,
)
from secure_fd.selection.client import otsu_thresholds, top_share_thresholds
from secure_fd.selection.density import ProxyReference, RatioSolver, ReferenceSettings

SMALL = ReferenceSettings((20, 10), 200)


def small(noise: float, n_classes: int) -> ReferenceSettings:  # noqa: ARG001 - one for all noise
    return SMALL


def prepared(unit: RecordUnit, data: FederatedData, records: list[Images]) -> RecordUnit:
    unit.prepare(data.proxies.pixels, data.n_classes, records)
    return unit


def test_no_noise_takes_the_selector_s_own_map_and_ridge() -> None:
    assert size_for(0.0, 10) == ReferenceSettings()
    assert ridge_for(0.0, 6000, 10) == 1 / 6000


def test_more_noise_or_more_classes_never_take_a_larger_map() -> None:
    dimensions = [size_for(noise, 1).n_features for noise in np.logspace(-5, 1, 200)]
    assert dimensions == sorted(dimensions, reverse=True)
    assert {size_for(noise, 1) for noise in np.logspace(-5, 1, 200)} == {s for _, s in SIZES}
    for noise in np.logspace(-5, 1, 50):
        assert sum(size_for(noise, 10).ranks) <= sum(size_for(noise, 1).ranks)
        assert size_for(noise, 4) == size_for(2 * noise, 1)


def test_the_ridge_grows_with_the_noise_of_a_class() -> None:
    ridges = [ridge_for(noise, 1000, 2) for noise in np.logspace(-5, 1, 100)]
    assert ridges == sorted(ridges)
    assert ridges[0] == 1 / 1000
    assert ridge_for(0.0123, 1000, 10) == pytest.approx(0.123, rel=0.05)


def test_clients_of_nearly_one_size_have_one_ridge() -> None:
    assert ridge_for(1.1576 / 5300, 6000, 10) == ridge_for(1.1576 / 5310, 6000, 10)
    assert ridge_for(1.1576 / 5300, 6000, 10) != ridge_for(1.1576 / 2650, 6000, 10)


def heaps(noise: float, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """[5000, 1] ratios of which a tenth are 1 and the rest 0, under noise; and the truth."""
    truth = np.arange(5000) % 10 == 0
    rng = np.random.default_rng(seed)
    return (truth + noise * rng.normal(size=5000))[:, None], truth


def test_a_class_accepts_as_many_proxies_as_there_are_of_it_whatever_the_noise() -> None:
    """And of its own: where noise has made one heap of two, Otsu's line takes thousands more."""
    for noise in (0.01, 0.1, 0.4, 1.0):
        ratios, truth = heaps(noise)
        accepted = ratios[:, 0] >= thresholds_for(ratios, 10)[0]
        assert accepted.sum() == pytest.approx(500, abs=1)
    assert (ratios[:, 0] >= otsu_thresholds(ratios)[0]).sum() > 1500
    assert accepted[truth].mean() > 2 * accepted.mean()


def test_thresholds_are_taken_class_by_class() -> None:
    ratios = np.concatenate([heaps(0.1)[0], 50 * heaps(0.1, 1)[0] - 7], axis=1)
    together = top_share_thresholds(ratios, 0.1)
    assert together.shape == (2,)
    for column in range(2):
        alone = top_share_thresholds(ratios[:, column : column + 1], 0.1)
        assert together[column] == alone[0]
    assert (ratios >= top_share_thresholds(ratios, 1.0)).all()


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, math.nan])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match=r"share: .* is not allowed"):
        top_share_thresholds(np.zeros((3, 1)), share)


def test_votes_name_the_likeliest_class_and_abstain_below_every_threshold() -> None:
    ratios = np.array([[4.0, 0.0], [0.0, 3.0], [0.2, 0.1], [0.0, -1.0]])
    made = votes(ratios, np.array([1.0, 1.0]), (2, 7), 10)
    assert made.predictions.argmax(axis=1)[:2].tolist() == [2, 7]
    assert (made.weights > 0).tolist() == [True, True, False, False]
    # Bayes: 4 / (10 * the mean of the column), and never above 1.
    assert made.weights[0] == pytest.approx(4 / (10 * 4.2 / 4))
    assert votes(ratios * 0, np.zeros(2), (2, 7), 10).weights.max() == 0


# The unit makes one factorisation for each pair of map and ridge, and none twice.


def factorisations(
    monkeypatch: pytest.MonkeyPatch, data: FederatedData, records: list[Images]
) -> int:
    made: list[float] = []
    honest = ProxyReference.solver

    def counted(self: ProxyReference, beta: float | None = None) -> RatioSolver:
        made.append(math.nan if beta is None else beta)
        return honest(self, beta)

    with monkeypatch.context() as patched:
        patched.setattr(ProxyReference, "solver", counted)
        prepared(RecordUnit(1.0, 1e-5, rules=RecordRules(size=small)), data, records)
    return sum(not math.isnan(beta) for beta in made)  # the default is the selector's, made once


def test_equal_ridges_share_a_factorisation(
    monkeypatch: pytest.MonkeyPatch, digits: FederatedData
) -> None:
    held = [client.train for client in digits.clients]
    assert len({len(records) for records in held}) == 1
    assert factorisations(monkeypatch, digits, held) == 1
    half = held[0][torch.arange(len(held[0]) // 2)]
    assert factorisations(monkeypatch, digits, [half, *held[1:]]) == 2


def test_an_interrupted_preparation_cannot_be_made_again(
    monkeypatch: pytest.MonkeyPatch, digits: FederatedData
) -> None:
    """The first release was made, whatever came after it: another would double its cost."""
    held = [client.train for client in digits.clients]
    unit = RecordUnit(1.0, 1e-5, rules=RecordRules(size=small))

    def fails(self: ProxyReference, beta: float | None = None) -> RatioSolver:  # noqa: ARG001 - as the honest one
        raise MemoryError

    with monkeypatch.context() as patched:
        prepared(RecordUnit(1.0, 1e-5, rules=RecordRules(size=small)), digits, held)  # warms up
        patched.setattr(ProxyReference, "solver", fails)
        with pytest.raises(MemoryError):
            prepared(unit, digits, held)
    with pytest.raises(BudgetError, match="release is spent"):
        prepared(unit, digits, held)


def test_votes_depend_on_the_records_through_the_release_alone(
    monkeypatch: pytest.MonkeyPatch, digits: FederatedData
) -> None:
    """Other images, as many and of the same classes, with the same released means: same votes.

    The twin is the release itself: with honest means other images give other votes.
    """
    held = [client.train for client in digits.clients]
    others = [Images(1 - records.pixels, records.labels) for records in held]

    def weights(records: list[Images]) -> list[list[float]]:
        unit = RecordUnit(4.0, 1e-5, SeededRandom(1), RecordRules(size=small))
        prepared(unit, digits, records)
        every = np.arange(len(digits.proxies))
        return [unit.release(client, every).weights.tolist() for client in range(len(records))]

    assert weights(held) != weights(others)
    first = iter(range(10**6))
    honest = record_release.release_class_means

    def constant(features: FloatArray, *rest: object, **named: object) -> object:
        rng = np.random.default_rng(next(first) % len(held))
        rows = rng.normal(size=features.shape)
        rows /= 1.001 * np.linalg.norm(rows, axis=1, keepdims=True)
        return honest(rows, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(record_unit, "release_class_means", constant)
    assert weights(held) == weights(others)
