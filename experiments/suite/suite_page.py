"""Page of the attack suite: each scene's table, notes and reconstructed images, and a summary."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments.compare.leakage import Leakage, Pictures
from experiments.core.study import Result, Results, grouped
from experiments.report import plots
from experiments.report.attack_summary import (
    attack_notes,
    caveats,
    every_figure,
    further_figures,
    picture_strips,
)
from experiments.report.page import KEYS, SEEDED, Page, Pairs, Part, Picture
from experiments.report.tables import Table, human_seconds
from experiments.suite.scenes import SCENES, load

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
    "Every figure stands beside its control: the same attack without access to the run. Only the "
    "distance between the two speaks of leakage: above the control for most figures, below it for "
    "an attacker's error (TV error). An asterisk marks figures that tell more than their control, "
    "each tested alone at 95 %: by the interval of the difference, paired by seed (Student's), or "
    "with one seed by Student's p-value. An attack that needs what its attacker does not have is "
    "not applicable, and the missing capability is named."
)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A scene and its results. pictures: by row key, those of its lowest seed."""

    name: str
    title: str
    about: str
    leakage: Leakage
    pictures: Mapping[str, Pictures] = field(repr=False)

    @property
    def summary(self) -> str:
        """Count of the figures that show more than their control."""
        leaks = self.leakage
        every = [found for name in leaks.attacks for found in leaks.measured(name).values()]
        above = sum(found.leaks for found in every)
        return f"{self.title}: {above} of {len(every)} figures tell more than their control."


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
    return Seen(name, scene.title, scene.about, Leakage.of(rows, given), first)


def _texts(scene: Seen, seeds: int) -> tuple[str, Table, list[str]]:
    """Return the texts of a scene for page and terminal: set-up, every figure, and notes."""
    runs = dict.fromkeys(scene.leakage.attacks, "the runs of this scene")
    known = [f"{caveat} ({where})" for caveat, where in caveats(scene.leakage).items()]
    notes = [*attack_notes(scene.leakage, runs), *known]
    return scene.about, every_figure(scene.leakage, seeds), notes


def _parts(scene: Seen, seeds: int) -> Iterator[Part]:
    """The section of a scene."""
    yield from _texts(scene, seeds)
    yield further_figures(scene.leakage)
    for attack, title in scene.leakage.attacks.items():
        if lines := picture_strips(scene.leakage, scene.pictures, attack):
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
    scenes, seeds = seen(results), len(results.seeds)
    seconds = human_seconds(sum(found.seconds for found in results.cells))
    settings = [Pairs("Run", results.settings), Pairs("Machine", results.machine)]
    return Page(
        "Leakage by attack",
        f"{results.schema} · {results.created} · {seconds} of CPU time in all rows",
        [scene.summary for scene in scenes],
        {
            "How to read": [READING],
            **{scene.title: list(_parts(scene, seeds)) for scene in scenes},
            "Limits": [LIMITS],
            "Settings": [*settings, Pairs("Versions", results.versions)],
        },
        results.command,
        f"{SEEDED} {KEYS}",
    )


def tables(results: Results) -> list[Table | str]:
    """Return what a terminal shows: each scene in short, then the summary."""
    shown: list[Table | str] = []
    scenes = seen(results)
    for scene in scenes:
        about, table, notes = _texts(scene, len(results.seeds))
        shown += [f"\n{scene.title}", about, table, *(f"· {note}" for note in notes)]
    return [*shown, "\nIn short", *(f"· {scene.summary}" for scene in scenes)]
