"""What a hard vote says: members that it gives away, and what networks learn from it.

python experiments/vote_encodings.py --games membership

A hard vote is a class and a weight: by default two bits of what selector and network together
grant that class. Membership is told from votes on nearby proxies, among five clients of about a
hundred records of all classes, by shadow federations; accuracy is that of ten clients of one class
each on MNIST, by the default recipe.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments.grid import later, our_recipe
from experiments.measures import ACCURACY
from experiments.shared_options import SharedOptions
from experiments.study import (
    Progress,
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

if TYPE_CHECKING:
    from secure_fd.methods.selective_fd import SelectiveFD

ENCODINGS: Mapping[str, Mapping[str, Any]] = {
    "class alone, everywhere": {"weight": "one", "bits": 1},
    "answer or abstain, 1 bit": {"bits": 1},
    "2 bits": {},
    "3 bits": {"bits": 3},
    "6 bits": {"bits": 6},
    "selector alone, 2 bits": {"weight": "selector"},
    "selector alone, 6 bits": {"weight": "selector", "bits": 6},
    "2 bits, no survey": {"none_of_mine": False},
}
"""By what is sent; a weight is of selector and network unless it says otherwise."""
GAMES = ("membership", "accuracy")
SUMS = ("clear", "masks")
_SEEDS = (20, 21, 22)
AUC = "membership AUC"
_RUNS = 8
"""Federations of the game, half as many as in the suite."""
_HOME = "experiments.vote_encodings"


@dataclass(frozen=True, slots=True)
class Cell:
    """One encoding in one game. secure: how sums are protected, of membership alone."""

    game: Literal["membership", "accuracy"]
    encoding: str
    secure: str
    seed: int

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.game}: {self.encoding}, {self.secure}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Settings(SharedOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    games: str | None = None
    """membership, accuracy, or both with a comma; by default both."""
    encodings: str | None = None
    """One encoding by its name; by default all."""
    seeds: str | None = None
    """Seeds of data and training, with commas."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    games = listed("games", settings.games, GAMES) or GAMES
    chosen = tuple(ENCODINGS)
    if settings.encodings is not None and settings.encodings not in ENCODINGS:
        chosen = listed("encodings", settings.encodings, chosen) or chosen
    elif settings.encodings is not None:
        chosen = (settings.encodings,)
    seeds = whole_numbers("seeds", settings.seeds) if settings.seeds else _SEEDS
    found = []
    for seed in seeds:
        for name in chosen:
            if "membership" in games:
                found += [Cell("membership", name, secure, seed) for secure in SUMS]
            if "accuracy" in games:
                found.append(Cell("accuracy", name, "clear", seed))
    return tuple(found)


def method(encoding: str, labels: Literal["soft", "hard"] = "hard") -> "SelectiveFD":
    """Selective-FD with votes of this encoding."""
    from experiments.variants import Encoded
    from secure_fd.methods.selective_fd import SelectiveFD

    given = ENCODINGS[encoding]
    return Encoded(labels, **given) if "weight" in given else SelectiveFD(labels, **given)


def prepare(data_dir: Path | None, group: Sequence[Cell], progress: Progress) -> object:
    """The records of a game, which all encodings share."""
    from dataclasses import replace

    from experiments.scenes import Job, membership
    from secure_fd.data.federated import federate
    from secure_fd.data.partition import Split
    from secure_fd.data.sources import load

    cell = group[0]
    progress(0)
    if cell.game == "membership":
        return membership.draw(Job(), replace(membership.FULL, runs=_RUNS), cell.seed)
    return federate(load("mnist", data_dir), Split("strong"), 10, cell.seed)


def measure(data_dir: Path | None, cell: Cell, made: Any, progress: Progress) -> Result:  # noqa: ANN401, ARG001 - one of two preparations
    """Attack whole federations, or train one to the end."""
    import time

    start = time.process_time()
    figures = (tell_members if cell.game == "membership" else learn)(cell, made, progress)
    return Result(cell, figures, time.process_time() - start)


def tell_members(cell: Cell, made: Any, progress: Progress) -> dict[str, float]:  # noqa: ANN401 - scenes load late
    """AUC of votes on nearby proxies, of records with their right labels."""
    from experiments.scenes import Job
    from experiments.scenes.membership import Arena, Row

    row = Row(cell.encoding, "hard", cell.secure == "masks", method=partial(method, cell.encoding))
    arena = Arena.of(made, row, Job(), cell.seed, progress)
    found = arena.played_out(made.indirect, arena.server)[0]
    low, high = found.interval
    return {AUC: found.figure, f"{AUC}, low": low, f"{AUC}, high": high}


def learn(cell: Cell, made: Any, progress: Progress) -> dict[str, float]:  # noqa: ANN401 - data loads late
    """Mean test accuracy of ten clients of one class each."""
    import numpy as np

    from secure_fd.federation import Federation, participants_of
    from secure_fd.simulation import fresh_networks

    recipe = our_recipe("mnist", "strong")
    run = Federation(
        participants_of(fresh_networks(made, cell.seed), made.clients),
        made.proxies.pixels,
        method(cell.encoding),
        schedule=recipe.schedule,
        seed=cell.seed,
    )
    for done, _ in enumerate(run.rounds(recipe.rounds), start=1):
        progress(100 * done // recipe.rounds)
    return {ACCURACY: float(np.mean(run.accuracies(made.test)))}


def tables(results: Results) -> list[Table | str]:
    """A row an encoding: members told in clear and under masks, and accuracy."""
    table = new_table(
        "What hard votes tell of members, and teach",
        ("a vote says", "membership AUC, clear", "masks", "MNIST, strong, accuracy, %"),
    )
    for encoding, of in grouped(results.cells, lambda cell: cell.encoding).items():
        by = grouped(of, lambda cell: (cell.game, cell.secure))
        told = [_mean(by.get(("membership", secure), [])) for secure in SUMS]
        learnt = by.get(("accuracy", "clear"), [])
        table.add_row(encoding, *told, percent(learnt) if learnt else NONE)
    return [table]


def _mean(found: Sequence[Result]) -> str:
    if not found:
        return NONE
    return f"{sum(result.figures[AUC] for result in found) / len(found):.2f}"


STUDY = Study(
    name="vote_encodings",
    script="vote_encodings.py",
    about=f"What a hard vote says of members, and teaches. {Settings.__doc__}",
    settings=Settings,
    cell=Cell,
    cells=cells,
    group=lambda cell: (cell.game, cell.seed),
    prepare=later(f"{_HOME}:prepare"),
    measure=later(f"{_HOME}:measure"),
    shown=lambda found: [*tables(found), f"Seeds of all cells: {seeds_of(found.cells)}."],
    image_set=lambda cell: "mnist" if cell.game == "accuracy" else None,
    cost=lambda cell: 250 if cell.game == "accuracy" else 100,
    out=lambda chosen: chosen.out or Path("runs/vote_encodings"),
)

if __name__ == "__main__":
    sys.exit(main("experiments.vote_encodings"))
