"""Options from a TOML file, and the file of a run's own settings, which is read the same way."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from secure_fd.endings import flag
from secure_fd.errors import ConfigurationError

RUN = "run.toml"
"""The file of a run's settings, beside its results."""
_OPTION = "--config"
_MOST_BYTES = 1 << 16
_HEAD = "# The settings of this run; give them again with: --config run.toml\n"


def expanded(arguments: Sequence[str]) -> list[str]:
    """Arguments in which the options of a `--config FILE` stand before all that was typed.

    So what is typed wins. Raises ConfigurationError for a file that is missing, larger than 64 KiB,
    not TOML, or holds anything but options.

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
    return [*(option for path in paths for option in _options(path)), *typed]


def differences(held: Path, own: str) -> list[str]:
    """Names of the settings in which a file differs from `own`, as `written` gives them."""
    before, now = _content(str(held)), tomllib.loads(own)
    return sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))


def _options(path: str) -> list[str]:
    return [_option(path, name, value) for name, value in _content(path).items()]


def _content(path: str) -> Mapping[str, Any]:
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


def written(settings: Any, apart: Sequence[str] = ()) -> str:  # noqa: ANN401 - of any study
    """TOML of a dataclass of settings, which `expanded` reads back; None and `apart` are left out.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Chosen:
    ...     dp_eps: float = 4.0
    ...     quick: bool = True
    >>> print(written(Chosen()).splitlines()[1:])
    ['dp-eps = 4.0', 'quick = true']
    """
    values = {f.name: getattr(settings, f.name) for f in fields(settings)}
    kept = {n: v for n, v in values.items() if v is not None and n not in apart}
    return _HEAD + "".join(f"{flag(n)[2:]} = {_value(v)}\n" for n, v in kept.items())


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)  # as Python writes them, inf and 1e-05 among them
    # Of JSON's escapes, TOML knows all that a text needs but for the one that it forbids bare.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
