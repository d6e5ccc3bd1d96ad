"""Page of the attack suite: each scene's table, notes and reconstructed images, and a summary."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments.compare.leakage import Leakage, Measured, Pictures
from experiments.core.study import Result, Results, grouped
from experiments.report import plots
from experiments.report.attack_summary import (
    attack_notes,
    brackets,
    details,
    matrix,
    picture_strips,
    precise,
)
from experiments.report.page import KEYS, SEEDED, Page, Pairs, Part, Picture
from experiments.report.tables import Table, counted, human_seconds
from experiments.suite.attack_suite import DETAILS
from experiments.suite.scenes import SCENES, Scene, load

LIMITS = (
    "A figure at its control says that this attack, with this effort, found nothing. It does not "
    "say that nothing is there: an attack bounds leakage from below, only a proof from above.",
    "Intervals over seeds cover what a seed draws: split, training, attack, and the records that "
    "are compared; those of one seed cover its records or reconstructions alone.",
    "An epsilon is a claim about every attacker and the worst record; these are some attackers "
    "and ordinary records. Rows are compared within a scene only.",
)
"""Limits of the figures of the suite."""
READING = (
    "The control is the same attack without access to the run. Only the distance between figure "
    "and control shows leakage: above the control for most figures, below it for an attacker's "
    "error (TV error). An asterisk marks figures that show more than their control, each tested "
    "alone at 95 %: by the paired difference over seeds (Student's), or with one seed by "
    "Student's p-value over records. A hyphen: no figure, for the reason stated below the table."
)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A scene and its results. pictures: by row key, those of its lowest seed."""

    name: str
    scene: Scene
    leakage: Leakage
    pictures: Mapping[str, Pictures] = field(repr=False)

    @property
    def summary(self) -> str:
        """Count of the figures that show more than their control, and which do not.

        Rows in which every attack has to succeed do not count.
        """
        leaks, count, hidden = self.leakage, 0, dict[str, list[str]]()
        for attack in leaks.attacks:
            every = leaks.measured(attack).items()
            found = {row: one for row, one in every if row not in self.scene.controls}
            count += len(found)
            hidden[attack] = [leaks.rows[row] for row, one in found.items() if not one.leaks]
        above = count - sum(map(len, hidden.values()))
        text = f"{above} of {counted(count, 'figure')} show more than the control"
        at = [f"{attack} ({', '.join(rows)})" for attack, rows in hidden.items() if rows]
        return f"{text}; not: {'; '.join(at)}." if at else f"{text}."

    def parts(self) -> Iterator[Table | str | list[str]]:
        """Set-up, figures, summary, further figures, and a list of notes."""
        leaks, labels = self.leakage, [*self.leakage.rows.values()]
        yield self.scene.about
        title = "Figure and 95 % interval; * shows more than its control"
        yield matrix(leaks, labels, title, _in_line)
        yield self.summary
        for name, heading in DETAILS.items():
            if table := details(leaks, name, heading):
                yield table
        yield [*attack_notes(leaks, dict.fromkeys(leaks.attacks, "")), *self.scene.limits]


def _in_line(found: Measured) -> str:
    return f"{precise(found.figure)}{'*' * found.leaks} {brackets(found.interval)}"


def seen(results: Results) -> list[Seen]:
    """The scenes of a run, in the suite's order."""
    by_scene = grouped(results.cells, lambda cell: cell.scene)
    return [_seen(name, by_scene[name]) for name in SCENES if name in by_scene]


def _seen(name: str, found: list[Result]) -> Seen:
    scene, by_row = load(name), grouped(found, lambda cell: cell.row)
    labels = scene.rows(replace(found[0].cell, row=""))
    rows = {row: labels.get(row, row) for row in by_row}
    given = {row: [(r.cell.seed, r.attacks) for r in of] for row, of in by_row.items()}
    first = {row: min(of, key=lambda r: r.cell.seed).pictures for row, of in by_row.items()}
    return Seen(name, scene, Leakage.of(rows, given), first)


def _section(scene: Seen) -> Iterator[Part]:
    """The section of a scene."""
    yield from scene.parts()
    leaks = scene.leakage
    for attack, title in leaks.attacks.items():
        if lines := picture_strips(leaks, scene.pictures, attack):
            drawn = plots.strips(lines, f"{title}: images")
            caption = "One seed. A plausible image is no leak where the controls look the same."
            alt = f"Lines of images: {'; '.join(line.label for line in lines)}."
            yield Picture(f"{scene.name}-{attack}", "Reconstructions", caption, alt, drawn)


def write_report(results: Results, folder: Path) -> Path:
    """Write report.html; return its path."""
    path = page(results).write(folder)
    print(f"report: {path}")
    return path


def page(results: Results) -> Page:
    """Return the page of a run."""
    scenes = seen(results)
    seconds = human_seconds(sum(found.seconds for found in results.cells))
    settings = [Pairs("Run", results.settings), Pairs("Machine", results.machine)]
    return Page(
        "Leakage by attack",
        f"{results.schema} · {results.created} · {seconds} of CPU time in all rows",
        [f"{one.scene.title}: {one.summary}" for one in scenes],
        {
            "How to read": [READING],
            **{one.scene.title: list(_section(one)) for one in scenes},
            "Limits": [LIMITS],
            "Settings": [*settings, Pairs("Versions", results.versions)],
        },
        results.command,
        f"{SEEDED} {KEYS}",
    )


def tables(results: Results) -> list[Table | str]:
    """Return what a terminal shows: each scene in short, then the summary."""
    shown: list[Table | str] = [READING]
    for one in seen(results):
        shown.append(f"## {one.scene.title}")
        for part in one.parts():
            shown.append(
                "\n".join(f"- {line}" for line in part) if isinstance(part, list) else part
            )
    return [*shown, "## Limits", *LIMITS]
