"""A row of the comparison as its study stores it, and a row over its seeds as it is shown."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.compare.leakage import NOT_APPLICABLE, PLAYED, Leakage, keeping, stored, tried
from experiments.core.measures import ACCURACY, BYTES_UP
from experiments.core.run_config import RowSpec, RunConfig
from experiments.core.study import Result, Results, grouped, moments
from secure_fd.errors import SecureFDError

if TYPE_CHECKING:
    from attacks.core.base import AttackResult, Effort
    from attacks.core.run import Run
    from experiments.compare.games import Found
    from experiments.core.runs import Trained
    from secure_fd.data.federated import FederatedData
    from secure_fd.simulation.federation import Federation

BYTES_DOWN = "bytes down a client"
"""In all rounds."""
SUM_SECONDS = "CPU seconds of a sum"
"""CPU seconds of all parties in a round; the set-up is spread over the rounds."""
ABORTED_ROUNDS, SURVIVORS = "void rounds", "clients in a sum"
CONTROLS: Mapping[str, RowSpec] = {
    "overfitted independent": RowSpec("independent"),
    "overfitted fedavg": RowSpec("fedavg"),
    "overfitted fedavg, masks": RowSpec("fedavg", secure="masks"),
    "overfitted votes": RowSpec("fedmd", "soft"),
    "overfitted class sums": RowSpec("heads"),
}
"""Overfitted federations, which the games of all rows share: their positive controls."""
INVERSION, ORIGINALS = "inversion", "originals"


@dataclass(frozen=True, slots=True)
class Cell:
    """One row under one seed. attacks: on this row, small ones for a quick look.

    own: a hash of the files of user-supplied methods and attacks.
    """

    config: RunConfig
    attacks: tuple[str, ...] = ()
    quick: bool = False
    own: str = ""

    @property
    def seed(self) -> int:
        """Seed of data and training."""
        return self.config.seed

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.config.title}, seed {self.seed}"

    @property
    def played(self) -> tuple[str, ...]:
        """The attacks that are made on small runs."""
        return tuple(name for name in self.attacks if name in PLAYED)


@dataclass(frozen=True, slots=True)
class Part:
    """Prepared attack that the rows of a seed share. on: data and seed."""

    name: str
    on: RunConfig
    quick: bool = False

    @property
    def label(self) -> str:
        """Names the part while it is made."""
        return f"{self.name}: preparation, seed {self.on.seed}"


def needs(cell: Cell) -> tuple[RunConfig | Part, ...]:
    """The warm-up of the row's networks, the attacks and the games, longest first."""
    from experiments.core import runs

    attacks = [name for name in cell.attacks if name not in PLAYED]
    # A quick look has no outsider, whose positive control is the first.
    games = [*CONTROLS][cell.quick :] if cell.played else []
    names = sorted([*games, *attacks], key=lambda name: name != INVERSION)
    parts = (Part(name, cell.config.on_data, cell.quick) for name in names)
    return (*runs.needs(cell.config), *parts)


def prepared(data_dir: Path | None, part: RunConfig | Part) -> Any:  # noqa: ANN401 - of each part its own
    """A warm-up, or one attack that is ready for its rows; why not, where it is not."""
    from experiments.core import runs

    if isinstance(part, RunConfig):
        return runs.prepare(data_dir, part)
    if part.name in CONTROLS:
        from experiments.compare import games

        return games.control(data_dir, part.on, CONTROLS[part.name])
    from attacks import load

    data = runs.data_of(part.on, data_dir)
    try:
        return load(part.name).for_data(data, part.on.seed, _effort(part.quick))
    except SecureFDError as reason:  # see `tried`: every row goes on without this attack
        return f"{NOT_APPLICABLE}{reason}"


def measured(
    data_dir: Path | None,
    cell: Cell,
    made: Mapping[Any, Any],
    on_round: "Callable[[Federation], None]" = lambda _: None,
) -> Result:
    """Train a row and attack it.

    made: the warm-up, and the attacks that are ready. on_round: called after each round.
    """
    from experiments.core import runs

    row = runs.run(cell.config, data_dir, made, attacked=True, on_round=on_round)
    ready = {part.name: found for part, found in made.items() if isinstance(part, Part)}
    attacks = {name: ready[name] for name in cell.attacks if name in ready}
    found = attacked(replace(run_of(row), effort=_effort(cell.quick), made=attacks))
    if cell.played:
        known = [ready[name] for name in CONTROLS if name in ready]
        positive = {name: one for figures in known for name, one in figures.items()}
        found |= _played(data_dir, cell, positive)
    own = cell.config.own
    shown = own is None or own.show_private
    figures, pictures = stored(_one_a_class(found, row.data))
    return Result(
        cell=cell,
        figures=_figures(row),
        seconds=row.seconds,
        per_client=row.accuracies,
        curve=row.curve,
        notes={**_notes(row), "data": _data(row.data)},
        attacks={name: keeping(one, _shown) for name, one in figures.items()},
        pictures=pictures if shown else {},
    )


def _shown(detail: str) -> bool:
    """Whether a report shows a detail: of those of controls, only pictures' distances."""
    return ": " not in detail or detail.endswith((": A", ": delta"))


def _effort(quick: bool) -> "Effort":
    return "quick" if quick else "short"


def _played(data_dir: Path | None, cell: Cell, positive: Mapping[str, float]) -> "Found":
    """Membership in small federations that train as the row does. positive: controls by attack."""
    from experiments.compare import games

    try:
        return games.played(data_dir, cell.config, positive, cell.played, quick=cell.quick)
    except SecureFDError as reason:
        return dict.fromkeys(cell.played, f"{NOT_APPLICABLE}{reason}")


def run_of(row: "Trained") -> "Run":
    """A row as attacks take it."""
    from attacks.core.run import Run

    made = Run.of(row.data, row.federation, row.config.seed)
    return replace(made, model=row.config.model)


def attacked(run: "Run") -> "dict[str, AttackResult | str]":
    """Return by name the result of each attack prepared for a run, or why there is none."""

    def attempt(name: str) -> "AttackResult | str":
        ready = run.made[name]  # a sentence where it could not be prepared
        return ready if isinstance(ready, str) else run.attack(name)

    return tried({name: partial(attempt, name) for name in run.made})


def _figures(row: "Trained") -> dict[str, float]:
    from attacks.protocol.liars import LIAR
    from experiments.core.measures import by_class, diagnose

    seen, test = row.federation.transcript, row.data.test
    answers = row.federation.answers(test)
    if row.config.liar:
        del answers[LIAR]
    found = {
        ACCURACY: float(np.mean(row.accuracies)),
        **by_class(answers, test.labels.numpy()),
        BYTES_UP: float(seen.up.mean()),
        BYTES_DOWN: float(seen.down.mean()),
        **diagnose(row.federation, row.data),
    }
    if row.sum is not None:
        found[SUM_SECONDS] = row.sum.seconds / row.curve[-1].round
        found[ABORTED_ROUNDS] = float(seen.aborted_rounds)
        found[SURVIVORS] = float(np.mean(seen.survivors)) if seen.survivors else 0.0
    return found


def _notes(row: "Trained") -> dict[str, object]:
    from secure_fd.training.trainer import default_device
    from secure_fd.wire import Stage

    missing = row.federation.transcript.missing
    clients = range(len(row.data.clients))
    return {
        **row.notes,
        "noise": None if row.claim is None else "seeded" if row.seeded else "fresh",
        "insecure": [] if row.sum is None else list(row.sum.caveats),
        "sum": None if row.sum is None else row.sum.name,
        "missing": {stage.value: [missing[client, stage] for client in clients] for stage in Stage},
        "device": str(default_device()),
    }


def _data(data: "FederatedData") -> dict[str, object]:
    return {
        "train records of each client": [len(c.train) for c in data.clients],
        "validation records of each client": [len(c.validation) for c in data.clients],
        "classes of each client": [list(c.classes) for c in data.clients],
        "proxies": len(data.proxies),
        "test": len(data.test),
        "held out": len(data.held_out),
    }


def _one_a_class(
    found: "Mapping[str, AttackResult | str]", data: "FederatedData"
) -> "dict[str, AttackResult | str]":
    """Return inverted images: the first of each class that a client holds, beside an original.

    They come class by class, equally many of each.
    """
    result = found.get(INVERSION)
    if result is None or isinstance(result, str) or result.images is None:
        return dict(found)
    from secure_fd.data.images import concatenate

    records = concatenate([client.train for client in data.clients])
    labels = records.labels.tolist()
    held = sorted(set(labels))
    originals = [records.pixels[labels.index(label), 0].numpy() for label in held]
    first = {
        name: made[:: max(1, len(made) // data.n_classes)][held]
        for name, made in result.images.items()
    }
    return {**found, INVERSION: replace(result, images={ORIGINALS: np.stack(originals), **first})}


# Rows over seeds.


@dataclass(frozen=True, slots=True)
class Row:
    """One method under one protection. runs: by ascending seed, one or more."""

    runs: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """Result of the seed whose clients and curve are shown."""
        return self.runs[0]

    @property
    def config(self) -> RunConfig:
        """Settings of that seed."""
        config: RunConfig = self.first.cell.config
        return config

    @property
    def spec(self) -> RowSpec:
        """Settings that distinguish the row from the others."""
        return self.config.row

    @property
    def key(self) -> str:
        """Identifies the row in files."""
        return self.spec.key

    @property
    def label(self) -> str:
        """Names the row to a reader."""
        return self.config.title

    def mean(self, name: str) -> float:
        """A figure, mean over the seeds that have it."""
        having = [run for run in self.runs if name in run.figures]
        return moments(having, lambda run: run.figures[name])[0]

    @property
    def accuracy(self) -> str:
        """In percent, with its deviation over seeds where there are several.

        It has no decimals of a single run whose noise is fresh, which moves it.
        """
        mean, deviation = moments(self.runs)
        if len(self.runs) > 1:
            return f"{100 * mean:.1f}±{100 * deviation:.1f}"
        fresh = self.config.unit and self.config.own is not None
        return f"{100 * mean:.{0 if fresh else 1}f}"

    @property
    def sum(self) -> str | None:
        """The name of the secure sum; None where nothing is summed."""
        name = self.first.notes["sum"]
        return None if name is None else str(name)

    @property
    def claim(self) -> dict[str, Any]:
        """The notes of the seed whose claim is the weakest: it stands for the row."""
        return max((run.notes for run in self.runs), key=_weakness)

    @property
    def missing(self) -> dict[str, int]:
        """Number of times that clients dropped out at each stage, over all seeds."""
        every: list[Any] = [run.notes["missing"] for run in self.runs]
        return {stage: sum(sum(counts[stage]) for counts in every) for stage in every[0]}


def _weakness(notes: Mapping[str, Any]) -> tuple[float, float]:
    """Return a claim's epsilon, and the largest at a larger unit; infinity if nothing holds."""
    claim = notes["privacy"]
    if claim is None or not claim["holds"]:
        return math.inf, math.inf
    larger = [math.inf if c["epsilon"] is None else c["epsilon"] for c in claim["composes_to"]]
    return claim["epsilon"], max(larger, default=0.0)


def rows(results: Results) -> list[Row]:
    """The rows of a comparison, in the order of its cells."""
    by_row = grouped(results.cells, lambda cell: cell.config.row)
    return [Row(tuple(runs)) for runs in by_row.values()]


def leakage(made: Sequence[Row]) -> Leakage:
    """Return attack results of rows, corrected for all figures. Only the first seed is attacked."""
    found = {row.key: [(run.cell.seed, run.attacks) for run in row.runs] for row in made}
    return Leakage.of({row.key: row.label for row in made}, found).corrected()
