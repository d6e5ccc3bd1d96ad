"""A scene: protocols under one set-up, and every attack that can be measured there.

Leakage is measured where it can show: label distributions where clients hold one class each,
membership where local sets are small and mixed, updates where batches are small. Each scene runs
its protocol rows one by one, so that a suite which was interrupted goes on row by row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from attacks.base import AttackResult

Progress = Callable[[int], None]
"""Hears percent of a task, 0 to 100."""
Findings: TypeAlias = "Mapping[str, AttackResult | str]"
"""By attack, its result, or the sentence `not applicable: missing ...`."""
Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class Job:
    """What every scene of a run is given. data_dir: of image sets that are not bundled.

    epsilon, delta: of the rows under differential privacy. quick: a minute's look.
    """

    dataset: str = "mnist5k"
    data_dir: Path | None = None
    epsilon: float = 4.0
    delta: float = 1e-5
    quick: bool = False


class Scene(Protocol, Generic[Prepared]):
    """One set-up. What `prepare` and `run` take and give is pickled: they run in workers."""

    @property
    def name(self) -> str:
        """The word that the command line and the files use."""

    @property
    def title(self) -> str:
        """A few words for a heading."""

    @property
    def about(self) -> str:
        """Two sentences for the report: the set-up, and why it is measured there."""

    def rows(self, job: Job) -> Mapping[str, str]:
        """Key -> label of every protocol row, in the order of the table."""

    def prepare(self, job: Job, seed: int, progress: Progress) -> Prepared:
        """What all rows of a seed share: data, priors, shadows, controls."""

    def run(
        self, job: Job, row: str, seed: int, prepared: Prepared, progress: Progress
    ) -> Findings:
        """Run one protocol row and attack it."""


# The scenes: each a set-up of its own, in which some attacks can be measured.
#
# Names cost no import; `load` imports the one scene that is asked for.


SCENES: Mapping[str, str] = {
    "figure8": "experiments.scenes.figure8:SCENE",
    "membership": "experiments.scenes.membership:SCENE",
    "extraction": "experiments.scenes.extraction:SCENE",
    "federation": "experiments.scenes.sums:FEDERATION",
    "dropouts": "experiments.scenes.sums:DROPOUTS",
    "updates": "experiments.scenes.updates:SCENE",
    "selector": "experiments.scenes.selector:SCENE",
}
"""Name -> module:scene, the longest first: so the workers end at about the same time."""


def load(name: str) -> Scene[Any]:
    """The scene of a name; names cost no import, and this imports the one that is asked for."""
    if name not in SCENES:
        raise ConfigurationError("scene", name, f"use one of {', '.join(SCENES)}")
    module, _, scene = SCENES[name].partition(":")
    return cast(Scene[Any], getattr(import_module(module), scene))
