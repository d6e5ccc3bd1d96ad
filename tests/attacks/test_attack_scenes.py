"""Attacks in the suite's scenes: they find what nothing protects, and nothing under noise.

Digits and noise are seeded, so that every figure is the same each time.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from attacks.core.base import AttackResult, draw_challenge, match_classes
from attacks.core.run import Run, SumNoise, attack_view, labelled
from attacks.core.statistics import Claim
from attacks.membership.tracing import ONE_HOLDER, Blocks, Tracing
from experiments.suite.scenes import Cell, load
from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import concatenate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load as load_images
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.simulation.simulate import Simulation, simulate
from secure_fd.training.recipes import Recipe
from tests.small_federation import STILL, record_unit


def cell(scene: str, row: str = "") -> Cell:
    dataset = "mnist5k" if scene in ("updates", "pooled") else "digits"
    return Cell(scene, row, 20, dataset, quick=True)


@cache
def prepared(scene: str) -> Any:
    return load(scene).prepare(cell(scene), None)


@cache
def attacked(scene: str, row: str) -> AttackResult:
    [attempt] = load(scene).attempts(cell(scene, row), prepared(scene)).values()
    return attempt()


@pytest.mark.parametrize(
    ("scene", "row", "least", "most"),
    [
        ("updates", "imprint", 30, 120),
        ("updates", "imprint-dp-sgd", -5, 3),
        ("selector", "kulsif-masks", 0.45, 0.5),
        ("selector", "proxy-ratio", -0.2, 0.1),
    ],
)
def test_an_attack_finds_what_nothing_protects_and_no_more_than_its_control_elsewhere(
    scene, row, least, most
):
    """Figures above those without access: in dB of updates, and of AUC."""
    found = attacked(scene, row)
    assert least <= found.figure - found.control <= most


def test_answers_about_references_are_releases_too():
    """48 answers an image: of candidates, and of what they are compared with."""
    found = attacked("selector", "proxy-ratio")
    assert found.queries > 48 * (found.n_members + found.n_non_members)


@pytest.mark.parametrize("row", ["overfitted fedavg", "overfitted votes"])
def test_every_shadow_attack_finds_members_of_an_overfitted_federation(row):
    """Scores, labels alone, and what the server read, against six runs."""
    made = load("membership").attempts(cell("membership", row), prepared("membership"))
    found = [attempt() for attempt in made.values()]
    assert len(found) == 4
    assert all(one.figure > 0.6 and one.interval[0] > 0.55 for one in found)
    assert all(one.queries for one in found if one.name == "label-only-shadows")


def test_an_honest_model_shows_no_image_where_an_imprint_shows_many():
    honest, found = (attacked("updates", row) for row in ("masks", "imprint"))
    assert found.details["share_exact"] > 0.3 > honest.details["share_exact"]
    assert honest.figure < found.control + 5


def test_noise_holds_tracing_to_its_bound_and_without_it_a_block_shows_its_records():
    """Blocks of one client each, which masks do not hide; two sums of noise at epsilon 4."""
    caught, noisy = (attacked("pooled", f"heads-masks{unit}-30") for unit in ("", "-dp-record"))
    bound = noisy.details["auc_bound_of_the_noise"]
    assert bound == pytest.approx(0.743, abs=0.002)
    assert noisy.figure <= bound < caught.figure - 0.05
    # Residuals are about more than features alone.
    assert caught.details["auc_of_sum_4"] > caught.details["auc_of_sum_1"] > 0.75
    assert ONE_HOLDER in caught.caveats
    assert caught.details["records_of_a_block"] == 30
    assert "auc_bound" not in caught.details


# Ten clients that hold every class.


@cache
def mixed() -> FederatedData:
    sizes = Sizes(proxies=60, test=0, held_out=30, local=33)
    return federate(load_images("digits"), parse_split("iid"), 10, seed=0, sizes=sizes)


def pooled(data: FederatedData, secure: str | None = None) -> Simulation:
    """Two sums, of statistics alone."""
    method = PooledHeads(1, features=ReferenceSettings(rank=40, n_features=400))
    run = simulate(data, method=method, secure=secure, recipe=Recipe(2, STILL))
    run.fit()
    return run


def test_the_noise_of_a_sum_is_all_clients_and_its_bound_that_of_the_honest():
    unit = record_unit(mixed(), sums=2)
    noise, plan = SumNoise.of(unit), unit.plan
    assert noise.deviation == pytest.approx(plan.noise * math.sqrt(10 / plan.honest))
    assert noise.claim == Claim(noise.claim.epsilon, unit.delta, plan.noise / math.sqrt(2))


def test_masks_hide_records_where_ten_clients_hold_a_class():
    clear, masked = (pooled(mixed(), secure).attack("tracing") for secure in (None, "masks"))
    assert clear.figure > masked.figure + 0.05
    assert masked.details["holders_of_a_block"] == 10
    assert ONE_HOLDER not in masked.caveats


def test_records_that_were_in_no_sum_score_a_half():
    """Null: other images in the members' place. Below four deviations, chance 6e-5."""
    data = mixed()
    few = [ClientData(own.train[:15], own.train[:0], 10) for own in data.clients]
    used = replace(data, clients=tuple(few))
    run = Run.of(used, pooled(used).federation, 0)
    rest = labelled(concatenate([own.train[15:] for own in data.clients]))
    challenge = draw_challenge(*match_classes(rest, run.held_out, 1), 1)
    truth = Blocks(challenge.is_member, run.histograms)
    result = attack_view(Tracing(challenge.candidates).with_truth(truth), run.view, 0)
    assert abs(result.figure - 0.5) < 4 * 0.034
