"""One engine for all studies: cells, worker processes, a store that resumes, one file of results.

A study states which cells a command line asks for, what the cells of a group share, how one cell is
measured, and how results are shown. Everything else is here.
"""

# ruff: noqa: ANN401 - each study has its own settings, cells and preparations

import json
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from zipfile import BadZipFile

import numpy as np
import tyro

from experiments.cli import command, data_folder
from experiments.compare.leakage import Found, Pictures, check_found
from experiments.core import provenance
from experiments.core.files import (
    NEVER,
    RUN,
    decode,
    differences,
    encode,
    folded,
    parsed_json,
    read,
    read_json,
    rounded,
    unfolded,
    write,
    write_json,
    written,
)
from experiments.core.measures import ACCURACY
from experiments.report.plots import Bars, Lines, drawn, save
from experiments.report.tables import Table, rendered, terminal_width
from secure_fd.cli import exit_status, expanded, flag
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.files import write_atomically
from secure_fd.optional import extra

SCHEMA = "secure-fd/study/2"
CELLS = "cells.jsonl"
"""The file of finished cells, a line each."""
CODE = "code.json"
"""The file of the code version that measured a folder's cells."""
KEPT = "finished cells are kept; run the same again, into the same --out, to go on"
_PLACES = ("data_dir", "out", "workers", "scheduler")
_OWN = (*_PLACES, "tuned", "images", "proxies", "table", "columns", "public")
"""Settings that no figure depends on, or whose choices the cells have in full."""
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Point:
    """Mean test accuracy over clients after a round, and the bytes a client had moved by then.

    The last point of a curve is on the whole test set, the others on an evenly spaced part of it.

    >>> Point(round=5, accuracy=0.9, up=1000.0, down=2000.0).round
    5
    """

    round: int
    accuracy: float
    up: float
    down: float


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one cell, in the schema of all studies.

    figures: by the names of `core.measures`; "accuracy" is on the test set after the last
    round, the mean of `per_client` where clients differ. curve: by ascending round. notes: what is
    no number, such as a guarantee. seconds: of CPU, without what the cells of a group share.
    attacks: by name, a figure beside its control, or a sentence with the reason for none.
    pictures: by "attack/name", kept beside the cell in a file of their own.

    >>> Result(cell="a", figures={"accuracy": 0.5}, seconds=1.0).accuracy
    0.5
    """

    cell: Any
    figures: dict[str, float] = field(hash=False)
    seconds: float
    per_client: tuple[float, ...] = ()
    curve: tuple[Point, ...] = ()
    notes: dict[str, object] = field(default_factory=dict, hash=False)
    attacks: dict[str, Found] = field(default_factory=dict, hash=False)
    pictures: Pictures = field(default_factory=dict, compare=False, repr=False, metadata=NEVER)

    def __post_init__(self) -> None:
        check_found(self.attacks)
        mean = [self.figures[ACCURACY]] if ACCURACY in self.figures else []
        points = [point.accuracy for point in self.curve]
        for value in (*mean, *self.per_client, *points):
            if not 0 <= value <= 1:
                raise ConfigurationError("accuracy", value, "use a fraction from 0 to 1")
        if self.seconds < 0:
            raise ConfigurationError("seconds", self.seconds, "use 0 or more")
        if [p.round for p in self.curve] != sorted({p.round for p in self.curve}):
            raise ConfigurationError("curve", len(self.curve), "use points of ascending rounds")

    @property
    def accuracy(self) -> float:
        """The figure "accuracy"; KeyError where the study measures none."""
        return self.figures[ACCURACY]

    def only(self, *names: str) -> dict[str, float]:
        """The figures of these names, as far as the run has them."""
        return {name: self.figures[name] for name in names if name in self.figures}


@dataclass(frozen=True, slots=True)
class Results:
    """The file of a study. created: ISO 8601 in UTC. command: without this machine's paths.

    commit: of the code, or the version of an installed package. dirty: whether the code had
    changes beside that commit. settings: the options that a figure may depend on.
    seeds: of all cells. cpu_seconds: of all tasks: cells with their attacks, and what cells share.

    In the file, `cells` has one object for all cells that differ in their seed alone; see
    `experiments.core.files.folded`.
    """

    schema: str
    study: str
    created: str
    commit: str
    dirty: bool
    command: list[str]
    settings: dict[str, object]
    seeds: tuple[int, ...]
    versions: dict[str, str]
    machine: dict[str, object]
    cpu_seconds: float
    cells: tuple[Result, ...]

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ConfigurationError("schema", self.schema, f"this version reads {SCHEMA!r}")
        names = [json.dumps(encode(r.cell, "cell"), sort_keys=True) for r in self.cells]
        if not names or len(set(names)) < len(names):
            raise ConfigurationError("cells", len(names), "use one or more, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One table or figure.

    name: of its files. folder: of its module. about: for --help.
    settings: a dataclass of the command line, with `out`, `workers`, `scheduler` and, for image
    sets, `data_dir`. cell: a hashable dataclass with a `label`.
    cells: of settings; raises ConfigurationError for a value that is not allowed. measure: one
    cell, in a worker; given what it needs. needs: of a cell, what it shares with others, by
    hashable parts; prepare: makes a part, once a run, in a worker. cost: of a cell, a rank of its
    time; the longest begin first.
    shown: tables and sentences. panels: of the figure, none for a study without.
    image_set: that must be on disk for a cell. out: folder of a run, by default `runs/NAME`. home:
    that NAME, by default the study's; studies with one share their cells. report: writes further
    files of a finished run into its folder. status: exit status of a finished run. alone: a folder
    holds one run; otherwise runs share their cells. reads: what `shown`, `panels` and `report` read
    of a result's `per_client` and `curve`; the file of results leaves out the rest.
    """

    name: str
    about: str
    settings: type
    cell: type
    cells: Callable[[Any], Sequence[Any]]
    measure: Callable[[Path | None, Any, Mapping[Any, Any]], Result]
    shown: Callable[[Results], Sequence[Table | str]]
    needs: Callable[[Any], Sequence[Hashable]] = lambda _: ()
    prepare: Callable[[Path | None, Any], Any] = lambda *_: None
    cost: Callable[[Any], float] = lambda _: 0.0
    panels: Callable[[Results], Sequence[Bars | Lines]] = lambda _: ()
    image_set: Callable[[Any], str | None] = lambda cell: getattr(cell, "image_set", None)
    out: Callable[[Any], Path] | None = None
    home: str = ""
    report: Callable[[Results, Path], None] = lambda _, __: None
    status: Callable[[Results], int] = lambda _: 0
    alone: bool = False
    reads: tuple[str, ...] = ()
    folder: str = "paper"

    def folder_of(self, settings: Any) -> Path:
        """Return the folder of a run with these settings."""
        if self.out is not None:
            return self.out(settings)
        quick = "-quick" if getattr(settings, "quick", False) else ""
        return settings.out or Path(f"runs/{self.home or self.name}{quick}")

    @property
    def script(self) -> str:
        """Return the path of the script, below experiments/."""
        return f"{self.folder}/{self.name}.py".lstrip("/")

    @property
    def module(self) -> str:
        """Module from which a worker imports the study: functions cannot be sent to it."""
        return f"experiments.{self.script.removesuffix('.py').replace('/', '.')}"


@cache
def load(module: str) -> Study:
    """The study of a script, by the name of its module."""
    study: Study = import_module(module).STUDY
    return study


# Values of the command line.


def listed(
    name: str, text: str | None, allowed: Sequence[str], default: Sequence[str] | None = None
) -> tuple[str, ...]:
    """The values of a comma-separated option, each once; without text the default, or all allowed.

    Raises ConfigurationError for a value that is not allowed.

    >>> listed("splits", "iid, strong,iid", ("strong", "weak", "iid"))
    ('iid', 'strong')
    """
    if text is None:
        return tuple(allowed if default is None else default)
    chosen = tuple(part.strip() for part in text.split(","))
    for part in chosen:
        if part not in allowed:
            raise ConfigurationError(name, part, f"use one or more of {', '.join(allowed)}")
    return tuple(dict.fromkeys(chosen))


def whole_numbers(name: str, text: str | None, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Comma-separated whole numbers, each once; without text the default.

    Raises ConfigurationError for anything else.

    >>> whole_numbers("seeds", "10,11,10")
    (10, 11)
    """
    if text is None:
        return tuple(default)
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal()):
            raise ConfigurationError(name, part, "use whole numbers of 0 or more, with commas")
    return tuple(dict.fromkeys(map(int, parts)))


_MOST = 100_000
"""Largest count that a command line accepts."""


def at_least(least: int, **values: int | None) -> None:
    """Raise ConfigurationError for the first count below `least`, or that no run ends with.

    None is no value.

    >>> at_least(1, rounds=3, workers=None)
    """
    for name, value in values.items():
        if value is not None and value < least:
            raise ConfigurationError(name, value, f"use {least} or more")
        if value is not None and value > _MOST:
            raise ConfigurationError(name, value, f"use at most {_MOST:,}")


# Finished cells.


def key_of(cell: Any) -> str:
    """Return the text that identifies a cell."""
    return json.dumps(encode(cell, "cell"), sort_keys=True)


@dataclass(slots=True)
class Store:
    """Finished cells of a folder: a file with one JSON line for each, and files of pictures.

    Studies with equal cells share a folder: an equal cell is run once. found: by `key_of`.

    Raises ConfigurationError for a line that is not a result; a last line without its end was
    interrupted, and is cut off.
    """

    folder: Path
    study: Study
    found: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.lines.exists():
            return
        content = self.lines.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.lines, len(whole))
        for line in whole.splitlines():
            result = strict(self.study, decode(Result, parsed_json(line, CELLS), CELLS))
            arrays = _load_arrays(self._pictures(result.cell))
            self.found[key_of(result.cell)] = replace(result, pictures=arrays)

    @property
    def lines(self) -> Path:
        """The file of results."""
        return self.folder / CELLS

    def _pictures(self, cell: Any) -> Path:
        return self.folder / "pictures" / f"{sha256(key_of(cell).encode()).hexdigest()[:16]}.npz"

    def save(self, result: Result) -> None:
        """Keep a result. Raises ConfigurationError for one that no file could give back.

        Its pictures come first, so that figures are never without them.
        """
        result = strict(self.study, result)
        if result.pictures:
            save_arrays(self._pictures(result.cell), result.pictures)
        self.folder.mkdir(parents=True, exist_ok=True)
        content = encode(result, "cell")
        decode(Result, content, "cell")
        line = json.dumps(content, ensure_ascii=False, allow_nan=False)
        with self.lines.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.found[key_of(result.cell)] = result

    @property
    def _seconds(self) -> Path:
        return self.folder / f"{self.study.name}.cpu_seconds"

    def spend(self, seconds: float) -> None:
        """Note the CPU seconds of a task that ended."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._seconds.open("a", encoding="utf-8") as file:
            file.write(f"{seconds:.3f}\n")

    @property
    def spent(self) -> float:
        """CPU seconds of all tasks of the study that ended, in all runs into the folder."""
        return sum(map(float, self._seconds.read_text().split())) if self._seconds.exists() else 0.0

    def find(self, cell: Any) -> Result | None:
        """Return the result of a cell, None where it is missing."""
        return self.found.get(key_of(cell))


def save_arrays(path: Path, arrays: Pictures) -> None:
    """Write named arrays as an npz, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


def _load_arrays(path: Path) -> Pictures:
    """Named arrays of an npz; none where there is no such file."""
    if not path.exists():
        return {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            return dict(kept)
    except (KeyError, ValueError, OSError, BadZipFile):
        again = "it must hold the pictures of its cell: remove that to run it again"
        raise ConfigurationError("pictures", path.name, again) from None


def strict(study: Study, result: Result) -> Result:
    """The result with its cell as the study's dataclass; ConfigurationError for any other."""
    cell = result.cell if isinstance(result.cell, dict) else encode(result.cell, "cell")
    return replace(result, cell=decode(study.cell, cell, "cell"))


def read_results(study: Study, path: Path) -> Results:
    """The results in a file; ConfigurationError names the first thing that is wrong."""
    made = read_json(path, "results")
    if not isinstance(made, dict) or made.get("schema") != SCHEMA:
        raise ConfigurationError("schema", path.name, f"this version reads {SCHEMA!r}")
    cells = unfolded(made.get("cells"), "results.cells")
    found = decode(Results, {**made, "cells": cells}, "results")
    if found.study != study.name:
        raise ConfigurationError("study", found.study, f"this is the reader of {study.name}")
    return replace(found, cells=tuple(strict(study, result) for result in found.cells))


def write_results(results: Results, path: Path) -> None:
    """Write a study's file, whole or not at all. ConfigurationError for what no file can hold."""
    made: Any = encode(results, "results")
    decode(Results, made, "results")
    write_json(path, {**made, "cells": folded(made["cells"])})


# Running.


_TASK = Lock()
"""Held while a task runs: the generator of torch, its threads and caches are the process's."""


class Spent(NamedTuple):
    """What a task made, and the CPU seconds that it took."""

    value: Any
    seconds: float


def in_worker(
    module: str, code: provenance.Code, data_dir: Path | None, step: str, item: Any, *parts: Any
) -> Spent:
    """Call `prepare` or `measure` of a study.

    code: of the process that started the run. parts: of a cell, what was prepared for it, as spent.

    Raises ConfigurationError for a worker of other code, or if it was edited in the meantime.
    """
    found = provenance.code()
    if found != code:
        raise ConfigurationError("code", str(found), f"the run began with {code}: run again")
    from experiments.core.pool import use_one_thread

    if data_dir is not None and not data_dir.is_dir():  # on another machine
        data_dir = data_folder(None, os.environ.get("SECURE_FD_DATA"))
    with _TASK:
        use_one_thread()
        start = time.process_time()
        made = [{name: part.value for name, part in every.items()} for every in parts]
        try:
            value = getattr(load(module), step)(data_dir, item, *made)
        except LocalError as error:
            if step == "prepare":  # without it there is nothing to go on with
                raise
            value = error
        return Spent(value, time.process_time() - start)


def run_missing(
    study: Study,
    cells: Sequence[Any],
    store: Store,
    data_dir: Path | None,
    workers: int | None,
    claim: Callable[[], object] = lambda: None,
    executor: Executor | None = None,
) -> None:
    """Measure the cells that the store lacks. An interrupt loses those that are running.

    Others go on where a cell raises LocalError; at the end LocalError tells of the first.

    claim: called when all was checked, before any work. executor: by default that many workers.
    """
    waiting = [cell for cell in cells if store.find(cell) is None]
    _check_data(study, waiting, data_dir)
    claim()
    if not waiting:
        return
    waiting.sort(key=study.cost, reverse=True)  # the longest must not run alone at the end
    ask = partial(in_worker, study.module, provenance.code(), data_dir)
    needed = {cell: tuple(study.needs(cell)) for cell in waiting}
    parts = dict.fromkeys(part for of in needed.values() for part in of)
    made, failed = dict[Hashable, Any](), list[str]()
    from experiments.core.pool import Call, working  # multiprocessing is slow to import

    def calls(*, free: bool) -> Iterator[Call]:
        for cell, of in needed.items():
            if free == (not of):
                yield cell, ask, ("measure", cell, {part: made[part] for part in of})

    with working(workers, len(parts) + len(waiting), executor) as tasks:
        first: list[Call] = [*((part, ask, ("prepare", part)) for part in parts), *calls(free=True)]
        for item, found, reference in chain(tasks.each(first), tasks.each(calls(free=False))):
            store.spend(found.seconds)
            if isinstance(found.value, Result):
                store.save(found.value)
            elif isinstance(found.value, LocalError):
                failed.append(f"{item.label}: {found.value}")
            else:
                made[item] = reference
    if failed:
        raise LocalError(f"{len(failed)} of {len(waiting)} cells failed; {failed[0]}")


def _check_data(study: Study, cells: Sequence[Any], data_dir: Path | None) -> None:
    """Load each image set once, so that a missing file is reported before any work."""
    from experiments.core.pool import undisturbed

    with undisturbed():  # a Ctrl-C within torch's own start may abort the process
        from secure_fd.data.sources import load as load_images

    for image_set in dict.fromkeys(map(study.image_set, cells)):
        if image_set is not None:
            load_images(image_set, data_dir)


# The command line.


def main(module: str, arguments: Sequence[str] | None = None, prog: str = "") -> int:
    """Parse the options of a script, run what is missing, save, show; returns the exit status."""
    study = load(module)
    given = sys.argv[1:] if arguments is None else arguments

    def work() -> int:
        options = expanded(given)
        about = f"{study.about}\n\n--config FILE.toml reads options from a file; typed options win."
        settings: Any = tyro.cli(
            study.settings, prog=prog or study.script, description=about, args=options
        )
        return run(study, settings, options)

    names = {setting.name for setting in fields(study.settings)}
    return exit_status(work, interrupted=KEPT, options=names)


def run(study: Study, settings: Any, given: Sequence[str], executor: Executor | None = None) -> int:
    """Run a study; returns the exit status. Raises ConfigurationError before any work starts.

    given: the command line. executor: runs the cells, by default the cluster or the worker
    processes of the settings.
    """
    at_least(1, workers=settings.workers)
    cells = study.cells(settings)
    if not cells:
        splits = getattr(settings, "splits", None)
        raise ConfigurationError("splits", splits, "the image sets have no such cells")
    data_dir, out = _data_dir(settings), study.folder_of(settings)
    check_out(out)
    own = written(settings, _PLACES)
    code = provenance.code()
    check_held(out, study, own, code)
    store = Store(out, study)
    print(f"{len(cells)} cells, into {out}", file=sys.stderr)
    claim = partial(claim_folder, out, own, code)
    with _cluster(settings.scheduler) if executor is None else nullcontext(executor) as chosen:
        run_missing(study, cells, store, data_dir, settings.workers, claim, chosen)
    found = [result for cell in cells if (result := store.find(cell)) is not None]
    results = gathered(study, found, settings, given, store.spent)
    path = out / f"{study.name}.json"
    write_results(results, path)
    parts = study.shown(results)
    (out / f"{study.name}.txt").write_text(rendered(parts), encoding="utf-8")
    panels = study.panels(results)
    save({study.name: drawn(panels) if panels else None}, out, "png", "svg")
    study.report(results, out)
    print(rendered(parts, terminal_width(), colour=sys.stdout.isatty()))
    print(f"results: {path}")
    return study.status(results)


def _cluster(address: str | None) -> AbstractContextManager[Executor | None]:
    """The cluster at an address, None without one."""
    if address is None:
        return nullcontext()
    with extra("cluster"):
        from experiments.core.cluster import connected
    return connected(address)


def check_out(out: Path) -> None:
    """Raise ConfigurationError where no folder of results can be made."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise ConfigurationError("out", str(out), "it must be a folder, or one that can be made")


def check_held(out: Path, study: Study, own: str, code: provenance.Code) -> None:
    """Raise ConfigurationError if a folder holds results that this run must not be mixed with.

    Those are of another version of the code or, where a folder holds one run, of other settings.
    Results without a version or settings may be of any. own: the settings of this run.
    """
    held = ""
    if (out / CODE).is_file():
        before = read(out / CODE, provenance.Code, "code")
        held = "" if before == code else f"results of {before}, this is {code}"
    elif (out / CELLS).exists():
        held = f"results without their {CODE}"
    if study.alone and (out / RUN).is_file():
        differing = ", ".join(map(flag, differences(out / RUN, own)))
        held = f"a run of other settings ({differing})" if differing else held
    elif study.alone and any((out / name).exists() for name in (CELLS, f"{study.name}.json")):
        held = f"results without their {RUN}"
    if held:
        raise ConfigurationError("out", str(out), f"it holds {held}: use another folder")


def claim_folder(out: Path, own: str, code: provenance.Code) -> None:
    """Write a run's settings and code version into its folder. Raises OSError if that fails."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / RUN, lambda file: file.write(own.encode()))
    write(out / CODE, code, "code")


def _data_dir(settings: Any) -> Path | None:
    """The folder of image sets, for a study that has any."""
    if not hasattr(settings, "data_dir"):
        return None
    found = data_folder(settings.data_dir, os.environ.get("SECURE_FD_DATA"))
    return found and found.absolute()  # workers of a cluster have other working folders


def gathered(
    study: Study,
    found: Iterable[Result],
    settings: Any = None,
    given: Sequence[str] = (),
    spent: float | None = None,
) -> Results:
    """The results of these cells, made now and here, as their file has them.

    spent: CPU seconds of all tasks; by default the sum of the cells' own.
    """
    chosen = {} if settings is None else asdict(settings)
    cells = tuple(_as_filed(study, result) for result in found)
    return Results(
        schema=SCHEMA,
        study=study.name,
        command=command(study.script, given),
        settings={name: value for name, value in chosen.items() if name not in _OWN},
        seeds=tuple(sorted({r.cell.seed for r in cells if hasattr(r.cell, "seed")})),
        cpu_seconds=round(sum(r.seconds for r in cells) if spent is None else spent, 1),
        cells=cells,
        **provenance.facts(),
    )


def _as_filed(study: Study, result: Result) -> Result:
    """Round figures, so that pages show the same from a run and from its file."""
    content: Any = rounded(encode(result, "cell"))
    left_out = {"per_client", "curve"} - {*study.reads}
    found = decode(Result, {n: v for n, v in content.items() if n not in left_out}, "cell")
    return replace(found, cell=result.cell, pictures=result.pictures)


# Reading results.


def grouped(found: Iterable[Result], key: Callable[[Any], Key]) -> Mapping[Key, list[Result]]:
    """Results by a key of their cells, in the order in which keys first come.

    >>> sorted(grouped([Result("a", {}, 1.0), Result("bc", {}, 1.0)], len))
    [1, 2]
    """
    groups: dict[Key, list[Result]] = {}
    for result in found:
        groups.setdefault(key(result.cell), []).append(result)
    return groups


def moments(
    found: Sequence[Result], value: Callable[[Result], float] = lambda r: r.accuracy
) -> tuple[float, float]:
    """Mean and deviation of a value over seeds.

    >>> moments([Result("a", {"accuracy": .25}, 1.0), Result("b", {"accuracy": .75}, 1.0)])[0]
    0.5
    """
    values = [value(result) for result in found]
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
