"""A scene: protocols under one set-up, and every attack that can be measured there.

Leakage is measured where it can show: label distributions where clients hold one class each,
membership where local sets are small and mixed, updates where batches are small. A scene states its
rows, what they share, and which attacks each row meets; `attacked` runs them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from experiments.compare.leakage import Attempt, tried
from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from attacks.core.base import Attack, AttackResult
    from attacks.core.view import View

Made = TypeVar("Made")


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


@dataclass(frozen=True, slots=True, eq=False)
class Turn(Generic[Made]):
    """One row under one seed. made: what the rows of a seed share."""

    job: Job
    row: str
    seed: int
    made: Made = field(repr=False)


@dataclass(frozen=True, slots=True)
class Scene(Generic[Made]):
    """One set-up and what is measured there: rows, and attacks on each of them.

    name: the word of the command line and the files. about: two sentences for the report. rows:
    key -> label of every protocol row, in the order of the table. prepare(job, seed):
    what all rows of a seed share. attempts(turn): trains a row; attacks on it by name.
    """

    name: str
    title: str
    about: str
    rows: Callable[[Job], Mapping[str, str]] = field(repr=False)
    prepare: Callable[[Job, int], Made] = field(repr=False)
    attempts: Callable[[Turn[Made]], Mapping[str, Attempt]] = field(repr=False)


SCENES: Mapping[str, str] = {
    "figure8": "experiments.suite.scenes.figure8:SCENE",
    "membership": "experiments.suite.scenes.membership:SCENE",
    "extraction": "experiments.suite.scenes.extraction:SCENE",
    "federation": "experiments.suite.scenes.sums:FEDERATION",
    "dropouts": "experiments.suite.scenes.sums:DROPOUTS",
    "updates": "experiments.suite.scenes.updates:SCENE",
    "selector": "experiments.suite.scenes.selector:SCENE",
}
"""Name -> module:scene."""
ASKED_FOR: Mapping[str, str] = {
    "figure8-published": "experiments.suite.scenes.figure8:AT_PUBLISHED_SIZES",
    "pooled": "experiments.suite.scenes.pooled:SCENE",
}
"""Scenes that run where they are named: the committed results have no rows of them yet."""
OWN = "federation"
"""The scene on whose rows attacks of one's own run."""


def load(name: str) -> Scene[Any]:
    """The scene of a name; names cost no import, and this imports the one that is asked for."""
    known = {**SCENES, **ASKED_FOR}
    if name not in known:
        raise ConfigurationError("scene", name, f"use one of {', '.join(known)}")
    module, _, scene = known[name].partition(":")
    return cast(Scene[Any], getattr(import_module(module), scene))


def attacked(scene: Scene[Made], turn: Turn[Made]) -> "Mapping[str, AttackResult | str]":
    """Train a row and run every attack on it, or say which capability it lacks."""
    return tried(scene.attempts(turn))


def launched(attack: "Attack[Any, Any]", view: "View", truth: object, seed: int) -> "AttackResult":
    """Run an attack on a view and score it."""
    return attack.score(attack.run(view, seed), truth, seed)


def noted(
    result: "AttackResult",
    details: Mapping[str, float] | None = None,
    caveats: Sequence[str] = (),
) -> "AttackResult":
    """A result with further figures and caveats."""
    return replace(
        result,
        details={**result.details, **(details or {})},
        caveats=(*result.caveats, *caveats),
    )
