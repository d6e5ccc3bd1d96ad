"""Does every printed epsilon survive an attack on it? One run, one table, an exit status.

python experiments/privacy/privacy_audit.py --self-test
"""

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attacks.audit.bounds import Finding, Kind, Verdict
from experiments.core.codec import encode
from experiments.core.study import Progress, Result, Results, Study, at_least, listed, main
from experiments.report.tables import Table, new_table
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.guarantee import PrivacyUnit, format_epsilon

UNITS = ("record", "label", "client")
KINDS = ("noise-level", "mechanism")
_LEAST_EPSILON, _MOST_EPSILON = 0.1, 16.0


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
    kind: str = "noise-level,mechanism"
    """Kinds of audit, with commas, from closest to the noise to furthest."""
    seeds: int = 1
    """Repetitions; the table shows each cell's largest bound."""
    noise: str = "0.95,0.9,0.8,0.5,0"
    """Twins of each audit, by their share of the noise: which does it find? "" leaves them out."""
    miss: float = 1e-5
    """Chance that one bound is wrong; the table states the chance of all together."""
    quick: bool = False
    """A fifth of the trials, save for the self-test: it proves and finds less, no less truly."""
    self_test: bool = False
    """Break the real code in every known way, one at a time: each must be caught."""
    insecure_seed: int | None = None
    """Draw all noise and coins from this seed, so that anyone gets the same bounds."""
    out: Path | None = None
    """Folder of the results; by default runs/audit-TIME."""
    workers: int | None = None
    """Processes that share the work; by default one a core."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One audit of the right code, of its twin with less noise, or of a mutation.

    noise: the share of it that there is. size: share of the full number of trials. stream: seed of
    all noise, None for the operating system's.
    """

    audit: str
    repeat: int
    noise: float
    mutation: str
    epsilon: float
    delta: float
    miss: float
    size: float
    stream: int | None

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        kind = self.mutation or ("as it is" if self.noise == 1 else f"noise x{self.noise:g}")
        return f"{self.audit}, {kind}, run {self.repeat}"


def cells(settings: Settings) -> tuple[Cell, ...]:
    """Everything that is asked for, longest first so that no core waits at the end.

    Raises ConfigurationError for a value that is not allowed.
    """
    if not _LEAST_EPSILON <= settings.epsilon <= _MOST_EPSILON:
        allowed = f"use {_LEAST_EPSILON:g} to {_MOST_EPSILON:g}: no test tells more apart"
        raise ConfigurationError("epsilon", settings.epsilon, allowed)
    _inside("delta", settings.delta, 1e-12, 1e-3)
    _inside("miss", settings.miss, 1e-9, 0.05)
    at_least(1, seeds=settings.seeds)
    at_least(0, insecure_seed=settings.insecure_seed)
    units, kinds = listed("unit", settings.unit, UNITS), listed("kind", settings.kind, KINDS)
    made = _tasks(settings, units or UNITS, kinds or KINDS)
    if settings.insecure_seed is None:
        return tuple(made)
    first = settings.insecure_seed << 32  # one stream a cell: each has its own number
    return tuple(replace(cell, stream=first | i) for i, cell in enumerate(made))


def _tasks(settings: Settings, units: Sequence[str], kinds: Sequence[str]) -> list[Cell]:
    from attacks.audit.catalogue import AUDITS, MUTATIONS

    base = Cell(
        audit="",
        repeat=0,
        noise=1.0,
        mutation="",
        epsilon=settings.epsilon,
        delta=settings.delta,
        miss=settings.miss,
        size=0.2 if settings.quick else 1.0,
        stream=None,
    )
    chosen = [a for a in AUDITS.values() if a.unit in units and a.kind in kinds]
    made = [replace(base, audit=a.name, repeat=i) for a in chosen for i in range(settings.seeds)]
    shares = _shares(settings.noise)
    made += [replace(base, audit=a.name, repeat=0, noise=share) for a in chosen for share in shares]
    if settings.self_test:
        made += [replace(base, audit=m.audit, mutation=m.name, size=m.size) for m in MUTATIONS]
    return sorted(made, key=lambda cell: cell.audit != "dp-sgd")


def _shares(text: str) -> tuple[float, ...]:
    """Shares of the noise, each once."""
    allowed = "use numbers from 0 to below 1, with commas"
    try:
        shares = tuple(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise ConfigurationError("noise", text, allowed) from None
    if not all(0 <= share < 1 for share in shares):
        raise ConfigurationError("noise", text, allowed)
    return shares


def _inside(field: str, value: float, least: float, most: float) -> None:
    if math.isnan(value) or not least <= value <= most:
        raise ConfigurationError(field, value, f"use {least:g} to {most:g}")


# What a cell runs.


def measure(_data_dir: Path | None, cell: Cell, _made: None, progress: Progress) -> Result:
    """Carry out one audit; a twin lives in this process for as long as its cell does."""
    from attacks.audit.catalogue import AUDITS, MUTATIONS
    from attacks.audit.setting import Setting
    from secure_fd.privacy.samplers import SeededRandom

    progress(0)
    start, audit = time.process_time(), AUDITS[cell.audit]
    random = os.urandom if cell.stream is None else SeededRandom(cell.stream)
    setting = Setting(cell.epsilon, cell.delta, cell.miss, cell.size, random)
    twin: AbstractContextManager[object] = nullcontext()
    if cell.mutation:
        twin = next(m for m in MUTATIONS if m.name == cell.mutation).twin()
    elif cell.noise < 1:
        twin = audit.less(cell.noise)
    with twin:
        found = audit.find(setting)
    return result_of(cell, found, time.process_time() - start)


def result_of(cell: Cell, found: Finding, seconds: float) -> Result:
    """A finding as the result of a cell."""
    note = {f.name: encode(getattr(found, f.name), f.name) for f in fields(found)}
    figures = {"claimed epsilon": found.claimed, "bound on epsilon": found.bound}
    return Result(cell, figures, seconds, notes=dict(note))


def finding_of(result: Result) -> Finding:
    """The finding of a cell; an infinite ceiling is stored as text."""
    note: dict[str, Any] = dict(result.notes)
    return Finding(**{
        **note,
        "kind": Kind(note["kind"]),
        "unit": PrivacyUnit(note["unit"]),
        "bound": float(note["bound"]),
        "ceiling": float(note["ceiling"]),
        "also": tuple((name, float(value)) for name, value in note["also"]),
    })  # fmt: skip


# What the findings say together.


@dataclass(frozen=True, slots=True)
class Row:
    """One audit over all seeds. found: the most noise of a twin that was caught, as every twin with
    less of it was; None where none was, and where there were none.

    worst: a refuted seed where there is one, else one that cannot tell, else the largest bound.
    """

    audit: str
    worst: Finding
    bounds: tuple[float, ...]
    found: float | None

    @property
    def verdict(self) -> Verdict:
        """That of the worst seed."""
        return self.worst.verdict

    @property
    def finds(self) -> str:
        """The least loss that it finds: known beforehand, or the smallest of the twins'."""
        return self.worst.finds or ("-" if self.found is None else f"noise x{self.found:g}")


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What all findings say together. mutations: of the self-test, by name. miss: of the run."""

    rows: tuple[Row, ...]
    mutations: Mapping[str, Finding]
    miss: float

    def wrong(self, most: float = 1.0) -> float:
        """The chance, at most, that any refutation of rows with at most this miss is a mistake."""
        misses = [(row.worst.miss, len(row.bounds)) for row in self.rows]
        return min(1.0, sum(miss * seeds for miss, seeds in misses if miss <= most))

    @property
    def failures(self) -> list[str]:
        """What makes the exit status 1, one sentence each."""
        refuted = [
            f"{row.audit}: a bound of {row.worst.bound:.2f} exceeds the claim of "
            f"{format_epsilon(row.worst.claimed)}"
            for row in self.rows
            if row.verdict is Verdict.REFUTED
        ]
        missed = [
            f"{name}: a bound of {made.bound:.2f} is within the claim of "
            f"{format_epsilon(made.claimed)}"
            for name, made in self.mutations.items()
            if made.verdict is not Verdict.REFUTED
        ]
        return refuted + missed


def verdicts(results: Results) -> Verdicts:
    """Rows in the order of the audits, mutations in theirs."""
    from attacks.audit.catalogue import AUDITS, MUTATIONS

    # A file may hold audits that were removed since.
    kept = [result for result in results.cells if result.cell.audit in AUDITS]
    found = {result.cell: finding_of(result) for result in kept}
    rows = []
    for name in AUDITS:
        own = {cell: made for cell, made in found.items() if cell.audit == name}
        right = [made for cell, made in own.items() if cell.noise == 1 and not cell.mutation]
        twins = {cell.noise: made for cell, made in own.items() if cell.noise < 1}
        if right:
            bounds = tuple(made.bound for made in right)
            rows.append(Row(name, max(right, key=_badness), bounds, _most_found(twins)))
    known = {cell.mutation: made for cell, made in found.items() if cell.mutation}
    mutations = {m.name: known[m.name] for m in MUTATIONS if m.name in known}
    return Verdicts(tuple(rows), mutations, min(cell.miss for cell in found))


def _most_found(twins: Mapping[float, Finding]) -> float | None:
    """The most noise of a twin that was caught, with all those that have less."""
    found = None
    for share, made in sorted(twins.items()):
        if made.verdict is not Verdict.REFUTED:
            break
        found = share
    return found


def _badness(made: Finding) -> tuple[bool, bool, float]:
    verdict = made.verdict
    refuted, silent = verdict is Verdict.REFUTED, verdict is Verdict.CANNOT_TELL
    return refuted, silent, made.bound - made.claimed


def tables(results: Results) -> list[Table | str]:
    """The audits, the self-test, and what they mean together.

    A row that cannot tell is never counted as one that holds.
    """
    found, cell = verdicts(results), results.cells[0].cell
    noise = "noise of the operating system" if cell.stream is None else "all noise from a seed"
    count = Counter(row.verdict for row in found.rows)
    note = (
        f"Of {len(found.rows)} audits {count[Verdict.REFUTED]} refuted the claim, "
        f"{count[Verdict.HOLDS]} could have and did not, {count[Verdict.CANNOT_TELL]} cannot tell. "
        "Each bound is wrong with the probability under wrong at most: any of "
        f"those with {cell.miss:g} with {found.wrong(found.miss):.2g}, any of the table with "
        f"{found.wrong():.2g}; {noise}. A bound below its claim proves nothing good: finds says "
        "what the audit sees, noise of this share of the claimed deviation (of the label unit: of "
        "the answers that are not the truth) or less, or batches whose size varies so much less. "
        "Cannot tell: a perfect attack could not have refuted the claim (ceiling at most the "
        "claim); such a row is no evidence for it. * on an assumption, mostly the claimed shape of "
        "the noise."
    )
    mutations = [_mutations(results, found)] if found.mutations else []
    return [_audits(found), *mutations, note, *(f"FAILED {line}" for line in found.failures)]


def _audits(found: Verdicts) -> Table:
    columns = ("claimed", "delta", "wrong", "bound", "ceiling", "finds", "verdict")
    title = "What an attacker proves, against what is claimed"
    table = new_table(title, ("audit", "kind", *columns), left=2)
    for row in found.rows:
        worst = row.worst
        table.add_row(
            row.audit,
            worst.kind,
            format_epsilon(worst.claimed),
            f"{worst.delta:g}",
            f"{worst.miss:g}",
            f"{worst.bound:.2f}{'*' if worst.assumes else ' '}",
            f"{worst.ceiling:.1f}",
            row.finds,
            row.verdict,
        )
    return table


def _mutations(results: Results, found: Verdicts) -> Table:
    title = "Self-test: the real code with one thing broken"
    table = new_table(title, ("mutation", "caught by", "claimed", "bound", "verdict"), left=2)
    audits = {result.cell.mutation: result.cell.audit for result in results.cells}
    for name, made in found.mutations.items():
        caught = "caught" if made.verdict is Verdict.REFUTED else "MISSED"
        table.add_row(name, audits[name], format_epsilon(made.claimed), f"{made.bound:.2f}", caught)
    return table


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
    status=lambda results: 1 if verdicts(results).failures else 0,
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.privacy.privacy_audit"))
