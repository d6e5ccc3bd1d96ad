"""The wheel, installed in an environment of its own and used beside packages of the same names."""

import os
import re
import subprocess
import sysconfig

import pytest

import secure_fd
from tests.programs import ROOT, printed

BUILD = "import setuptools; setuptools.setup()"
OWN = {
    "attacks/__init__.py": "",
    "attacks/chess.py": "opening = 'e4'\n",
    "experiments/__init__.py": "raise RuntimeError('this code must not run')\n",
    "test_own.py": "from attacks.chess import opening\ndef test_own(): assert opening == 'e4'\n",
}
BUDGET = "def test_leakage(leakage_budget): leakage_budget(print, members=0.6)\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter whose environment holds the wheel and borrows the libraries of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    built = ("--build-base", str(folder / "build"))
    egg_info = ("egg_info", "--egg-base", str(folder))
    printed("-c", BUILD, "-q", *egg_info, "build", *built, "bdist_wheel", "-d", str(folder))
    [wheel] = folder.glob("*.whl")
    inside = printed("-m", "zipfile", "-l", str(wheel))
    assert not re.search("experiments/(paper|rivals)/|tests/", inside)
    printed("-m", "venv", "--without-pip", str(folder / "env"))
    made = folder / "env" / "bin" / "python"
    offline = ("--no-deps", "--no-index", "--no-compile", "--quiet")
    printed("-m", "pip", "--python", str(made), "install", *offline, str(wheel))
    [packages] = (folder / "env" / "lib").glob("python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


@pytest.fixture
def project(tmp_path):
    """A project with packages `attacks` and `experiments`, and a test of its own."""
    for name, text in OWN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder, *command):
    """Exit status and output of a program in a folder, without this checkout on its path."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    made = subprocess.run(  # noqa: S603 - our own programs
        command, cwd=folder, env=kept, capture_output=True, text=True, timeout=120, check=False
    )
    return made.returncode, made.stdout + made.stderr


def test_a_project_with_attacks_and_experiments_of_its_own_runs_beside_the_wheel(python, project):
    where = "import secure_fd, sys; print(secure_fd.__file__, sys.prefix)"
    home, prefix = run(project, python, "-c", where)[1].split()
    assert home.startswith(prefix)
    assert not home.startswith(str(ROOT))
    (project / "test_budget.py").write_text(BUDGET)
    status, shown = run(project, python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert status == pytest.ExitCode.TESTS_FAILED, shown
    assert "1 passed" in shown
    assert f"attacks: '{project / 'attacks'}' is not allowed" in shown
    assert "Traceback" not in shown


def test_a_command_beside_experiments_of_the_project_names_them_and_does_not_run_them(
    python, project
):
    status, shown = run(project, python, "-m", "secure_fd", "compare", "--help")
    [line] = shown.splitlines()
    assert status == 2
    assert line.startswith(f"error: experiments: '{project / 'experiments'}' is not allowed")
    status, shown = run(project, python, "-m", "secure_fd", "--help")
    assert (status, "compare" in shown) == (0, True)
    asked = "from secure_fd.optional import import_ours; import_ours('experiments.cli')"
    status, shown = run(project, python, "-c", asked)
    assert (status, "this code must not run" in shown) == (1, False)
    assert "ConfigurationError: experiments: " in shown.splitlines()[-1]


def test_the_console_script_works_beside_them(python, project):
    script = python.with_name("secure-fd")
    status, shown = run(project, script, "compare", "--clients", "1")
    assert (status, shown.splitlines()[-1][:18]) == (2, "error: --clients: ")
    assert run(project, script, "--version") == (0, f"secure-fd {secure_fd.__version__}\n")
