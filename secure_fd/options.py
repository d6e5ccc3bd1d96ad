"""Options from a TOML file, the same for every command.

A file has what could be typed, by the names of options, and nothing else.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from secure_fd.errors import ConfigurationError

_OPTION: Final = "--config"
_MOST_BYTES: Final = 1 << 16


def flag(field: str) -> str:
    """An option as it is typed.

    >>> flag("dp_eps")
    '--dp-eps'
    """
    return f"--{field.replace('_', '-')}"


def expanded(arguments: Sequence[str], *, apart: bool = False) -> list[str]:
    """Arguments in which the options of a `--config FILE` stand before all that was typed.

    So what is typed wins. apart: parts of a list are words of their own, not joined by commas.
    Raises ConfigurationError for a file that is missing, larger than 64 KiB, not TOML, or holds
    anything but options.

    >>> expanded(["--dp-eps", "4", "--quick"])
    ['--dp-eps', '4', '--quick']
    """
    paths, typed, rest = [], [], iter(arguments)
    for argument in rest:
        if argument == _OPTION:
            paths.append(next(rest, ""))
        elif argument.startswith(f"{_OPTION}="):
            paths.append(argument.partition("=")[2])
        else:
            typed.append(argument)
    if len(paths) > 1:
        raise ConfigurationError(_OPTION, paths, "use one file")
    read = (option for path in paths for option in _options(path, apart=apart))
    return [*read, *typed]


def _options(path: str, *, apart: bool) -> list[str]:
    found: list[str] = []
    for name, value in content(path).items():
        option = _option(path, name, value)
        if apart and isinstance(value, list):
            found += [flag(name), *(_word(path, part) for part in value)]
        else:
            found.append(option)
    return found


def _word(path: str, part: object) -> str:
    if str(part).startswith("-"):
        raise ConfigurationError(_OPTION, path, f"{part!r} in a list would be read as an option")
    return str(part)


def content(path: str) -> Mapping[str, Any]:
    """What a file holds; ConfigurationError for one that `expanded` refuses as a whole."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError:
        raise ConfigurationError(_OPTION, path, "it must be a file that can be read") from None
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(_OPTION, path, f"use at most {_MOST_BYTES:,} bytes")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(_OPTION, path, f"it must be TOML: {error}") from None


def _option(path: str, name: str, value: object) -> str:
    typed = flag(name)
    if name.startswith("-") or typed == _OPTION:
        raise ConfigurationError(_OPTION, path, f"{name!r} is no option: use names as in dp-eps")
    if isinstance(value, bool):
        return typed if value else typed.replace("--", "--no-", 1)
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return f"{typed}={','.join(map(str, value))}"
    if isinstance(value, str | int | float):
        return f"{typed}={value}"
    raise ConfigurationError(_OPTION, path, f"{name}: use a number, a text, or true or false")
