"""The studies of proxies with troubles, and of the method as published: cells, figures, tables."""

import numpy as np
import pytest

from experiments import as_published, foreign_proxies
from experiments.foreign_proxies import TROUBLES, Cell, Settings, cells, tables
from experiments.measures import ACCURACY, RIGHT_OF_ALL, RIGHT_ONCE
from experiments.study import SCHEMA, Point, Result, Results
from experiments.tables import Table
from experiments.troubles import FOREIGN, GATED, OWN, ROWS, SHARE, measure, prepare
from experiments.troubles import TROUBLES as MADE
from secure_fd.errors import ConfigurationError


def troubled(trouble: str, row: str = "survey") -> Cell:
    return Cell("digits", "strong", trouble, row, "soft", 0)


def no_progress(_: int) -> None:
    pass


def results(study: str, found: list[Result]) -> Results:
    return Results(SCHEMA, study, "2026-01-01T00:00:00+00:00", cells=tuple(found))


def test_every_trouble_and_row_is_run() -> None:
    made = cells(Settings())
    assert len({cell.label for cell in made}) == len(made)
    assert {cell.trouble for cell in made} == set(TROUBLES) == set(MADE)
    assert {cell.row for cell in made} == set(ROWS)
    clean = [c for c in made if c.trouble == "none" and c.row == "survey" and c.labels == "soft"]
    assert {c.seed for c in clean if c.split == "iid"} == set(range(20, 40))
    assert {c.seed for c in made if c.students} == {20, 21, 22}
    assert {c.seed for c in made if c.students and c.row == "heads"} == {20}
    assert {c.image_set for c in cells(Settings(quick=True))} == {"digits"}
    one = cells(Settings(troubles=TROUBLES[-1], image_sets="mnist5k", seeds="7"))
    assert {(c.trouble, c.seed) for c in one} == {(TROUBLES[-1], 7)}
    with pytest.raises(ConfigurationError, match="troubles"):
        cells(Settings(troubles="half forein"))


def test_troubles_are_what_they_say() -> None:
    """Shares of the digits' 400 proxies, 40 of each class."""
    plain = prepare(None, [troubled("none")], no_progress)
    labels = plain.data.proxies.labels.numpy()
    turned = prepare(None, [troubled("half rotated")], no_progress)
    same = (turned.data.proxies.pixels == plain.data.proxies.pixels).flatten(1).all(dim=1).numpy()
    assert turned.own.mean() == 0.5
    assert same[turned.own].all()
    assert not same[~turned.own].any()
    gone = prepare(None, [troubled("8 and 9 unheld")], no_progress)
    assert [c.classes for c in gone.data.clients] == [(c,) for c in range(8)]
    assert np.array_equal(gone.own, labels < 8)
    few = prepare(None, [troubled("half at a tenth")], no_progress)
    assert sorted(np.bincount(few.data.proxies.labels.numpy())) == [4] * 5 + [40] * 5
    tail = prepare(None, [troubled("tail of 10 to 1")], no_progress)
    counts = sorted(np.bincount(tail.data.proxies.labels.numpy()))
    assert (counts[0], counts[-1]) == (4, 40)
    with pytest.raises(ConfigurationError, match="digits"):
        prepare(None, [troubled("half foreign")], no_progress)


def test_what_is_taught_is_counted_by_what_clients_should_know() -> None:
    """Rotated digits: Selective-FD and pooled heads drop them, their twins teach them."""
    made = prepare(None, [troubled("half rotated")], no_progress)
    found = {
        row: measure(None, troubled("half rotated", row), made, no_progress)
        for row in ("survey", "no survey", "heads")
    }
    kept, lost, heads = (found[row].figures for row in ("survey", "no survey", "heads"))
    assert kept[GATED] == heads[GATED] == 1.0
    assert GATED not in lost
    assert kept[FOREIGN] < 0.1
    assert lost[FOREIGN] > 0.9
    assert heads[FOREIGN] < 0.1
    assert min(kept[OWN], heads[OWN]) > 0.75
    assert kept[SHARE] == pytest.approx(0.5, abs=0.1)
    assert kept[RIGHT_ONCE] > 0.9
    assert kept[RIGHT_OF_ALL] < kept[RIGHT_ONCE]


def test_tables_show_labels_students_and_the_gate() -> None:
    figures = {FOREIGN: 0.01, OWN: 0.9, RIGHT_ONCE: 0.95, RIGHT_OF_ALL: 0.85}
    made = []
    for cell in cells(Settings(image_sets="mnist5k")):
        own = {GATED: 0.0, SHARE: 1.01} if cell.row == "survey" else {}
        accuracy = {ACCURACY: 0.9} if cell.students else {}
        per_client = (0.9,) if cell.students else ()
        made.append(Result(cell, {**accuracy, **figures, **own}, 1.0, per_client))
    labels, students, gate = (
        t for t in tables(results("foreign_proxies", made)) if isinstance(t, Table)
    )
    assert labels.rows[0] == (
        "none",
        "soft",
        "Selective-FD",
        "1.0 ± 0.0",
        "90.0 ± 0.0",
        "95.0 ± 0.0",
        "85.0 ± 0.0",
    )
    assert students.rows[0] == ("none", "90.0 ± 0.0", "90.0 ± 0.0", "90.0 ± 0.0", "90.0", "90.0")
    assert [row[2] for row in gate.rows] == ["0 of 20"] * 3
    assert foreign_proxies.STUDY.figure(results("foreign_proxies", made)) is None


def test_the_method_as_published_runs_the_papers_steps() -> None:
    made = as_published.cells(as_published.Settings())
    assert [(c.image_set, c.labels) for c in made] == [
        (name, labels) for name in ("mnist", "fashion_mnist") for labels in ("soft", "hard")
    ]
    assert {(c.rounds, c.schedule.sgd.distillation_batch, c.seed) for c in made} == {(500, 512, 20)}
    assert {c.rounds for c in as_published.cells(as_published.Settings(quick=True))} == {2}
    points = (Point(25, 0.9, 1.0, 1.0), Point(500, 0.8, 2.0, 2.0))
    found = [Result(cell, {ACCURACY: 0.8}, 1.0, (0.8,), points) for cell in made]
    shown = as_published.tables(results("as_published", found))[0]
    assert isinstance(shown, Table)
    assert shown.rows[0] == ("MNIST, strong", "soft", "80.0", "90.0", "94.68 ± 0.52")
    assert as_published.figure(results("as_published", found)) is not None
    with pytest.raises(ConfigurationError, match="rounds"):
        as_published.cells(as_published.Settings(rounds=0))
