"""Files of a run: frozen dataclasses as strict JSON, and settings as TOML.

JSON is read strictly: nothing missing, nothing extra, no NaN. Fields at their default are left out.
TOML is read as `--config FILE` is.
"""

import json
import math
import tomllib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from secure_fd.cli import content, flag
from secure_fd.errors import ConfigurationError
from secure_fd.files import write_atomically

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
T = TypeVar("T")
NEVER: Mapping[str, str] = {"json": "never"}
"""Metadata of a field that is kept elsewhere, or not at all."""


def encode(value: object, where: str) -> Json:
    """The JSON value of a dataclass, container, number or numpy array, without default values.

    Infinity becomes the string "inf". Raises ConfigurationError, naming the place, for NaN and
    for anything that JSON cannot hold.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        named = [(f, getattr(value, f.name)) for f in fields(value) if f.metadata != NEVER]
        kept = {f.name: part for f, part in named if part != _default(f)}
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


def _default(part: "Field[Any]") -> object:
    return part.default if part.default_factory is MISSING else part.default_factory()


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
    write_json(path, made)


def write_json(path: Path, value: Json) -> None:
    """JSON as a file, whole or not at all: an object has a line for each field.

    Objects in a list have one line each too, so that a version of the file is easily compared.
    """
    text = _lines(value) if isinstance(value, dict) else _line(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(f"{text}\n".encode()))


def _lines(value: Mapping[str, Json]) -> str:
    """An object with a line for each field, and for each object in a list."""
    parts, end = [], "\n"
    for name, part in value.items():
        text = _line(part)
        if isinstance(part, list) and any(isinstance(item, dict) for item in part):
            text = f"[{end}{f',{end}'.join(map(_line, part))}{end}]"
        parts.append(f"{_line(name)}: {text}")
    return "{" + end + f",{end}".join(parts) + end + "}"


def _line(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read(path: Path, kind: type[T], where: str) -> T:
    """The dataclass in a JSON file, strictly: nothing missing, nothing extra, finite numbers."""
    return decode(kind, read_json(path, where), where)


def read_json(path: Path, where: str) -> Json:
    """The JSON in a file. Raises ConfigurationError where there is none."""
    try:
        return parsed_json(path.read_bytes(), path.name)
    except FileNotFoundError:
        raise ConfigurationError(where, path.name, "there must be such a file") from None


def parsed_json(text: bytes, name: str) -> Json:
    """JSON of finite numbers. name: of its file, for the ConfigurationError."""
    try:
        found: Json = json.loads(text, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(name, str(error), "it must be JSON in UTF-8") from None
    return found


def _refuse_constant(name: str) -> float:
    raise ConfigurationError("results", name, "use finite numbers or null")


def rounded(value: Json, digits: int = 5) -> Json:
    """JSON whose floats have this number of significant digits.

    >>> rounded({"accuracy": [0.9721699999999999], "bytes": 40000.0})
    {'accuracy': [0.97217], 'bytes': 40000.0}
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    if isinstance(value, dict):
        return {name: rounded(item, digits) for name, item in value.items()}
    return value


# Objects that differ in their seed.

_NONE: Any = object()
_BY_SEED = ("seed", "seconds")


def folded(objects: Sequence[Mapping[str, Json]]) -> list[Json]:
    """One object for all whose `cell` differs in its seed alone, in the order of the first of each.

    Its `each` has lists with an item for each seed: seeds, floats that are not in a `cell`, and
    all that differs between seeds. Everything else is written once. See `unfolded`.

    >>> runs = [{"cell": {"method": "a", "seed": s}, "figures": {"b": 0.5}} for s in (1, 2)]
    >>> folded(runs)
    [{'cell': {'method': 'a'}, 'each': {'cell': {'seed': [1, 2]}, 'figures': {'b': [0.5, 0.5]}}}]
    """
    groups: dict[str, list[Any]] = {}
    for one in objects:
        groups.setdefault(json.dumps(_seedless(one["cell"]), sort_keys=True), []).append(one)
    found = [_fold(_alike(of), "", floats=True) for of in groups.values()]
    return [{**same, "each": each} for same, each in found]


def _alike(objects: list[Any]) -> list[Any]:
    """Objects with the fields of all, None where one has none: one seed alone may be attacked."""
    names = {name: None for one in objects for name in one}
    return [{**names, **one} for one in objects]


def _seedless(value: Json) -> Json:
    if not isinstance(value, dict):
        return value
    return {name: _seedless(part) for name, part in value.items() if name != "seed"}


def _fold(values: list[Any], name: str, *, floats: bool) -> tuple[Any, Any]:
    """What values have in common, and the rest as lists. floats: whether all of them are lists."""
    first = values[0]
    if first and all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
        parts = {
            part: _fold([v[part] for v in values], part, floats=floats and part != "cell")
            for part in first
        }
        same, each = (
            {part: found[i] for part, found in parts.items() if found[i] is not _NONE}
            for i in range(2)
        )
        return same or _NONE, each or _NONE
    number = floats and any(isinstance(v, float) for v in values)
    if name in _BY_SEED or number or any(v != first for v in values):
        return _NONE, values
    return first, _NONE


def unfolded(groups: Any, where: str) -> list[Json]:  # noqa: ANN401 - JSON of any form
    """The objects of `folded`; ConfigurationError for anything that it would not write."""
    found: list[Any] = []
    try:
        for group in groups:
            same = {name: part for name, part in group.items() if name != "each"}
            every = _unfold(same, group["each"], len(group["each"]["seconds"]))
            found += [{name: v for name, v in one.items() if v is not None} for one in every]
        if folded(found) == groups:
            return found
    except (AttributeError, KeyError, TypeError, IndexError):
        pass
    raise ConfigurationError(where, "its groups", "use one list item a seed, as this version does")


def _unfold(same: Any, each: Any, count: int) -> list[Any]:  # noqa: ANN401 - JSON
    if each is _NONE:
        return [same] * count
    if isinstance(each, list):
        return each
    held = {} if same is _NONE else same
    parts = {
        name: _unfold(held.get(name, _NONE), each.get(name, _NONE), count)
        for name in {**held, **each}
    }
    return [{name: part[i] for name, part in parts.items()} for i in range(count)]


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
