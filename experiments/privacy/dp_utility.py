"""Accuracy against epsilon for the label and the client unit: a table and a plot.

python experiments/privacy/dp_utility.py --image-sets mnist5k
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, percents, table, with_seeds
from experiments.core.grid import ImageStudy, later, paper_recipe
from experiments.core.run_config import FLEET, Privacy, RunConfig
from experiments.core.shared_options import StudyOptions
from experiments.core.study import Result, Results
from experiments.report.plots import Lines
from experiments.report.tables import Table
from secure_fd.training.recipes import Schedule

_EPSILONS = ("1", "2", "4", "8", "inf")
_SEEDS = (10, 11, 12)
_MOST_ROUNDS, _QUICK_ROUNDS, _QUICK_WARMUP = 40, 4, 25
_FLEETS, _QUICK_FLEETS = (100, 1_000, 10_000), (100, 300)
_SETS = ("mnist", "mnist5k")
"""Image sets; fleets are of MNIST."""


@dataclass(frozen=True, slots=True)
class Settings(StudyOptions):
    """Sums are made in clear: masks change no bit of them and only cost time.

    Every cell is saved when it ends, and a rerun does only what is missing.
    """

    epsilons: str | None = None
    """Epsilons out of 1, 2, 4, 8 and inf, with commas; by default all."""


def cells(settings: Settings) -> tuple[RunConfig, ...]:
    """Return the cells that a command line asks for. Raises ConfigurationError for a bad value."""
    epsilons = [float(e) for e in study.listed("epsilons", settings.epsilons, _EPSILONS)]
    seeds = study.whole_numbers("seeds", settings.seeds, _SEEDS)
    sets = study.listed("image_sets", settings.image_sets, _SETS)
    if settings.quick:
        sets = _SETS[1:]
    bases = [_federation(name, seed, quick=settings.quick) for name in sets for seed in seeds]
    if settings.quick or _SETS[0] in sets:
        bases += _fleets(seeds, quick=settings.quick)
    return tuple(replace(base, privacy=_privacy(base, e)) for base in bases for e in epsilons)


def _privacy(base: RunConfig, epsilon: float) -> Privacy | None:
    """Return the unit of a cell; without noise, the label unit is no protection."""
    finite = None if epsilon == math.inf else epsilon
    if base.method == FLEET:
        return Privacy("client", finite, small_fleet=True)
    return None if finite is None else Privacy("label", finite)


def _federation(image_set: str, seed: int, *, quick: bool) -> RunConfig:
    """Return hard labels without protection, which every epsilon changes."""
    recipe = paper_recipe(image_set, "strong")
    steps, rounds = recipe.schedule, min(_MOST_ROUNDS, recipe.rounds)
    if quick:
        steps, rounds = replace(steps, warmup_steps=_QUICK_WARMUP), _QUICK_ROUNDS
    return RunConfig(
        image_set=image_set,
        split="strong",
        method="selective-fd",
        labels="hard",
        selector="ratio",
        seed=seed,
        rounds=rounds,
        schedule=steps,
    )


def _fleets(seeds: Sequence[int], *, quick: bool) -> Iterator[RunConfig]:
    """Yield fleets of every size, the largest under every seed; a tenth of the clients is away."""
    sizes = _QUICK_FLEETS if quick else _FLEETS
    steps, asked = (100, 256) if quick else (1500, 2048)
    for split in ("strong", "iid"):
        for seed in seeds:
            for clients in sizes if seed == seeds[0] else sizes[-1:]:
                yield RunConfig(
                    image_set="mnist5k" if quick else "mnist",
                    split=split,
                    method=FLEET,
                    labels="hard",
                    seed=seed,
                    rounds=1,
                    schedule=Schedule(0, 0, steps, asked),
                    clients=clients,
                    drop=0.1,
                )


def measure(data_dir: Path | None, cell: RunConfig, made: Mapping[Any, Any]) -> Result:
    """Run and test one cell."""
    fleet, run = "experiments.rivals.fleet:measure", "experiments.core.runs:run_cell"
    found: Result = later(fleet if cell.method == FLEET else run)(data_dir, cell, made)
    return found


# Table and figure.


def _unit(cell: RunConfig) -> str:
    """Return what stays the same while epsilon and the seed change."""
    if cell.privacy is None:
        return "no protection"
    if cell.method == FLEET:
        return f"client unit, {cell.clients:,} clients"
    return f"{cell.privacy.unit} unit"


def _epsilon(cell: RunConfig) -> float:
    """Return the epsilon of a cell, or infinity."""
    epsilon = None if cell.privacy is None else cell.privacy.epsilon
    return math.inf if epsilon is None else epsilon


def _text(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:g}"


def _runs(results: Results) -> Frame:
    return frame(results, unit=_unit, epsilon=_epsilon, fleet=lambda cell: cell.method == FLEET)


def tables(results: Results) -> list[Table | str]:
    """Return accuracy by unit and epsilon."""
    runs = _runs(results).rename(columns={"place": "image set, split"})
    texts = percents(runs, ["image set, split", "unit"], "epsilon")
    texts = texts.rename(columns=lambda epsilon: f"ε = {_text(epsilon)}")
    return [table("Test accuracy after the last round, %: mean ± deviation over seeds", texts)]


def panels(results: Results) -> list[Lines]:
    """Return a panel a place, over epsilons at even steps, where a line has two or more of them."""
    made = []
    for (place, fleet), runs in _runs(results).groupby(["place", "fleet"], sort=False):
        steps = runs.epsilon.rank(method="dense") - 1
        ticks = dict(zip(steps, map(_text, runs.epsilon), strict=True))
        by_unit = lines(runs.assign(step=steps), "unit", "step")
        if any(len(line.x) > 1 for line in by_unit.values()):
            title = f"{place}{', fleets' * fleet}"
            made.append(Lines(title, "epsilon", "test accuracy", by_unit, ticks=ticks))
    return made


STUDY = ImageStudy(
    name="dp_utility",
    folder="privacy",
    about="Accuracy against epsilon, for the label and the client unit.",
    settings=Settings,
    cells=cells,
    measure=measure,
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.privacy.dp_utility"))
