"""What the command lines of all scripts have in common."""

from collections.abc import Sequence
from pathlib import Path

from secure_fd.errors import ConfigurationError

_PATHS = {
    "--data-dir": "DATA_DIR",
    "--data_dir": "DATA_DIR",
    "--out": "OUT",
    "--images": "IMAGES",
    "--proxies": "PROXIES",
}


def command(script: str, arguments: Sequence[str]) -> list[str]:
    """The command that repeats a run, without this machine's paths.

    >>> command("run.py", ["--out", "/tmp/x", "--quick"])
    ['python', 'experiments/run.py', '--out', 'OUT', '--quick']
    """
    shown: list[str] = []
    before = ""
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if before in _PATHS:
            shown.append(_PATHS[before])
        elif equals and name in _PATHS:
            shown.append(f"{name}={_PATHS[name]}")
        else:
            shown.append(argument)
        before = argument
    return ["python", f"experiments/{script}", *shown]


def data_folder(asked: Path | None, environment_dir: str | None) -> Path | None:
    """The folder of the image sets, if any. ConfigurationError where it is not there."""
    chosen = asked or (Path(environment_dir) if environment_dir else None)
    if chosen is not None and not chosen.is_dir():
        raise ConfigurationError("data_dir", str(chosen), "it must be an existing folder")
    return chosen
