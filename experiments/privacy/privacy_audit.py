"""Attack every printed epsilon: one table, and an exit status.

python experiments/privacy/privacy_audit.py --self-test
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from attacks.audit.bounds import Verdict
from experiments.core.study import Result, Results, Study, at_least, listed, main
from experiments.report.tables import Table, new_table
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.guarantee import format_epsilon

UNITS = ("record", "label", "client")
_SHARES = (0.95, 0.9, 0.8, 0.5, 0.0)
"""Mutants of each mechanism audit, by their share of the noise: which does it find?"""
_MISS = 1e-5
CLAIMED, BOUND, CEILING = "claimed epsilon", "bound on epsilon", "bound of a perfect attack"


@dataclass(frozen=True, slots=True)
class Settings:
    """Attack every epsilon that the software prints, at three units and two distances.

    Exit status 1 if a bound exceeds its claim, or if a mutation of the self-test passes.
    """

    epsilon: float = 4.0
    """The claim to audit, from 0.1 to 16: of a record, a label and a client alike."""
    delta: float = 1e-5
    """Its delta."""
    unit: str = "record,label,client"
    """Units to audit, with commas."""
    quick: bool = False
    """A fifth of the trials, save for the self-test: it proves and finds less, no less truly."""
    self_test: bool = False
    """Break the real code in every known way, one at a time: each must be caught."""
    insecure_seed: int | None = None
    """Draw all noise from this seed, so that anyone gets the same bounds."""
    out: Path | None = None
    """Folder of the results; by default runs/audit-TIME."""
    workers: int | None = None
    """Processes that share the work; by default one a core."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One audit of the right code, of a mutant with a share of its noise, or of a mutation.

    Attributes:
        noise: share of it, or of what else hides the data.
        size: share of the full number of trials.
        stream: seed of all noise, None for the operating system's.
    """

    audit: str
    epsilon: float
    delta: float
    size: float
    noise: float = 1.0
    mutation: str = ""
    stream: int | None = None

    @property
    def label(self) -> str:
        """Name of the cell while it runs."""
        return f"{self.audit}, {self.mutation or f'noise x{self.noise:g}'}"


def cells(settings: Settings) -> tuple[Cell, ...]:
    """Return all audits that are asked for. Raises ConfigurationError for a bad value."""
    allowed = {"epsilon": (0.1, 16.0), "delta": (1e-12, 1e-3)}
    for name, (least, most) in allowed.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            raise ConfigurationError(name, value, f"use {least:g} to {most:g}")
    at_least(0, insecure_seed=settings.insecure_seed)
    made = tuple(_planned(settings, listed("unit", settings.unit, UNITS)))
    if settings.insecure_seed is None:
        return made
    first = settings.insecure_seed << 32  # one stream a cell: each has its own number
    return tuple(replace(cell, stream=first | i) for i, cell in enumerate(made))


def _planned(settings: Settings, units: tuple[str, ...]) -> Iterator[Cell]:
    from attacks.audit.catalogue import AUDITS, MUTATIONS

    base = Cell("", settings.epsilon, settings.delta, 0.2 if settings.quick else 1.0)
    for audit in AUDITS.values():
        if audit.unit in units:
            own = replace(base, audit=audit.name)
            yield own
            shares = _SHARES if audit.kind == "mechanism" else ()  # others state what they find
            yield from (replace(own, noise=share) for share in shares)
    if settings.self_test:
        for mutation in MUTATIONS:
            yield replace(base, audit=mutation.audit, mutation=mutation.name, size=mutation.size)


def measure(_data_dir: Path | None, cell: Cell, _made: object) -> Result:
    """Carry out one audit; a mutant lives in this process for as long as its cell does."""
    from attacks.audit.catalogue import AUDITS, MUTATIONS
    from attacks.audit.setting import Setting
    from secure_fd.privacy.samplers import SeededRandom

    start, audit = time.process_time(), AUDITS[cell.audit]
    random = os.urandom if cell.stream is None else SeededRandom(cell.stream)
    mutant: AbstractContextManager[object] = nullcontext()
    if cell.mutation:
        mutant = next(m for m in MUTATIONS if m.name == cell.mutation).mutant()
    elif cell.noise < 1:
        mutant = audit.less(cell.noise)
    with mutant:
        found = audit.find(Setting(cell.epsilon, cell.delta, _MISS, cell.size, random))
    proof = found.proof
    figures = {CLAIMED: found.claimed, BOUND: proof.bound, CEILING: proof.ceiling}
    notes = {"delta": found.delta, "verdict": found.verdict, "finds": found.finds}
    notes |= {"attack": proof.attack, "trials": proof.trials}
    return Result(cell, figures, time.process_time() - start, notes=notes)


# The findings together.


def _of(results: Results, kind: str) -> dict[str, Result]:
    """Return results of audits of the right code by audit, or of mutations by mutation."""
    from attacks.audit.catalogue import AUDITS, MUTATIONS

    found = {r.cell.mutation or r.cell.audit: r for r in results.cells if r.cell.noise == 1}
    names = AUDITS if kind == "audits" else [mutation.name for mutation in MUTATIONS]
    return {name: found[name] for name in names if name in found}


def failures(results: Results) -> list[str]:
    """Return what makes the exit status 1, one sentence each."""
    sentences = []
    for kind, failing, relation in (("audits", True, "exceeds"), ("mutations", False, "is within")):
        for name, found in _of(results, kind).items():
            if (found.notes["verdict"] == Verdict.REFUTED) == failing:
                bound, claimed = found.figures[BOUND], format_epsilon(found.figures[CLAIMED])
                sentences.append(
                    f"{name}: a bound of {bound:.2f} {relation} the claim of {claimed}"
                )
    return sentences


def finds(results: Results, audit: str) -> str:
    """Return the least loss that an audit finds: known in advance, or the smallest of the mutants'.

    That is the most noise of a mutant which was caught, with all mutants that have less of it.
    """
    own = [r for r in results.cells if r.cell.audit == audit and not r.cell.mutation]
    known = [str(r.notes["finds"]) for r in own if r.notes["finds"]]
    found = "-"
    for result in sorted(own, key=lambda result: float(result.cell.noise)):
        if result.cell.noise == 1 or result.notes["verdict"] != Verdict.REFUTED:
            break
        found = f"noise x{result.cell.noise:g}"
    return known[0] if known else found


def tables(results: Results) -> list[Table | str]:
    """Return the audits and the self-test, and what they mean together."""
    from attacks.audit.catalogue import AUDITS

    columns = ("claimed", "delta", "bound", "ceiling", "finds", "verdict")
    title = "What an attacker proves, against what is claimed"
    table = new_table(title, ("audit", "code", *columns), left=2)
    audits, count = _of(results, "audits"), Counter[str]()
    for name, result in (audits | _of(results, "mutations")).items():
        figures, audit, verdict = result.figures, result.cell.audit, str(result.notes["verdict"])
        if name in audits:
            count[verdict] += 1
        else:
            verdict = "caught" if verdict == Verdict.REFUTED else "MISSED"
        table.add_row(
            audit,
            result.cell.mutation or "as it is",
            format_epsilon(figures[CLAIMED]),
            f"{result.notes['delta']:g}",
            f"{figures[BOUND]:.2f}{'*' if AUDITS[audit].assumes_shape else ' '}",
            f"{figures[CEILING]:.1f}",
            finds(results, audit) if name in audits else "",
            verdict,
        )
    seeded = results.cells[0].cell.stream is not None
    note = (
        f"Of {len(audits)} audits {count[Verdict.REFUTED]} refuted the claim, "
        f"{count[Verdict.HOLDS]} could have and did not, {count[Verdict.CANNOT_TELL]} cannot tell. "
        f"A bound is wrong with probability {_MISS:g} at most, any of the audits' with "
        f"{_MISS * len(audits):.2g}; "
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
    out=lambda chosen: chosen.out or Path(f"runs/audit-{datetime.now(UTC):%Y%m%d-%H%M%S}"),
    status=lambda results: 1 if failures(results) else 0,
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.privacy.privacy_audit"))
