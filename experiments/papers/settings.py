"""What the command line of every study takes, checked before any work starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from experiments.cli import data_folder
from experiments.papers.cells import Cell
from secure_fd.errors import ConfigurationError
from secure_fd.recipes import IMAGE_SETS

if TYPE_CHECKING:
    from experiments.papers.study import Study

QUICK_SET = "digits"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    image_sets: str | None = None
    """Image sets, with commas; by default those of the paper."""
    splits: str | None = None
    """Splits, with commas; by default all of the study's."""
    methods: str | None = None
    """Methods, with commas; by default all of the study's."""
    seeds: str | None = None
    """Seeds of data and training, with commas; by default the study's, from 10 on."""
    rounds: int | None = None
    """Rounds of every cell; by default what the image set needs."""
    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds the image sets that are not bundled, each in a folder of its name."""
    out: Path | None = None
    """Folder of the results, and of the cells of all studies that are done; by default runs/papers,
    and runs/papers-quick for a quick look."""
    workers: int = 2
    """Processes that share the work."""
    quick: bool = False
    """A minute's look at a bundled set: three clients, two rounds. Figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What the command line chose; None leaves the choice to the study."""

    image_sets: tuple[str, ...] | None
    splits: tuple[str, ...] | None
    methods: tuple[str, ...] | None
    seeds: tuple[int, ...] | None
    rounds: int | None
    quick: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that were found to be allowed, with the cells that they ask for."""

    study: "Study"
    settings: Settings
    cells: tuple[Cell, ...]
    data_dir: Path | None
    out: Path


def plan(study: "Study", settings: Settings, environment_dir: str | None) -> Plan:
    """Check every setting. Raises ConfigurationError, one sentence, at the first that fails."""
    for name in ("rounds", "workers"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigurationError(name, value, "use 1 or more")
    grid = Grid(
        image_sets=_listed("image_sets", settings.image_sets, tuple(IMAGE_SETS)),
        splits=_listed("splits", settings.splits, study.splits),
        methods=_listed("methods", settings.methods, study.methods),
        seeds=None if settings.seeds is None else _seeds(settings.seeds),
        rounds=settings.rounds,
        quick=settings.quick,
    )
    made = study.cells(grid)
    chosen = data_folder(settings.data_dir, environment_dir)
    out = settings.out or Path("runs/papers-quick" if settings.quick else "runs/papers")
    if out.exists() and not out.is_dir():
        raise ConfigurationError("out", str(out), "it must be a folder")
    return Plan(study, settings, made, chosen, out)


def _listed(field: str, text: str | None, allowed: tuple[str, ...]) -> tuple[str, ...] | None:
    if text is None:
        return None
    chosen = tuple(part.strip() for part in text.split(","))
    for part in chosen:
        if part not in allowed:
            raise ConfigurationError(field, part, f"use one or more of {', '.join(allowed)}")
    return tuple(dict.fromkeys(chosen))


def _seeds(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal()):
            raise ConfigurationError("seeds", part, "use whole numbers of 0 or more, with commas")
    return tuple(dict.fromkeys(map(int, parts)))
