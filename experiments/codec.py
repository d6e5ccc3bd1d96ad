"""Frozen dataclasses <-> plain JSON values, strictly: nothing missing, nothing extra, no NaN."""

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import (
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

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
        named = {f: getattr(value, f.name) for f in fields(value)}
        kept = {f.name: part for f, part in named.items() if _is_written(f, part)}
        return {name: encode(part, f"{where}.{name}") for name, part in kept.items()}
    if isinstance(value, Mapping):
        return {str(key): encode(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float):
        return _finite(value, where)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ConfigurationError(where, value, "use what JSON can hold")


def _is_written(of: "Field[Any]", value: object) -> bool:
    return {None: True, "unless empty": bool(value), "never": False}[of.metadata.get("json")]


def _finite(value: float, where: str) -> float | str:
    if math.isnan(value):
        raise ConfigurationError(where, value, "use a number, or null where there is none")
    return value if math.isfinite(value) else str(value)


def decode(kind: type[T], value: object, where: str) -> T:
    """`value` as the annotated class `kind`.

    Raises ConfigurationError naming the first field that does not fit.
    """
    return cast(T, _decode(kind, value, where))


def _decode(kind: object, value: object, where: str) -> object:
    if kind in (object, Any):
        return value
    if get_origin(kind) in (Union, types.UnionType):
        return _decode(_alternative(kind, value, where), value, where)
    if not _fits(kind, value):
        raise ConfigurationError(where, _shown(value), f"use {_describe(kind)}")
    if isinstance(value, dict):
        decode_object = _decode_dataclass if is_dataclass(kind) else _decode_dict
        return decode_object(kind, value, where)
    if isinstance(value, list):
        return _decode_items(kind, value, where)
    return float(value) if kind is float and isinstance(value, int) else value


def _decode_dataclass(kind: object, value: dict[str, object], where: str) -> object:
    rules = {f.name: f.metadata.get("json") for f in fields(cast(Any, kind))}
    hints = {name: of for name, of in get_type_hints(kind).items() if rules.get(name) != "never"}
    needed = {name for name in hints if rules.get(name) is None}
    missing, extra = sorted(needed - value.keys()), sorted(value.keys() - hints.keys())
    if missing or extra:
        raise ConfigurationError(
            f"{where}.{(missing or extra)[0]}",
            "missing" if missing else "unknown",
            f"the fields are {', '.join(hints)}",
        )
    given = {name: of for name, of in hints.items() if name in value}
    parts = {name: _decode(of, value[name], f"{where}.{name}") for name, of in given.items()}
    return cast(Callable[..., object], kind)(**parts)


def _decode_dict(kind: object, value: dict[str, object], where: str) -> object:
    of = get_args(kind)[1]
    return {key: _decode(of, item, f"{where}.{key}") for key, item in value.items()}


def _decode_items(kind: object, value: list[object], where: str) -> object:
    of = get_args(kind)
    any_length = get_origin(kind) is list or of[-1] is Ellipsis
    each = [of[0]] * len(value) if any_length else list(of)
    if len(each) != len(value):
        raise ConfigurationError(where, _shown(value), f"use a list of {len(each)}")
    pairs = enumerate(zip(each, value, strict=True))
    items = [_decode(t, item, f"{where}[{i}]") for i, (t, item) in pairs]
    return items if get_origin(kind) is list else tuple(items)


def _alternative(kind: object, value: object, where: str) -> object:
    """The one member of a union that a JSON value can be."""
    options = [option for option in get_args(kind) if _fits(option, value)]
    if not options:
        allowed = " or ".join(map(_describe, get_args(kind)))
        raise ConfigurationError(where, _shown(value), f"use {allowed}")
    return options[0]


def _json_types(kind: object) -> tuple[type, ...]:
    if is_dataclass(kind):
        return (dict,)
    wire: dict[object, tuple[type, ...]] = {tuple: (list,), float: (float, int)}
    origin = get_origin(kind) or kind
    return wire.get(origin, (cast(type, origin),))


def _fits(kind: object, value: object) -> bool:
    """Whether the JSON type is right; true and false are no numbers, and numbers are finite."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    expected = _json_types(kind)
    if isinstance(value, bool):
        return bool in expected
    return isinstance(value, expected) and not (isinstance(value, float) and math.isinf(value))


def _describe(kind: object) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(map(repr, get_args(kind)))
    names = {dict: "an object", list: "a list", float: "a finite number", int: "a whole number"}
    names |= {str: "text", bool: "true or false", type(None): "null"}
    return names[_json_types(kind)[0]]


def _shown(value: object) -> object:
    """The value where it is short, else its kind: a message is one sentence."""
    return f"a {type(value).__name__}" if isinstance(value, dict | list) else value
