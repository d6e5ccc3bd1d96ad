"""Page of the attack suite: each scene's tables and reconstructed images, and a summary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.compare.leakage import BETWEEN, Leakage, Pictures
from experiments.core.study import Result, Results, grouped
from experiments.report import attack_summary, plots
from experiments.report.page import Pairs, Part, Picture, Section, data_uri, page, png, write_page
from experiments.report.tables import Table, human_seconds, new_table
from experiments.suite.scenes import SCENES, Cell, load
from secure_fd.errors import ConfigurationError

LIMITS = (
    "A figure at its control says that this attack, with this effort, found nothing. It does not "
    "say that nothing is there: an attack bounds leakage from below, only a proof from above.",
    "Intervals over seeds cover what a seed draws: split, training, attack, and the records that "
    "are compared; those of one seed cover its records or reconstructions alone.",
    "An epsilon is a claim about every attacker and the worst record; these are some attackers "
    "and ordinary records. Rows are compared within a scene only.",
)
"""What no figure of the suite shows."""
READING = (
    "Every figure stands beside its control: the same attack without access to the run. Only the "
    "distance between the two speaks of leakage: above the control for most figures, below it for "
    "an attacker's error (TV error). An asterisk marks figures that tell more than their control, "
    "each tested alone at 95 %: by the interval of the difference, paired by seed (Student's), or "
    "with one seed by Student's p-value. An attack that needs what its attacker does not have is "
    "not applicable, and the missing capability is named."
)
FRESH = (
    "Seeds drive data, training and attacks. Keys and most noise are fresh in every run, so "
    "private rows vary within their noise."
)
LOW_FPR = "tpr_at_0.01_fpr"
"""The detail of a result that holds the members found at 1 % false positives."""
ATTACK = "attack"
ORIGINALS = ("originals", "record")
"""Names of an attack's pictures and of what they show; every other name is a control's."""
Images: TypeAlias = NDArray[np.float32]
_COLUMNS = 10
_NARROW = 6
"""Columns of a table that a terminal shows."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A scene and its results. pictures: by row key, those of its lowest seed by attack/name."""

    name: str
    title: str
    about: str
    leakage: Leakage
    pictures: Mapping[str, Pictures] = field(repr=False)

    def __post_init__(self) -> None:
        for place, images in ((p, i) for named in self.pictures.values() for p, i in named.items()):
            if images.ndim != 3 or not images.size or not np.isfinite(images).all():
                raise ConfigurationError(place, images.shape, "use finite images [n, H, W]")


def seen(results: Results) -> list[Seen]:
    """The scenes of a run, in the suite's order."""
    by_scene = grouped(results.cells, lambda cell: cell.scene)
    return [_seen(name, by_scene[name]) for name in SCENES if name in by_scene]


def _seen(name: str, found: Sequence[Result]) -> Seen:
    scene, by_row = load(name), grouped(found, lambda cell: cell.row)
    cell: Cell = found[0].cell
    rows = {**{row: row for row in by_row}, **scene.rows(replace(cell, row=""))}
    given = {row: [(r.cell.seed, r.attacks) for r in of] for row, of in by_row.items()}
    first = {row: min(of, key=lambda r: r.cell.seed).pictures for row, of in by_row.items()}
    return Seen(name, scene.title, scene.about, Leakage(rows, given), first)


def summary(scenes: Sequence[Seen]) -> list[str]:
    """How many figures of each scene tell more than their control."""
    said = []
    for scene in scenes:
        leaks = scene.leakage
        every = [found for name in leaks.attacks for found in leaks.measured(name).values()]
        above = sum(found.leaks for found in every)
        said.append(f"{scene.title}: {above} of {len(every)} figures tell more than their control.")
    return [*said, "Chance alone sets about one in twenty apart."]


def low_rates(leakage: Leakage) -> Iterator[Table]:
    """Members found at 1 % false positives, by row and attack; nothing if no attack resolves it."""
    rates = {
        attack: {
            row: f"{100 * rate.value:.1f} %"
            for row, found in leakage.measured(attack).items()
            if (rate := found.detail(LOW_FPR))
        }
        for attack in leakage.attacks
    }
    having = [attack for attack, found in rates.items() if found]
    if having:
        title = "Members found at 1 % false positives (chance: 1 %)"
        table = new_table(title, ["protocol", *having])
        for row, label in leakage.rows.items():
            table.add_row(label, *(rates[attack].get(row, "") for attack in having))
        yield table


def rebuilt(scene: Seen, attack: str, title: str) -> Iterator[Picture]:
    """Lines of images: originals, each row's reconstructions, and controls.

    Images that are the same in every row are shown once; others carry the row's name.
    """
    lines = [
        plots.Strip(label, images[:: max(1, len(images) // _COLUMNS)], reading)
        for label, images, reading in named_images(scene, f"{attack}{BETWEEN}", attack)
    ]
    if lines:
        source = data_uri(png(plots.strips(lines, f"{title}: images", _COLUMNS)))
        caption = "One seed. A plausible image is no leak where the controls look the same."
        alt = f"Lines of images: {'; '.join(line.label for line in lines)}."
        yield Picture(f"{scene.name}-{attack}", "Reconstructions", caption, alt, source)


def named_images(scene: Seen, start: str, attack: str) -> list[tuple[str, Images, str]]:
    """Label, images and reading of each line; start: of the names of the attack's pictures."""
    by_row = {
        row: {
            place.removeprefix(start): images
            for place, images in scene.pictures.get(row, {}).items()
            if place.startswith(start)
        }
        for row in scene.leakage.measured(attack)
    }
    by_row = {row: named for row, named in by_row.items() if named}
    first: Pictures = next(iter(by_row.values()), {})
    shared = [
        name
        for name in first
        if name != ATTACK
        and all(
            name in other and np.array_equal(first[name], other[name]) for other in by_row.values()
        )
    ]
    lines = [(name, first[name], "") for name in shared if name in ORIGINALS]
    for row, found in scene.leakage.measured(attack).items():
        label, named = scene.leakage.rows[row], by_row.get(row, {})
        for name in sorted(named, key=lambda name: (name not in ORIGINALS, name != ATTACK)):
            if name == ATTACK:
                lines.append((label, named[name], attack_summary.reading(found)))
            elif name not in shared:
                lines.append((f"{label}: {name}", named[name], ""))
    return [*lines, *((name, first[name], "") for name in shared if name not in ORIGINALS)]


def write_report(results: Results, folder: Path) -> Path:
    """Write report.html; return its path."""
    path = write_page(render(results), folder)
    print(f"report: {path}")
    return path


def render(results: Results) -> str:
    """Return the page as text."""
    scenes, seeds = seen(results), _seeds(results)
    seconds = human_seconds(sum(found.seconds for found in results.cells))
    settings = [Pairs("Run", results.settings), Pairs("Machine", results.machine)]
    return page(
        "Leakage by attack",
        f"{results.schema} · {results.created} · {seconds} of CPU time in all rows",
        summary(scenes),
        [
            Section("How to read", [READING]),
            *(section for scene in scenes for section in _of_scene(scene, seeds)),
            Section("Limits", [LIMITS]),
            Section("Settings", [*settings, Pairs("Versions", results.versions)]),
        ],
        results.command,
        FRESH,
    )


def _seeds(results: Results) -> int:
    return len({found.cell.seed for found in results.cells})


def _of_scene(scene: Seen, seeds: int) -> Iterator[Section]:
    leakage = scene.leakage
    opening: list[Part] = [scene.about, attack_summary.overview(leakage), *low_rates(leakage)]
    yield Section(scene.title, opening)
    for attack, title in leakage.attacks.items():
        parts = [
            *attack_summary.attack_parts(leakage, attack, seeds),
            *rebuilt(scene, attack, title),
        ]
        yield Section(f"{scene.name}: {title} ({attack})", parts, 3)
    known = [f"{caveat} ({where})" for caveat, where in attack_summary.caveats(leakage).items()]
    yield Section(f"{scene.name}: caveats", [known], 3)


def tables(results: Results) -> list[Table | str]:
    """Return what a terminal shows: the page's sections of scenes, then the summary."""
    bare, seeds = [replace(scene, pictures={}) for scene in seen(results)], _seeds(results)
    shown: list[Table | str] = []
    for section in (one for scene in bare for one in _of_scene(scene, seeds)):
        shown.append(f"\n{section.title}")
        for part in section.parts:
            if isinstance(part, Table):
                shown += [part] if len(part.columns) <= _NARROW else []
            elif isinstance(part, str):
                shown.append(part)
            elif not isinstance(part, Pairs | Picture):
                shown += [f"· {line}" for line in part]
    return [*shown, "\nIn short", *(f"· {line}" for line in summary(bare))]
