"""Programs of Python that must end well."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed(*arguments: str, timeout: float = 300) -> str:
    """What this interpreter prints, run in the repository with these arguments."""
    made = subprocess.run(  # noqa: S603 - our own programs
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    return made.stdout
