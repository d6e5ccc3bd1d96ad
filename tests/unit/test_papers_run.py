"""Cells run in this process on the bundled digits; what a rerun runs; Theorem 2 by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments import method_ablation
from experiments.accuracy_table import METHODS
from experiments.definitions import Code, Place
from experiments.fixed_labels import (
    FixedLabels,
    Lesson,
    Terms,
    distance,
    knowledge_losses,
    numerical,
)
from experiments.grid import default_cell, roots
from experiments.measures import (
    AUROC_CLASS,
    AUROC_RIGHT,
    BOUND,
    KEPT_ALL,
    RIGHT_ALL,
    TERMS,
    TEST_LOSS,
    VALIDATION,
)
from experiments.rows import Cell, unlabelled
from experiments.runs import Prepared, method_of, prepare, run_cell, runner_of, spread
from experiments.study import Result
from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.federation import Federation
from secure_fd.recipes import Schedule

BASE = replace(
    default_cell("digits", "strong", 1, rounds=2, quick=True),
    schedule=Schedule(warmup_steps=3, proxy_steps=2, proxies_per_round=64),
)
HARD = replace(BASE, method="selective-fd", labels="hard", selector="ratio")


def silent(_: int) -> None:
    """Nobody watches."""


def run(cell: Cell, made: Prepared) -> Result:
    return run_cell(None, cell, made, silent)


@pytest.fixture(scope="module")
def made() -> Prepared:
    return prepare(None, [HARD], silent)


def cell_of(method: str) -> Cell:
    labels = "" if unlabelled(method) else "soft"
    return replace(
        BASE, method=method, labels=labels, selector="ratio" if method == "selective-fd" else ""
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_says_what_it_moved(made: Prepared, method: str) -> None:
    told: list[int] = []
    found = run_cell(None, cell_of(method), made, told.append)
    assert told == sorted(set(told))
    assert told[-1] == 100
    assert len(found.per_client) == BASE.clients
    assert found.accuracy == np.mean(found.per_client) == found.curve[-1].accuracy
    assert [point.round for point in found.curve] == [1, 2]
    assert (found.curve[-1].up > found.curve[0].up) == (method != "independent")
    assert 0 <= found.figures[VALIDATION] <= 1
    assert (KEPT_ALL in found.figures) == (method in ("fedmd", "feded", "ds-fl", "selective-fd"))


@pytest.mark.parametrize("selector", ["kulsif", "confidence", "energy"])
def test_every_selector_is_scored(made: Prepared, selector: str) -> None:
    found = run(replace(HARD, selector=selector), made)
    assert {AUROC_CLASS, AUROC_RIGHT, KEPT_ALL} <= found.figures.keys()


def test_cells_of_a_group_start_from_the_same_networks_and_leave_them(made: Prepared) -> None:
    before = [flat.copy() for flat in made.warm]
    first = run(HARD, made)
    again = run(HARD, made)
    assert first.per_client == again.per_client
    assert first.figures == again.figures
    assert all(map(np.array_equal, before, made.warm))


def test_masks_change_bytes_and_nothing_else(made: Prepared) -> None:
    clear = run(replace(HARD, secure="masks"), made)
    hidden = run(replace(HARD, secure="masks"), made)
    open_sum = run(HARD, made)
    assert clear.per_client == hidden.per_client
    assert hidden.curve[-1].up > open_sum.curve[-1].up


def test_right_labels_are_counted_against_the_truth(made: Prepared) -> None:
    """With the truth moved by one class, what was right is wrong."""
    counted = replace(HARD, variant="counted votes")  # nobody answers beyond its classes
    honest = run(counted, made).figures[RIGHT_ALL]
    proxies = made.data.proxies
    moved = Images(proxies.pixels, (proxies.labels + 1) % made.data.n_classes)
    lying = replace(made, data=replace(made.data, proxies=moved))
    assert run(counted, lying).figures[RIGHT_ALL] < 0.5 < honest


def test_a_long_round_and_its_warm_up_are_told_of_on_the_way() -> None:
    """One round of 60 steps after 30 of warm-up, in parts of at most 25, of three networks."""
    long = Schedule(
        warmup_steps=30, local_steps=0, proxy_steps=60, proxies_per_round=64, anneal_over=1
    )
    cell, warm, told = replace(HARD, rounds=1, schedule=long), list[int](), list[int]()
    run_cell(None, cell, prepare(None, [cell], warm.append), told.append)
    for each in (warm, told):
        assert each == sorted(set(each))
        assert each[-1] == 100
        assert len(each) >= 2


@pytest.mark.parametrize("method", METHODS)
def test_a_cells_roots_reach_the_method_that_it_runs(made: Prepared, method: str) -> None:
    cell = cell_of(method)
    runner = runner_of(cell, made)
    assert isinstance(runner, Federation)
    used: list[object] = [runner, runner.method, getattr(runner.method, "method", None)]
    if not unlabelled(method):
        used.append(method_of(cell, made.data))
    places = {Place(type(one).__module__, type(one).__qualname__) for one in used if one}
    assert places <= set(Code().reached(roots(cell)))


def test_another_methods_code_is_not_reached() -> None:
    """So that a change of FedMD does not void Selective-FD."""
    reached = set(Code().reached(roots(HARD)))
    for other in ("fedmd:FedMD", "fkd:FKD", "feded:FedED", "fedavg:FedAvg"):
        module, _, name = other.partition(":")
        assert Place(f"secure_fd.methods.{module}", name) not in reached


def test_points_are_on_an_even_part_of_the_test_set() -> None:
    images = Images(torch.zeros(50, 1, 1, 1), torch.arange(50))
    assert spread(images, 50) is images
    assert spread(images, 8).labels.tolist() == [0, 7, 14, 21, 28, 35, 42, 49]


# Fixed labels and Theorem 2.


def alpha_cell(method: str, alpha: float) -> Cell:
    return replace(
        BASE, method=method, selector="ratio" if method == "selected-labels" else "", alpha=alpha
    )


def test_alpha_weighs_the_losses(made: Prepared) -> None:
    """At 1 the labels of proxies change nothing, at 0 the private records change nothing."""

    def trained(alpha: float, method: str, data: Prepared = made) -> list[torch.Tensor]:
        runner = runner_of(alpha_cell(method, alpha), data)
        assert isinstance(runner, FixedLabels)
        assert sum(1 for _ in runner.rounds(1)) == 1
        return [p.detach().clone() for p in runner.models[0].parameters()]

    def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
        return all(map(torch.equal, a, b))

    client = made.data.clients[0]
    other = replace(client, train=Images(client.train.pixels, (client.train.labels + 1) % 10))
    clients = (other, *made.data.clients[1:])
    moved = replace(made, data=replace(made.data, clients=clients))
    assert same(trained(1.0, "true-labels"), trained(1.0, "selected-labels"))
    assert not same(trained(0.5, "true-labels"), trained(0.5, "selected-labels"))
    assert same(trained(0.0, "true-labels"), trained(0.0, "true-labels", moved))
    assert not same(trained(0.5, "true-labels"), trained(0.5, "true-labels", moved))


def test_theorem_2_in_numbers_worked_out_by_hand() -> None:
    assert numerical(0.5, 100, 400, 0.05) == pytest.approx(
        math.sqrt((0.5 / 100 + 0.5 / 400) * math.log(40))
    )
    taught = np.array([[0.75, 0.25, 0.0], [0.5, 0.125, 0.375], [0.0, 0.25, 0.75], [0, 0, 1]])
    # The second is wrong: 2 (1 - .125) over four. The first and third: 2 (.25) each over four.
    assert knowledge_losses(taught, np.array([0, 1, 2, 2])) == (1.75 / 4, 1.0 / 4)
    assert Terms(1, 2, 4, 8, 16, 32).bound == 63


def test_a_distance_tells_samples_apart_and_equal_ones_not(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    dark, also_dark = torch.rand(2, 300, 1, 28, 28, generator=generator) * 0.3
    monkeypatch.setattr("experiments.fixed_labels._STEPS", 40)
    assert distance(dark, dark + 0.6, "cnn-5-5-50", 10, 0) > 1.9
    assert distance(dark, also_dark, "cnn-5-5-50", 10, 0) < 0.5


def test_a_run_with_true_labels_has_no_misleading_and_no_ambiguous_knowledge(
    made: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.fixed_labels._STEPS", 5)
    exact = run(alpha_cell("true-labels", 0.25), made)
    chosen = run(alpha_cell("selected-labels", 0.25), made)
    for name in ("misleading", "ambiguous"):
        assert exact.figures[TERMS[name]] == 0 < chosen.figures[TERMS[name]]
    for found in (exact, chosen):
        assert found.figures[BOUND] == pytest.approx(sum(found.figures[n] for n in TERMS.values()))
        assert found.figures[TEST_LOSS] == pytest.approx(2 * (1 - found.accuracy))


def test_a_lesson_without_proxies_is_refused() -> None:
    nothing = torch.zeros(0)
    with pytest.raises(LocalError, match="a lesson needs proxies"):
        Lesson(nothing, nothing, nothing)


@pytest.mark.parametrize("split", ["strong", "iid"])
def test_every_variant_changes_the_method_or_the_schedule(made: Prepared, split: str) -> None:
    cells = list(method_ablation.vary(default_cell("mnist", split, 10)))
    default = {cell.labels: cell for cell in cells if not cell.variant}
    for cell in cells:
        runs = [(method_of(c, made.data), c.schedule) for c in (cell, default[cell.labels])]
        assert (runs[0] != runs[1]) == bool(cell.variant), cell.variant
    by = {getattr(method_of(cell, made.data), "class_by", None) for cell in default.values()}
    assert by == {"network" if split == "iid" else "both"}
