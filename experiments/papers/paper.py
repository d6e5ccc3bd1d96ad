"""The paper's studies: their command line, their cells, and what a cell runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from experiments.papers.cells import BY_NETWORK, PROXY_LABELS, Cell, default_cell, on_its_recipe
from experiments.study import (
    Progress,
    Result,
    Results,
    Study,
    at_least,
    listed,
    seeds_of,
    whole_numbers,
)
from experiments.tables import Table
from secure_fd.errors import ConfigurationError
from secure_fd.recipes import IMAGE_SETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.papers.build import Prepared

PAPER_SETS = ("mnist", "fashion_mnist", "cifar10_features")
QUICK_SET = "digits"
HOSPITALS = "hospitals"
"""The split of chest X-rays, and of nothing else."""
FIRST_SEED = 10
"""Seeds below were looked at while defaults were chosen; results should not come from them.

Seed 10 is no fresh one in the IID split: docs/results.md says what it made us look for.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    image_sets: str | None = None
    """Image sets, with commas; by default those of the paper."""
    splits: str | None = None
    """Splits, with commas; by default all of the study's."""
    methods: str | None = None
    """Methods, with commas; by default all of the study's."""
    seeds: str | None = None
    """Seeds of data and training, with commas; by default the study's, from 10 on."""
    rounds: int | None = None
    """Rounds of every cell; by default what the image set needs."""
    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds the image sets that are not bundled, each in a folder of its name."""
    out: Path | None = None
    """Folder of the results, and of the cells of all studies that are done; by default runs/papers,
    and runs/papers-quick for a quick look."""
    workers: int = 2
    """Processes that share the work."""
    quick: bool = False
    """A minute's look at a bundled set: three clients, two rounds. Figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a study. image_sets, splits: what is run by default. methods: what may be named.

    vary: from a default cell of one place and seed, the study's cells there. repeated: splits that
    are run under three seeds by default. rounds: of every cell, where the recipes have more.
    """

    image_sets: tuple[str, ...]
    splits: tuple[str, ...]
    methods: tuple[str, ...]
    vary: Callable[[Cell], Iterator[Cell]]
    repeated: tuple[str, ...] = ()
    rounds: int | None = None

    def cells(self, settings: Settings) -> tuple[Cell, ...]:
        """The cells that a command line asks for, each once.

        Raises ConfigurationError for a value that is not allowed, or where no cell is left.
        """
        at_least(1, rounds=settings.rounds)
        quick = settings.quick
        sets = listed("image_sets", settings.image_sets, tuple(IMAGE_SETS))
        splits = listed("splits", settings.splits, self.splits) or self.splits
        methods = listed("methods", settings.methods, self.methods)
        seeds = None if settings.seeds is None else whole_numbers("seeds", settings.seeds)
        rounds = settings.rounds or (None if quick else self.rounds)
        made = dict.fromkeys(
            on_its_recipe(cell, quick=quick, rounds=rounds)
            for image_set, split in self._places(sets, splits, quick=quick)
            for seed in seeds or self._seeds(split, quick=quick)
            for cell in self.vary(default_cell(image_set, split, seed, rounds, quick=quick))
            if methods is None or cell.method in methods
        )
        if not made:
            raise ConfigurationError("splits", list(splits), "the image sets have no such cells")
        return tuple(made)

    def _places(
        self, sets: tuple[str, ...] | None, splits: tuple[str, ...], *, quick: bool
    ) -> Iterator[tuple[str, str]]:
        for image_set in sets or ((QUICK_SET,) if quick else self.image_sets):
            for split in splits:
                if (split == HOSPITALS) == (image_set == "chest_xray"):
                    yield image_set, split

    def _seeds(self, split: str, *, quick: bool) -> range:
        return range(FIRST_SEED, FIRST_SEED + (3 if split in self.repeated and not quick else 1))


def paper_study(
    name: str,
    script: str,
    about: str,
    grid: Grid,
    tables: Callable[[Results], Sequence[Table | str]],
    figure: "Callable[[Results], Figure | None]",
) -> Study:
    """A study of the paper's: grid says its cells, tables and figure show its results."""
    return Study(
        name=name,
        script=script,
        about=f"{about} {Settings.__doc__}",
        settings=Settings,
        cell=Cell,
        cells=grid.cells,
        group=lambda cell: cell.group,
        prepare=prepare,
        measure=measure,
        roots=roots,
        shown=partial(_shown, tables),
        figure=figure,
        cost=lambda cell: max(100, cell.steps),
        out=_out,
    )


def _shown(
    tables: Callable[[Results], Sequence[Table | str]], results: Results
) -> list[Table | str]:
    """The tables, and the seeds that they are of."""
    return [*tables(results), f"Seeds of all cells: {seeds_of(results.cells)}."]


def _out(settings: Settings) -> Path:
    return settings.out or Path("runs/papers-quick" if settings.quick else "runs/papers")


def prepare(data_dir: Path | None, cells: Sequence[Cell], progress: Progress) -> "Prepared":
    """What cells of a group share."""
    from experiments.papers.run import prepare as prepared

    return prepared(data_dir, cells, progress)


def measure(data_dir: Path | None, cell: Cell, made: "Prepared", progress: Progress) -> Result:
    """Train, test and measure one cell."""
    from experiments.papers.run import run_cell

    return run_cell(data_dir, cell, made, progress)


# What a cell runs, where the code chooses by name.

_BUILD = "experiments.papers.build"
_MEASURES = "experiments.measures"
_FEDERATION = (f"{_BUILD}:federation", f"{_MEASURES}:of_distillation")
_SELECTIVE = (f"{_BUILD}:selective", "secure_fd.methods.selective_fd:SelectiveFD")
_METHODS = {
    "independent": (f"{_BUILD}:independent", "secure_fd.methods.independent:Independent"),
    "fedavg": (f"{_BUILD}:fedavg", "secure_fd.methods.fedavg:FedAvg", f"{_MEASURES}:of_messages"),
    "fkd": (f"{_BUILD}:federation", "secure_fd.methods.fkd:FKD"),
    "pls": (f"{_BUILD}:federation", "secure_fd.methods.pls:PLS"),
    "fedmd": (*_FEDERATION, "secure_fd.methods.fedmd:FedMD"),
    "ds-fl": (*_FEDERATION, "secure_fd.methods.ds_fl:DSFL"),
    "feded": (*_FEDERATION, f"{_BUILD}:feded", "secure_fd.methods.feded:FedED"),
    "selective-fd": (*_FEDERATION, *_SELECTIVE),
    **dict.fromkeys(PROXY_LABELS, (f"{_BUILD}:fixed_labels", f"{_MEASURES}:of_bound", *_SELECTIVE)),
}
_SELECTORS = {
    "": (),
    "ratio": (f"{_BUILD}:ratio",),
    "kulsif": (f"{_BUILD}:kulsif",),
    **dict.fromkeys(BY_NETWORK, (f"{_BUILD}:by_network",)),
}
_VARIANTS = {
    "true labels": ("experiments.papers.variants:TrueLabels",),
    "selector refitted": ("experiments.papers.variants:Refitted",),
}


def roots(cell: Cell) -> tuple[str, ...]:
    """The definitions that a cell's figures come from."""
    return (
        "experiments.papers.run:prepare",
        "experiments.papers.run:run_cell",
        *_METHODS[cell.method],
        *_SELECTORS[cell.selector],
        *_VARIANTS.get(cell.variant, ()),
    )
