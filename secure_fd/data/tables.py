"""A user's own table: rows of a CSV or Parquet file, divided among the sites that hold them.

A row becomes a record as `data.columns` describes it: values [D, 1, 1] in [0, 1]. Rows are not
compared with each other: two people may be alike in every column.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike

from secure_fd.data.columns import (
    Column,
    ColumnScaling,
    Encoder,
    Float32Array,
    Frame,
    Table,
    read_columns,
)
from secure_fd.data.federated import FederatedData, clients_of, content_of, shares_of
from secure_fd.data.image_sets import own_name
from secure_fd.data.images import Images, concatenate, proxy_pixels
from secure_fd.errors import ConfigurationError
from secure_fd.votes.codec import FloatArray, IntArray

_TEST, _HELD_OUT = 0.15, 0.1
"""Shares of a site's rows that are the test set, and that are in no training set."""
_LEAST: Final = 20
"""Rows of a site below which these shares are too small to measure with."""
_LEAST_PUBLIC: Final = 50
_CHUNK: Final = 50_000
_COPIES: Final = 3
"""Copies of the encoded rows that are in memory at once, at most."""
_NAMED: Final = 6
"""Columns that a sentence names at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What is public about a table: its classes, the form of a record, and the proxies."""

    label: Column
    encoder: Encoder
    proxies: Images

    @classmethod
    def of(cls, table: Table) -> "Form":
        """Read the description and the public rows of a table. Raises ConfigurationError."""
        every = read_columns(table.columns)
        label = every.pop(table.label, None)
        if label is None or len(label.categories) < 2:
            allowed = f"{table.columns.name} must describe it as a category of two classes or more"
            raise ConfigurationError("label", table.label, allowed)
        used = [c for name, c in every.items() if name not in (table.site, table.person)]
        names = [column.name for column in used]
        if not used:
            allowed = "describe one column or more beside label, site and person"
            raise ConfigurationError("columns", table.columns.name, allowed)
        rows = public_rows("public", table.public, names, table.label)
        if len(rows) < _LEAST_PUBLIC:
            raise ConfigurationError("public", len(rows), f"use {_LEAST_PUBLIC} rows or more")
        encoder, labels = Encoder.of_public(used, rows), np.full(len(rows), -1)
        if table.label in rows:
            labels = label.classes(rows[table.label], 1)
        return cls(label, encoder, _records(in_steps(encoder.encode(rows)), labels))

    @property
    def digest(self) -> bytes:
        """Hash of the description: ranges and names that occur in no public row are in it too."""
        return hashlib.sha256(repr((self.label, self.encoder.columns)).encode()).digest()

    def read(self, table: Table) -> dict[str, Images]:
        """Return the records of each site, by the site's name. Raises ConfigurationError."""
        named = [name for name in (table.label, table.site, table.person) if name]
        wanted = [*(column.name for column in self.encoder.columns), *named]
        _header("table", table.path)  # refuses what is no table
        _check_memory(table.path, self.proxies.pixels.shape[1])
        values, labels, sites, persons, first = [], [], [], [], 1
        for rows in _chunks("table", table.path, wanted):
            values.append(self.encoder.encode(rows, first))
            labels.append(self.label.classes(rows[table.label], first))
            sites.append(_cells(rows, table.site, first))
            persons.append(_cells(rows, table.person, first))
            first += len(rows)
        if first == 1:
            raise ConfigurationError("table", str(table.path), "it has no rows")
        made = _records(np.concatenate(values), np.concatenate(labels))
        del values
        kept = np.arange(len(made))
        if table.person:  # the first row: a choice that depends on no other person
            _, kept = np.unique(np.concatenate(persons), return_index=True)
        order = np.random.default_rng(0).permutation(np.sort(kept))
        place = np.concatenate(sites)[order]
        return {str(name): made[order[place == name]] for name in np.unique(place)}


def federate_table(table: Table, seed: int) -> FederatedData:
    """Divide a table by its sites.

    A tenth of a site's records is its validation; 15 % of its rows are the test set, the same for
    every seed, and 10 % are in no training set.

    Raises:
        ConfigurationError: a file or a cell cannot be read, or there are too few rows or sites.

    >>> files = Path("rows.csv"), Path("columns.toml"), Path("public.csv")
    >>> federate_table(Table(*files, "outcome", "site"), seed=0)
    Traceback (most recent call last):
    secure_fd.errors.ConfigurationError: columns: 'columns.toml' is not allowed; ...
    """
    form = Form.of(table)
    sites, count = form.read(table), len(form.label.categories)
    return _divided(sites, form.proxies, count, seed)


def federate_features(
    features: ArrayLike,
    labels: ArrayLike,
    sites: ArrayLike,
    proxies: ArrayLike,
    bounds: tuple[ArrayLike, ArrayLike],
    seed: int = 0,
) -> FederatedData:
    """Divide rows that are numbers already, such as embeddings, by their sites.

    Args:
        features: [N, D] private rows, clipped to the bounds.
        labels: [N] classes from 0 on.
        sites: [N] names or numbers.
        proxies: [P, D] public rows.
        bounds: lowest and highest value, of all columns or of each [D], from public knowledge.
        seed: of the division, but for the test set.

    Raises:
        ConfigurationError: for another shape, and for values that are not finite.

    >>> rng = np.random.default_rng(0)
    >>> rows, public, classes = rng.random((80, 3)), rng.random((60, 3)), rng.integers(2, size=80)
    >>> len(federate_features(rows, classes, np.arange(80) % 2, public, (0, 1)).clients)
    2
    """
    rows, public = _numbers("features", features), _numbers("proxies", proxies)
    classes, place = np.asarray(labels), np.asarray(sites)
    if rows.shape[1] != public.shape[1]:
        raise ConfigurationError("proxies", public.shape, f"use [P, {rows.shape[1]}], as features")
    for name, found in (("labels", classes), ("sites", place)):
        if found.shape != (len(rows),):
            raise ConfigurationError(name, found.shape, f"use one a row: ({len(rows)},)")
    if not np.issubdtype(classes.dtype, np.integer) or classes.min() < 0 or classes.max() < 1:
        allowed = "use whole numbers from 0 on, of two classes or more"
        raise ConfigurationError("labels", str(classes.dtype), allowed)
    low, high = _bounds(bounds, rows.shape[1])
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise ConfigurationError("bounds", "some", "use finite numbers, and low below high")
    if len(public) < _LEAST_PUBLIC:
        raise ConfigurationError("proxies", len(public), f"use {_LEAST_PUBLIC} rows or more")
    scaling = ColumnScaling.of_public(public.clip(low, high), high - low)
    made, shown = (scaling.values(part.clip(low, high)) for part in (rows, public))
    records = _records(made, classes.astype(np.int64))
    parts = {str(name): records[np.flatnonzero(place == name)] for name in np.unique(place)}
    public_records = _records(in_steps(shown), np.full(len(shown), -1))
    return _divided(parts, public_records, int(classes.max()) + 1, seed)


def _bounds(bounds: tuple[ArrayLike, ArrayLike], columns: int) -> tuple[FloatArray, FloatArray]:
    try:
        low, high = (np.broadcast_to(np.asarray(end, np.float64), (columns,)) for end in bounds)
    except (TypeError, ValueError):
        allowed = f"use a pair: lowest and highest, each one number or [{columns}]"
        raise ConfigurationError("bounds", "another form", allowed) from None
    return low, high


def _numbers(field: str, values: ArrayLike) -> FloatArray:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(field, type(values).__name__, "use an array of numbers") from None
    if found.ndim != 2 or not found.size:
        raise ConfigurationError(field, found.shape, "use [rows, columns], one or more of both")
    if not np.isfinite(found).all():
        raise ConfigurationError(field, "some", "use finite numbers: no NaN, and no infinity")
    return found


def _divided(
    sites: Mapping[str, Images], proxies: Images, n_classes: int, seed: int
) -> FederatedData:
    if len(sites) < 2:
        raise ConfigurationError("site", len(sites), "the rows must be of two sites or more")
    parts = []
    for k, (name, records) in enumerate(sites.items()):
        if len(records) < _LEAST:
            allowed = f"this site has {len(records)} rows; {_LEAST} or more are needed"
            raise ConfigurationError("site", name, allowed)
        cuts = shares_of(len(records), (_TEST, _HELD_OUT), seed, k)
        parts.append([records[part] for part in cuts])
    test, held_out, own = zip(*parts, strict=True)
    shape = tuple(proxies.pixels.shape[1:])
    return FederatedData(
        own_name(shape, n_classes, len(proxies), table=True),
        n_classes,
        tuple(clients_of(own, n_classes, seed=seed)),
        proxies[np.random.default_rng(seed).permutation(len(proxies))],
        concatenate(test),
        _not_among(concatenate(held_out), concatenate(own)),
    )


def _not_among(held_out: Images, own: Images) -> Images:
    """Leave out held-out rows that equal a record: an attack could not tell them from members."""
    known = set(map(content_of, own.pixels))
    return held_out[np.flatnonzero([content_of(row) not in known for row in held_out.pixels])]


def _records(values: Float32Array, labels: IntArray) -> Images:
    return Images(torch.from_numpy(values)[:, :, None, None], torch.from_numpy(labels))


def in_steps(values: Float32Array) -> Float32Array:
    """Round values in [0, 1] to the 256 steps in which proxies are sent."""
    return proxy_pixels(torch.from_numpy(values)).astype(np.float32) / np.float32(255)


def encoded(encoder: Encoder, path: Path) -> Iterator[Float32Array]:
    """Yield the values [n, D] of further rows in parts. Raises ConfigurationError."""
    first = 1
    for rows in _chunks("rows", path, [column.name for column in encoder.columns]):
        yield encoder.encode(rows, first)
        first += len(rows)


# Reading.


def public_rows(field: str, path: Path, names: Sequence[str] | None, label: str = "") -> Frame:
    """Return the rows of a public table as texts.

    names: of the columns, by default all. label: a further column, where the table has it.
    """
    from pandas import concat  # slow to import

    there = _header(field, path)
    wanted = there if names is None else [*names, *({label} & set(there))]
    return concat(_chunks(field, path, wanted))


def _header(field: str, path: Path) -> list[str]:
    """Names of the columns, without reading the rows."""
    if not path.is_file():
        raise ConfigurationError(field, str(path), "it must be a CSV or Parquet file")
    if path.suffix == ".parquet":
        if find_spec("pyarrow") is None:
            raise ConfigurationError(field, str(path), "install pyarrow to read Parquet")
        from pyarrow.parquet import read_schema

        return list(read_schema(path).names)
    from pandas import read_csv  # slow to import

    with _readable(field, path):
        return [str(name) for name in read_csv(path, nrows=0, dtype=str, skipinitialspace=True)]


def _chunks(field: str, path: Path, names: Sequence[str]) -> Iterator[Frame]:
    """Yield some rows at a time, with these columns, as texts without blanks around them."""
    there = _header(field, path)
    if lacking := [name for name in names if name not in there]:
        allowed = f"{path.name} has no such column; it has {', '.join(there[:_NAMED])}"
        raise ConfigurationError(field, lacking[0], allowed)
    with _readable(field, path):
        for rows in _frames(path, list(dict.fromkeys(names))):
            yield rows.apply(lambda column: column.str.strip())


def _frames(path: Path, names: list[str]) -> Iterator[Frame]:
    from pandas import read_csv, read_parquet

    if path.suffix == ".parquet":
        yield read_parquet(path, columns=names).astype("string").fillna("").astype(object)
        return
    kinds = {"dtype": str, "keep_default_na": False, "skipinitialspace": True}
    yield from read_csv(path, usecols=names, chunksize=_CHUNK, **kinds)


@contextmanager
def _readable(field: str, path: Path) -> Iterator[None]:
    """Turn an error of pandas into one sentence that quotes no cell."""
    try:
        yield
    except UnicodeDecodeError:
        raise ConfigurationError(field, str(path), "it must be a table in UTF-8") from None
    except (ValueError, OSError) as error:  # pandas: ParserError, EmptyDataError
        if isinstance(error, ConfigurationError):
            raise
        allowed = f"it must be a table with names in its first line ({type(error).__name__})"
        raise ConfigurationError(field, str(path), allowed) from None


def _cells(rows: Frame, name: str, first: int) -> Any:  # noqa: ANN401 - an array of texts
    """Names in a column; ConfigurationError for an empty cell. first: number of the first row."""
    if not name:
        return np.full(len(rows), "")
    found = rows[name].to_numpy(dtype=str)
    if len(empty := np.flatnonzero(found == "")):
        raise ConfigurationError(name, f"row {first + empty[0]}", "it must not be empty")
    return found


def _check_memory(path: Path, values: int) -> None:
    """Refuse a table whose records do not fit in the memory of this machine."""
    if path.suffix == ".parquet":
        from pyarrow.parquet import read_metadata

        count = int(read_metadata(path).num_rows)
    else:
        with path.open("rb") as file:
            count = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = _COPIES * 4 * values * count
    if needed > there:
        allowed = (
            f"{count:,} rows of {values} values need {needed / 1e9:.1f} GB, and this machine has "
            f"{there / 1e9:.1f}: use fewer rows or columns"
        )
        raise ConfigurationError("table", path.name, allowed)
