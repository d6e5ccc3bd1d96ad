"""What the command line of the audit takes, checked before any work starts."""

import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from secure_fd.errors import ConfigurationError

UNITS = ("record", "label", "client")
KINDS = ("mechanism", "one-run")
_LEAST_EPSILON, _MOST_EPSILON = 0.1, 16.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Attack every epsilon that the software prints, at three units and three distances.

    Exit status 1 if a bound exceeds its claim, or if a mutation of the self-test passes.
    """

    epsilon: float = 4.0
    """The claim to audit, from 0.1 to 16: of a record, a label and a client alike."""
    delta: float = 1e-5
    """Its delta; one-run audits judge the same noise at a smaller one, and print it."""
    unit: str = "record,label,client"
    """Units to audit, with commas."""
    kind: str = "mechanism,one-run"
    """Kinds of audit, with commas, from closest to the noise to furthest."""
    seeds: int = 1
    """Repetitions; the table shows each cell's largest bound."""
    power: int = 3
    """Runs of each audit against its twin with half the noise; 0 leaves power out."""
    miss: float = 1e-5
    """Chance that one bound is wrong; the table states the chance of all together."""
    quick: bool = False
    """A fifth of the trials, save for the self-test: lower bounds and less power, no less true."""
    self_test: bool = False
    """Break the real code in every known way, one at a time: each must be caught."""
    insecure_seed: int | None = None
    """Draw all noise and coins from this seed, so that anyone gets the same bounds."""
    out: Path | None = None
    """Folder of the results; by default runs/audit-TIME."""
    workers: int | None = None
    """Processes that share the work; by default one a core."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that were found to be allowed."""

    settings: Settings
    units: tuple[str, ...]
    kinds: tuple[str, ...]
    out: Path

    @property
    def size(self) -> float:
        """Share of the full number of trials."""
        return 0.2 if self.settings.quick else 1.0


def plan(settings: Settings) -> Plan:
    """Check every setting. Raises ConfigurationError, one sentence, at the first that fails."""
    if not _LEAST_EPSILON <= settings.epsilon <= _MOST_EPSILON:
        allowed = f"use {_LEAST_EPSILON:g} to {_MOST_EPSILON:g}: no test tells more apart"
        raise ConfigurationError("epsilon", settings.epsilon, allowed)
    _inside("delta", settings.delta, 1e-12, 1e-3)
    _inside("miss", settings.miss, 1e-9, 0.05)
    for name, least in (("seeds", 1), ("power", 0), ("workers", 1), ("insecure_seed", 0)):
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ConfigurationError(name, value, f"use {least} or more")
    units, kinds = _listed("unit", settings.unit, UNITS), _listed("kind", settings.kind, KINDS)
    return Plan(settings, units, kinds, _out(settings))


def _inside(field: str, value: float, least: float, most: float) -> None:
    if math.isnan(value) or not least <= value <= most:
        raise ConfigurationError(field, value, f"use {least:g} to {most:g}")


def _listed(field: str, text: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(","))
    for part in chosen:
        if part not in allowed:
            raise ConfigurationError(field, part, f"use one or more of {', '.join(allowed)}")
    return tuple(dict.fromkeys(chosen))


def _out(settings: Settings) -> Path:
    """The folder of the results; made at the end, whether it can be is known now."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    chosen = settings.out or Path("runs") / f"audit-{moment}"
    nearest = next(path for path in (chosen, *chosen.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise ConfigurationError("out", str(chosen), "it must be a folder, or one that can be made")
    return chosen
