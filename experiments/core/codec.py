"""Frozen dataclasses <-> plain JSON values, strictly: nothing missing, nothing extra, no NaN."""

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np

from secure_fd.errors import ConfigurationError

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
