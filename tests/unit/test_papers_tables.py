"""What tables of the paper's studies work out, from results made up here."""

from collections.abc import Callable
from dataclasses import replace

from experiments import accuracy_table, communication
from experiments.grid import Settings
from experiments.measures import RESNET_DOWN, RESNET_UP
from experiments.published import ACCURACY
from experiments.rows import Cell
from experiments.study import Point, Result, Results, Study, gathered
from experiments.tables import Table


def spread(cell: Cell) -> float:
    """An accuracy of its own for every cell of a place; seeds differ by two points."""
    methods = ("independent", "fedmd", "feded", "ds-fl", "fkd", "pls", "fedavg", "selective-fd")
    level = 10 * methods.index(cell.method) if cell.method in methods else 30
    return (level + 5 * (cell.labels == "soft") + 3 * (cell.selector == "ratio")) / 100 + (
        2 * (cell.seed - 10)
    ) / 100


def results(study: Study, value: Callable[[Cell], float] = spread) -> Results:
    made = []
    for cell in study.cells(Settings()):
        a = value(cell)
        curve = (Point(5, a / 2, 1000.0, 5000.0), Point(10, a, 1500.0, 6000.0))
        made.append(Result(cell, {"accuracy": a}, 1.0, (a,), curve))
    return gathered(study, made)


def row(table: Table, name: str) -> tuple[str, ...]:
    (found,) = [cells for cells in table.rows if cells[0] == name]
    return found[1:]


def table(study: Study, made: Results, title: str) -> Table:
    parts = [part for part in study.shown(made) if isinstance(part, Table)]
    (found,) = [shown for shown in parts if shown.title.startswith(title)]
    return found


def test_a_row_in_anothers_place_is_noticed() -> None:
    """The twin: two methods' results swapped give another table."""

    def swapped(cell: Cell) -> float:
        other = {"fedmd": "pls", "pls": "fedmd"}.get(cell.method, cell.method)
        return spread(replace(cell, method=other))

    right = table(accuracy_table.STUDY, results(accuracy_table.STUDY), "MNIST, weak")
    wrong = table(accuracy_table.STUDY, results(accuracy_table.STUDY, swapped), "MNIST, weak")
    assert row(right, "FedMD")[0] == row(wrong, "PLS")[0] == "10.0"
    assert row(right, "FedMD") != row(wrong, "FedMD")


def test_the_published_tables_are_whole_and_ordered_as_the_paper_says() -> None:
    assert len(ACCURACY) == 3 * 3 * (1 + 6 * 2)
    for split in ("strong", "weak"):
        for image_set in ("mnist", "fashion_mnist", "cifar10_features"):
            for labels in ("hard", "soft"):
                best = max(
                    (value[0], key[2])
                    for key, value in ACCURACY.items()
                    if key[:2] == (image_set, split) and key[3] == labels
                )
                assert best[1] == "selective-fd"


def test_the_gain_on_radiographs_is_over_the_best_baseline() -> None:
    parts = accuracy_table.STUDY.shown(results(accuracy_table.STUDY))
    (hard,) = [p for p in parts if isinstance(p, str) and "hard labels" in p]
    # PLS is the best distilling baseline; FedAvg distils nothing.
    assert "+20.00 (KuLSIF), +23.00 (ratio to proxies), +19.42 (published)" in hard


def test_bytes_are_per_round_and_until_fedavgs_accuracy() -> None:
    def value(cell: Cell) -> float:
        return {"hard": 0.5, "soft": 0.9}.get(cell.labels, 0.8)

    made = results(communication.STUDY, value)
    shown = table(communication.STUDY, made, "MNIST, strong")
    # 500 bytes up and 1,000 down in five rounds; what is sent before them is in the sums.
    hard = row(shown, "Selective-FD hard, masks")
    assert hard == ("50.0", "100 B", "200 B", "1.0", "7.5 kB", "1.0", "not reached")
    assert row(shown, "Selective-FD soft, masks")[-1] == "7.5 kB"
    assert row(shown, "FedAvg")[0] == "80.0"


def test_fedavg_on_features_weighs_what_its_resnet_would() -> None:
    made = results(communication.STUDY)
    cells = tuple(
        replace(r, figures={**r.figures, RESNET_UP: 4e6, RESNET_DOWN: 6e6})
        if r.cell.method == "fedavg" and r.cell.image_set == "cifar10_features"
        else r
        for r in made.cells
    )
    found = communication.ways(replace(made, cells=cells))["cifar10_features"][-1]
    assert found.rate == 1e7
    assert [found.moved(p) for p in found.found[0].curve] == [5.6e7, 1.06e8]
    assert found.total == 1e7 * found.found[0].cell.rounds + 6e6
    notes = [p for p in communication.STUDY.shown(replace(made, cells=cells)) if isinstance(p, str)]
    assert any("frozen features" in note for note in notes)
