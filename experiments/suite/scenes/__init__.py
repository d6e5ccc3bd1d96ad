"""A scene: protocols under one set-up, and the attacks that can be measured there.

Leakage is measured where it can show: label distributions where clients hold one class each,
membership where local sets are small and mixed, updates where batches are small.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from experiments.compare.leakage import Attempt
from secure_fd.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Cell:
    """One protocol row of one scene under one seed, with all its attacks.

    Attributes:
        epsilon, delta: budget of the rows under differential privacy.
        quick: small attacks, for a first look.
    """

    scene: str
    row: str
    seed: int
    dataset: str = "mnist5k"
    epsilon: float = 4.0
    delta: float = 1e-5
    quick: bool = False

    @property
    def label(self) -> str:
        """Name of the cell while it runs; without a row, of what the scene's rows share."""
        return f"{self.scene}: {self.row or 'set-up'}, seed {self.seed}"

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class Scene:
    """One set-up and its measurements.

    Attributes:
        about: set-up and question, in a few sentences.
        rows: key -> label of every protocol row, in the order of the table. The row of the cell
            that it receives is empty.
        prepare: makes what all rows of a seed share. The path holds image sets that are not
            bundled.
        attempts: trains the row of a cell; returns the attacks on it by name.
        limits: of all figures of the scene, a sentence each.
        controls: keys of rows in which every attack has to succeed.
    """

    title: str
    about: str
    rows: Callable[[Cell], Mapping[str, str]] = field(repr=False)
    prepare: Callable[[Cell, Path | None], Any] = field(repr=False)
    attempts: Callable[[Cell, Any], Mapping[str, Attempt]] = field(repr=False)
    limits: tuple[str, ...]
    controls: tuple[str, ...] = ()


SCENES = ("figure8", "membership", "dropouts", "updates", "selector", "pooled")
"""Names of scenes, which are those of their modules."""


def load(name: str) -> Scene:
    """Import one scene by its name. Raises ConfigurationError for an unknown name."""
    if name not in SCENES:
        raise ConfigurationError("scene", name, f"use one of {', '.join(SCENES)}")
    return cast(Scene, import_module(f"{__name__}.{name}").SCENE)
