"""A scene: protocols under one set-up, and every attack that can be measured there.

Leakage is measured where it can show: label distributions where clients hold one class each,
membership where local sets are small and mixed, updates where batches are small. Each scene runs
its protocol rows one by one, so that a suite which was interrupted goes on row by row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from attacks.base import AttackResult

Progress = Callable[[int], None]
"""Callback: percent of a task done, 0 to 100."""
Findings: TypeAlias = "Mapping[str, AttackResult | str]"
"""By attack, its result, or the sentence `not applicable: missing ...`."""
Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class Job:
    """What every scene of a run is given. data_dir: of image sets that are not bundled.

    epsilon, delta: of the rows under differential privacy. quick: a minute's look. own: attacks of
    one's own, which run on the rows of `federation`.
    """

    dataset: str = "mnist5k"
    data_dir: Path | None = None
    epsilon: float = 4.0
    delta: float = 1e-5
    quick: bool = False
    own: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene(Generic[Prepared]):
    """One set-up and what is measured there: rows, and attacks on each of them.

    name: the word of the command line and the files. about: two sentences for the report. rows:
    key -> label of every protocol row, in the order of the table. prepare(job, seed, progress):
    what all rows of a seed share. run(job, row, seed, prepared, progress): one row, attacked.
    What `prepare` and `run` take and give is pickled: they run in workers.
    """

    name: str
    title: str
    about: str
    rows: Callable[[Job], Mapping[str, str]] = field(repr=False)
    prepare: Callable[[Job, int, Progress], Prepared] = field(repr=False)
    run: Callable[[Job, str, int, Prepared, Progress], Findings] = field(repr=False)


SCENES: Mapping[str, str] = {
    "figure8": "experiments.scenes.figure8:SCENE",
    "membership": "experiments.scenes.membership:SCENE",
    "extraction": "experiments.scenes.extraction:SCENE",
    "federation": "experiments.scenes.sums:FEDERATION",
    "dropouts": "experiments.scenes.sums:DROPOUTS",
    "updates": "experiments.scenes.updates:SCENE",
    "selector": "experiments.scenes.selector:SCENE",
}
"""Name -> module:scene."""
OWN = "federation"
"""The scene on whose rows attacks of one's own run."""


def load(name: str) -> Scene[Any]:
    """The scene of a name; names cost no import, and this imports the one that is asked for."""
    if name not in SCENES:
        raise ConfigurationError("scene", name, f"use one of {', '.join(SCENES)}")
    module, _, scene = SCENES[name].partition(":")
    return cast(Scene[Any], getattr(import_module(module), scene))
