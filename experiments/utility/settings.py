"""What the command line of the study takes, checked before any work starts."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from experiments.cli import data_folder
from experiments.rows import LEAST_EPSILON, MOST_EPSILON
from experiments.utility.cells import Cell, Grid, cells
from secure_fd.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Settings:
    """Accuracy against epsilon, for every privacy unit: a table, a plot and JSON.

    Sums are made in clear here: masks change no bit of them and only cost time. Every cell is
    saved when it ends, and a rerun does only what is missing.
    """

    study: Literal["strong", "splits", "small", "fashion", "fleet", "all"] = "all"
    """MNIST by units; its other splits; MNIST-5k; Fashion-MNIST; fleets of clients; or all."""
    epsilons: str = "1,2,4,8,inf"
    """Epsilons with commas, each from 0.01 to 50, or inf."""
    seeds: str = "10,11,12"
    """Seeds of data and training, with commas; from 10 on none was looked at before."""
    rounds: int | None = None
    """Rounds of a federation; by default 40, and 30 on MNIST-5k."""
    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds mnist/ and fashion_mnist/ with IDX .gz files."""
    out: Path = Path("runs/dp_utility")
    """Folder of the results, and of the cells that are done."""
    workers: int = 2
    """Processes that share the work."""
    quick: bool = False
    """A minute's look: few rounds, small fleets. Figures are not comparable with a full run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that were found to be allowed, with the cells that they ask for."""

    settings: Settings
    cells: tuple[Cell, ...]
    data_dir: Path | None


def plan(settings: Settings, environment_dir: str | None) -> Plan:
    """Check every setting. Raises ConfigurationError, one sentence, at the first that fails."""
    for name in ("rounds", "workers"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigurationError(name, value, "use 1 or more")
    grid = Grid(
        epsilons=tuple(dict.fromkeys(map(_epsilon, settings.epsilons.split(",")))),
        seeds=tuple(dict.fromkeys(map(_seed, settings.seeds.split(",")))),
        rounds=settings.rounds,
        quick=settings.quick,
    )
    made = cells(settings.study, grid)
    chosen = data_folder(settings.data_dir, environment_dir)
    if settings.out.exists() and not settings.out.is_dir():
        raise ConfigurationError("out", str(settings.out), "it must be a folder")
    return Plan(settings, made, chosen)


def _epsilon(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if value == math.inf:
        return None
    if not LEAST_EPSILON <= value <= MOST_EPSILON:
        allowed = f"use numbers from {LEAST_EPSILON:g} to {MOST_EPSILON:g}, or inf, with commas"
        raise ConfigurationError("epsilons", text, allowed)
    return value


def _seed(text: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigurationError("seeds", text, "use whole numbers of 0 or more, with commas")
    return int(text)
