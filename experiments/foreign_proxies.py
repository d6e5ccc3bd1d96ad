"""What is taught where proxies are foreign, of classes that nobody holds, or rare.

python experiments/foreign_proxies.py --image-sets mnist5k --troubles none,"half foreign"

Selective-FD asks its clients first what they know, and they estimate how common their classes are
among the proxies; its twins do without the one, the other, or both. Pooled heads ask before they
teach. Every class has one holder.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.grid import later
from experiments.measures import ACCURACY, RIGHT_OF_ALL, RIGHT_ONCE
from experiments.rows import Labels
from experiments.shared_options import SharedOptions
from experiments.study import (
    Result,
    Results,
    Study,
    grouped,
    listed,
    main,
    percent,
    seeds_of,
    whole_numbers,
)
from experiments.tables import NONE, Table, new_table
from secure_fd.recipes import IMAGE_SETS

_HOME = "experiments.troubles"
SETS = ("mnist5k", "mnist", "fashion_mnist")
TROUBLES = (
    *("none", "half foreign", "a tenth foreign", "all foreign", "half rotated"),
    *("8 and 9 unheld", "4 and 6 unheld"),
    *("tail of 10 to 1", "half at a tenth", "half at a fiftieth", "half at a tenth, half foreign"),
)
_ROWS = {
    "survey": "Selective-FD",
    "no survey": "no survey",
    "even": "all classes as common",
    "neither": "neither",
    "heads": "pooled heads",
    "heads, no survey": "pooled heads, no survey",
}
_LARGE = ("none", "half foreign", "half rotated", "8 and 9 unheld", "4 and 6 unheld")
"""Troubles of the large sets, whose features take a minute."""
_TAUGHT = ("none", "half foreign", "half at a tenth", "half at a fiftieth", TROUBLES[-1])
"""Troubles under which students of MNIST-5k learn to the end."""
_SOFT = ("survey", "no survey", "even", "neither")
_VOTES = ("survey", "no survey", "neither")
_LEARNT = (*_VOTES, "heads", "heads, no survey")
"""Those of the first seed; the others' students learn from votes alone."""
_SEEDS = (20, 21, 22)
_CLEAN = tuple(range(20, 40))
"""Seeds of proxies without trouble, on which the gate must stay shut."""
_CLEAN_SPLITS = ("strong", "iid", "dirichlet:0.3")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. row: of `troubles.ROWS`. students: whether networks learn, or labels are looked at
    after one round about all proxies.
    """

    image_set: str
    split: str
    trouble: str
    row: str
    labels: Labels
    seed: int
    students: bool = False

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        parts = (self.trouble, self.row, self.labels, "students" if self.students else "labels")
        place = f"{IMAGE_SETS[self.image_set].title}, {self.split}"
        return f"{place}: {', '.join(parts)}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Settings(SharedOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    image_sets: str | None = None
    """Image sets, with commas; by default all."""
    troubles: str | None = None
    """What is wrong with the proxies, with commas; by default everything."""
    seeds: str | None = None
    """Seeds of data and training, with commas."""
    quick: bool = False
    """A look at the bundled digits, rotated and rare: labels alone."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    chosen = _listed_troubles(settings.troubles) or TROUBLES
    if settings.quick:
        some = ("none", "half rotated", "half at a tenth")
        return tuple(
            Cell("digits", "strong", trouble, row, "soft", 0)
            for trouble in some
            for row in ("survey", "neither")
        )
    sets = listed("image_sets", settings.image_sets, SETS) or SETS
    seeds = whole_numbers("seeds", settings.seeds) if settings.seeds else _SEEDS
    found = [cell for name in sets for seed in seeds for cell in _of_set(name, seed, chosen)]
    if "none" in chosen and "mnist5k" in sets and not settings.seeds:
        none = Cell("mnist5k", "strong", "none", "survey", "soft", 0)
        found += [replace(none, split=s, seed=k) for s in _CLEAN_SPLITS for k in _CLEAN]
    return tuple(dict.fromkeys(found))


def _listed_troubles(text: str | None) -> tuple[str, ...] | None:
    """Names of troubles hold commas themselves."""
    if text is not None and text in TROUBLES:
        return (text,)
    return listed("troubles", text, TROUBLES[:-1])


def _of_set(image_set: str, seed: int, troubles: Sequence[str]) -> Iterator[Cell]:
    for trouble in troubles:
        plain = Cell(image_set, "strong", trouble, "survey", "soft", seed)
        if image_set != "mnist5k":
            if trouble in _LARGE:
                yield from (replace(plain, row=row) for row in ("survey", "neither"))
                yield replace(plain, row="heads", labels="hard")
            continue
        yield from (replace(plain, row=row) for row in _SOFT)
        hard = ("survey", "neither", "heads", "heads, no survey")
        yield from (replace(plain, row=row, labels="hard") for row in hard)
        if trouble in _TAUGHT:
            learnt = replace(plain, labels="hard", students=True)
            rows = _LEARNT if seed == _SEEDS[0] else _VOTES
            yield from (replace(learnt, row=row) for row in rows)


_FIGURES: Mapping[str, str] = {
    "foreign taught": "foreign proxies taught",
    "own taught": "own proxies taught",
    "right of those": RIGHT_ONCE,
    "right of all own": RIGHT_OF_ALL,
}


def tables(results: Results) -> list[Table | str]:
    """Labels by set and trouble; students; how often the gate opened on clean proxies."""
    labels = [found for found in results.cells if not found.cell.students]
    shown = [found for found in labels if found.cell.split == "strong"]
    by_set = grouped(shown, lambda cell: cell.image_set)
    made: list[Table | str] = [_labels(of) for of in by_set.values()]
    students = [found for found in results.cells if found.cell.students]
    clean = [r for r in labels if (r.cell.trouble, r.cell.row) == ("none", "survey")]
    return [*made, *([_students(students)] if students else []), _gate(clean)]


def _labels(found: Sequence[Result]) -> Table:
    title = f"{IMAGE_SETS[found[0].cell.image_set].title}: what one round labels, %"
    table = new_table(title, ("proxies", "labels", "row", *_FIGURES))
    for (trouble, labels, row), of in grouped(found, _line).items():
        few = [r for r in of if r.cell.seed in _SEEDS or len(of) < len(_CLEAN)]
        table.add_row(
            trouble, labels, _ROWS[row], *(_shown(few, name) for name in _FIGURES.values())
        )
    return table


def _line(cell: Cell) -> tuple[str, str, str]:
    return cell.trouble, cell.labels, cell.row


def _shown(found: Sequence[Result], name: str) -> str:
    having = [result for result in found if name in result.figures]
    return percent(having, _figure(name)) if having else NONE


def _figure(name: str) -> Callable[[Result], float]:
    return lambda result: result.figures[name]


def _students(found: Sequence[Result]) -> Table:
    title = "MNIST-5k: accuracy of students, hard labels, on a balanced test set, %"
    table = new_table(title, ("proxies", *(_ROWS[row] for row in _LEARNT)))
    for trouble, of in grouped(found, lambda cell: cell.trouble).items():
        by_row = grouped(of, lambda cell: cell.row)
        parts = (_shown(by_row.get(row, []), ACCURACY) for row in _LEARNT)
        table.add_row(trouble, *parts)
    return table


def _gate(found: Sequence[Result]) -> Table:
    table = new_table(
        "Proxies of the clients' own set: how often the gate opened",
        ("place", "seeds", "opened", "least share estimated"),
    )
    for place, of in grouped(found, lambda cell: (cell.image_set, cell.split)).items():
        soft = [result for result in of if result.cell.labels == "soft"]
        opened = sum(result.figures["gate open"] for result in soft)
        least = min(result.figures["share of own proxies, estimated"] for result in soft)
        name = f"{IMAGE_SETS[place[0]].title}, {place[1]}"
        table.add_row(name, seeds_of(soft), f"{opened:.0f} of {len(soft)}", f"{least:.3f}")
    return table


STUDY = Study(
    name="foreign_proxies",
    script="foreign_proxies.py",
    about=f"What is taught where proxies are foreign or rare. {Settings.__doc__}",
    settings=Settings,
    cell=Cell,
    cells=cells,
    group=lambda cell: (cell.image_set, cell.split, cell.trouble, cell.seed),
    prepare=later(f"{_HOME}:prepare"),
    measure=later(f"{_HOME}:measure"),
    shown=lambda found: [*tables(found), f"Seeds of all cells: {seeds_of(found.cells)}."],
    cost=lambda cell: 1000 if cell.students else 100 if cell.image_set == "mnist5k" else 400,
    out=lambda chosen: chosen.out or Path(f"runs/foreign_proxies{'-quick' * chosen.quick}"),
)

if __name__ == "__main__":
    sys.exit(main("experiments.foreign_proxies"))
