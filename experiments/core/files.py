"""Files of a run: frozen dataclasses as strict JSON, and settings as TOML.

JSON is read strictly: nothing missing, nothing extra, no NaN. TOML is read as `--config FILE` is.
"""

import json
import math
import tomllib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from secure_fd.cli import content, flag
from secure_fd.errors import ConfigurationError
from secure_fd.files import write_atomically

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
T = TypeVar("T")
UNLESS_EMPTY: Mapping[str, str] = {"json": "unless empty"}
"""Metadata of a field that a file leaves out where it is empty."""
NEVER: Mapping[str, str] = {"json": "never"}
"""Metadata of a field that is kept elsewhere, or not at all."""


def encode(value: object, where: str) -> Json:
    """The JSON value of a dataclass, container, number or numpy array.

    Infinity becomes the string "inf". Raises ConfigurationError, naming the place, for NaN and
    for anything that JSON cannot hold.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        named = {f: getattr(value, f.name) for f in fields(value) if f.metadata != NEVER}
        kept = {f.name: part for f, part in named.items() if f.metadata != UNLESS_EMPTY or part}
        return {name: encode(part, f"{where}.{name}") for name, part in kept.items()}
    if isinstance(value, Mapping):
        return {str(key): encode(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float):
        if math.isnan(value):
            raise ConfigurationError(where, value, "use a number, or null where there is none")
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ConfigurationError(where, value, "use what JSON can hold")


def decode(kind: type[T], value: object, where: str) -> T:
    """`value` as the dataclass `kind`; ConfigurationError unless `encode` would write it so."""
    try:
        found = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigurationError):
            raise error.__cause__ from None
        reason, _, place = str(error).partition(" - at `$")
        raise ConfigurationError(where + place.rstrip("`"), "its content", reason) from None
    if (again := encode(found, where)) != value:
        place, _ = min(set(_leaves(value, where)) ^ set(_leaves(again, where)), key=str)
        raise ConfigurationError(place, "missing or unknown", "use the fields of this version")
    return found


def _leaves(value: object, where: str) -> Iterator[tuple[str, object]]:
    """Every number, text and empty container, with its place."""
    if isinstance(value, dict | list) and value:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(part, where + (f".{key}" if isinstance(key, str) else f"[{key}]"))
    else:
        yield where, value if isinstance(value, Hashable) else str(value)


def write(path: Path, value: object, where: str) -> None:
    """A dataclass as a JSON file. Raises ConfigurationError for anything that `read` refuses."""
    made = encode(value, where)
    decode(type(value), made, where)
    text = json.dumps(made, indent=1, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(text.encode()))


def read(path: Path, kind: type[T], where: str) -> T:
    """The dataclass in a JSON file, strictly: nothing missing, nothing extra, finite numbers."""
    try:
        return parsed(path.read_bytes(), kind, where, path.name)
    except FileNotFoundError:
        raise ConfigurationError(where, path.name, "there must be such a file") from None


def parsed(text: bytes, kind: type[T], where: str, name: str = "") -> T:
    """The dataclass in JSON, as strictly. name: of its file."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(name or where, str(error), "it must be JSON in UTF-8") from None
    return decode(kind, found, where)


def _refuse_constant(name: str) -> float:
    raise ConfigurationError("results", name, "use finite numbers or null")


# Settings.

RUN = "run.toml"
"""The file of a run's settings, beside its results."""
_HEAD = "# The settings of this run; give them again with: --config run.toml\n"


def differences(held: Path, own: str) -> list[str]:
    """Names of the settings in which a file differs from `own`, as `written` gives them."""
    before, now = content(str(held)), tomllib.loads(own)
    return sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))


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
    # Of JSON's escapes, TOML has all that a text needs but for the one that it forbids bare.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
