"""Which committed figures are of the present code: check them, recompute them, stamp them.

python -m experiments.evidence check
python -m experiments.evidence refresh
python -m experiments.evidence rekey selectors --base CHECKOUT
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from experiments import provenance
from experiments.cli import data_folder
from experiments.definitions import ROOT
from experiments.leakage import AttackFigure
from experiments.measures import BYTES_UP
from experiments.page import updated
from experiments.pooled import KILOBYTES as KILOBYTES_UP
from experiments.study import (
    KEPT,
    Result,
    Results,
    Store,
    Study,
    draw,
    load,
    read_results,
    run_missing,
    write_results,
)
from secure_fd.endings import exit_status
from secure_fd.errors import ConfigurationError

STUDIES = tuple(
    f"experiments.{script}"
    for script in (
        *("tuning", "equal_terms"),
        *("accuracy_table", "selector_study", "thresholds", "communication"),
        *("heterogeneity", "alpha", "method_ablation"),
        *("dp_utility", "record_ablation", "attack_suite", "dafkd", "dafkd_theory"),
        *("generator_leakage", "heads", "vote_encodings", "foreign_proxies", "as_published"),
        *("pooled", "private_rivals", "privacy_audit"),
    )
)
"""The modules of all studies with committed results."""
COMPARISON = "experiments.privacy_compare"
"""Whose committed runs have names of their own."""
COMMITTED = ROOT / "docs" / "results"
PAGES = ("README.md", "docs/results.md", "docs/attacks.md", "docs/audit.md")
"""Pages with figures of committed files."""
TIMINGS = (
    *("rounds.json", "secure_aggregation.json", "secure_aggregation_growth.json"),
    *("many_machines.json", "flower_secagg.json"),
)
"""Of benchmarks: seconds of one machine, which no key could vouch for."""
_LINK = re.compile(r"results/([a-z0-9_]+)\.(?:json|md)")
_STALE = "Stale, made by an earlier version of the code: "
EXACT = 1e-12
"""Relative difference of two figures that count as equal."""
BYTES = "bytes of an earlier count"
"""Name of the note on a cell that was stamped although its bytes are counted otherwise now."""

_OF_BYTES = frozenset({BYTES_UP, KILOBYTES_UP})
"""Figures that count them."""


def stale(study: Study, results: Results) -> list[Result]:
    """The results that other definitions made than the present ones, or that carry no key."""
    return [found for found in results.cells if found.evidence != study.key(found.cell)]


def stale_line(study: Study, results: Results) -> str:
    """What a page says of a file with stale cells, or stale bytes; "" where there are none."""
    count = len(stale(study, results))
    if not count:
        recounted = any(BYTES in found.notes for found in results.cells)
        return f"Bytes in {study.name}.json are of an earlier count." if recounted else ""
    which = "All" if count == len(results.cells) else "Some"
    return f"Stale: made by an earlier version of the code. {which} cells of {study.name}.json."


def stale_files(folder: Path = COMMITTED) -> set[str]:
    """Names of committed files with stale cells; those without keys of their own are stale."""
    keyed = {f"{study.name}.json": study for study in map(load, (*STUDIES, COMPARISON))}
    files = (path for path in folder.glob("*.json") if path.name not in TIMINGS)
    return {path.name for path in files if _is_stale(keyed, path)}


def _is_stale(keyed: Mapping[str, Study], path: Path) -> bool:
    """A run of the comparison goes by any name, and says which study it is of."""
    study = keyed.get(path.name)
    if study is None:
        study = keyed.get(f"{json.loads(path.read_bytes()).get('study')}.json")
    return study is None or bool(stale(study, read_results(study, path)))


def stale_note(page: str, files: Iterable[str]) -> str:
    """What a page says of the stale files that it links to; "" where there are none.

    >>> stale_note("Of [a](results/a.json) and [b](results/b.json).", ["b.json", "c.json"])
    'Stale, made by an earlier version of the code: b.json.'
    """
    linked = _linked(page) & set(files)
    return f"{_STALE}{', '.join(sorted(linked))}." if linked else ""


def _linked(page: str) -> set[str]:
    """The results files that a page links to, by themselves or by their page of tables."""
    return {f"{name}.json" for name in _LINK.findall(page)}


def marked(page: str, files: Iterable[str]) -> str:
    """The page with its note between the markers of "stale"."""
    return updated(page, {"stale": stale_note(page, files)})


def unmarked(page: str, files: Iterable[str]) -> list[str]:
    """The stale files that a page links to and does not say to be stale."""
    linked = _linked(page) & set(files)
    said = "".join(line for line in page.splitlines() if line.startswith(_STALE))
    return sorted(name for name in linked if name not in re.split(r"[ ,]+|\.$", said))


# Recomputing.


def refresh(study: Study, path: Path, data_dir: Path | None, workers: int, cells: Path) -> int:
    """Measure a file's stale cells again and write them into it; returns how many were stale.

    Finished cells are in the folder `cells`; an interrupt keeps them.
    """
    results = read_results(study, path)
    todo = [found.cell for found in stale(study, results)]
    if not todo:
        return 0
    store = Store(cells, study)
    run_missing(study, todo, store, data_dir, workers)
    wanted = set(todo)
    merged = [(store.find(r.cell) or r) if r.cell in wanted else r for r in results.cells]
    made = replace(
        results,
        cells=tuple(merged),
        created=provenance.created_now(),
        versions=provenance.versions(*study.libraries),
        machine=provenance.machine(),
    )
    write_results(made, path)
    draw(study, made, path.parent)
    path.with_suffix(".png").unlink(missing_ok=True)  # pages show the SVG
    return len(todo)


# Stamping by equality.


def differences(before: Result, after: Result) -> list[str]:
    """Names of the figures of one cell that are not equal, but for bytes.

    Seconds and keys are no figures. Bytes, in figures and in curves, follow from the form of
    messages, not from what is learnt (see `same_bytes`).

    >>> differences(Result("a", {"accuracy": 0.5}, 1.0), Result("a", {"accuracy": 0.25}, 2.0))
    ['accuracy']
    """
    names = (before.figures.keys() | after.figures.keys()) - _OF_BYTES
    found = [name for name in sorted(names) if not _equal(before, after, name)]
    if not _all_equal(before.per_client, after.per_client):
        found.append("per_client")
    curves = [[v for p in r.curve for v in (p.round, p.accuracy)] for r in (before, after)]
    found += [] if _all_equal(*curves) else ["curve"]
    names = before.attacks.keys() | after.attacks.keys()
    return [*found, *(name for name in sorted(names) if not _same_attack(before, after, name))]


def same_bytes(before: Result, after: Result) -> bool:
    """Whether both have the same bytes up and down, in figures and at all points of a curve."""
    counts = [{name: r.figures.get(name) for name in _OF_BYTES} for r in (before, after)]
    up_down = [[v for p in r.curve for v in (p.up, p.down)] for r in (before, after)]
    return counts[0] == counts[1] and _all_equal(*up_down)


def _same_attack(before: Result, after: Result, name: str) -> bool:
    pair = [result.attacks.get(name) for result in (before, after)]
    figures = [f for f in pair if isinstance(f, AttackFigure)]
    if len(figures) < len(pair):
        return pair[0] == pair[1]
    one, other = ({"": f.figure, "control": f.control, **f.details} for f in figures)
    return one.keys() == other.keys() and _all_equal(*([d[n] for n in one] for d in (one, other)))


def _equal(before: Result, after: Result, name: str) -> bool:
    pair = [result.figures.get(name) for result in (before, after)]
    return None not in pair and _all_equal(*([v] for v in pair if v is not None))


def _all_equal(before: Sequence[float], after: Sequence[float]) -> bool:
    return len(before) == len(after) and all(
        abs(a - b) <= EXACT * max(abs(a), abs(b)) for a, b in zip(before, after, strict=True)
    )


def cheapest(
    study: Study, results: Results, count: int, image_set: str | None = None
) -> list[Result]:
    """The stale results that took the least time, of different roots where there are enough.

    image_set: where others would have to be mapped to features first, or are not on disk.
    """
    found = [r for r in stale(study, results) if image_set in (None, study.image_set(r.cell))]
    ordered = sorted(found, key=lambda result: result.seconds)
    first = {tuple(study.roots(found.cell)): found for found in reversed(ordered)}
    leading = sorted(first.values(), key=lambda found: found.seconds)
    rest = [found for found in ordered if found not in leading]
    return [*leading, *rest][:count]


def rekey(
    study: Study,
    path: Path,
    data_dir: Path | None,
    workers: int,
    cells: Path,
    count: int,
    image_set: str | None = None,
    base: Path | None = None,
) -> list[str]:
    """Measure `count` cheap cells again; where all figures are equal, stamp the file's cells.

    base: a checkout of the code that made the file, which then measures them again too: another
    processor's last digits are no difference between two versions. Returns one line a measured cell
    that differs: then nothing is stamped. Where bytes alone differ, every stamped cell carries the
    note `BYTES`. Raises ConfigurationError where no stale cell is of the image set, and where
    another version than `base` made the file.
    """
    results = read_results(study, path)
    chosen = cheapest(study, results, count, image_set)
    if image_set is not None and not chosen:
        raise ConfigurationError("image_set", image_set, f"{path.name} has no stale cell of it")
    if base is not None:
        chosen = measured_by(base, study, path, chosen, data_dir, workers)
    store = Store(cells, study)
    run_missing(study, [found.cell for found in chosen], store, data_dir, workers)
    unequal, notes = [], {}
    for before in chosen:
        after = store.find(before.cell)
        names = ["missing"] if after is None else differences(before, after)
        if after is not None and not same_bytes(before, after):
            notes = {BYTES: True}
        if names:
            unequal.append(f"{before.cell.label}: {', '.join(names)}")
    if not unequal:
        stamped = tuple(
            replace(r, evidence=study.key(r.cell), notes={**r.notes, **notes})
            for r in results.cells
        )
        write_results(replace(results, cells=stamped), path)
    return unequal


_MEASURE = """
import sys
from dataclasses import replace
from pathlib import Path
from experiments import evidence
from experiments.study import Store, load, read_results, run_missing, write_results

if __name__ == "__main__":
    name, path, labels, data_dir, workers, out = sys.argv[1:]
    study = next(study for study in map(load, evidence.STUDIES) if study.name == name)
    results = read_results(study, Path(path))
    if evidence.stale(study, results):
        sys.exit(3)
    cells = [found.cell for found in results.cells if found.cell.label in labels.splitlines()]
    store = Store(Path(out).parent, study)
    run_missing(study, cells, store, Path(data_dir) if data_dir else None, int(workers))
    write_results(replace(results, cells=tuple(map(store.find, cells))), Path(out))
"""
"""What runs in another checkout, with that checkout's code."""
_ANOTHER = 3
"""Its exit status where the results are of yet another version."""


def measured_by(
    base: Path,
    study: Study,
    path: Path,
    chosen: Sequence[Result],
    data_dir: Path | None,
    workers: int,
) -> list[Result]:
    """The results of these cells by the code of another checkout, on this machine.

    Raises ConfigurationError where that code did not make the file, or cannot run.
    """
    labels = "\n".join(found.cell.label for found in chosen)
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder) / "measure.py", Path(folder) / "measured.json"
        program.write_text(_MEASURE, encoding="utf-8")
        words = (study.name, path.resolve(), labels, data_dir or "", workers, out)
        done = subprocess.run(  # noqa: S603 - the program above, with the caller's own arguments
            [sys.executable, str(program), *map(str, words)],
            cwd=base,
            env={**os.environ, "PYTHONPATH": str(base.resolve())},
            check=False,
        )
        if done.returncode == _ANOTHER:
            raise ConfigurationError("base", str(base), f"{path.name} is of another version")
        if done.returncode:
            raise ConfigurationError("base", str(base), "its code cannot measure these cells")
        return list(read_results(study, out).cells)


# The command line.


@dataclass(frozen=True, slots=True)
class Settings:
    """Check, recompute or stamp the committed results of studies.

    check: name the stale files that a page does not mark. refresh: measure stale cells
    again. rekey: measure two cheap cells of a study again, and stamp all of its cells if these are
    equal in all figures.
    """

    action: tyro.conf.Positional[str]
    """check, refresh or rekey."""
    studies: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of studies; by default all."""
    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds the image sets that are not bundled, each in a folder of its name."""
    workers: int = 2
    """Processes that share the work."""
    cells: int = 2
    """Cells that rekey measures again."""
    image_set: str | None = None
    """Image set of these cells; by default any."""
    base: Path | None = None
    """A checkout of the version that made the results: rekey compares with what it measures."""


def main(settings: Settings) -> int:
    """Carry out an action; returns the exit status."""
    if settings.action not in ("check", "refresh", "rekey"):
        raise ConfigurationError("action", settings.action, "use check, refresh or rekey")
    if settings.action == "check":
        return _check()
    status, data_dir = 0, data_folder(settings.data_dir, os.environ.get("SECURE_FD_DATA"))
    for study in _chosen(settings.studies):
        path, cells = COMMITTED / f"{study.name}.json", Path("runs/evidence") / study.name
        if settings.action == "refresh":
            count = refresh(study, path, data_dir, settings.workers, cells)
            print(f"{study.name}: {count} stale cells measured again")
            continue
        count, images, base = settings.cells, settings.image_set, settings.base
        unequal = rekey(study, path, data_dir, settings.workers, cells, count, images, base)
        status = status or int(bool(unequal))
        print(f"{study.name}: {'; '.join(unequal) if unequal else 'equal, stamped'}")
    return status


def _check() -> int:
    files, status = stale_files(), 0
    for page in PAGES:
        names = unmarked((ROOT / page).read_text(encoding="utf-8"), files)
        status = status or int(bool(names))
        if names:
            missing = ", ".join(names)
            print(f"{page} does not mark as stale: {missing}. Run experiments/results_page.py.")
    return status


def _chosen(names: Sequence[str]) -> list[Study]:
    every = {study.name: study for study in map(load, STUDIES)}
    for name in names:
        if name not in every:
            raise ConfigurationError("studies", name, f"use one or more of {', '.join(every)}")
    return [study for name, study in every.items() if not names or name in names]


if __name__ == "__main__":
    chosen = tyro.cli(Settings, prog="python -m experiments.evidence")
    sys.exit(exit_status(lambda: main(chosen), interrupted=KEPT))
