"""Attack suite: every scene's attacks on every protocol row, in one leakage table.

python experiments/suite/attack_suite.py --quick
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attacks.core.result import POSITIVE
from experiments.cli import in_range, one_of
from experiments.compare.leakage import Found, keeping, stored, tried
from experiments.core.grid import later
from experiments.core.shared_options import SharedOptions
from experiments.core.study import Result, Study, at_least, listed, main
from experiments.suite.scenes import SCENES, Cell, load
from secure_fd.privacy.guarantee import LEAST_EPSILON, MOST_EPSILON

DATASETS = ("mnist5k", "mnist", "fashion_mnist")
DETAILS = {
    "tpr_at_0.01_fpr": "True positives at 1 % false positives",
    "tpr_at_0.001_fpr": "True positives at 0.1 % false positives",
    "auc_bound_of_the_noise": "Largest AUC that the noise allows",
    "composed_epsilon": "Epsilon of all answers of a client together",
    "share_exact": "Share of the records read without an error",
    "accuracy": "Test accuracy of the row",
}
"""Further figures that the page shows, with their titles."""
_TESTED = "delta_p_value"
"""Detail that decides about a figure of one seed."""
_SEEDS, _DELTA = 3, 1e-5


@dataclass(frozen=True, slots=True)
class Settings(SharedOptions):
    """Every attack against every protocol where its capabilities exist: one leakage table.

    Each scene is a set-up in which some attacks can be measured. Every row of a scene is saved when
    it ends, and a rerun does only what is missing.
    """

    dataset: str = "mnist5k"
    """Image set: mnist5k is bundled; mnist and fashion_mnist come from --data-dir."""
    scenes: str | None = None
    """Scenes to run, with commas; by default all."""
    dp_eps: float = 4.0
    """Epsilon of the rows under differential privacy, from 0.01 to 50."""
    seeds: int | None = None
    """Repetitions: 3 by default, 1 with --quick."""
    first_seed: int = 20
    """Seed of the first repetition; those that follow have the next ones."""
    quick: bool = False
    """A few minutes' look: one seed, small attacks. Figures are not comparable with a full run."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """List every row of every scene, seed by seed.

    Raises ConfigurationError for the first setting that is not allowed.
    """
    one_of("dataset", settings.dataset, DATASETS)
    at_least(1, seeds=settings.seeds)
    at_least(0, first_seed=settings.first_seed)
    in_range("dp_eps", settings.dp_eps, LEAST_EPSILON, MOST_EPSILON)
    count = settings.seeds or (1 if settings.quick else _SEEDS)
    budget = settings.dp_eps, _DELTA
    every = [
        Cell(name, "", seed, settings.dataset, *budget, settings.quick)
        for seed in range(settings.first_seed, settings.first_seed + count)
        for name in listed("scenes", settings.scenes, SCENES)
    ]
    return tuple(replace(cell, row=row) for cell in every for row in load(cell.scene).rows(cell))


def needs(cell: Cell) -> tuple[Cell, ...]:
    """Rows of one scene and seed share a preparation."""
    return (replace(cell, row=""),)


def prepare(data_dir: Path | None, part: Cell) -> Any:  # noqa: ANN401 - the scene's own
    """Make what the rows of a scene and seed share."""
    return load(part.scene).prepare(part, data_dir)


def measure(_: Path | None, cell: Cell, parts: Mapping[Cell, Any]) -> Result:
    """Train a row and attack it; the page has no room for more than the details named above."""
    start = time.process_time()
    (made,) = parts.values()
    found, pictures = stored(tried(load(cell.scene).attempts(cell, made)))
    figures = {name: shown(one) for name, one in found.items()}
    seconds = time.process_time() - start
    return Result(cell, {}, seconds, attacks=figures, pictures=pictures)


def shown(found: Found) -> Found:
    """Return a result with what its page shows: the scene states its limits once for all."""
    kept = keeping(found, lambda name: name in (*DETAILS, _TESTED, POSITIVE))
    return kept if isinstance(kept, str) else replace(kept, caveats=())


STUDY = Study(
    name="attack_suite",
    folder="suite",
    about="Every attack against every protocol where its capabilities exist.",
    settings=Settings,
    out=lambda settings: settings.out or Path("runs/attack_suite"),
    cell=Cell,
    cells=cells,
    needs=needs,
    prepare=prepare,
    measure=measure,
    shown=later("experiments.suite.suite_page:tables"),
    image_set=lambda cell: cell.dataset,
    report=later("experiments.suite.suite_page:write_report"),
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.suite.attack_suite"))
