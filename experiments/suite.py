"""The cells of the suite: found again on disk, run where missing, put together over seeds."""

import hashlib
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

import attacks
import experiments
import secure_fd
from attacks.base import AttackResult, ImageArray, RocCurve
from attacks.statistics import OverSeeds, mean_roc, over_seeds, paired
from experiments.attack_suite import Plan
from experiments.code_version import code_version
from experiments.grouped import Grouped, Submission
from experiments.provenance import PRIVACY_LIBRARIES, created_now, machine, versions
from experiments.results import NOT_APPLICABLE, AttackFigure, read, write, write_atomically
from experiments.scenes import Findings, Job, Progress, load
from experiments.workers import working
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.training import default_device

CELL_SCHEMA = "secure-fd/attack-suite-cell/1"
_BETWEEN = "/"


@dataclass(frozen=True, slots=True)
class Cell:
    """One protocol row of one scene under one seed, with all its attacks."""

    scene: str
    row: str
    seed: int

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.scene}: {self.row}, seed {self.seed}"


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A finished cell. seconds: of CPU, without what the rows of a scene share."""

    cell: Cell
    findings: Findings = field(repr=False)
    seconds: float


def suite_version() -> str:
    """Of the code that may change a figure; how a report looks is not among it."""
    ours = Path(experiments.__path__[0])
    packages = (Path(package.__path__[0]) for package in (secure_fd, attacks))
    runs = (ours / name for name in ("rows.py", "runs.py", "attacking.py", "privacy_compare.py"))
    return code_version(*packages, *runs, ours / "scenes")


@dataclass(frozen=True, slots=True)
class Store:
    """The cells of a folder under one job. A file that is there is whole."""

    folder: Path
    job: Job
    version: str = field(default_factory=suite_version)

    def path(self, cell: Cell) -> Path:
        """A readable name, and a hash of cell, job, version and schema."""
        job = self.job.settings()
        content = json.dumps([CELL_SCHEMA, self.version, job, asdict(cell)], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return self.folder / f"{cell.scene}-{cell.row}-{cell.seed}-{digest}.json"

    def save(self, done: Done) -> None:
        """Keep a finished cell: its pictures first, so that figures are never without them."""
        path = self.path(done.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures = _pictures(done.findings)
        if pictures:
            write_atomically(
                path.with_suffix(".npz"),
                lambda file: np.savez_compressed(file, allow_pickle=False, **pictures),
            )
        content = {
            "schema": CELL_SCHEMA,
            "version": self.version,
            "cell": asdict(done.cell),
            "seconds": done.seconds,
            "pictures": sorted(pictures),
            "findings": {
                name: found if isinstance(found, str) else found.to_json()
                for name, found in done.findings.items()
            },
        }
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(path, lambda file: file.write(text.encode()))

    def find(self, cell: Cell) -> Done | None:
        """The finished cell, or None where it has not been run.

        Raises ConfigurationError for a file that is not what its name says.
        """
        path = self.path(cell)
        if not path.exists():
            return None
        try:
            return self._read(path, cell)
        except (LocalError, KeyError, TypeError, ValueError, AttributeError, OSError, BadZipFile):
            again = "it holds no such row: remove it to run this one again"
            raise ConfigurationError("cell", path.name, again) from None

    def _read(self, path: Path, cell: Cell) -> Done:
        content = json.loads(path.read_bytes())
        whose = (content["schema"], content["version"], content["cell"])
        if whose != (CELL_SCHEMA, self.version, asdict(cell)):
            raise LocalError("the file is another cell's")
        archive = path.with_suffix(".npz")
        findings = _findings(content["findings"], archive if content["pictures"] else None)
        if sorted(_pictures(findings)) != content["pictures"]:
            raise LocalError("the archive has other pictures")
        return Done(cell, findings, float(content["seconds"]))


def _pictures(findings: Findings) -> dict[str, ImageArray]:
    return {
        f"{attack}{_BETWEEN}{name}": np.asarray(images, dtype=np.float32)
        for attack, found in findings.items()
        if isinstance(found, AttackResult) and found.images is not None
        for name, images in found.images.items()
    }


def _findings(content: Mapping[str, Any], archive: Path | None) -> Findings:
    pictures: dict[str, dict[str, ImageArray]] = {}
    if archive is not None:
        with archive.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                attack, _, name = key.partition(_BETWEEN)
                pictures.setdefault(attack, {})[name] = arrays[key]
    return {
        name: found if isinstance(found, str) else AttackResult.from_json(found, pictures.get(name))
        for name, found in content.items()
    }


Group = tuple[str, int]
"""A scene and a seed, whose rows share a preparation."""


def cells(plan: Plan) -> list[Cell]:
    """Every row of every scene and seed, seed by seed."""
    return [
        Cell(name, row, seed)
        for seed in plan.seeds
        for name in plan.scenes
        for row in load(name).rows(plan.job)
    ]


def run_missing(plan: Plan, store: Store) -> None:
    """Run what the store lacks. An interrupt loses the rows that are running and no other."""
    groups: dict[Group, list[Cell]] = {}
    missing = [cell for cell in cells(plan) if store.find(cell) is None]
    for cell in missing:
        groups.setdefault((cell.scene, cell.seed), []).append(cell)
    if not missing:
        return
    workers = plan.settings.workers
    with working(workers, len(groups) + len(missing)) as tasks:
        Grouped(
            tasks,
            deque(groups.items()),
            partial(_preparation, plan.job),
            partial(_running, plan.job),
            store.save,
            workers + 1,
        ).begin()
        tasks.drain()


def _preparation(job: Job, group: Group) -> Submission:
    scene, seed = group
    return f"{scene}: preparation, seed {seed}", 100, _prepare, job, group


def _running(job: Job, cell: Cell, prepared: Any) -> Submission:  # noqa: ANN401 - of that scene
    return cell.label, 100, _run, job, cell, prepared


def _prepare(job: Job, group: Group, progress: Progress) -> Any:  # noqa: ANN401 - the scene's own
    scene, seed = group
    return load(scene).prepare(job, seed, progress)


def _run(job: Job, cell: Cell, prepared: Any, progress: Progress) -> Done:  # noqa: ANN401 - the scene's own
    start = time.process_time()
    findings = load(cell.scene).run(job, cell.row, cell.seed, prepared, progress)
    return Done(cell, findings, time.process_time() - start)


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


def save_suite(results: SuiteResults, folder: Path) -> Path:
    """Write RESULTS_FILE into the folder, whole or not at all; its path."""
    path = folder / RESULTS_FILE
    write(path, results, "results")
    return path


def load_suite(folder: Path) -> SuiteResults:
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


ATTACK = "attack"
ORIGINALS = ("originals", "record", "nearest private")
"""Names that an attack's pictures go by; every other name is that of a control."""

Pictures: TypeAlias = Mapping[str, Mapping[str, Mapping[str, ImageArray]]]
"""Of a scene, by attack, row key and name: [n, H, W] in [0, 1]."""


def pictures(rows: Mapping[str, str], findings: Mapping[tuple[str, int], Findings]) -> Pictures:
    """The pictures of each row's lowest seed, in the order of `rows`.

    Raises ConfigurationError where an array is not of finite images of its attack's size.
    """
    found: dict[str, dict[str, Mapping[str, ImageArray]]] = {}
    first: dict[str, int] = {}
    for row, seed in findings:
        first[row] = min(seed, first.get(row, seed))
    for row in rows:
        for attack, result in findings[row, first[row]].items() if row in first else ():
            if isinstance(result, AttackResult) and result.images:
                _check(attack, result.images)
                found.setdefault(attack, {})[row] = result.images
    return found


def _check(attack: str, images: Mapping[str, ImageArray]) -> None:
    size = next(iter(images.values())).shape[1:]
    for name, array in images.items():
        whole = array.ndim == 3 and len(array) and np.isfinite(array).all()
        if not whole or array.shape[1:] != size:
            where = f"{attack}, {name}"
            raise ConfigurationError(where, array.shape, "use finite images [n, H, W] of one size")


def named_strips(
    labels: Mapping[str, str], by_row: Mapping[str, Mapping[str, ImageArray]]
) -> list[tuple[str, ImageArray]]:
    """An attack's images as named lines: originals, what each row gave away, then the controls.

    Images under one name that are the same in every row are shown once, under that name.
    """
    names = dict.fromkeys([*ORIGINALS, ATTACK, *(n for named in by_row.values() for n in named)])
    once = {name for name in names if name != ATTACK and _same(name, by_row)}
    shared = [(name, next(iter(by_row.values()))[name]) for name in names if name in once]
    own = [
        (labels[row] if name == ATTACK else f"{labels[row]}: {name}", named[name])
        for row, named in by_row.items()
        for name in names
        if name in named and name not in once
    ]
    before = [line for line in shared if line[0] in ORIGINALS]
    return [*before, *own, *shared[len(before) :]]


def _same(name: str, by_row: Mapping[str, Mapping[str, ImageArray]]) -> bool:
    """Whether every row has the same images under this name."""
    first, *others = (named.get(name) for named in by_row.values())
    return first is not None and all(
        other is not None and np.array_equal(first, other) for other in others
    )


def save_pictures(made: Pictures, path: Path) -> None:
    """Write an npz whose keys are attack/row/name; none where nothing was rebuilt."""
    if not made:
        path.unlink(missing_ok=True)  # one of an earlier run
        return
    arrays = {
        f"{attack}/{row}/{name}": np.asarray(images, dtype=np.float32)
        for attack, rows in made.items()
        for row, named in rows.items()
        for name, images in named.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


def collected(
    plan: Plan, store: Store, command: list[str]
) -> tuple[SuiteResults, Mapping[str, Pictures]]:
    """Everything that the store holds of a plan, over seeds; and the images, by scene."""
    done = [found for cell in cells(plan) if (found := store.find(cell)) is not None]
    scenes: list[SceneResults] = []
    images: dict[str, Pictures] = {}
    for name in plan.scenes:
        scene = load(name)
        rows = scene.rows(plan.job)
        findings: dict[tuple[str, int], Findings] = {
            (one.cell.row, one.cell.seed): one.findings for one in done if one.cell.scene == name
        }
        scenes.append(aggregate(name, scene.title, scene.about, rows, findings))
        images[name] = pictures(rows, findings)
    made = SuiteResults(
        schema=SCHEMA,
        created=created_now(),
        command=command,
        settings=_settings(plan, store),
        seeds=list(plan.seeds),
        versions=versions(*PRIVACY_LIBRARIES),
        machine={**machine(), "device": str(default_device())},
        scenes=tuple(scenes),
        seconds=sum(one.seconds for one in done),
    )
    return made, images


def _settings(plan: Plan, store: Store) -> dict[str, object]:
    """Every setting that a figure may depend on."""
    return {**plan.job.settings(), "scenes": list(plan.scenes), "code": store.version}
