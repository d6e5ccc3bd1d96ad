"""Columns of a table, described from public knowledge, and the numbers that stand for a row.

A file such as columns.toml describes each column that is used; others are ignored.

    [age]
    kind = "number"
    low = 0
    high = 110
    missing = ["-1"]

    [income]
    kind = "number"
    low = 0
    high = 1000000
    log = true

    [sex]
    kind = "category"
    categories = ["f", "m"]

A number is clipped to low and high, and scaled by mean and deviation of the public rows: 0.5 is the
mean, and 4 deviations on either side are 0 and 1. A category is one value for each name and one for
all others. An empty cell is missing; a column that lists texts under `missing` has a value more,
which is 1 where a cell is missing. Nothing is fitted on private rows, so that no guarantee of
differential privacy depends on the form of a record.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import convert, to_builtins
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError
from secure_fd.files import parse_toml, read_limited
from secure_fd.votes.codec import FloatArray, IntArray

Float32Array = NDArray[np.float32]
Frame = Any
"""A pandas data frame of texts: pandas ships no types."""
DEVIATIONS: Final = 4.0
"""Deviations from the public mean at which a value is cut off."""
SPREAD: Final = 0.5 / DEVIATIONS
"""One deviation of a column, as a value in [0, 1]."""
MISSING: Final = frozenset({"", "NA", "NaN", "nan", "NULL"})
"""Texts that are missing wherever they are no category."""
_MOST_BYTES, _MOST_COLUMNS = 1_000_000, 10_000
_LEAST_SPREAD = 0.01
"""Of a column's range: smallest deviation, for columns that hardly vary in the public rows."""


@dataclass(frozen=True, slots=True)
class Table:
    """Files of a table, and the columns that are no input.

    At a site of a federation a file such as table.toml names them, relative to its own folder.

        rows = "patients.csv"
        columns = "columns.toml"
        public = "public.csv"
        label = "outcome"
        person = "patient"

    Attributes:
        path: of the private rows; CSV, or Parquet where pyarrow is installed.
        columns: the description, see `data.columns`.
        public: rows of the same columns that are public: the proxies.
        label: column of the classes.
        site: column that names the site of a row; "" where all rows are of one site.
        person: column that names the person of a row: the first row of each is used, so that the
            choice depends on no other person; "" uses all rows.

    >>> Table(Path("rows.csv"), Path("columns.toml"), Path("public.csv"), "outcome", "site").person
    ''
    """

    path: Path
    columns: Path
    public: Path
    label: str
    site: str = ""
    person: str = ""

    @classmethod
    def read(cls, path: Path, *, private: bool = True) -> "Table":
        """Read the file of a table. Raises ConfigurationError for anything else.

        private: whether rows must be named; without, they may be, and are not read.
        """
        found = _toml("table", path)
        if unknown := sorted(found.keys() - {"rows", "columns", "public", "label", "person"}):
            allowed = f"{path.name} may name rows, columns, public, label and person"
            raise ConfigurationError("table", unknown[0], allowed)
        for name in ("columns", "public", "label", *(("rows",) if private else ()), *found):
            if not isinstance(found.get(name), str) or not found[name]:
                allowed = f"{path.name} must name it as a text"
                raise ConfigurationError(name, found.get(name), allowed)
        rows, columns, public = (
            path.resolve().parent / found.get(name, "") for name in ("rows", "columns", "public")
        )
        return cls(rows, columns, public, found["label"], person=found.get("person", ""))

    def __post_init__(self) -> None:
        named = [name for name in (self.label, self.site, self.person) if name]
        twice = next((name for name in named if named.count(name) > 1), None)
        if twice is not None:
            raise ConfigurationError("label", twice, "label, site and person are three columns")


@dataclass(frozen=True, slots=True)
class Column:
    """A column as its owner describes it.

    Attributes:
        name: in the first line of the table.
        low: smallest number; smaller ones are clipped to it.
        high: largest number; larger ones are clipped to it.
        log: whether logarithms are used, for numbers over several magnitudes.
        categories: texts of a category; empty for a number.
        missing: further texts for a missing value; with any, a value tells that it is missing.

    Raises:
        ConfigurationError: there are no categories, and low is not below high.

    >>> Column("age", low=0, high=110, missing=("-1",)).width
    2
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    categories: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.categories:
            if len(set(self.categories)) < len(self.categories):
                raise ConfigurationError(self.name, "categories", "name every category once")
        elif not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            allowed = "low and high must be numbers, and low below high"
            raise ConfigurationError(self.name, (self.low, self.high), allowed)

    @property
    def width(self) -> int:
        """Values that stand for a cell: of a category one for each name, and one for others."""
        return (len(self.categories) + 1 if self.categories else 1) + bool(self.missing)

    def classes(self, texts: Frame, first: int) -> IntArray:
        """Return the class [N] of each cell: the place of its text among the categories.

        first: number of the first row, for the ConfigurationError about an unknown class, which
        quotes no cell.
        """
        found = np.asarray(texts.map({text: i for i, text in enumerate(self.categories)}))
        unknown = np.flatnonzero(np.isnan(found.astype(np.float64)))
        if len(unknown):
            allowed = f"its class must be one of {', '.join(self.categories)}"
            raise ConfigurationError(self.name, f"row {first + unknown[0]}", allowed)
        return found.astype(np.int64)

    def raw(self, texts: Frame, first: int) -> FloatArray:
        """Return the numbers [N, width] before scaling; a missing number is NaN."""
        absent = texts.isin({*self.missing, *MISSING}.difference(self.categories)).to_numpy()
        flag = [absent.astype(np.float64)] if self.missing else []
        if self.categories:
            known = [(texts == one).to_numpy() for one in self.categories]
            other = ~(np.any(known, axis=0) | absent)
            return np.stack([*map(np.float64, known), np.float64(other), *flag], axis=1)
        return np.stack([self._numbers(texts, absent, first), *flag], axis=1)

    def _numbers(self, texts: Frame, absent: np.ndarray[Any, Any], first: int) -> FloatArray:
        from pandas import to_numeric  # slow to import

        found = to_numeric(texts.mask(absent), errors="coerce").to_numpy(np.float64)
        wrong = np.flatnonzero(~np.isfinite(found) & ~absent)
        if len(wrong):
            allowed = "use a finite number, or list the text under missing in the columns file"
            raise ConfigurationError(self.name, f"row {first + wrong[0]}", allowed)
        return self._scaled(np.clip(found, self.low, self.high))

    def _scaled(self, numbers: FloatArray) -> FloatArray:
        if not self.log:
            return numbers
        return np.log(numbers) if self.low > 0 else np.log1p(numbers - self.low)

    @property
    def span(self) -> float:
        """Largest distance of two raw numbers."""
        ends = self._scaled(np.array([self.low, self.high]))
        return 1.0 if self.categories else float(ends[1] - ends[0])


@dataclass(frozen=True, slots=True, eq=False)
class ColumnScaling:
    """Raw numbers -> values in [0, 1], by public rows alone; a missing number is their mean.

    Attributes:
        centre: [D] public means.
        spread: [D] public deviations.
    """

    centre: FloatArray = field(repr=False)
    spread: FloatArray = field(repr=False)

    @classmethod
    def of_public(cls, raw: FloatArray, spans: FloatArray) -> "ColumnScaling":
        """Return the scaling of public rows [P, D]; spans: [D] largest distance of two numbers.

        >>> made = ColumnScaling.of_public(np.array([[1.0], [3.0]]), np.array([10.0]))
        >>> made.values(np.array([[2.0], [3.0], [9.0], [np.nan]]))[:, 0].tolist()
        [0.5, 0.625, 1.0, 0.5]
        """
        known = ~np.isnan(raw)
        count = np.maximum(known.sum(axis=0), 1)
        centre = np.where(known, raw, 0.0).sum(axis=0) / count
        deviation = np.sqrt((np.where(known, raw - centre, 0.0) ** 2).sum(axis=0) / count)
        return cls(centre, np.maximum(deviation, _LEAST_SPREAD * spans))

    def values(self, raw: FloatArray) -> Float32Array:
        """Return the values [N, D] of rows."""
        scaled = 0.5 + SPREAD * (raw - self.centre) / self.spread
        return np.nan_to_num(scaled, nan=0.5).clip(0.0, 1.0).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """Rows of texts -> values in [0, 1]. columns: that are used, in the order of the values."""

    columns: tuple[Column, ...]
    scaling: ColumnScaling

    @classmethod
    def of_public(cls, columns: Sequence[Column], rows: Frame) -> "Encoder":
        """Return the encoder that these public rows give."""
        spans = np.concatenate([[c.span] + [1.0] * (c.width - 1) for c in columns])
        return cls(tuple(columns), ColumnScaling.of_public(_raw(columns, rows, 1), spans))

    def stated(self) -> dict[str, Any]:
        """Return the encoder as plain values, for `restored`."""
        scaling = {name: getattr(self.scaling, name).tolist() for name in ("centre", "spread")}
        return {"columns": to_builtins(self.columns), **scaling}

    @classmethod
    def restored(cls, stated: Mapping[str, Any]) -> "Encoder":
        """Return the encoder that `stated` described; any error for other values."""
        columns = convert(stated["columns"], tuple[Column, ...])
        return cls(columns, ColumnScaling(np.array(stated["centre"]), np.array(stated["spread"])))

    def encode(self, rows: Frame, first: int = 1) -> Float32Array:
        """Return the values [N, D] of rows.

        first: number of the first row, for the ConfigurationError about a cell that is no number.
        """
        return self.scaling.values(_raw(self.columns, rows, first))


def _raw(columns: Sequence[Column], rows: Frame, first: int) -> FloatArray:
    return np.concatenate([column.raw(rows[column.name], first) for column in columns], axis=1)


def read_columns(path: Path) -> dict[str, Column]:
    """Read a description of columns, by name.

    Raises ConfigurationError, which names the column, for anything else than the module describes.
    """
    found = _toml("columns", path)
    if not 0 < len(found) <= _MOST_COLUMNS:
        raise ConfigurationError("columns", len(found), f"describe 1 to {_MOST_COLUMNS:,} columns")
    return {name: _column(name, stated) for name, stated in found.items()}


def _toml(field: str, path: Path) -> dict[str, Any]:
    try:
        data = read_limited(path, _MOST_BYTES)
    except OSError as error:
        raise ConfigurationError(field, str(path), f"use a file ({error.strerror})") from error
    return parse_toml(field, str(path), data, _MOST_BYTES)


def _column(name: str, stated: object) -> Column:
    if not isinstance(stated, Mapping):
        raise ConfigurationError(name, stated, 'use a table: [column], then kind = "number"')
    kind, given = stated.get("kind"), dict(stated)
    if kind not in _FIELDS:
        raise ConfigurationError(name, kind, f"kind must be one of {', '.join(_FIELDS)}")
    if unknown := sorted(given.keys() - {"kind", "missing", *_FIELDS[kind]}):
        allowed = f"a {kind} takes {', '.join(_FIELDS[kind])} and missing"
        raise ConfigurationError(name, unknown[0], allowed)
    del given["kind"]
    for key in ("categories", "missing"):
        if key in given:
            given[key] = _texts(name, key, given[key])
    for key in ("low", "high"):
        if not isinstance(given.get(key, 0), int | float):
            raise ConfigurationError(name, given[key], f"{key} must be a number")
    if not isinstance(given.get("log", False), bool):
        raise ConfigurationError(name, given["log"], "log must be true or false")
    if kind == "category" and not given.get("categories"):
        raise ConfigurationError(name, "categories", "name one category or more")
    return Column(name, **given)


_FIELDS: Final = {"number": ("low", "high", "log"), "category": ("categories",)}


def _texts(name: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigurationError(name, value, f'{key} must be a list, such as ["a", "b"]')
    return tuple(str(one) for one in value)
