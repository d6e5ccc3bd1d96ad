"""Attack every printed epsilon: one table, and an exit status.

python experiments/privacy/privacy_audit.py
"""

import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from attacks.audit.bounds import MISS, Setting, Verdict
from experiments.core.provenance import dated
from experiments.core.study import Result, Results, Study, at_least, listed, main
from experiments.report.tables import Table, new_table
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.guarantee import format_epsilon
from secure_fd.privacy.samplers import SeededRandom

UNITS = ("record", "label", "client")
CLAIMED, BOUND, CEILING = "claimed epsilon", "bound on epsilon", "bound of a perfect attack"


@dataclass(frozen=True, slots=True)
class Settings:
    """Attack every epsilon that the software prints, at three units.

    Exit status 1 if a bound exceeds its claim.
    """

    epsilon: float = 4.0
    """Epsilon to audit, from 0.1 to 16, the same for every unit."""
    delta: float = 1e-5
    """Delta to audit."""
    unit: str = "record,label,client"
    """Units to audit, with commas."""
    quick: bool = False
    """A fifth of the trials: the bounds are weaker, and still valid."""
    insecure_seed: int | None = None
    """Draw all noise from this seed, so that anyone gets the same bounds."""
    out: Path | None = None
    """Folder of the results; by default runs/audit-TIME."""
    workers: int | None = None
    """Processes that share the work; by default one a core."""
    scheduler: str | None = None
    """Use the workers of a running Dask cluster instead: the address of its scheduler,
    tcp://HOST:8786."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One audit.

    Attributes:
        size: share of the full number of trials.
        stream: seed of all noise, None for the operating system's.
    """

    audit: str
    epsilon: float
    delta: float
    size: float
    stream: int | None = None

    @property
    def label(self) -> str:
        """Name of the cell while it runs."""
        return self.audit


def cells(settings: Settings) -> tuple[Cell, ...]:
    """Return all audits that are asked for. Raises ConfigurationError for a bad value."""
    from attacks.audit.catalogue import AUDITS

    allowed = {"epsilon": (0.1, 16.0), "delta": (1e-12, 1e-3)}
    for name, (least, most) in allowed.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            raise ConfigurationError(name, value, f"use {least:g} to {most:g}")
    at_least(0, insecure_seed=settings.insecure_seed)
    units = listed("unit", settings.unit, UNITS)
    size = 0.2 if settings.quick else 1.0
    made = tuple(
        Cell(name, settings.epsilon, settings.delta, size)
        for name, audit in AUDITS.items()
        if audit.unit in units
    )
    if settings.insecure_seed is None:
        return made
    first = settings.insecure_seed << 32  # one stream a cell: each has its own number
    return tuple(replace(cell, stream=first | i) for i, cell in enumerate(made))


def measure(_data_dir: Path | None, cell: Cell, _made: object) -> Result:
    """Carry out one audit."""
    from attacks.audit.catalogue import AUDITS

    start = time.process_time()
    random = os.urandom if cell.stream is None else SeededRandom(cell.stream)
    found = AUDITS[cell.audit].find(Setting(cell.epsilon, cell.delta, cell.size, random))
    figures = {CLAIMED: found.claimed, BOUND: found.bound, CEILING: found.ceiling}
    notes = {"delta": found.delta, "verdict": found.verdict, "finds": found.finds}
    notes |= {"attack": found.attack, "trials": found.trials}
    return Result(cell, figures, time.process_time() - start, notes=notes)


def failures(results: Results) -> list[str]:
    """Return what makes the exit status 1, one sentence each."""
    return [
        f"{found.cell.audit}: a bound of {found.figures[BOUND]:.2f} exceeds the claim of "
        f"{format_epsilon(found.figures[CLAIMED])}"
        for found in results.cells
        if found.notes["verdict"] == Verdict.REFUTED
    ]


def tables(results: Results) -> list[Table | str]:
    """Return the audits, and what they mean together."""
    from attacks.audit.catalogue import AUDITS

    columns = ("audit", "claimed", "delta", "bound", "ceiling", "finds", "verdict")
    table = new_table("What an attacker proves, against what is claimed", columns)
    count = Counter(result.notes["verdict"] for result in results.cells)
    for result in results.cells:
        figures, notes, audit = result.figures, result.notes, result.cell.audit
        table.add_row(
            audit,
            format_epsilon(figures[CLAIMED]),
            f"{notes['delta']:g}",
            f"{figures[BOUND]:.2f}{'*' if AUDITS[audit].assumes_shape else ' '}",
            f"{figures[CEILING]:.1f}",
            str(notes["finds"]) or "-",
            str(notes["verdict"]),
        )
    seeded, audits = results.cells[0].cell.stream is not None, len(results.cells)
    note = (
        f"Of {audits} audits {count[Verdict.REFUTED]} refuted the claim, "
        f"{count[Verdict.HOLDS]} could have and did not, {count[Verdict.CANNOT_TELL]} cannot tell. "
        f"A bound is wrong with probability {MISS:g} at most, any of the audits' with "
        f"{MISS * audits:.2g}; "
        f"{'all noise from a seed' if seeded else 'noise of the operating system'}. "
        "A bound below its claim proves nothing good: finds says what the audit sees, noise of "
        "this share of the claimed deviation (of the label unit: of the answers that are not the "
        "truth) or less, or batches whose size varies so much less. Cannot tell: a perfect attack "
        "could not have refuted the claim (ceiling at most the claim); such a row is no evidence "
        "for it. "
        "* on the assumption that the noise has the claimed shape."
    )
    return [table, note, *(f"FAILED {line}" for line in failures(results))]


STUDY = Study(
    name="privacy_audit",
    folder="privacy",
    about=str(Settings.__doc__),
    settings=Settings,
    cell=Cell,
    cells=cells,
    measure=measure,
    shown=tables,
    out=lambda chosen: chosen.out or dated("audit"),
    status=lambda results: 1 if failures(results) else 0,
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.privacy.privacy_audit"))
