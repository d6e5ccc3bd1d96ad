"""Which cells every study asks for, and what its command line refuses."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.alpha import ALPHAS
from experiments.grid import Settings, baselines, default_cell
from experiments.heterogeneity import BETAS
from experiments.published import ACCURACY
from experiments.results_page import MODULES
from experiments.rows import Cell
from experiments.study import Store, load
from experiments.thresholds import CLIENT, SERVER
from secure_fd.errors import ConfigurationError
from secure_fd.recipes import SGD

STUDIES = tuple(map(load, MODULES))
STUDY = {study.name: study for study in STUDIES}
CELL = default_cell("digits", "strong", 10)


def cells(study: str, **chosen: Any) -> tuple[Cell, ...]:
    return tuple(STUDY[study].cells(Settings(**chosen)))


def counted(study: str) -> Counter[tuple[str, str]]:
    return Counter((cell.image_set, cell.split) for cell in cells(study))


def test_the_accuracy_table_has_every_method_of_the_paper_and_both_selectors():
    made = counted("accuracy")
    assert set(made) == {
        *((s, split) for s in ("mnist", "fashion_mnist", "cifar10_features")
          for split in ("strong", "weak", "iid")),
        ("chest_xray", "hospitals"),
    }  # fmt: skip
    # Five baselines and two selectors with two kinds of labels, FedAvg and independent learning.
    assert made["mnist", "weak"] == made["chest_xray", "hospitals"] == 2 * (5 + 2) + 2
    assert made["mnist", "strong"] == 3 * made["mnist", "weak"]
    ours = {(c.method, c.labels) for c in cells("accuracy")} - {("fedavg", "")}
    assert {(method, labels) for _, _, method, labels in ACCURACY} == ours


def test_every_other_study_has_its_points_once():
    sets = 3
    assert sum(counted("selectors").values()) == sets * 5
    assert sum(counted("thresholds").values()) == sets * (len(CLIENT) + len(SERVER) - 1)
    assert sum(counted("communication").values()) == sets * 3
    assert sum(counted("heterogeneity").values()) == len(BETAS) * 5
    assert sum(counted("alpha").values()) == len(ALPHAS) * 2


def test_baselines_have_their_own_schedule_and_rounds():
    place = {"image_sets": "mnist", "splits": "strong", "seeds": "10"}
    by_method = {c.method: c for c in cells("accuracy", **place)}
    ours, theirs = by_method["selective-fd"], by_method["fedmd"]
    assert (ours.rounds, theirs.rounds) == (50, 25)
    assert theirs.schedule == baselines("mnist", "strong")
    assert theirs.schedule.sgd == SGD(0.1, distillation_batch=128)
    anywhere = cells("accuracy", image_sets="mnist", methods="fedmd", seeds="10")
    assert {c.rounds for c in anywhere} == {25}
    assert ours.schedule.anneal_over == ours.rounds
    for rounds in (2, 7):
        fixed = cells("accuracy", **place, rounds=rounds)
        assert {c.rounds for c in fixed} == {rounds}
        assert {c.schedule.warmup_steps for c in fixed if c.method == "fedmd"} == {200}
    bytes_over_rounds = cells("communication", **place)
    assert len({c.rounds for c in bytes_over_rounds}) == 1
    network = next(c for c in cells("selectors", **place) if c.selector == "energy")
    assert network.schedule.warmup_steps == 200


def test_iid_clients_learn_alone_first():
    both = cells("accuracy", image_sets="mnist", splits="strong,iid", seeds="10")
    ours = [c for c in both if c.method == "selective-fd"]
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


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: str(study.name))
def test_cells_are_unique_and_quick_ones_few_and_small(study):
    store, settings = Store(Path(), study), study.settings()
    if study.name == "equal_terms":  # of other sets and splits nothing is tuned
        settings = replace(settings, image_sets="mnist", splits="strong")
    tried = 4 if study.name == "tuning" else 1  # settings of a row, under one label
    for quick in (False, True):
        if quick and not hasattr(study.settings, "quick"):
            continue
        made = study.cells(study.settings(quick=True) if quick else settings)
        assert len(set(made)) == len(made) == len({store.path(cell) for cell in made})
        assert len({cell.label for cell in made}) * tried == len(made)
    assert len(made) <= 180


def test_the_command_line_narrows_a_study():
    made = cells("accuracy", image_sets="mnist5k", splits="iid", methods="fedmd", seeds="3,4")
    assert {(c.image_set, c.split, c.method) for c in made} == {("mnist5k", "iid", "fedmd")}
    assert [(c.seed, c.labels) for c in made] == [
        (seed, labels) for seed in (3, 4) for labels in ("hard", "soft")
    ]
    assert made[0].schedule.local_steps == 5
    with pytest.raises(ConfigurationError, match="no such cells"):
        cells("accuracy", image_sets="chest_xray", splits="iid")


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
def test_a_cell_that_means_nothing_is_refused(changed):
    with pytest.raises(ConfigurationError):
        replace(CELL, **changed)
