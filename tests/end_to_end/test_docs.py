"""Every block of code in README and docs/ runs, at a size that the list below states.

A block that is not on the list fails. `SECURE_FD_DOCS=full` (`make test-long`) runs the blocks as
they stand, and also those that cannot be made small.
"""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from PIL import Image

from experiments.core import pool
from secure_fd.cli import main
from secure_fd.data import patches
from secure_fd.data.image_sets import IMAGE_SETS, Sizes
from tests.drivers.flower_federation import image_folders
from tests.programs import ROOT, ended, environment

FULL = os.environ.get("SECURE_FD_DOCS") == "full"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^( *)```(python|sh)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
SCHEDULE = "fd.Schedule(4, 1, 2, proxies_per_round=60)"
STEPS = f"schedule={SCHEDULE},\n    "
RECIPE = f"recipe=fd.Recipe(1, {SCHEDULE})"
ROWS = "--rows fedavg --attacks none --workers 1 --rounds 1"
PRIVATE = ROWS.replace("fedavg", "fedavg,heads-masks-dp-record")
OWN = ROWS.replace("fedavg", "majority-masks")


@dataclass(frozen=True)
class Block:
    """Rule for running one block.

    start: text of its first line. small: replacements that make it quick. fill: replacements for
    what the reader fills in. full: why it runs in full mode alone. never: why it never runs.
    """

    start: str
    small: tuple[tuple[str, str], ...] = ()
    fill: tuple[tuple[str, str], ...] = ()
    full: str = ""
    never: str = ""


COMPARE = (("--quick", f"--quick {PRIVATE}"),)
SIMULATE = (
    ("clients=10, ", ""),
    ('"digits"', f'"digits", clients=3, {RECIPE}'),
    ("rounds=3", "rounds=1"),
)
SCRIPT = (
    (
        "python experiments/privacy_compare.py",
        f"secure-fd compare --dataset digits --clients 3 --quick {ROWS}",
    ),
)
INSTALLS = "it installs software"
MINUTES = "it takes minutes"
MACHINES = "it takes processes on several machines: see test_flower_processes.py"
PROCESSES = "four processes of Flower, half a minute"
OWN_GAME = "a game of eight federations, half a minute"
FILLED = (
    ("cards/*", "NORTH/home/*.toml cards/*"),
    ("--proxies proxies", "--proxies proxies --size 16"),
    ("HOST", "localhost"),
)
BLOCKS = {
    "README.md": [
        Block("make demo", never="it installs software; see the test of the targets below"),
        Block("import secure_fd", SIMULATE),
    ],
    "docs/tutorial.md": [
        Block("python -m venv", never=INSTALLS),
        Block("# make_folders.py", (("140", "20"),)),
        Block("python make_folders.py"),
        Block("secure-fd compare", COMPARE),
        Block(
            "# attack.py",
            (
                ("fd.simulate(data", f"fd.simulate(data, {RECIPE}"),
                ("rounds=5", "rounds=1"),
            ),
        ),
        Block("python attack.py"),
        Block("secure-fd check", full=OWN_GAME),
    ],
    "docs/howto/own_data.md": [
        Block("secure-fd compare --images clinics", (("--quick", f"--quick {ROWS}"),)),
        Block("secure-fd compare --images scans", (("--quick", f"--quick {ROWS}"),)),
        Block(
            "import secure_fd",
            (('secure="masks"', f'secure="masks", {RECIPE}'), ("=3)", "=1)")),
        ),
        Block("# my_data.py"),
        Block("secure-fd compare --federation", (("--quick", f"--quick {ROWS}"),)),
        Block("secure-fd columns", (("--quick", f"--quick {ROWS}"),)),
        Block("import numpy"),
        Block(
            "from torch import nn",
            (
                ("rounds(3)", "rounds(1)"),
                ("clients=10", "clients=3"),
                ("aggregation=", f"{STEPS}aggregation="),
            ),
        ),
    ],
    "docs/howto/own_method.md": [
        Block("import torch", SIMULATE),
        Block("from dataclasses", SIMULATE),
        Block(
            "secure-fd compare --quick --methods",
            (("compare", f"compare --dataset digits --clients 3 {OWN}"),),
        ),
        Block("import secure_fd", (("rounds=2", "rounds=1"), *SIMULATE)),
        Block(
            "secure-fd compare --quick --attacks",
            (
                (
                    "compare",
                    f"compare --dataset digits --clients 3 {ROWS.replace('--attacks none', '')}",
                ),
            ),
        ),
    ],
    "docs/howto/privacy_budget.md": [
        Block("import secure_fd", SIMULATE),
        Block("import os"),
    ],
    "docs/howto/many_machines.md": [
        Block("pip install", never=INSTALLS),
        Block("python examples/hospitals", fill=((" /tmp", " $HOME"),), full=PROCESSES),
        Block("secure-fd predict", fill=(("north", "hospitals/north"),), full=PROCESSES),
        Block("import numpy, torch", never="test_site_model.py loads such a model"),
        Block("secure-fd site init", fill=(("RECORDS", "NORTH/records"),)),
        Block("secure-fd site roster", fill=FILLED),
        Block("secure-fd serve --roster roster.toml --home", never=MACHINES),
        Block("secure-fd join", never=MACHINES),
        Block("secure-fd site roster", fill=FILLED[:1]),
        Block("flwr run", never=MACHINES),
    ],
    "docs/howto/leakage_in_ci.md": [
        Block("pip install", never=INSTALLS),
        Block("# test_leakage.py"),
        Block("# federation.py"),
        Block("python -m pytest", full=OWN_GAME),
        Block("# conftest.py"),
        Block("secure-fd check", full=OWN_GAME),
    ],
    "docs/howto/read_the_report.md": [
        Block("secure-fd compare", (("--quick", f"--quick --dataset digits --clients 3 {ROWS}"),)),
    ],
    "docs/reference/results_file.md": [Block("import json")],
    "docs/explanation/privacy_units.md": [
        Block("from secure_fd.privacy"),
        Block("python experiments/privacy/privacy_audit.py", full=MINUTES),
    ],
    "docs/explanation/attacks.md": [
        Block("secure-fd attacks"),
        Block("python experiments/privacy_compare.py", SCRIPT),
    ],
    "docs/results.md": [Block("python experiments/privacy_compare.py", SCRIPT)],
}


def blocks(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = FENCE.findall(text)
    return [re.sub(f"^{indent}", "", code, flags=re.MULTILINE) for indent, _, code in found]


class InProcess(Executor):
    """Runs the tasks of a study in this process: a worker takes seconds to import PyTorch."""

    def __init__(self, *_):
        pass

    def submit(self, call, /, *given, **more):
        future = Future()
        future.set_result(call(*given, **more))
        return future


def own_images(folder):
    """Folders with the names that the page uses; the images have two classes."""
    image_folders(folder, "abc")
    for place, names in (("clinics", "benign malign"), ("scans", "benign malign")):
        clients = ("berlin", "lyon", "turin") if place == "clinics" else ("",)
        for client in clients:
            paint(folder / place / client, names.split(), 40)
    for place in ("public", "test", "held_out"):
        paint(folder / place, ["benign", "malign"], 40)
    rows = [
        f"{index % 90},{'no' if index % 4 else 'yes'},{'NSW'[index % 3]}" for index in range(200)
    ]
    text = "\n".join(["age,outcome,hospital", *rows])
    for name in ("public.csv", "patients.csv"):
        (folder / name).write_text(text)


def paint(root, names, count):
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for index in range(count):
            tone = hash((str(root), number, index)) % 100 + 100 * number
            image = Image.new("L", (16, 16), tone)
            image.putpixel((index % 16, number), index)
            image.save(root / name / f"{index}.png")


def three_sites(folder):
    """Records of three sites, of which two have sent their cards."""
    (folder / "cards").mkdir()
    for records in image_folders(folder, ["NORTH", "SOUTH", "WEST"]):
        name = records.parent.name
        if name != "NORTH":
            command(f"secure-fd site init --data {records} --name {name}")
            shutil.copy(records.parent / "home" / f"{name}.toml", folder / "cards")


PREPARED = {
    "docs/howto/own_data.md": own_images,
    "docs/howto/many_machines.md": three_sites,
    "docs/reference/results_file.md": lambda _: command(
        f"secure-fd compare --dataset digits --clients 3 --quick {ROWS} --out runs/example"
    ),
}
"""Files that a page's reader already has."""


def command(line):
    """Run one line of a shell block in this process."""
    program, *words = shlex.split(line, comments=True)
    words = [
        str(p) for word in words for p in (sorted(Path().glob(word)) if "*" in word else [word])
    ]
    if program == "secure-fd":
        assert main(words) == 0, line
    elif words[0] == "-m" or (ROOT / words[0]).is_file():
        if words[0] != "-m":
            words[0] = str(ROOT / words[0])
        made = ended(*words, cwd=Path(), timeout=1200, PYTHONPATH=f"{ROOT}")
        assert made.returncode == 0, made.stdout + made.stderr
    else:
        runpy.run_path(words[0], run_name="__main__")


def ran(code, names):
    """Run a block: lines of a shell, a file that the block names, or a program."""
    first = code.partition("\n")[0]
    if "\ndone\n" in code:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        given = environment(PATH=programs, HOME=str(Path.cwd()), PYTHONPATH=str(ROOT))
        script = ["bash", "-euc", f"{code}wait"]
        subprocess.run(script, cwd=ROOT, env=given, check=True, timeout=900)  # noqa: S603 - ours
    elif code.startswith(("secure-fd ", "python ")):
        for line in filter(None, code.replace("\\\n", "").splitlines()):
            command(line)
    elif re.fullmatch(r"# \w+\.py", first):
        Path(first.removeprefix("# ")).write_text(code)
    else:
        exec(compile(code, "a block", "exec"), names)  # noqa: S102 - what a reader would paste


def as_run(code, block):
    """The text of a block with its replacements."""
    before = code
    for old, new in (*block.fill, *(() if FULL else block.small)):
        code = code.replace(old, new)
    assert FULL or code != before or not (block.fill or block.small), before
    return code


@pytest.fixture
def small(monkeypatch):
    """Workers in this process, fewer digits, and a feature map that is learnt from less."""
    if not FULL:
        monkeypatch.setattr(pool, "ProcessPoolExecutor", InProcess)
        monkeypatch.setattr(patches, "_FILTERS", 8)
        monkeypatch.setattr(patches, "_PATCHES", 2_000)
        digits = replace(IMAGE_SETS["digits"], sizes=Sizes(20, 10, 8, local=30))
        monkeypatch.setitem(IMAGE_SETS, "digits", digits)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_every_block_of_a_page_runs(page, tmp_path, monkeypatch):
    found, listed = blocks(page), BLOCKS.get(page, [])
    starts = [code.partition("\n")[0] for code in found]
    assert len(found) == len(listed), f"{page}: state in BLOCKS how each of these runs: {starts}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("SECURE_FD_DATA", raising=False)
    PREPARED.get(page, lambda _: None)(tmp_path)
    names = {"__name__": "__main__"}
    for code, block in zip(found, listed, strict=True):
        assert code.startswith(block.start), page
        if block.never or (block.full and not FULL):
            continue
        ran(as_run(code, block), names)


@pytest.mark.usefixtures("small")
def test_the_notebook_runs_from_first_cell_to_last(tmp_path, monkeypatch, capsys):
    content = json.loads((ROOT / "examples" / "first_run.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    monkeypatch.chdir(tmp_path)
    code = "\n".join("".join(cell["source"]) for cell in cells)
    small = (("rounds=5", "rounds=1"), ('"clients": 5', '"clients": 3'), ("steps=40", "steps=20"))
    exec(as_run(code, Block("", small)), {})  # noqa: S102 - our own
    shown = capsys.readouterr().out
    clear, masked = (float(error) for error in re.findall(r": error ([\d.]+)", shown))
    assert clear < 0.7 * masked
    assert shown.endswith("True\n")  # networks that were read back answer alike
    assert list(tmp_path.iterdir()) == []


SIX_RUNS = """
import pytest
from attacks.membership.budgets import LeakageGame, bundled_digits

@pytest.fixture(scope="session")
def leakage_game():
    return LeakageGame.of(bundled_digits().clients, runs=6)
"""


def test_a_team_s_leakage_project_passes(tmp_path):
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "leakage_project", project)
    if not FULL:
        (project / "conftest.py").write_text(SIX_RUNS)
    asked = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *([] if FULL else ["-k", "hidden"]))
    made = ended(*asked, cwd=project, PYTHONPATH=f"{ROOT}")
    assert "passed" in made.stdout, made.stdout + made.stderr
    assert made.returncode == 0


def test_targets_and_extras_that_pages_name_exist():
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"^make (\w+)", "\n".join(blocks("README.md")), re.MULTILINE)) <= set(
        re.findall(r"^([a-z]+):", makefile, re.MULTILINE)
    )
    assert "\t$(BIN)/python experiments/privacy_compare.py --secure-agg --dp-eps 4\n" in makefile
    written = "".join((ROOT / page).read_text() for page in ("README.md", *PAGES))
    extras = set(",".join(re.findall(r"[\w.]\[([a-z,]+)\]\"", written)).split(","))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"flower", "test"} <= extras <= set(known["optional-dependencies"])
