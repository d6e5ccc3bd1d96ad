"""What can every attacker still learn? Every attack, every protocol, one leakage table.

python experiments/attack_suite.py --quick
"""

import difflib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from attacks.registry import load
from experiments.cli import command, data_folder, exit_status
from experiments.rows import FIRST_SEED, LEAST_EPSILON, MOST_EPSILON
from experiments.scenes import SCENES, Job
from secure_fd.errors import ConfigurationError

DATASETS = ("mnist5k", "mnist", "fashion_mnist")
_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """Every attack against every protocol where its capabilities exist: one leakage table.

    Each scene is a set-up in which some attacks can be measured. Every row of a scene is saved when
    it ends, and a rerun does only what is missing.
    """

    dataset: str = "mnist5k"
    """Image set: mnist5k is bundled; mnist and fashion_mnist come from --data-dir."""
    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds mnist/ or fashion_mnist/ with IDX .gz files."""
    scenes: str = "all"
    """Scenes to run: all, or their names with commas."""
    attacks: str = ""
    """Attacks of one's own, package.module:Name with commas, on the rows of federation."""
    dp_eps: float = 4.0
    """Epsilon of the rows under differential privacy, from 0.01 to 50."""
    dp_delta: float = 1e-5
    """Delta of the record unit and of DP-SGD."""
    seeds: int | None = None
    """Repetitions, with seeds from 10 on: 3 by default, 1 with --quick."""
    out: Path = Path("runs/attack_suite")
    """Folder of the report, and of the rows that are done."""
    workers: int = 2
    """Processes that share the work."""
    quick: bool = False
    """A few minutes' look: one seed, small attacks. Figures are not comparable with a full run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that were found to be allowed, with everything that follows from them."""

    settings: Settings
    job: Job
    scenes: tuple[str, ...]
    seeds: tuple[int, ...]


def plan(settings: Settings, environment_dir: str | None) -> Plan:
    """Check every setting. Raises ConfigurationError, one sentence, at the first that fails."""
    _known("dataset", settings.dataset, DATASETS)
    for name in ("seeds", "workers"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigurationError(name, value, "use 1 or more")
    if not LEAST_EPSILON <= settings.dp_eps <= MOST_EPSILON:
        allowed = f"use a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}"
        raise ConfigurationError("dp_eps", settings.dp_eps, allowed)
    if not 0 < settings.dp_delta < 1:
        raise ConfigurationError("dp_delta", settings.dp_delta, "use a number between 0 and 1")
    if settings.out.exists() and not settings.out.is_dir():
        raise ConfigurationError("out", str(settings.out), "it must be a folder")
    folder = data_folder(settings.data_dir, environment_dir)
    count = settings.seeds or (1 if settings.quick else _SEEDS)
    own = tuple(part.strip() for part in settings.attacks.split(",") if part.strip())
    for name in own:
        if ":" not in name:
            raise ConfigurationError("attacks", name, "use package.module:Name")
        load(name)
    job = Job(settings.dataset, folder, settings.dp_eps, settings.dp_delta, settings.quick, own)
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + count))
    return Plan(settings, job, _scenes(settings.scenes), seeds)


def _scenes(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(SCENES)
    chosen = [part.strip() for part in text.split(",")]
    for name in chosen:
        _known("scenes", name, tuple(SCENES), "all, or ")
    return tuple(name for name in SCENES if name in chosen)


def _known(field: str, value: str, allowed: tuple[str, ...], also: str = "") -> None:
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigurationError(field, value, f"use {also}one of {', '.join(allowed)}{hint}")


def main() -> int:
    """Parse, run what is missing, save, show; returns the exit status."""
    settings = tyro.cli(Settings, prog="attack_suite.py")
    kept = "finished rows are kept; run the same again to go on"
    return exit_status(
        lambda: _attack(plan(settings, os.environ.get("SECURE_FD_DATA"))), interrupted=kept
    )


def _attack(checked: Plan) -> int:
    # Heavy imports come after the checks, so that --help and mistakes answer at once.
    from experiments.suite import Store, cells, collected, run_missing
    from experiments.suite_page import print_table, write_report
    from secure_fd.data.sources import load

    load(checked.job.dataset, checked.job.data_dir)  # what is not there is told before any work
    out = checked.settings.out
    store = Store(out / "cells", checked.job)
    wanted = cells(checked)
    print(f"{len(wanted)} rows of {len(checked.scenes)} scenes, into {out}", file=sys.stderr)
    run_missing(checked, store)
    repeat = command("attack_suite.py", sys.argv[1:])
    results, images = collected(checked, store, repeat)
    path = write_report(results, images, out)
    print_table(results)
    print(f"\nreport: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
