"""The wheel, installed in an environment of its own and used beside packages of the same names."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.programs import printed

ROOT = Path(__file__).parents[2]
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


def run(folder: Path, *command: str | Path) -> tuple[int, str]:
    """Exit status and output of a program in a folder, without this checkout on its path."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    made = subprocess.run(  # noqa: S603 - our own programs
        command, cwd=folder, env=kept, capture_output=True, text=True, timeout=120, check=False
    )
    return made.returncode, made.stdout + made.stderr


def test_the_environment_has_the_wheel(python, tmp_path):
    where = "import secure_fd, attacks, experiments, sys; print(secure_fd.__file__, sys.prefix)"
    status, found = run(tmp_path, python, "-c", where)
    home, prefix = found.split()
    assert (status, home.startswith(prefix)) == (0, True)
    assert not home.startswith(str(ROOT))


def test_pytest_runs_in_a_project_with_attacks_of_its_own(python, project):
    (project / "test_budget.py").write_text(BUDGET)
    status, shown = run(project, python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert status == pytest.ExitCode.TESTS_FAILED, shown
    assert "1 passed" in shown
    assert f"attacks: '{project / 'attacks'}' is not allowed" in shown
    assert "Traceback" not in shown


def test_a_command_beside_experiments_of_the_project_says_why_it_ends(python, project):
    status, shown = run(project, python, "-m", "secure_fd", "compare", "--help")
    assert status == 2
    assert shown.startswith(f"error: experiments: '{project / 'experiments'}' is not allowed")
    assert len(shown.splitlines()) == 1
    status, shown = run(project, python, "-m", "secure_fd", "--help")
    assert (status, "compare" in shown) == (0, True)


def test_the_console_script_works_beside_them(python, project):
    script = python.with_name("secure-fd")
    status, shown = run(project, script, "compare", "--clients", "1")
    assert (status, shown.splitlines()[-1][:18]) == (2, "error: --clients: ")
    assert run(project, script, "--version") == (0, "secure-fd 0.1.0\n")


def test_a_foreign_package_is_named_and_not_executed(python, project):
    asked = "from secure_fd.optional import import_ours; import_ours('experiments.cli')"
    status, shown = run(project, python, "-c", asked)
    assert status == 1
    assert "ConfigurationError: experiments: " in shown.splitlines()[-1]
    assert "this code must not run" not in shown
