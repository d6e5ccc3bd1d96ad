"""What DaFKD's generator tells of the records that it learnt from: membership and pictures.

python experiments/generator_leakage.py --quick
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.exhibits import brackets, difference, precise, reading
from experiments.grid import later
from experiments.leakage import Leakage, Measured
from experiments.plots import Forest, Mark, forest, line_style
from experiments.study import (
    Result,
    Results,
    Study,
    grouped,
    main,
    percent,
    seeds_of,
    whole_numbers,
)
from experiments.tables import NONE, Table, new_table
from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGE, FEATURE = "image", "feature"
MEMBERSHIP, PICTURES = "generator-membership", "generator-inversion"
AUC_BOUND, TPR_BOUND = "auc_bound", "tpr_at_0.01_fpr_bound"
PLAIN, TPR, CEILING = "uncalibrated_auc", "tpr_at_0.01_fpr", "ceiling"
DELTA: Final = 1e-5
_MEASURE = "experiments.generator_runs:measure_cell"
_MANY, _FEW, _REPLAYED = 300, 20, 5
"""Records of a class: of each client, of one in the rows where they are few, and replayed."""
_ROUNDS: Final = {IMAGE: 2, FEATURE: 5}
_PRIVATE_ROUNDS, _STEPS = 1, 20
_QUICK_ROUNDS, _QUICK_STEPS = 1, 2
_COST: Final = {IMAGE: 2, FEATURE: 1}


@dataclass(frozen=True, slots=True)
class Cell:
    """One generator and the attacks on it.

    kind: what it makes. records: of each class, one a client, a tenth of them for validation.
    epsilon: of DP-SGD for the whole run, None without. replayed: the positive control, a generator
    that was taught to make the records. steps: of both networks between two sums.
    """

    seed: int
    kind: str
    records: int = _MANY
    epsilon: float | None = None
    replayed: bool = False
    rounds: int = 1
    steps: int = _STEPS

    @property
    def row(self) -> str:
        """What a table says of it."""
        if self.replayed:
            return f"{self.kind}s, taught to replay {10 * self.records} records"
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        private = "" if self.epsilon is None else f", DP-SGD ε = {self.epsilon:g}, {rounds}"
        return f"{self.kind}s, {self.records} records a client{private}"

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.row}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Membership and pictures through DaFKD's generator: of images, of features, with DP-SGD."""

    seeds: str = "20,21,22"
    """Other records, networks and attacks each, with commas."""
    epsilon: float = 1.0
    """Of the rows with DP-SGD, for one record and the whole run."""
    quick: bool = False
    """One seed, one round of a tenth of the steps: shows the way, proves little."""
    out: Path = Path("runs/generator_leakage")
    """Folder of the results, and of the cells that are done."""
    workers: int = 2
    """Processes that share the work."""


def cells(settings: Settings) -> list[Cell]:
    """Every row on every seed, but those under DP-SGD, which are slow: a round of the first.

    Raises ConfigurationError for an epsilon of 0 or less.
    """
    if not 0 < settings.epsilon < float("inf"):
        raise ConfigurationError("epsilon", settings.epsilon, "use a finite number above 0")
    seeds = whole_numbers("seeds", settings.seeds)
    if settings.quick:
        rows = _rows(seeds[0], settings.epsilon)
        return [replace(cell, rounds=_QUICK_ROUNDS, steps=_QUICK_STEPS) for cell in rows]
    made = [cell for seed in seeds for cell in _rows(seed, settings.epsilon)]
    return [cell for cell in made if cell.epsilon is None or cell.seed == seeds[0]]


def _rows(seed: int, epsilon: float) -> list[Cell]:
    """Of one seed."""
    return [
        Cell(seed, kind, records, private, replayed, _PRIVATE_ROUNDS if private else _ROUNDS[kind])
        for kind in (IMAGE, FEATURE)
        for records, private, replayed in (
            (_MANY, None, False),
            (_MANY, epsilon, False),
            (_FEW, None, False),
            (_REPLAYED, None, True),
        )
    ]


# Tables.


def leakage_of(results: Results) -> Leakage:
    """The attacks of all rows."""
    rows = by_row(results)
    found = {row: [(r.cell.seed, r.attacks) for r in of] for row, of in rows.items()}
    return Leakage({row: row for row in rows}, found)


def by_row(results: Results) -> Mapping[str, Sequence[Result]]:
    """The seeds' results by row, in the order of `cells`."""
    return grouped(results.cells, lambda cell: cell.row)


def tables(results: Results) -> list[Table | str]:
    """Membership, then pictures."""
    return [_membership(results), _pictures(results), _note()]


def _membership(results: Results) -> Table:
    """A row a generator."""
    columns = (
        "AUC",
        "control",
        "difference",
        "uncalibrated",
        "TPR at 1 % FPR",
        "bound",
        "accuracy, %",
        "seeds",
    )
    table = new_table("Who taught the generator", ("generator of", *columns))
    leakage = leakage_of(results)
    for row, found in by_row(results).items():
        one = leakage.figure(row, MEMBERSHIP)
        if one is None:
            continue
        shown = reading(one), precise(one.control), difference(one)
        taught = NONE if found[0].cell.replayed else percent(found)
        rest = _detail(one, PLAIN), _detail(one, TPR), _bound(one), taught, seeds_of(found)
        table.add_row(row, *shown, *rest)
    return table


def _pictures(results: Results) -> Table:
    """A row a generator."""
    columns = ("Δ, dB", "control", "difference", "best PSNR", "to held-out", "decoder's ceiling")
    table = new_table("Pictures that the generator makes", ("generator of", *columns))
    for row, one in leakage_of(results).measured(PICTURES).items():
        shown = reading(one), precise(one.control), difference(one)
        table.add_row(row, *shown, *(_detail(one, name) for name in ("A", "A_H", CEILING)))
    return table


def _detail(found: Measured, name: str) -> str:
    one = found.detail(name)
    return NONE if one is None else f"{precise(one.value)} {brackets(one.interval)}"


def _bound(found: Measured) -> str:
    one = found.detail(AUC_BOUND)
    return NONE if one is None else precise(one.value)


def within_bound(found: Measured) -> bool:
    """Whether the whole interval lies within what the claim allows."""
    allowed = found.detail(AUC_BOUND)
    return allowed is not None and found.interval is not None and found.interval[1] <= allowed.value


def _note() -> str:
    return (
        f"MNIST-5k, strong split, ten clients; {_ROUNDS[IMAGE]} rounds of images, "
        f"{_ROUNDS[FEATURE]} of features, {20 * _STEPS} adversarial steps a client in each. Means "
        "with Student's 95 % interval over seeds; of one seed, the bootstrap's over records. "
        "Members are all clients' records, and non-members as many held-out ones of the same "
        "classes. Control: the same attack on a generator of public records; "
        "differences are paired by seed. Bound: the largest "
        f"AUC for one record that (ε, {DELTA:g}) allows. Accuracy: of the run's network, which "
        "shows what the generator taught. Δ: best PSNR to a member less best PSNR to a held-out "
        "record of the class; features are decoded by ridge regression on public images, and the "
        "ceiling is that of members' true features."
    )


# Figure.


def figure(results: Results) -> "Figure":
    """Rows on y: AUC with interval, its seeds, and the control; then Δ."""
    leakage = leakage_of(results)
    looks = {row: line_style(0 if row.startswith(IMAGE) else 1) for row in leakage.rows}
    panels = [
        Forest(title, x, _marks(leakage, attack), looks)
        for title, x, attack in (
            ("Membership", "AUC", MEMBERSHIP),
            ("Pictures", "Δ, dB", PICTURES),
        )
    ]
    return forest(panels, ("attack", "control"))


def _marks(leakage: Leakage, attack: str) -> dict[str, Mark | str]:
    shown: dict[str, Mark | str] = {}
    for row in leakage.rows:
        one = leakage.figure(row, attack)
        if one is None:
            shown[row] = leakage.absence(row, attack)
            continue
        singles = [f.figure for f in one.every]
        shown[row] = Mark(one.figure, one.interval, one.control, singles, one.apart)
    return shown


STUDY = Study(
    name="generator_leakage",
    script="generator_leakage.py",
    about=str(Settings.__doc__),
    settings=Settings,
    cell=Cell,
    cells=cells,
    group=lambda cell: cell,
    prepare=lambda *_: None,  # cells share nothing
    measure=later(_MEASURE),
    shown=tables,
    figure=figure,
    image_set=lambda _: "mnist5k",
    cost=lambda cell: 10 if cell.replayed else 100 * _COST[cell.kind] * (1 + bool(cell.epsilon)),
)

if __name__ == "__main__":
    sys.exit(main("experiments.generator_leakage"))
