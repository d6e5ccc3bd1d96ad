"""Which cells a study asks for, what the command line refuses, and where a cell is found."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.papers import ablation, accuracy, communication, recipes, selectors
from experiments.papers.alpha import ALPHAS
from experiments.papers.cells import VARIANTS, Cell, default_cell
from experiments.papers.driver import missing_groups
from experiments.papers.heterogeneity import BETAS
from experiments.papers.page import STUDIES
from experiments.papers.published import ACCURACY
from experiments.papers.results import CellResult, Point, Results, Store, gathered, load, save
from experiments.papers.settings import Grid, Settings, plan
from experiments.papers.study import Study
from experiments.papers.thresholds import CLIENT, SERVER
from secure_fd.errors import ConfigurationError
from secure_fd.recipes import SGD

STUDY = {study.name: study for study in STUDIES}
GRID = Grid(None, None, None, None, None, quick=False)
CELL = default_cell("digits", "strong", 10)


def some_result(cell: Cell, accuracy: float = 0.5) -> CellResult:
    points = (Point(1, 0.25, 10.0, 20.0), Point(2, accuracy, 20.0, 40.0))
    return CellResult(cell, accuracy, (accuracy, accuracy), points, {"kept share": 0.75}, 1.5)


def counted(study: str) -> Counter[tuple[str, str]]:
    return Counter((cell.image_set, cell.split) for cell in STUDY[study].cells(GRID))


def test_the_accuracy_table_has_every_method_of_the_paper_and_both_selectors() -> None:
    made = counted("accuracy")
    assert set(made) == {
        *((s, split) for s in ("mnist", "fashion_mnist", "cifar10_features")
          for split in ("strong", "weak", "iid")),
        ("chest_xray", "hospitals"),
    }  # fmt: skip
    # Five baselines and two selectors with two kinds of labels, FedAvg and independent learning.
    assert made["mnist", "weak"] == made["chest_xray", "hospitals"] == 2 * (5 + 2) + 2
    assert made["mnist", "strong"] == 3 * made["mnist", "weak"]
    ours = {(c.method, c.labels) for c in STUDY["accuracy"].cells(GRID)} - {("fedavg", "")}
    assert {(method, labels) for _, _, method, labels in ACCURACY} == ours


def test_every_other_study_has_its_points_once() -> None:
    sets = 3
    assert sum(counted("selectors").values()) == sets * 5
    assert sum(counted("thresholds").values()) == sets * (len(CLIENT) + len(SERVER) - 1)
    assert sum(counted("communication").values()) == sets * 3
    assert sum(counted("heterogeneity").values()) == len(BETAS) * 5
    assert sum(counted("alpha").values()) == len(ALPHAS) * 2


def test_an_ablation_has_what_changes_its_default() -> None:
    default = default_cell("mnist", "strong", 10)
    plain = replace(
        default.schedule, augment="none", anneal_over=None, sgd=SGD(own_batch=13, momentum=0.0)
    )
    for schedule, missing in (
        (default.schedule, 0),
        (plain, 3),
        (replace(default.schedule, remember=False), 1),
    ):
        made = list(ablation.vary(replace(default, schedule=schedule)))
        assert len(made) == len(set(made)) == 2 * (16 - missing)
        assert {c.labels for c in made if c.variant == "sharpness 1"} == {"soft"}
        assert {c.labels for c in made if c.variant == "true labels"} == {"hard"}
    constant = next(c for c in ablation.vary(default) if c.variant == "constant rate")
    assert constant.schedule == replace(default.schedule, anneal_over=None)
    apart = next(c for c in ablation.vary(default) if c.variant == "records apart")
    assert (apart.schedule.local_steps, apart.schedule.sgd.own_batch) == (1, 0)
    assert {c.class_by for c in ablation.vary(default)} == {"both"}


def test_the_iid_ablation_has_what_its_recipe_has_alone() -> None:
    iid = default_cell("mnist", "iid", 10)
    made = {c.variant: c for c in ablation.vary(iid) if c.labels == "hard"}
    schedule = iid.schedule
    many = replace(schedule, proxy_steps=50, proxies_per_round=1000, anneal_over=40)
    assert {variant: (c.rounds, c.schedule) for variant, c in made.items()} == {
        "": (1, schedule),
        "no warm-up": (1, replace(schedule, warmup_steps=0)),
        "constant warm-up": (1, replace(schedule, anneal_warmup=False)),
        "many rounds": (40, many),
        "no smoothing": (1, replace(schedule, sgd=replace(schedule.sgd, smoothing=0.0))),
        "no views": (1, replace(schedule, augment="none")),
        "the baselines' schedule": (25, recipes.baselines("mnist", "iid")),
        "classes by both": (1, schedule),
        "no selector": (1, schedule),
        "true labels": (1, schedule),
    }
    by_both = {variant for variant, cell in made.items() if cell.class_by == "both"}
    assert by_both == {"classes by both", "no selector"}
    assert [v for v, c in made.items() if c.method == "fedmd"] == ["no selector"]
    named = {v for split in ("strong", "iid") for v in _variants(split)}
    assert named == set(VARIANTS)


def _variants(split: str) -> set[str]:
    return {c.variant for c in ablation.vary(default_cell("mnist", split, 10))}


def test_baselines_have_their_own_schedule_and_rounds() -> None:
    grid = Grid(("mnist",), ("strong",), None, (10,), None, quick=False)
    by_method = {c.method: c for c in accuracy.STUDY.cells(grid)}
    ours, theirs = by_method["selective-fd"], by_method["fedmd"]
    assert (ours.rounds, theirs.rounds) == (50, 25)
    assert theirs.schedule == recipes.baselines("mnist", "strong")
    assert theirs.schedule.sgd == SGD(0.1, distillation_batch=128)
    assert ours.schedule.anneal_over == ours.rounds
    for rounds in (2, 7):
        fixed = accuracy.STUDY.cells(replace(grid, rounds=rounds))
        assert {c.rounds for c in fixed} == {rounds}
        assert {c.schedule.warmup_steps for c in fixed if c.method == "fedmd"} == {200}
    bytes_over_rounds = communication.STUDY.cells(replace(grid, splits=("strong",)))
    assert len({c.rounds for c in bytes_over_rounds}) == 1
    network = next(c for c in selectors.STUDY.cells(grid) if c.selector == "energy")
    assert network.schedule.warmup_steps == 200


def test_iid_clients_learn_alone_first() -> None:
    grid = Grid(("mnist",), ("strong", "iid"), None, (10,), None, quick=False)
    ours = [c for c in accuracy.STUDY.cells(grid) if c.method == "selective-fd"]
    warm = {(c.split, c.selector): c.schedule.warmup_steps for c in ours}
    assert warm == {
        ("strong", "ratio"): 0,
        ("strong", "kulsif"): 0,
        ("iid", "ratio"): 1500,
        ("iid", "kulsif"): 1500,
    }
    iid, strong = (next(c for c in ours if c.split == split) for split in ("iid", "strong"))
    assert (iid.schedule.augment, strong.schedule.augment) == ("turn", "shift")
    assert iid.group.warm_up.sgd.momentum == 0.9  # part of what the group shares
    assert iid.group.warm_up.anneal_warmup
    assert (iid.rounds, iid.schedule.proxies_per_round) == (1, 6000)
    by = {(c.split, c.selector): c.class_by for c in ours}
    assert {key for key, named in by.items() if named == "network"} == {("iid", "ratio")}


def test_baselines_run_as_long_in_every_split() -> None:
    grid = Grid(("mnist",), ("strong", "iid"), ("fedmd",), (10,), None, quick=False)
    assert {c.rounds for c in accuracy.STUDY.cells(grid)} == {25}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: str(study.name))
def test_cells_are_unique_and_quick_ones_few_and_small(study: Study) -> None:
    for quick in (False, True):
        made = study.cells(replace(GRID, quick=quick))
        assert len(set(made)) == len(made) == len({Store(Path()).path(cell) for cell in made})
        assert len({cell.label for cell in made}) == len(made)
    assert {cell.image_set for cell in made} == {"digits"}
    assert max(cell.rounds for cell in made) <= 2


def test_the_command_line_narrows_a_study() -> None:
    grid = replace(GRID, image_sets=("mnist5k",), splits=("iid",), methods=("fedmd",), seeds=(3, 4))
    made = STUDY["accuracy"].cells(grid)
    assert {(c.image_set, c.split, c.method) for c in made} == {("mnist5k", "iid", "fedmd")}
    assert [(c.seed, c.labels) for c in made] == [
        (seed, labels) for seed in (3, 4) for labels in ("hard", "soft")
    ]
    assert made[0].schedule.local_steps == 5
    with pytest.raises(ConfigurationError, match="no such cells"):
        STUDY["accuracy"].cells(replace(GRID, image_sets=("chest_xray",), splits=("iid",)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"image_sets": "mnits"}, "image_sets: 'mnits' is not allowed; use one or more of"),
        ({"splits": "dirichlet:1"}, "splits: 'dirichlet:1' is not allowed; use one or more of"),
        ({"methods": "fedprox"}, "methods: 'fedprox' is not allowed; use one or more of"),
        ({"seeds": "1,x"}, "seeds: 'x' is not allowed; use whole numbers of 0 or more"),
        ({"seeds": "²"}, "seeds: '²'"),
        ({"rounds": 0}, "rounds: 0 is not allowed; use 1 or more"),
        ({"workers": 0}, "workers: 0"),
        ({"data_dir": Path("missing")}, "data_dir: 'missing'"),
        ({"out": Path(__file__)}, "out: "),
    ],
)
def test_a_mistake_is_one_sentence(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan(STUDY["accuracy"], replace(Settings(), **changed), None)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "fedmd"},  # without labels
        {"labels": "soft"},  # independent learning shares none
        {"selector": "ratio"},
        {"method": "selective-fd", "labels": "hard"},  # without a selector
        {"alpha": 0.5},
        {"method": "true-labels"},  # without alpha
        {"method": "gossip"},
        {"variant": "better"},
        {"image_set": "imagenet"},
        {"rounds": 0},
        {"clients": 11},
    ],
)
def test_a_cell_that_means_nothing_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        replace(CELL, **changed)  # type: ignore[arg-type]


def others() -> list[Cell]:
    hard = replace(CELL, method="selective-fd", labels="hard", selector="ratio")
    schedule = replace(CELL.schedule, proxy_steps=7)
    return [
        replace(CELL, seed=11),
        replace(CELL, split="weak"),
        replace(CELL, rounds=CELL.rounds + 1),
        replace(CELL, clients=9),
        replace(CELL, every=3),
        replace(CELL, schedule=schedule),
        replace(CELL, method="fedavg", model="mlp-1024-1024"),
        hard,
        replace(hard, labels="soft"),
        replace(hard, selector="kulsif"),
        replace(hard, variant=VARIANTS[1]),
        replace(hard, masked=True),
        replace(hard, quantile=0.5),
        replace(hard, server_threshold=0.5),
        replace(CELL, method="true-labels", alpha=0.5),
    ]


def test_whatever_a_cell_depends_on_is_in_its_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(some_result(CELL))
    assert store.find(CELL) == some_result(CELL)
    assert len({store.path(cell) for cell in [CELL, *others()]}) == 1 + len(others())
    assert [store.find(cell) for cell in others()] == [None] * len(others())
    assert Store(tmp_path, version="9.9").find(CELL) is None


def test_the_version_is_of_the_code_that_makes_results(tmp_path: Path) -> None:
    assert "+torch-" in Store(tmp_path).version


def test_a_file_of_another_cell_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(some_result(others()[0]))
    store.path(others()[0]).rename(store.path(CELL))
    with pytest.raises(ConfigurationError, match="it holds another cell"):
        store.find(CELL)


@pytest.mark.parametrize(("old", "new"), [('"rounds"', '"turns"'), ("1.5", "NaN"), ("0.5", "1.5")])
def test_a_damaged_file_is_refused(tmp_path: Path, old: str, new: str) -> None:
    store = Store(tmp_path)
    store.save(some_result(CELL))
    path = store.path(CELL)
    whole = path.read_text(encoding="utf-8")
    assert old in whole
    path.write_text(whole.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigurationError):
        store.find(CELL)


def test_results_survive_the_disk(tmp_path: Path) -> None:
    made = gathered("accuracy", map(some_result, STUDY["accuracy"].cells(GRID)), ["python"])
    assert load(save(made, tmp_path)) == made
    with pytest.raises(ConfigurationError, match="schema"):
        replace(made, schema="secure-fd/paper-study/0")
    with pytest.raises(ConfigurationError, match="each once"):
        Results(made.schema, "x", "", [], {}, {}, (*made.cells, made.cells[0]))


def test_groups_share_a_warm_up_and_the_largest_comes_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = replace(CELL, seed=11)
    warmer = replace(CELL, schedule=replace(CELL.schedule, warmup_steps=7))
    batch = replace(CELL.schedule.sgd, distillation_batch=7)
    smaller = replace(CELL, schedule=replace(CELL.schedule, sgd=batch, anneal_over=5))
    faster = replace(CELL.schedule.sgd, learning_rate=0.2)
    cells = [
        *(one, CELL, smaller, warmer),
        replace(CELL, schedule=replace(CELL.schedule, sgd=faster)),
    ]
    groups = missing_groups(cells, store)
    assert next(iter(groups)) == CELL.group
    assert [len(members) for members in groups.values()] == [2, 1, 1, 1]
    store.save(some_result(smaller))
    assert list(missing_groups(cells, store).values()).count([CELL]) == 1
    for cell in cells:
        store.save(some_result(cell))
    assert missing_groups(cells, store) == {}
