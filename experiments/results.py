"""Results on disk: whole files, dataclasses as JSON, images, and the schema of a comparison."""

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.codec import decode, encode
from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from attacks.base import AttackResult


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a new file in the same folder, then put it in the place of `path`.

    An interrupt at any moment leaves the old file, or none: never half of the new one.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


T = TypeVar("T")


def write(path: Path, value: object, where: str) -> None:
    """A dataclass as a JSON file. Raises ConfigurationError for anything that `read` refuses."""
    content = encode(value, where)
    decode(type(value), content, where)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(text.encode()))


def read(path: Path, kind: type[T], where: str) -> T:
    """The dataclass in a JSON file, strictly: nothing missing, nothing extra, finite numbers."""
    try:
        content = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise ConfigurationError(where, path.name, "there must be such a file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(path.name, str(error), "it must be JSON in UTF-8") from None
    return decode(kind, content, where)


def _refuse_constant(name: str) -> float:
    raise ConfigurationError("results", name, "use finite numbers or null")


Images: TypeAlias = Mapping[str, NDArray[np.floating]]
"""[n, H, W] in [0, 1] by name: "originals", row keys, and "control: ..." names."""

IMAGES_FILE = "reconstructions.npz"
ORIGINALS = "originals"
CONTROL = "control: "


def save_images(images: Images, folder: Path) -> Path:
    """Write `reconstructions.npz`, whole or not at all, and return its path.

    Raises ConfigurationError where `load_images` would.
    """
    _check(images)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / IMAGES_FILE
    arrays = {name: np.asarray(array, dtype=np.float32) for name, array in images.items()}
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
    return path


def load_images(folder: Path) -> dict[str, NDArray[np.floating]]:
    """All arrays of a folder; empty where no attack rebuilt anything."""
    path = folder / IMAGES_FILE
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as archive:
        images = {name: archive[name] for name in archive.files}
    _check(images)
    return images


def _check(images: Images) -> None:
    if ORIGINALS not in images:
        raise ConfigurationError("images", sorted(images), f"include {ORIGINALS!r}")
    expected = images[ORIGINALS].shape
    for name, array in images.items():
        if array.ndim != 3 or array.shape[1:] != expected[1:] or not np.isfinite(array).all():
            allowed = f"use finite images [n, {', '.join(map(str, expected[1:]))}]"
            raise ConfigurationError(name, array.shape, allowed)


SCHEMA = "secure-fd/privacy-compare/2"
RESULTS_FILE = "results.json"
NOT_APPLICABLE = "not applicable: "
"""How the sentence starts that stands in the place of an attack's figure."""
EXCESS = "Δ"
"""How the name of a figure starts that is an excess over held-out images."""
SINGLE = "single-contributor proxies"
"""The diagnostic: share of the answered proxies that exactly one client answered."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Test accuracy in [0, 1]: mean, spread over clients, and what they were computed from."""

    mean: float
    std_over_clients: float
    per_client: list[float]
    per_seed: list[float]

    def __post_init__(self) -> None:
        for value in (self.mean, *self.per_client, *self.per_seed):
            if not 0 <= value <= 1:
                raise ConfigurationError("accuracy", value, "use a fraction from 0 to 1")


@dataclass(frozen=True, slots=True)
class AttackFigure:
    """One attack on one row, beside the same attack without access.

    figure, interval, control: in `unit`. details: anything else that was measured.
    roc: {"fpr": [...], "tpr": [...]}, non-decreasing, where the attack ranks records.
    """

    figure: float
    figure_name: str
    unit: str
    interval: tuple[float, float] | None
    control: float | None
    control_name: str
    queries: int
    details: dict[str, object]
    roc: dict[str, list[float]] | None
    caveats: list[str]

    def __post_init__(self) -> None:
        if self.interval is not None and self.interval[0] > self.interval[1]:
            raise ConfigurationError("interval", self.interval, "use [low, high]")
        if self.roc is not None:
            _check_roc(self.roc)

    @classmethod
    def of(cls, result: "AttackResult") -> "AttackFigure":
        """An attack's result as a report keeps it; without its pictures."""
        roc = result.roc
        return cls(
            figure=result.figure,
            figure_name=result.figure_name,
            unit=result.unit,
            interval=result.interval,
            control=result.control,
            control_name=result.control_name,
            queries=result.queries,
            details=dict(result.details),
            roc=None if roc is None else {"fpr": roc.fpr.tolist(), "tpr": roc.tpr.tolist()},
            caveats=list(result.caveats),
        )

    @property
    def _is_excess(self) -> bool:
        return self.figure_name.startswith(EXCESS)

    @property
    def declared(self) -> bool:
        """Whether the figure follows from what clients declare in public, without an attack."""
        return "declared_clients" in self.details

    @property
    def exact(self) -> float | None:
        """Share of records that were recovered to the last bit, where the attack counts them."""
        share = self.details.get("share_exact")
        return share if isinstance(share, float) else None

    @property
    def differs_from_control(self) -> bool:
        """Whether attack and control differ by more than chance explains, at about 95 %.

        The control is an estimate too, about as uncertain as the figure, so their difference has
        sqrt(2) times its half-width. Where the attack states a p-value, that must agree: it covers
        the choice of images, which the interval does not.
        """
        if self.interval is None or self.control is None:
            return False
        low, high = self.interval
        half = high - self.figure if self.control > self.figure else self.figure - low
        # A p-value of Δ has no say about another figure.
        p_value = self.details.get("delta_p_value", 0.0) if self._is_excess else 0.0
        agrees = isinstance(p_value, float | int) and p_value < 0.05
        return agrees and abs(self.figure - self.control) > math.sqrt(2) * half


def _check_roc(roc: dict[str, list[float]]) -> None:
    if set(roc) != {"fpr", "tpr"} or len(roc["fpr"]) != len(roc["tpr"]):
        raise ConfigurationError("roc", sorted(roc), "use fpr and tpr, equally long")
    for name, rates in roc.items():
        if rates != sorted(rates) or any(not 0 <= rate <= 1 for rate in rates):
            raise ConfigurationError(f"roc.{name}", rates, "use non-decreasing rates from 0 to 1")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Accuracy in [0, 1] after a round, and the bytes until then: both ways, mean per client."""

    round: int
    accuracy: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How a row's sums were made, and which clients were missing.

    seconds: CPU seconds a round, of all parties, set-up included; mean over seeds. The rest is
    over all seeds. void_rounds: rounds without a sum. survivors: mean clients in a sum.
    missing: by stage, for each client, the rounds that it was silent from that stage on.
    """

    name: str
    seconds: float
    void_rounds: int
    survivors: float
    missing: dict[str, list[int]]

    def __post_init__(self) -> None:
        for name in ("seconds", "void_rounds", "survivors"):
            if getattr(self, name) < 0:
                raise ConfigurationError(name, getattr(self, name), "use 0 or more")


@dataclass(frozen=True, slots=True)
class Row:
    """One method under one protection.

    bytes_up, bytes_down: mean per client over the whole run. seconds: CPU seconds of the row.
    aggregation: None where nothing is summed.
    guarantee: one sentence. privacy: its parts (unit, epsilon, delta, ...), or None.
    attacks: by attack, a figure or the sentence "not applicable: missing ...".
    """

    key: str
    label: str
    accuracy: Accuracy
    bytes_up: float
    bytes_down: float
    seconds: float
    rounds: int
    aggregation: Aggregation | None
    guarantee: str
    privacy: dict[str, object] | None
    attacks: dict[str, AttackFigure | str]
    curve: tuple[CurvePoint, ...]
    diagnostics: dict[str, float]

    def __post_init__(self) -> None:
        for name in ("bytes_up", "bytes_down", "seconds"):
            if getattr(self, name) < 0:
                raise ConfigurationError(name, getattr(self, name), "use 0 or more")
        for name, attack in self.attacks.items():
            if isinstance(attack, str) and not attack.startswith(NOT_APPLICABLE):
                raise ConfigurationError(name, attack, f"start it with {NOT_APPLICABLE!r}")

    def figure(self, attack: str) -> AttackFigure | None:
        """The attack's figure, or None where it does not apply or was not run."""
        found = self.attacks.get(attack)
        return found if isinstance(found, AttackFigure) else None


@dataclass(frozen=True, slots=True)
class Results:
    """A whole comparison. created: ISO 8601 in UTC. insecure: settings that weaken the run."""

    schema: str
    created: str
    command: list[str]
    settings: dict[str, object]
    seeds: list[int]
    versions: dict[str, str]
    machine: dict[str, object]
    data: dict[str, object]
    insecure: list[str]
    rows: tuple[Row, ...]
    attack_notes: dict[str, list[str]]
    seconds: float

    def __post_init__(self) -> None:
        _check_schema(self.schema)
        _check_created(self.created)
        keys = [row.key for row in self.rows]
        if not keys or len(set(keys)) < len(keys):
            raise ConfigurationError("rows", keys, "use one row or more, each with its own key")

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row.attacks))


def save_results(results: Results, folder: Path) -> Path:
    """Write `results.json` into the folder, whole or not at all, and return its path.

    Raises ConfigurationError for anything that `load` would refuse.
    """
    content = encode(results, "results")
    decode(Results, content, "results")
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RESULTS_FILE
    write_atomically(path, lambda file: file.write(text.encode()))
    return path


def load_results(folder: Path) -> Results:
    """The comparison in a folder; ConfigurationError names the first thing that is wrong."""
    path = folder / RESULTS_FILE
    try:
        content = json.loads(path.read_bytes(), parse_constant=_refuse_constant_results)
    except FileNotFoundError:
        raise ConfigurationError("folder", str(folder), f"it must hold {RESULTS_FILE}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(RESULTS_FILE, str(error), "it must be JSON in UTF-8") from None
    if isinstance(content, dict):
        _check_schema(content.get("schema"))
    results: Results = decode(Results, content, "results")
    return results


def _check_schema(schema: object) -> None:
    if schema != SCHEMA:
        raise ConfigurationError("schema", schema, f"this version reads {SCHEMA!r}")


def _check_created(created: str) -> None:
    try:
        offset = datetime.fromisoformat(created).utcoffset()
    except ValueError:
        offset = None
    if offset != timedelta(0):
        raise ConfigurationError("created", created, "use ISO 8601 in UTC")


def _refuse_constant_results(name: str) -> float:
    raise ConfigurationError(RESULTS_FILE, name, 'use finite numbers, null or "inf"')
