"""Accuracy against epsilon for the label and the client unit: a table and a plot.

python experiments/privacy/dp_utility.py --image-sets mnist5k
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.core import frames, study
from experiments.core.frames import Frame, epsilon_text, frame, lines, percents, table
from experiments.core.grid import SEEDS, ImageStudy, later, paper_recipe
from experiments.core.measures import ACCURACY, DIVERGED
from experiments.core.run_config import COUNTED, Privacy, RunConfig
from experiments.core.shared_options import StudyOptions
from experiments.core.study import Result, Results
from experiments.report.plots import Lines
from experiments.report.tables import Table
from secure_fd.data.image_sets import IMAGE_SETS

_EPSILONS = ("1", "2", "4", "8", "inf")
_QUICK_ROUNDS, _QUICK_WARMUP = 4, 25
_FLEETS, _QUICK_FLEETS = (100, 1_000, 10_000), (100, 300)
_LABELS = 10
"""Clients of the label unit."""
_SETS = ("mnist5k", "mnist")
"""Image set of the label unit, and of fleets."""
_EXPLAINED, _SHORT = (4.0, 1.0), 5.0
"""Epsilons of the sentences below the table, and points of which they state the loss as large."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. unit: label or client. epsilon: "inf" for no noise, "any" for what all share.

    quick: fewer steps.
    """

    unit: str
    image_set: str
    split: str
    clients: int
    epsilon: str
    seed: int
    quick: bool = False

    @property
    def label(self) -> str:
        """Name of the cell while it runs."""
        return f"{self.place}: {self.row}, epsilon {self.epsilon}, seed {self.seed}"

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return f"{IMAGE_SETS[self.image_set].title}, {self.split}"

    @property
    def row(self) -> str:
        """What stays the same while epsilon and the seed change."""
        return f"{self.unit} unit, {self.clients:,} clients"


@dataclass(frozen=True, slots=True)
class Settings(StudyOptions):
    """Sums are made in clear: masks change no bit of them and only cost time.

    Every cell is saved when it ends, and a rerun does only what is missing.
    """

    epsilons: str | None = None
    """Epsilons out of 1, 2, 4, 8 and inf, with commas; by default all."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """Return the cells that a command line asks for. Raises ConfigurationError for a bad value."""
    epsilons = study.listed("epsilons", settings.epsilons, _EPSILONS)
    seeds = study.whole_numbers("seeds", settings.seeds, SEEDS)
    sets = study.listed("image_sets", settings.image_sets, _SETS)
    small, large = _SETS[0], _SETS[0] if settings.quick else _SETS[1]
    fleets = _QUICK_FLEETS if settings.quick else _FLEETS
    rows = [("label", small, "strong", _LABELS)] if small in sets else []
    if settings.quick or large in sets:
        rows += [("client", large, split, n) for split in ("strong", "iid") for n in fleets]
    return tuple(
        Cell(*row, epsilon, seed, settings.quick)
        for row in rows
        for seed in seeds
        for epsilon in epsilons
    )


def label_run(cell: Cell) -> RunConfig:
    """Return the run of a cell of the label unit: counted hard votes, as the unit takes them."""
    recipe = paper_recipe(cell.image_set, cell.split)
    steps, rounds = recipe.schedule, recipe.rounds
    if cell.quick:
        steps, rounds = replace(steps, warmup_steps=_QUICK_WARMUP), _QUICK_ROUNDS
    noise = None if cell.epsilon == "inf" else Privacy("label", float(cell.epsilon))
    return RunConfig(
        image_set=cell.image_set,
        split=cell.split,
        method="selective-fd",
        labels="hard",
        selector="ratio",
        variant=COUNTED,
        server_threshold=1.0,
        seed=cell.seed,
        rounds=rounds,
        schedule=steps,
        clients=cell.clients,
        privacy=noise,
    )


def needs(cell: Cell) -> tuple[RunConfig | Cell]:
    """Return the warm-up of a run, or the votes of a fleet, which are the same at any epsilon."""
    return (label_run(cell).start if cell.unit == "label" else replace(cell, epsilon="any"),)


def prepare(data_dir: Path | None, part: RunConfig | Cell) -> Any:  # noqa: ANN401 - of each its own
    """Make what the cells of a place and seed share."""
    home = "privacy.fleet:all_votes" if isinstance(part, Cell) else "core.runs:prepare"
    return later(f"experiments.{home}")(data_dir, part)


def measure(data_dir: Path | None, cell: Cell, made: Mapping[Any, Any]) -> Result:
    """Run and test one cell."""
    if cell.unit == "client":
        found: Result = later("experiments.privacy.fleet:measure")(data_dir, cell, made)
    else:
        found = later("experiments.core.runs:run_cell")(data_dir, label_run(cell), made)
    return Result(cell, found.only(ACCURACY, DIVERGED), found.seconds)


# Table and figure.


def _runs(results: Results) -> Frame:
    return frame(results, row=lambda cell: cell.row, epsilon=lambda cell: float(cell.epsilon))


def shown(results: Results) -> list[Table | str]:
    """Return accuracy by unit and epsilon, and what follows."""
    runs = _runs(results)
    texts = percents(runs, ["place", "row"], "epsilon").rename(columns=epsilon_text)
    title = (
        "Test accuracy after the last round, %: mean ± deviation over seeds. Epsilon of the label "
        "unit is for one answer of a client; of the client unit, for all that a client sends, "
        "delta 1e-5, if at most a tenth of the clients is away and a tenth reveals its noise. "
        "Noise is seeded: epsilon is that of the same mechanism with fresh noise"
    )
    return [table(title, texts), *_lessons(runs), *frames.diverged(runs, "place", "row")]


def _lessons(runs: Frame) -> Iterator[str]:
    """Yield what the accuracies show, as far as they were measured."""
    means = 100 * runs.pivot_table(ACCURACY, ["place", "row"], "epsilon", sort=False)
    means = means.reindex(columns=[*_EXPLAINED, math.inf])
    for epsilon in _EXPLAINED:
        lost = (means[math.inf] - means[epsilon]).dropna()
        if len(lost):
            each = "; ".join(f"{place}, {row} {x:.1f}" for (place, row), x in lost.items())
            yield (
                f"Points that ε = {epsilon:g} costs, against no noise: {each}. Ours falls short, "
                f"by {_SHORT:g} points or more, in {(lost >= _SHORT).sum()} of {len(lost)}."
            )
    if (runs.unit == "label").any():
        yield (
            "The label unit takes the paper's steps and answers a proxy once; without noise, "
            "proxies are answered anew. Its epsilon is for one answer and does not bound what all "
            "answers of a client reveal together."
        )
    if (runs.unit == "client").any():
        yield "Clients of the client unit are asked about fewer proxies where there is more noise."


def panels(results: Results) -> list[Lines]:
    """Return a panel a place and unit, over epsilons at even steps; a line needs two or more."""
    made = []
    for (place, unit), runs in _runs(results).groupby(["place", "unit"], sort=False):
        steps = runs.epsilon.rank(method="dense") - 1
        ticks = dict(zip(steps, map(epsilon_text, runs.epsilon), strict=True))
        by_unit = lines(runs.assign(step=steps), "row", "step")
        if any(len(line.x) > 1 for line in by_unit.values()):
            title = f"{place}, {unit} unit"
            made.append(Lines(title, "epsilon", "test accuracy", by_unit, ticks=ticks))
    return made


STUDY = ImageStudy(
    name="dp_utility",
    folder="privacy",
    about="Accuracy against epsilon, for the label and the client unit.",
    settings=Settings,
    cell=Cell,
    cells=cells,
    needs=needs,
    prepare=prepare,
    measure=measure,
    shown=frames.with_seeds(shown),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.privacy.dp_utility"))
