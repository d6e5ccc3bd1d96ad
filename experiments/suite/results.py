"""What the suite measured: each attack on each row, seed by seed and over seeds; one JSON file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attacks.base import AttackResult, RocCurve
from attacks.statistics import OverSeeds, mean_roc, over_seeds, paired
from experiments.results import NOT_APPLICABLE, AttackFigure, read, write
from experiments.suite.scene import Findings
from secure_fd.errors import ConfigurationError

SCHEMA = "secure-fd/attack-suite/1"
RESULTS_FILE = "attack_suite.json"
NOT_RUN = "not run: "
"""How the sentence starts where a scene left an attack out, for the reason that follows."""
VERDICTS = {1: "above the control", 0: "at the control", -1: "below the control"}
FALSE_ALARMS = 0.05
"""Of verdicts away from the control where nothing leaks."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class SeedFigure:
    """One seed's figure, without its curve: that is averaged, and its points stay in the cells.

    n_members, n_non_members: how many private and held-out records scored it.
    """

    seed: int
    figure: AttackFigure
    n_members: int
    n_non_members: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One attack on one row, over seeds.

    figure, control: means. difference: figure minus control, paired by seed. Intervals at 95 % are
    Student's over seeds; of one seed, the attack's own over records, and None for the difference.
    roc: {"fpr", "tpr"}, mean over seeds, where the attack ranks records.
    """

    figure: float
    interval: Interval | None
    control: float
    difference: float
    difference_interval: Interval | None
    verdict: str
    roc: dict[str, list[float]] | None
    seeds: tuple[SeedFigure, ...]

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ConfigurationError("seeds", 0, "a figure needs one or more")
        if self.verdict not in VERDICTS.values():
            allowed = f"use one of {', '.join(VERDICTS.values())}"
            raise ConfigurationError("verdict", self.verdict, allowed)

    @property
    def first(self) -> AttackFigure:
        """What all seeds share: names and unit."""
        return self.seeds[0].figure

    @property
    def caveats(self) -> list[str]:
        """Of all seeds, each once."""
        return list(dict.fromkeys(c for found in self.seeds for c in found.figure.caveats))

    @property
    def details(self) -> dict[str, float]:
        """Means of the further figures, over the seeds that have them."""
        names = dict.fromkeys(name for found in self.seeds for name in found.figure.details)
        return {name: float(np.mean(self._values(name))) for name in names}

    def detail(self, name: str) -> OverSeeds | None:
        """A further figure over seeds; None unless every seed has it.

        One seed's interval is what the attack left under `name`_low and `name`_high.
        """
        values = self._values(name)
        if len(values) < len(self.seeds):
            return None
        ends = [*self._values(f"{name}_low"), *self._values(f"{name}_high")]
        if len(self.seeds) == 1 and len(ends) == 2:
            return OverSeeds(values[0], (ends[0], ends[1]))
        return over_seeds(values)

    def _values(self, name: str) -> list[float]:
        every = [found.figure.details.get(name) for found in self.seeds]
        return [float(value) for value in every if isinstance(value, int | float)]


@dataclass(frozen=True, slots=True)
class SceneResults:
    """A scene. rows: key -> label; attacks: name -> title.

    cells: row -> attack -> its figures, or the sentence "not applicable: missing ..." or "not run:
    ..." with the reason. What is not there was not run.
    """

    name: str
    title: str
    about: str
    rows: dict[str, str]
    attacks: dict[str, str]
    cells: dict[str, dict[str, Measured | str]]

    def __post_init__(self) -> None:
        for row, found in self.cells.items():
            if row not in self.rows or not found.keys() <= self.attacks.keys():
                raise ConfigurationError("cells", row, "each needs a row's label and a title")
            for attack, why in found.items():
                if isinstance(why, str) and not why.startswith((NOT_APPLICABLE, NOT_RUN)):
                    allowed = f"start it with {NOT_APPLICABLE!r} or {NOT_RUN!r}"
                    raise ConfigurationError(attack, why, allowed)

    def figure(self, row: str, attack: str) -> Measured | None:
        """None where the attack does not apply or was not run."""
        found = self.cells.get(row, {}).get(attack)
        return found if isinstance(found, Measured) else None

    def measured(self, attack: str) -> dict[str, Measured]:
        """By row key, the figures of an attack."""
        return {row: found for row in self.rows if (found := self.figure(row, attack))}


@dataclass(frozen=True, slots=True)
class SuiteResults:
    """Every scene of a run. created: ISO 8601 in UTC. command: as anyone would repeat it.

    seconds: of the run that wrote it, which may have found cells of earlier ones.
    """

    schema: str
    created: str
    command: list[str]
    settings: dict[str, object]
    seeds: list[int]
    versions: dict[str, str]
    machine: dict[str, object]
    scenes: tuple[SceneResults, ...]
    seconds: float

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ConfigurationError("schema", self.schema, f"this version reads {SCHEMA!r}")
        if not self.seeds:
            raise ConfigurationError("seeds", 0, "use one or more")
        names = [scene.name for scene in self.scenes]
        if not names or len(set(names)) < len(names):
            raise ConfigurationError("scenes", names, "use one or more, each once")


def save(results: SuiteResults, folder: Path) -> Path:
    """Write RESULTS_FILE into the folder, whole or not at all; its path."""
    path = folder / RESULTS_FILE
    write(path, results, "results")
    return path


def load(folder: Path) -> SuiteResults:
    """The results in a folder; ConfigurationError names the first thing that is wrong."""
    return read(folder / RESULTS_FILE, SuiteResults, "results")


def aggregate(
    scene_name: str,
    title: str,
    about: str,
    rows: Mapping[str, str],
    findings: Mapping[tuple[str, int], Findings],
) -> SceneResults:
    """A scene's findings, by (row, seed), over seeds. A row without findings was not run."""
    unknown = sorted({row for row, _ in findings} - rows.keys())
    if unknown:
        raise ConfigurationError("findings", unknown[0], f"use a row of {', '.join(rows)}")
    ordered = [found for row in rows for _, found in _of(row, findings)]
    names = dict.fromkeys(name for found in ordered for name in found)
    cells = {row: _row(_of(row, findings), list(names)) for row in rows}
    titles = {name: _title(name, ordered) for name in names}
    return SceneResults(scene_name, title, about, dict(rows), titles, cells)


def _of(row: str, findings: Mapping[tuple[str, int], Findings]) -> list[tuple[int, Findings]]:
    """A row's findings, by ascending seed."""
    return sorted((seed, found) for (of, seed), found in findings.items() if of == row)


def _title(name: str, findings: Sequence[Findings]) -> str:
    """An attack's title; without what it says in brackets where that differs between rows."""
    every = [found.get(name) for found in findings]
    titles = list(dict.fromkeys(r.title for r in every if isinstance(r, AttackResult)))
    if not titles:
        return name
    return titles[0] if len(titles) == 1 else titles[0].split(" (")[0]


def _row(found: list[tuple[int, Findings]], names: list[str]) -> dict[str, Measured | str]:
    cells: dict[str, Measured | str] = {}
    for name in names:
        results = [(seed, every[name]) for seed, every in found if name in every]
        figures = [(seed, result) for seed, result in results if isinstance(result, AttackResult)]
        sentences = list(dict.fromkeys(said for _, said in results if isinstance(said, str)))
        if figures:
            cells[name] = _measured(figures, sentences)
        elif results:
            cells[name] = "; ".join(sentences)
    return cells


def _measured(results: list[tuple[int, AttackResult]], lacking: Sequence[str]) -> Measured:
    """lacking: why other seeds gave no figure; a mean of those that did decides nothing then."""
    every = [result for _, result in results]
    seeds = tuple(_seed_figure(seed, result) for seed, result in results)
    mean = over_seeds([result.figure for result in every])
    controls = [result.control for result in every]
    gap = paired([result.figure for result in every], controls)
    sign = gap.sign if len(seeds) > 1 else _sign_of_one(seeds[0].figure)
    if lacking:
        seeds, sign = _told(seeds, lacking), 0
    curves = [result.roc for result in every if result.roc is not None]
    return Measured(
        figure=mean.value,
        interval=mean.interval or every[0].interval,
        control=over_seeds(controls).value,
        difference=gap.value,
        difference_interval=gap.interval,
        verdict=VERDICTS[sign],
        roc=_rates(mean_roc(curves)) if curves else None,
        seeds=seeds,
    )


def _told(seeds: tuple[SeedFigure, ...], lacking: Sequence[str]) -> tuple[SeedFigure, ...]:
    first, *others = seeds
    why = f"other seeds gave no figure, so none is told apart: {'; '.join(lacking)}"
    figure = replace(first.figure, caveats=[*first.figure.caveats, why])
    return (replace(first, figure=figure), *others)


def _seed_figure(seed: int, result: AttackResult) -> SeedFigure:
    bare = replace(AttackFigure.of(result), roc=None)
    return SeedFigure(seed, bare, result.n_members, result.n_non_members)


def _sign_of_one(figure: AttackFigure) -> int:
    """By the interval over records, where one seed is all there is."""
    if not figure.differs_from_control or figure.control is None:
        return 0
    return 1 if figure.figure > figure.control else -1


def _rates(curve: RocCurve) -> dict[str, list[float]]:
    return {"fpr": curve.fpr.tolist(), "tpr": curve.tpr.tolist()}
