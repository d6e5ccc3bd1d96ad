"""Functions that the command lines of all scripts share."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from secure_fd.errors import ConfigurationError

_PATHS = {
    "--data-dir": "DATA_DIR",
    "--data_dir": "DATA_DIR",
    "--out": "OUT",
    "--images": "IMAGES",
    "--proxies": "PROXIES",
    "--table": "TABLE",
    "--columns": "COLUMNS",
    "--public": "PUBLIC",
    "--scheduler": "ADDRESS",
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


def one_of(field: str, value: str, allowed: Sequence[str]) -> str:
    """Return the value of an option; ConfigurationError, with the nearest name, for an unknown one.

    >>> one_of("dataset", "mnist", ("mnist", "digits"))
    'mnist'
    """
    if value not in allowed:
        near = get_close_matches(value, allowed, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigurationError(field, value, f"use one of {', '.join(allowed)}{hint}")
    return value


def in_range(field: str, value: float, least: float, most: float, *, also: str = "") -> None:
    """Raise ConfigurationError unless `least` <= value <= `most`.

    also: what else is allowed, in words.
    """
    if not least <= value <= most:
        raise ConfigurationError(field, value, f"use a number from {least:g} to {most:g}{also}")
