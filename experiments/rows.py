"""A row of a comparison: which method runs, what it shares, and on which terms.

Names and numbers only: nothing here imports tensors.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from secure_fd.data.partition import Split
from secure_fd.methods.registry import METHODS
from secure_fd.methods.registry import load as load_method
from secure_fd.recipes import Schedule

Labels = Literal["soft", "hard"]
Secure = Literal["masks", "he"]
Unit = Literal["label", "record", "client"]
Selector = Literal["proxy-ratio", "kulsif"]

FIRST_SEED = 10
"""Seeds below were looked at while defaults were chosen; results should not come from them."""
# Below, no noise suffices for DP-SGD's accountant; above, samplers are not exact enough for it, and
# it promises nothing.
LEAST_EPSILON, MOST_EPSILON = 0.01, 50.0


def method_class(kind: str) -> Any:  # noqa: ANN401 - a class of any method
    """The class of a method, by its name or as package.module:Name.

    Raises ConfigurationError where it cannot be loaded or lacks what a federation needs.

    >>> method_class("fedmd").__name__
    'FedMD'
    """
    if kind not in METHODS:
        working_folder()
    return load_method(kind)


def working_folder() -> None:
    """Let modules of one's own be imported from the working folder."""
    if "" not in sys.path:
        sys.path.insert(0, "")


@dataclass(frozen=True, slots=True)
class Attacks:
    """Attacks by name, or as package.module:Name. quick: small ones, for a look."""

    names: tuple[str, ...]
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What all rows of one table share: data, steps, the selector, privacy and faults.

    epsilon: None where no noise is added. delta: of the record and client units, and of what the
    label unit composes to. releases: how often a client answers one proxy; None: once a round.
    """

    dataset: str
    split: Split
    clients: int
    rounds: int
    schedule: Schedule
    data_dir: Path | None = None
    selector: Selector = "proxy-ratio"
    epsilon: float | None = None
    delta: float = 1e-5
    label_alphabet: Literal["full", "declared"] = "full"
    small_fleet: bool = False
    drop: float = 0.0
    releases: int | None = None


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row. kind: a name of `METHODS`, or package.module:Name.

    secure: how sums are protected. unit: privacy unit, at the terms' epsilon.

    >>> RowSpec("selective-fd", "hard", "masks", "label").key
    'selective-fd-hard-masks-dp-label'
    >>> RowSpec("selective-fd", "hard", "masks", "record").label
    'Density-ratio heads + masks + DP record unit'
    """

    kind: str
    labels: Labels = "hard"
    secure: Secure | None = None
    unit: Unit | None = None

    @property
    def own(self) -> bool:
        """Whether the method is one of the user's."""
        return self.kind not in METHODS

    @property
    def key(self) -> str:
        """Identifies the row in files."""
        parts: list[str] = [self.kind.rpartition(":")[2].lower() if self.own else self.kind]
        if not self.own and METHODS[self.kind].labels:
            parts.append(self.labels)
        if self.secure is not None:
            parts.append(self.secure)
        if self.unit is not None:
            parts.append("dp-sgd" if self.kind == "fedavg" else f"dp-{self.unit}")
        return "-".join(parts)

    @property
    def label(self) -> str:
        """Names what runs to a reader.

        The record unit replaces any method's votes by heads on density ratios: it names those.
        """
        parts = [self._method]
        if self.secure is not None:
            parts.append({"masks": "masks", "he": "HE"}[self.secure])
        if self.unit is not None:
            parts.append("DP-SGD" if self.kind == "fedavg" else f"DP {self.unit} unit")
        return " + ".join(parts)

    @property
    def _method(self) -> str:
        if self.unit == "record" and self.kind != "fedavg":
            return "Density-ratio heads"
        if self.own:
            return self.kind.rpartition(":")[2]
        known = METHODS[self.kind]
        return f"{known.title} {self.labels}" if known.labels else known.title


def title(spec: RowSpec, epsilon: float | None) -> str:
    """The row's label; a unit at an infinite epsilon (None) adds no noise, as the title tells.

    >>> title(RowSpec("selective-fd", unit="record"), None)
    'Selective-FD hard, DP record unit off'
    """
    if spec.unit is None or epsilon is not None:
        return spec.label
    return f"{replace(spec, unit=None).label}, DP {spec.unit} unit off"
