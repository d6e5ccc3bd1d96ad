"""The engine of all studies: what a rerun runs, what an interrupt keeps, what a file must hold."""

import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.core import provenance
from experiments.core import study as engine
from experiments.core.files import write
from experiments.core.grid import default_cell
from experiments.core.provenance import Code
from experiments.core.run_config import COUNTED, Privacy, RunConfig
from experiments.core.study import (
    CELLS,
    CODE,
    Point,
    Result,
    Store,
    check_held,
    claim_folder,
    gathered,
    in_worker,
    key_of,
    load,
    read_results,
    run_missing,
    write_results,
)
from experiments.report.results_page import MODULES
from experiments.report.tables import rendered
from secure_fd.errors import LocalError
from tests.refusals import refused

ROOT = Path(__file__).parents[2]
ACCURACY = load("experiments.paper.accuracy")
CELL = default_cell("digits", "strong", 10)


def some_result(cell: RunConfig, accuracy: float = 0.5) -> Result:
    points = (Point(1, 0.25, 10.0, 20.0), Point(2, accuracy, 20.0, 40.0))
    figures = {"accuracy": accuracy, "sum": 0.75}
    return Result(cell, figures, 1.5, (accuracy, accuracy), points, {"guarantee": "None."})


def others() -> list[RunConfig]:
    hard = replace(CELL, method="selective-fd", labels="hard", selector="ratio")
    return [
        replace(CELL, seed=11),
        replace(CELL, rounds=CELL.rounds + 1),
        replace(CELL, schedule=replace(CELL.schedule, proxy_steps=7)),
        replace(CELL, method="fedavg", model="mlp-1024-1024"),
        hard,
        replace(hard, variant=COUNTED),
        replace(hard, secure="masks"),
        replace(hard, privacy=Privacy("record", 4.0)),
        replace(hard, privacy=Privacy("label", None)),
        replace(CELL, method="true-labels", alpha=0.5),
    ]


# The store.


def test_whatever_a_cell_depends_on_is_in_its_name(tmp_path):
    store = Store(tmp_path, ACCURACY)
    store.save(some_result(CELL))
    assert Store(tmp_path, ACCURACY).find(CELL) == store.find(CELL) == some_result(CELL)
    assert len({key_of(cell) for cell in [CELL, *others()]}) == 1 + len(others())
    assert [store.find(cell) for cell in others()] == [None] * len(others())


def test_a_line_that_was_cut_off_is_written_again(tmp_path):
    store = Store(tmp_path, ACCURACY)
    store.save(some_result(CELL))
    whole = store.lines.read_bytes()
    store.lines.write_bytes(whole + whole[: len(whole) // 2])
    store = Store(tmp_path, ACCURACY)
    assert list(store.found.values()) == [some_result(CELL)]
    store.save(some_result(others()[0]))
    assert len(Store(tmp_path, ACCURACY).found) == 2


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"rounds"', '"turns"', "cell"),
        ('"rounds": 30', '"rounds": 2.5', "cell.rounds"),
        ("1.5", "NaN", "results"),
        ("0.5", "1.5", "accuracy"),
        ("}", "", CELLS),
    ],
)
def test_a_damaged_file_is_refused_by_the_field(tmp_path, old, new, field):
    store = Store(tmp_path, ACCURACY)
    store.save(some_result(CELL))
    whole = store.lines.read_text(encoding="utf-8")
    assert old in whole
    store.lines.write_text(whole.replace(old, new), encoding="utf-8")
    with refused(field):
        Store(tmp_path, ACCURACY)


def test_results_survive_the_disk_and_other_schemas_do_not(tmp_path):
    path = tmp_path / "accuracy.json"
    made = gathered(ACCURACY, map(some_result, [CELL, *others()]))
    write_results(made, path)
    assert read_results(ACCURACY, path) == made
    with refused("schema"):
        replace(made, schema="secure-fd/study/0")
    with refused("cells"):
        replace(made, cells=(*made.cells, made.cells[0]))
    with refused("study"):
        read_results(load("experiments.paper.alpha"), path)
    path.write_text("[]")
    with refused("schema"):
        read_results(ACCURACY, path)


def test_a_file_has_what_pages_read_and_each_configuration_once(tmp_path):
    seeds = [replace(some_result(replace(CELL, seed=s), s / 30), seconds=s / 7) for s in (10, 11)]
    seeds[0] = replace(seeds[0], attacks={"lira": "not run: it is slow"})  # one seed alone
    seeds[1] = replace(seeds[1], notes={"guarantee": "None.", "lost": [3]})
    drawing = replace(ACCURACY, reads=("curve", "per_client"))
    for study, kept in ((ACCURACY, (0, 0)), (drawing, (2, 2))):
        made = gathered(study, seeds)
        write_results(made, tmp_path / "accuracy.json")
        assert read_results(study, tmp_path / "accuracy.json") == made
        assert [r.accuracy for r in made.cells] == [0.33333, 0.36667]
        assert (len(made.cells[0].per_client), len(made.cells[0].curve)) == kept
    text = (tmp_path / "accuracy.json").read_text()
    assert text.count("warmup_steps") == text.count('"each"') == 1
    assert '"seed":[10,11]' in text


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"seconds":[1.5,1.5]', '"seconds":[1.5]', "results.cells"),
        ('"each"', '"every"', "results.cells"),
        ('"seed":[10,11]', '"seed":[10,10]', "cells"),
        ('"figures":', '"figure":', "results.cells[0]"),
        ('"sum":[0.75,0.75]', '"sum":0.75', "results.cells"),
        ('"cpu_seconds"', '"seconds"', "results"),
        ('"rounds":30', '"rounds":30,"clients":10', "cell.clients"),
    ],
)
def test_a_results_file_is_read_strictly(tmp_path, old, new, field):
    path = tmp_path / "accuracy.json"
    write_results(gathered(ACCURACY, map(some_result, [CELL, replace(CELL, seed=11)])), path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with refused(field):
        read_results(ACCURACY, path)


def test_committed_results_are_small():
    sizes = {path: path.stat().st_size for path in (ROOT / "docs" / "results").iterdir()}
    assert [
        path.name for path, size in sizes.items() if path.suffix == ".json" and size > 100_000
    ] == []
    assert sum(sizes.values()) <= 1_500_000


class Here:
    """Runs tasks in this process."""

    def __init__(self):
        self.begun = []

    def each(self, calls):
        for item, call, given in calls:
            self.begun.append(getattr(item, "label", item))
            yield item, (found := call(*given)), found


def test_an_interrupt_keeps_finished_cells_and_a_rerun_does_the_rest(tmp_path, monkeypatch):
    """With a stand-in for training; a Ctrl-C arrives in the third cell."""
    cells, prepared, begun, tasks = others()[4:7], [], [], Here()

    def prepare(_, part):
        prepared.append(part)
        return "ready"

    def measure(_, cell, made):
        assert made == {"part": "ready"}
        begun.append(cell)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return some_result(cell)

    study = replace(ACCURACY, prepare=prepare, measure=measure, needs=lambda _: ("part",))
    monkeypatch.setattr(engine, "load", lambda _: study)
    monkeypatch.setattr("experiments.core.pool.working", lambda *_: nullcontext(tasks))
    with pytest.raises(KeyboardInterrupt):
        run_missing(study, cells, Store(tmp_path, study), None, 1)
    store = Store(tmp_path, study)
    run_missing(study, cells, store, None, 1)
    assert (begun, prepared) == ([*cells, cells[2]], ["part", "part"])
    assert set(store.found.values()) == {some_result(cell) for cell in cells}
    assert tasks.begun == ["part", *(cell.label for cell in cells), "part", cells[2].label]


def test_others_go_on_after_a_cell_that_fails(tmp_path, monkeypatch):
    cells = others()[4:7]

    def measure(_, cell, __):
        if cell == cells[0]:
            raise LocalError("training has diverged")
        return some_result(cell)

    study = replace(ACCURACY, measure=measure, needs=lambda _: ())
    monkeypatch.setattr(engine, "load", lambda _: study)
    monkeypatch.setattr("experiments.core.pool.working", lambda *_: nullcontext(Here()))
    store = Store(tmp_path, study)
    with pytest.raises(LocalError, match=r"1 of 3 cells failed; .*: training"):
        run_missing(study, cells, store, None, 1)
    assert [result.cell for result in store.found.values()] == cells[1:]


def test_code_that_was_edited_in_the_meantime_measures_no_cell():
    with refused("code"):
        in_worker(ACCURACY.module, Code("another"), None, "prepare", CELL.start)


# The version of the code.


def git(folder: Path, *arguments: str) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *named, *arguments], check=True)  # noqa: S603, S607


@pytest.fixture
def repository(tmp_path):
    """A repository with one committed module."""
    folder = tmp_path / "repository"
    (folder / "secure_fd").mkdir(parents=True)
    (folder / "secure_fd" / "one.py").write_text("ONE = 1\n")
    (folder / "README.md").write_text("Read.\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    return folder


def test_the_version_is_the_commit_and_any_change_to_the_code(repository):
    clean = provenance.code(repository)
    assert len(clean.commit) == 40
    assert not clean.dirty
    (repository / "README.md").write_text("No figure depends on it.\n")
    assert provenance.code(repository) == clean
    (repository / "secure_fd" / "one.py").write_text("ONE = 2\n")
    changed = provenance.code(repository)
    assert changed.dirty
    (repository / "secure_fd" / "two.py").write_text("TWO = 1\n")
    added = provenance.code(repository)
    (repository / "secure_fd" / "two.py").write_text("TWO = 2\n")
    assert len({clean, changed, added, provenance.code(repository)}) == 4
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "two")
    code = provenance.code(repository)
    assert code.commit != clean.commit
    assert not code.dirty
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "docs")
    assert provenance.code(repository) == code


def test_a_folder_resumes_with_the_same_code_only(tmp_path):
    code = Code("0" * 40)
    check_held(tmp_path, ACCURACY, "", code)
    (tmp_path / CELLS).touch()
    with refused("out"):
        check_held(tmp_path, ACCURACY, "", code)  # cells of unknown code
    claim_folder(tmp_path, "", code)
    check_held(tmp_path, ACCURACY, "", code)
    for other in (Code("1" * 40), Code("0" * 40, "changes")):
        with refused("out"):
            check_held(tmp_path, ACCURACY, "", other)


# The command line.


@pytest.mark.parametrize("module", MODULES)
def test_a_study_has_a_script_and_unique_cells_and_few_in_a_quick_run(module):
    study = load(module)
    assert f'main("{module}")' in (ROOT / "experiments" / study.script).read_text(encoding="utf-8")
    asked = [study.settings()]
    if study.name == "equal_terms":
        asked = [study.settings(image_sets="mnist")]
    if hasattr(study.settings, "quick"):
        asked.append(study.settings(quick=True))
    for settings in asked:
        made = study.cells(settings)
        assert len(set(made)) == len(made) == len({key_of(cell) for cell in made})
        assert len({cell.label for cell in made}) == len(made)
    assert len(made) <= 180


@pytest.mark.parametrize("module", MODULES)
def test_a_study_writes_and_shows_results_of_its_own(tmp_path, module):
    """With the committed results, so that no study fails after hours of measuring."""
    study = load(module)
    path, again = ROOT / "docs" / "results" / f"{study.name}.json", tmp_path / "again.json"
    if path.exists():
        found = read_results(study, path)
        write_results(found, again)
        assert again.read_bytes() == path.read_bytes()
        assert rendered(study.shown(found)).strip()
        assert bool(study.panels and study.panels(found)) == path.with_suffix(".svg").exists()


def test_with_all_cells_done_the_rest_is_written_at_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")  # the file's width
    study, out = load("experiments.paper.heterogeneity"), tmp_path / "made"
    store = Store(out, study)
    expected = [some_result(cell) for cell in study.cells(study.settings(quick=True))]
    for result in expected:
        store.save(result)
    write(out / CODE, provenance.code(), "code")
    asked = ["--quick", "--out", str(out), "--data-dir", str(tmp_path)]
    assert engine.main("experiments.paper.heterogeneity", asked) == 0
    found = read_results(study, out / "heterogeneity.json")
    assert [r.figures for r in found.cells] == [r.figures for r in expected]
    assert found.command[-4:] == ["--out", "OUT", "--data-dir", "DATA_DIR"]
    assert str(tmp_path) not in str(found.settings)
    assert (out / "heterogeneity.txt").read_text(encoding="utf-8") in capsys.readouterr().out
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        assert (out / f"heterogeneity.{kind}").read_bytes().startswith(start)
