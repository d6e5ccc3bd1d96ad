"""What is each choice of the record unit worth? Votes, judged by public labels, over three seeds.

python experiments/record_ablation.py --data-dir DATA_DIR
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.grid import later
from experiments.measures import HARD_KEPT, RIGHT_OF_ALL, RIGHT_ONCE, STUDENT
from experiments.study import (
    Result,
    Results,
    Study,
    at_least,
    grouped,
    listed,
    main,
    percent,
)
from experiments.tables import NONE, Table, new_table
from secure_fd.recipes import IMAGE_SETS

CASES = (
    ("mnist5k", "strong", 1.0),
    ("mnist5k", "strong", 4.0),
    ("mnist5k", "weak", 1.0),
    ("mnist5k", "iid", 4.0),
    ("fashion_mnist", "strong", 4.0),
)
"""Image set, how it is split among ten clients, and the budget of each.

300 records a client, and 1,500 of Fashion-MNIST.
"""
_MEASURE = "experiments.record_rules:measure"
_SHOWN = (RIGHT_OF_ALL, HARD_KEPT, RIGHT_ONCE, STUDENT)


@dataclass(frozen=True, slots=True)
class Cell:
    """One release of every client. choice: a name of `record_rules.CHOICES`."""

    image_set: str
    split: str
    epsilon: float
    choice: str
    seed: int

    @property
    def case(self) -> str:
        """What all choices are compared on, as the table heads its column."""
        return f"{IMAGE_SETS[self.image_set].title} {self.split}, ε = {self.epsilon:g}"

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.case}: {self.choice}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every choice of threshold, ridge, size and budget, one changed at a time."""

    datasets: str = "mnist5k,fashion_mnist"
    """Image sets, with commas."""
    seeds: int = 3
    """Repetitions, with seeds from 0 on: other splits, other noise."""
    data_dir: Path | None = None
    """Folder that holds fashion_mnist/; SECURE_FD_DATA serves as well."""
    out: Path = Path("runs/record_ablation")
    """Folder of the results, and of the cells that are done."""
    workers: int = 2
    """Processes that share the work."""


def cells(settings: Settings) -> list[Cell]:
    """Every choice on every case and seed."""
    known = tuple(dict.fromkeys(image_set for image_set, _, _ in CASES))
    sets = listed("datasets", settings.datasets, known) or known
    at_least(1, seeds=settings.seeds)
    from experiments.record_rules import CHOICES

    return [
        Cell(*case, choice, seed)
        for seed in range(settings.seeds)
        for case in CASES
        if case[0] in sets
        for choice in CHOICES
    ]


def tables(results: Results) -> list[Table | str]:
    """One table a figure: a row a choice, a column a case."""
    by_case = grouped(results.cells, lambda cell: cell.case)
    made: list[Table | str] = []
    for figure in _SHOWN:
        table = new_table(f"{figure.capitalize()}, %", ["choice", *by_case])
        for choice in dict.fromkeys(found.cell.choice for found in results.cells):
            table.add_row(choice, *(_mean(of, choice, figure) for of in by_case.values()))
        made.append(table)
    return made


def _mean(found: Sequence[Result], choice: str, figure: str) -> str:
    of = [result for result in found if result.cell.choice == choice]
    return percent(of, lambda result: result.figures[figure]) if of else NONE


STUDY = Study(
    name="record_ablation",
    script="record_ablation.py",
    about=str(Settings.__doc__),
    settings=Settings,
    cell=Cell,
    cells=cells,
    group=lambda cell: (cell.image_set, cell.split, cell.seed),
    prepare=lambda *_: None,  # the images and features of a group are cached where it is measured
    measure=later(_MEASURE),
    shown=tables,
)

if __name__ == "__main__":
    sys.exit(main("experiments.record_ablation"))
