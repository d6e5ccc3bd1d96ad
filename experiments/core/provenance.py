"""When, where and with which code results were made, and what any results must satisfy."""

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_LIBRARIES = (
    *("secure-fd", "torch", "numpy", "scipy", "scikit-learn"),
    *("cryptography", "opacus", "pycryptodome"),
)
"""Libraries that figures come from."""

ROOT = Path(__file__).parents[2]
_CODE = ("secure_fd", "attacks", "experiments", "pyproject.toml", ":(exclude)experiments/report")
"""The files that a figure depends on: pages are written again at any time."""


@dataclass(frozen=True, slots=True)
class Code:
    """Version of the code that measures: a commit, or the version of an installed package.

    changes: hash of the changes beside that commit, "" if there are none.

    >>> str(Code("0123456789abcdef")), Code("0123456789abcdef").dirty
    ('commit 0123456', False)
    """

    commit: str
    changes: str = ""

    @property
    def dirty(self) -> bool:
        """True if the code had changes that are not in its commit."""
        return bool(self.changes)

    def __str__(self) -> str:
        changed = f" with changes {self.changes[:7]}" if self.dirty else ""
        is_hash = len(self.commit) > 12
        return f"commit {self.commit[:7]}{changed}" if is_hash else f"version {self.commit}"


def code(root: Path = ROOT, more: Sequence[str] = ()) -> Code:
    """The version of the code in a folder, by git where the folder is a repository.

    more: folders that a figure depends on beside `_CODE`.

    The commit is the last that changed `_CODE`, so that a folder of results can be resumed after a
    commit of docs. A shallow clone whose history ends before that commit names its oldest commit.
    """
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return Code(_version("secure-fd"))

    def run(*arguments: str) -> bytes:
        command = [git, "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout  # noqa: S603

    paths = (*_CODE, *more)
    commit = run("log", "-1", "--format=%H", "--", *paths).decode().strip()
    changed = run("diff", "--no-ext-diff", "--binary", "HEAD", "--", *paths)
    new = run("ls-files", "-z", "--others", "--exclude-standard", "--", *paths).split(b"\0")
    for name in sorted(filter(None, new)):
        changed += name + b"\0" + (root / os.fsdecode(name)).read_bytes()
    return Code(commit, hashlib.sha256(changed).hexdigest() if changed else "")


def created_now() -> str:
    """ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def dated(name: str) -> Path:
    """Folder of a new run, by its start in UTC: two of one second differ in their microseconds."""
    return Path(f"runs/{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")


def facts(more: Sequence[str] = ()) -> dict[str, Any]:
    """When, where and with which code a file of results is made, by its field. more: of `code`."""
    made = code(more=more)
    return {
        "created": created_now(),
        "commit": made.commit,
        "dirty": made.dirty,
        "versions": versions(),
        "machine": machine(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that figures come from."""
    libraries = {name: _version(name) for name in _LIBRARIES}
    return {"python": platform.python_version(), **libraries}


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version(name)
    except PackageNotFoundError:  # a study also runs from a folder of files
        return "not installed"


def machine() -> dict[str, object]:
    """Return the facts about the machine that a reader needs to judge seconds."""
    return {"processor": _processor(), "cpus": os.cpu_count() or 1}


def _processor() -> str:
    """Return the model of the processor, as the operating system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
