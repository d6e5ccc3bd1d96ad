"""Keys of definitions, and what they decide about committed figures."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from experiments import definitions, evidence
from experiments.definitions import ROOT, Code
from experiments.evidence import (
    COMMITTED,
    COMPARISON,
    PAGES,
    STUDIES,
    differences,
    marked,
    rekey,
    same_bytes,
    stale,
    stale_files,
    stale_line,
    unmarked,
)
from experiments.leakage import AttackFigure
from experiments.measures import BYTES_UP
from experiments.results_page import table_pages
from experiments.study import Result, Results, load, read_results, write_results
from secure_fd.errors import ConfigurationError

BEFORE = {
    "p/__init__.py": "",
    "p/cell.py": '''
"""A study."""
from p import other
from p.steps import RATE, half, Method
from p.steps import step as moved

SIZE = 3


def measure(x: int) -> float:
    """Measure."""
    # twice
    return moved(x) * SIZE + other.offset(RATE) + Method().run(x)


def elsewhere() -> int:
    return 5
''',
    "p/steps.py": '''
RATE = 0.5
UNUSED = 7


def half(x):
    return x / 2


def step(x: float) -> float:
    return half(x) + 1


class Method:
    """A method."""

    weight: float = 2.0

    def run(self, x):
        return self.weight * x


class Another:
    def run(self, x):
        return 3 * x
''',
    "p/other.py": "def offset(x):\n    return -x\n",
}


def key(folder: Path, files: Mapping[str, str], root: str = "p.cell:measure") -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Code(folder, ("p",)).key((root,))


def edited(name: str, old: str, new: str) -> dict[str, str]:
    assert old in BEFORE[name]
    return {**BEFORE, name: BEFORE[name].replace(old, new)}


@pytest.mark.parametrize(
    "change",
    [
        ("p/cell.py", '"""Measure."""', '"""Measure once more."""'),
        ("p/cell.py", "# twice", "# a comment\n\n"),
        ("p/cell.py", "x: int) -> float", "x: float) -> int"),
        ("p/steps.py", "weight: float", "weight: int"),
        ("p/cell.py", "return 5", "return 6"),
        ("p/steps.py", "UNUSED = 7", "UNUSED = 8"),
        ("p/steps.py", "3 * x", "4 * x"),
        ("p/steps.py", "class Another", "class New:\n    pass\n\n\nclass Another"),
    ],
)
def test_what_no_cell_runs_voids_nothing(tmp_path: Path, change: tuple[str, str, str]) -> None:
    name, old, new = change
    assert key(tmp_path / "a", BEFORE) == key(tmp_path / "b", edited(name, old, new))


def test_another_name_for_an_import_voids_nothing(tmp_path: Path) -> None:
    after = {**BEFORE, "p/cell.py": BEFORE["p/cell.py"].replace("moved", "renamed")}
    assert key(tmp_path / "a", BEFORE) == key(tmp_path / "b", after)


def test_a_moved_definition_and_a_renamed_module_void_nothing(tmp_path: Path) -> None:
    before = key(tmp_path / "a", BEFORE)
    renamed = {
        "p/__init__.py": "",
        "p/deep/__init__.py": "",
        "p/deep/steps.py": BEFORE["p/steps.py"],
        "p/deep/far.py": BEFORE["p/other.py"],
        "p/study.py": BEFORE["p/cell.py"]
        .replace("from p import other", "from .deep import far as other")
        .replace("p.steps", "p.deep.steps"),
    }
    assert key(tmp_path / "b", renamed, "p.study:measure") == before
    joined = {
        **BEFORE,
        "p/steps.py": BEFORE["p/steps.py"] + BEFORE["p/other.py"],
        "p/other.py": "",
        "p/cell.py": BEFORE["p/cell.py"].replace(
            "from p import other", "from p import steps as other"
        ),
    }
    assert key(tmp_path / "c", joined) == before


@pytest.mark.parametrize(
    "change",
    [
        ("p/cell.py", "SIZE = 3", "SIZE = 4"),
        ("p/steps.py", "RATE = 0.5", "RATE = 0.25"),
        ("p/steps.py", "x / 2", "x / 4"),
        ("p/steps.py", "weight: float = 2.0", "weight: float = 3.0"),
        ("p/other.py", "return -x", "return x"),
        ("p/cell.py", "moved(x) * SIZE", "half(x) * SIZE"),
        ("p/steps.py", "RATE = 0.5", "RATE = 0.5\nRATE += 1"),
        ("p/steps.py", "UNUSED = 7", "print(RATE)"),
    ],
)
def test_a_changed_line_of_what_a_cell_runs_voids_it(
    tmp_path: Path, change: tuple[str, str, str]
) -> None:
    assert key(tmp_path / "a", BEFORE) != key(tmp_path / "b", edited(*change))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("registry", "TABLE = {'a': first}\ndef measure(x):\n    return TABLE['a'](x)\n"),
        ("lazy", "def measure(x):\n    from p.cell import first as f\n    return f(x)\n"),
        ("default", "def measure(x, f=first):\n    return f(x)\n"),
        ("shadow", "def measure(x):\n    return [first(y) for y in x]\n"),
        ("decorator", "@first\ndef measure(x):\n    return x\n"),
        ("base", "class measure(first):\n    pass\n"),
        ("attribute", "def measure(x):\n    return first.of(x)\n"),
        ("item", "TABLE = {}\nTABLE['a'] = first\ndef measure(x):\n    return TABLE['a'](x)\n"),
        ("branch", "if True:\n    A = first\ndef measure(x):\n    return A(x)\n"),
    ],
)
def test_references_of_every_kind_are_followed(tmp_path: Path, kind: str, source: str) -> None:
    files = {"p/__init__.py": "", "p/cell.py": f"def first(x):\n    return x + 1\n\n\n{source}"}
    other = {**files, "p/cell.py": files["p/cell.py"].replace("x + 1", "x + 2")}
    assert key(tmp_path / "a", files) != key(tmp_path / "b", other), kind


def test_two_definitions_that_change_places_void_a_cell(tmp_path: Path) -> None:
    text = "def a():\n    return 1\ndef b():\n    return 2\ndef measure():\n    return a() - b()\n"
    swapped = text.replace("a() - b()", "b() - a()")
    files = {"p/__init__.py": "", "p/cell.py": text}
    assert key(tmp_path / "a", files) != key(tmp_path / "b", {**files, "p/cell.py": swapped})


def test_a_dispatch_is_not_followed_and_may_grow(tmp_path: Path) -> None:
    text = (
        "from p.marks import dispatched\n"
        "def first(x):\n    return x\n"
        "@dispatched\ndef choose(name):\n    return {'first': first}[name]\n"
        "def measure(x):\n    return choose('first')(x)\n"
    )
    files = {"p/__init__.py": "", "p/marks.py": "def dispatched(f):\n    return f\n"}
    more = text.replace("{'first': first}", "{'first': first, 'second': measure}")
    other = text.replace("    return x\n@", "    return 2 * x\n@")
    one = key(tmp_path / "a", {**files, "p/cell.py": text})
    assert key(tmp_path / "b", {**files, "p/cell.py": more}) == one
    assert key(tmp_path / "c", {**files, "p/cell.py": other}) == one
    stated = [
        Code(tmp_path / folder, ("p",)).key(("p.cell:measure", "p.cell:first")) for folder in "ac"
    ]
    assert stated[0] != stated[1]


def test_only_asking_for_a_class_does_not_run_it(tmp_path: Path) -> None:
    text = "class A:\n    b = 1\ndef measure(x):\n    return isinstance(x, A)\n"
    files = {"p/__init__.py": "", "p/cell.py": text}
    other = {**files, "p/cell.py": text.replace("b = 1", "b = 2")}
    assert key(tmp_path / "a", files) == key(tmp_path / "b", other)


def test_a_root_that_is_not_defined_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"root: 'p\.cell:gone'"):
        key(tmp_path, BEFORE, "p.cell:gone")


def test_a_librarys_version_is_part_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = ("secure_fd.errors:LocalError",)
    before = definitions.key(roots)
    monkeypatch.setattr(metadata, "version", lambda name: "0.0" if name == "torch" else "1.0")
    definitions._KEYS.clear()
    after = definitions.key(roots)
    definitions._KEYS.clear()
    assert before != after


def test_a_key_that_forgets_constants_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: it takes no constant for a definition, so that none can void a cell."""
    bound = definitions._bound
    monkeypatch.setattr(
        definitions, "_bound", lambda s: bound(s) if hasattr(s, "body") else {"nothing"}
    )
    one = edited("p/cell.py", "SIZE = 3", "SIZE = 4")
    assert key(tmp_path / "a", BEFORE) == key(tmp_path / "b", one)


@pytest.mark.parametrize("module", STUDIES)
def test_every_root_of_every_committed_cell_is_defined(module: str) -> None:
    study = load(module)
    for found in read_results(study, COMMITTED / f"{study.name}.json").cells:
        assert len(study.key(found.cell)) == 16


# Committed figures.

STUDY = load("experiments.heterogeneity")


def committed() -> Results:
    return read_results(STUDY, COMMITTED / "heterogeneity.json")


def stamped() -> Results:
    found = committed()
    return replace(found, cells=tuple(replace(r, evidence=STUDY.key(r.cell)) for r in found.cells))


def test_stale_cells_are_said_to_be(tmp_path: Path) -> None:
    fresh = stamped()
    assert stale_line(STUDY, fresh) == ""
    one = replace(fresh, cells=(replace(fresh.cells[0], evidence="0" * 16), *fresh.cells[1:]))
    assert stale(STUDY, one) == [one.cells[0]]
    assert "Some cells of heterogeneity.json" in stale_line(STUDY, one)
    for module in STUDIES:
        study = load(module)
        found = read_results(study, COMMITTED / f"{study.name}.json")
        keyed = tuple(replace(r, evidence=study.key(r.cell)) for r in found.cells)
        write_results(replace(found, cells=keyed), tmp_path / f"{study.name}.json")
    assert stale_files(tmp_path) == set()
    write_results(one, tmp_path / "heterogeneity.json")
    (tmp_path / "unkeyed.json").write_text("{}")
    (tmp_path / "rounds.json").write_text("{}")
    assert stale_files(tmp_path) == {"heterogeneity.json", "unkeyed.json"}


def test_a_run_of_the_comparison_is_found_by_what_it_says_it_is(tmp_path: Path) -> None:
    study = load(COMPARISON)
    found = read_results(study, COMMITTED / "mnist5k.json")
    keyed = tuple(replace(r, evidence=study.key(r.cell)) for r in found.cells)
    write_results(replace(found, cells=keyed), tmp_path / "fresh.json")
    older = (replace(keyed[0], evidence="0" * 16), *keyed[1:])
    write_results(replace(found, cells=older), tmp_path / "older.json")
    assert stale_files(tmp_path) == {"older.json"}


def test_a_page_marks_the_stale_files_that_it_links_to() -> None:
    page = "Of [a](results/a.json).\n<!-- stale -->\n<!-- /stale -->"
    assert unmarked(page, ["a.json", "b.json"]) == ["a.json"]
    assert unmarked(marked(page, ["a.json", "b.json"]), ["a.json", "b.json"]) == []
    assert unmarked(marked(page, ["a.json"]).replace(": a.json", ": data.json"), ["a.json"])
    assert marked(marked(page, ["a.json"]), []) == marked(page, [])


def test_equal_cells_stamp_a_file_and_unequal_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "heterogeneity.json"
    by_cell = {found.cell: found for found in committed().cells}

    def recompute(change: float, more: float = 0.0) -> list[str]:
        blank = tuple(replace(found, evidence="") for found in committed().cells)
        write_results(replace(committed(), cells=blank), path)

        def run(_study: object, cells: list[object], store: evidence.Store, *_: object) -> None:
            for cell in cells:
                before: Result = by_cell[cell]  # type: ignore[index]
                figures = {n: min(v + change, 1.0) for n, v in before.figures.items()}
                curve = tuple(replace(point, up=point.up + more) for point in before.curve)
                store.save(replace(before, figures=figures, curve=curve, seconds=9.0))

        monkeypatch.setattr(evidence, "run_missing", run)
        return rekey(STUDY, path, None, 1, tmp_path / f"{change} {more}", 2)

    unequal = recompute(1e-6)
    assert len(unequal) == 2
    assert "accuracy" in unequal[0]
    assert len(stale(STUDY, read_results(STUDY, path))) == len(by_cell)
    assert recompute(0.0) == []
    assert stale(STUDY, read_results(STUDY, path)) == []
    assert stale_line(STUDY, read_results(STUDY, path)) == ""
    assert recompute(0.0, more=1.0) == []
    assert stale(STUDY, read_results(STUDY, path)) == []
    assert "of an earlier count" in stale_line(STUDY, read_results(STUDY, path))


def test_a_difference_is_named() -> None:
    one = Result("a", {"accuracy": 0.5, "sum": 1.0}, 1.0, (0.5,))
    assert differences(one, replace(one, seconds=2.0, evidence="x")) == []
    assert differences(one, replace(one, per_client=(0.25,))) == ["per_client"]
    assert differences(one, replace(one, figures={"accuracy": 0.5})) == ["sum"]
    attacked = replace(one, attacks={"a": "not run: it is slow"})
    assert differences(attacked, attacked) == []
    assert differences(one, attacked) == ["a"]


def test_bytes_of_a_figure_are_told_apart_from_what_was_learnt() -> None:
    one = Result("a", {"accuracy": 0.5, BYTES_UP: 10.0}, 1.0)
    other = replace(one, figures={"accuracy": 0.5, BYTES_UP: 12.0})
    assert differences(one, other) == []
    assert same_bytes(one, one)
    assert not same_bytes(one, other)


@pytest.mark.parametrize("page", PAGES)
def test_pages_mark_every_stale_figure_that_is_committed(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert unmarked(text, stale_files()) == []


def test_the_committed_tables_are_those_of_the_committed_results() -> None:
    found = {path.stem: path.read_text(encoding="utf-8") for path in COMMITTED.glob("*.md")}
    assert found == table_pages(COMMITTED)


EQUAL_TERMS = (
    ("mnist,fashion_mnist", "strong", "20,21,22"),
    ("mnist,fashion_mnist", "iid", "20"),
    ("cifar10_features", "strong", "20,21,22"),
    ("cifar10_features", "iid,weak", "20"),
    ("chest_xray", "strong", "20,21,22,23"),
)
"""Image sets, splits and seeds that were run."""


@pytest.mark.parametrize("module", STUDIES)
def test_the_committed_results_have_every_cell_that_a_script_asks_for(module: str) -> None:
    """But for soft labels in the ablation of image networks, for seed 12 of two splits, and for
    pooled sums of other sets than MNIST-5k, for private rivals of other cells than were begun, for
    equal terms and tuning elsewhere than was run, and for the accuracy of vote encodings between
    two and six bits.

    docs/results.md says all.
    """
    study = load(module)
    found = {r.cell for r in read_results(study, COMMITTED / f"{study.name}.json").cells}
    settings = study.settings()
    asked = [settings]
    if study.name == "equal_terms":  # other places have no tuned setting to ask with
        asked = [
            replace(settings, image_sets=sets, splits=splits, seeds=seeds)
            for sets, splits, seeds in EQUAL_TERMS
        ]
    cells = [cell for settings in asked for cell in study.cells(settings)]
    missing = [cell for cell in cells if cell not in found]
    if study.name == "ablation":
        features = "cifar10_features"
        missing = [c for c in missing if c.labels == "hard" or c.image_set == features]
    if study.name == "dp_utility":
        missing = [c for c in missing if c.seed != 12 or c.split == "strong"]
    if study.name == "tuning":
        missing = [c for c in missing if c.split == "strong" or "mnist" not in c.image_set]
    if study.name == "vote_encodings":
        least_and_most = ("2 bits", "6 bits")
        missing = [c for c in missing if c.game == "membership" or c.encoding in least_and_most]
    if study.name == "pooled":
        missing = [c for c in missing if c.image_set == "mnist5k"]
    if study.name == "private_rivals":
        begun = ("pooled", "gd", "sgd", "afl")
        missing = [c for c in missing if (c.image_set, c.seed) == ("mnist", 20) and c.row in begun]
    assert [cell.label for cell in missing] == []


FIGURES = {
    "ablation": "4f6a9e2f117f0eed",
    "accuracy": "6bf605d8e0897272",
    "alpha": "35605d305e73978c",
    "attack_suite": "9143403d5dd4fa72",
    "communication": "0074805daf55b69b",
    "dp_utility": "64aa69cc8bdc3f37",
    "heterogeneity": "0c1345b1ecbe6666",
    "record_ablation": "fb404d566b694ee6",
    "selectors": "ac030b77a227c1c5",
    "thresholds": "08a5af1de7473d98",
}
"""By study, a digest of all figures of cells that carry no key: as they were first committed."""


@pytest.mark.parametrize("module", STUDIES)
def test_figures_without_a_key_are_as_they_were_committed(module: str) -> None:
    study = load(module)
    results = read_results(study, COMMITTED / f"{study.name}.json")
    if any(found.evidence for found in results.cells):
        return  # they were measured again, or found equal
    digest = hashlib.sha256(json.dumps([numbers(r) for r in results.cells]).encode()).hexdigest()
    assert digest[:16] == FIGURES[study.name]


def numbers(found: Result) -> list[float]:
    """All figures of a cell, in ascending order: names may change, numbers may not."""
    curve = [(p.round, p.accuracy, p.up, p.down) for p in found.curve]
    values = [*found.figures.values(), *found.per_client, *(v for point in curve for v in point)]
    attacks = [a for a in found.attacks.values() if isinstance(a, AttackFigure)]
    values += [v for a in attacks for v in (a.figure, *a.interval, a.control, *a.details.values())]
    return sorted(map(float, values))
