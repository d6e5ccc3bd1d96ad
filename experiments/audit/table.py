"""Findings as a table and as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from attacks.audit.bounds import Finding, Verdict
from attacks.audit.registry import AUDITS, MUTATIONS
from experiments.audit.settings import Plan
from experiments.audit.tasks import Task
from experiments.codec import Json, encode
from experiments.results import write_atomically
from experiments.tables import human_seconds
from secure_fd.privacy.units import figure


@dataclass(frozen=True, slots=True)
class Row:
    """One audit over all seeds. power: share of twins with half the noise caught, or None.

    worst: a refuted seed where there is one, else one that cannot tell, else the largest bound.
    """

    audit: str
    verdict: Verdict
    worst: Finding
    bounds: tuple[float, ...]
    power: float | None


@dataclass(frozen=True, slots=True)
class Caught:
    """One mutation of the self-test."""

    mutation: str
    audit: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that a run found. wrong: the chance, at most, that any refutation is a mistake.

    strict: the same of the rows at the run's own `miss` alone.
    """

    rows: tuple[Row, ...]
    mutations: tuple[Caught, ...]
    wrong: float
    strict: float

    @property
    def counts(self) -> dict[Verdict, int]:
        """Rows by verdict."""
        return {v: sum(row.verdict is v for row in self.rows) for v in Verdict}

    @property
    def failures(self) -> list[str]:
        """What makes the exit status 1, one sentence each."""
        refuted = [
            f"{row.audit}: a bound of {row.worst.bound:.2f} exceeds the claim of "
            f"{figure(row.worst.claimed)}"
            for row in self.rows
            if row.verdict is Verdict.REFUTED
        ]
        missed = [
            f"{made.mutation}: a bound of {made.finding.bound:.2f} is within the claim of "
            f"{figure(made.finding.claimed)}"
            for made in self.mutations
            if made.finding.verdict is not Verdict.REFUTED
        ]
        return refuted + missed


def results(plan: Plan, found: dict[Task, Finding]) -> Results:
    """Rows in the registry's order, mutations in theirs."""
    rows = []
    for name in AUDITS:
        own = {task: made for task, made in found.items() if task.audit == name}
        right = [made for task, made in own.items() if not task.half and task.mutation is None]
        twins = [made.verdict is Verdict.REFUTED for task, made in own.items() if task.half]
        if right:
            worst = max(right, key=_badness)
            power = sum(twins) / len(twins) if twins else None
            bounds = tuple(made.bound for made in right)
            rows.append(Row(name, worst.verdict, worst, bounds, power))
    by_name = {task.mutation: made for task, made in found.items() if task.mutation}
    caught = tuple(Caught(m.name, m.audit, by_name[m.name]) for m in MUTATIONS if m.name in by_name)
    misses = [(row.worst.miss, len(row.bounds)) for row in rows]
    wrong = sum(miss * seeds for miss, seeds in misses)
    strict = sum(miss * seeds for miss, seeds in misses if miss <= plan.settings.miss)
    return Results(tuple(rows), caught, min(1.0, wrong), min(1.0, strict))


def _badness(made: Finding) -> tuple[bool, bool, float]:
    verdict = made.verdict
    refuted, silent = verdict is Verdict.REFUTED, verdict is Verdict.CANNOT_TELL
    return refuted, silent, made.bound - made.claimed


def save(found: Results, plan: Plan, seconds: float) -> Path:
    """Write audit.json; returns its path."""
    settings = {k: v for k, v in asdict(plan.settings).items() if k not in ("out", "workers")}
    document: Json = {
        "settings": encode(settings, "settings"),
        "seconds": round(seconds, 1),
        "results": encode(found, "results"),
        "verdicts": {str(verdict): count for verdict, count in found.counts.items()},
        "failures": list(found.failures),
    }
    plan.out.mkdir(parents=True, exist_ok=True)
    path = plan.out / "audit.json"
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
    return path


def show(found: Results, plan: Plan, seconds: float) -> None:
    """Print the table, the self-test and what they mean together."""
    console = Console()
    console.print(_audits(found))
    if found.mutations:
        console.print(_mutations(found))
    seed = plan.settings.insecure_seed
    noise = "noise of the operating system" if seed is None else f"all noise from seed {seed}"
    console.print(
        f"{_summary(found)}\n"
        f"Each bound is wrong with the probability under wrong at most: any of those with "
        f"{plan.settings.miss:g} with {found.strict:.2g}, any of the table with {found.wrong:.2g}; "
        f"{noise}; {human_seconds(seconds)}.\n"
        "A bound below its claim proves nothing good: power says what the audit would have seen.\n"
        "Cannot tell: a perfect attack could not have refuted the claim (ceiling at most the "
        "claim), or this attack misses even a twin without any noise; such a row is no evidence "
        "for it.",
        soft_wrap=True,
        highlight=False,
    )
    for failure in found.failures:
        console.print(f"FAILED {failure}", style="bold red", soft_wrap=True, highlight=False)


def _summary(found: Results) -> str:
    """One sentence; a row that cannot tell is never counted as one that holds."""
    count = found.counts
    return (
        f"Of {len(found.rows)} audits {count[Verdict.REFUTED]} refuted the claim, "
        f"{count[Verdict.HOLDS]} could have and did not, "
        f"{count[Verdict.CANNOT_TELL]} cannot tell."
    )


def _audits(found: Results) -> Table:
    table = Table(title="What an attacker proves, against what is claimed", box=SIMPLE_HEAD)
    for name in ("audit", "kind"):
        table.add_column(name, no_wrap=True)
    for name in ("claimed", "delta", "wrong", "bound", "ceiling", "power"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in found.rows:
        worst = row.worst
        table.add_row(
            row.audit,
            worst.kind,
            figure(worst.claimed),
            f"{worst.delta:g}",
            f"{worst.miss:g}",
            f"{worst.bound:.2f}{'*' if worst.assumes else ' '}",
            f"{worst.ceiling:.1f}",
            "-" if row.power is None else f"{row.power:.0%}",
            row.verdict,
        )
    table.caption = "* on an assumption, mostly the claimed shape of the noise: see audit.json"
    return table


def _mutations(found: Results) -> Table:
    table = Table(title="Self-test: the real code with one thing broken", box=SIMPLE_HEAD)
    for name in ("mutation", "caught by"):
        table.add_column(name, no_wrap=True)
    for name in ("claimed", "bound"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for made in found.mutations:
        finding = made.finding
        caught = "caught" if finding.verdict is Verdict.REFUTED else "MISSED"
        table.add_row(
            made.mutation,
            made.audit,
            figure(finding.claimed),
            f"{finding.bound:.2f}",
            caught,
        )
    return table
