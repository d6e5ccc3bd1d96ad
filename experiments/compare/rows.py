"""Which rows a comparison has: a method, what it shares, and what protects it."""

from dataclasses import dataclass
from typing import Literal

from experiments.compare.settings import Plan
from secure_fd.errors import ConfigurationError

Kind = Literal["fedavg", "independent", "fedmd", "selective-fd"]
Labels = Literal["soft", "hard"]


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row. secure: how sums are protected. unit: privacy unit, at the plan's epsilon."""

    kind: Kind
    labels: Labels = "hard"
    secure: Literal["masks", "he"] | None = None
    unit: Literal["label", "record", "client"] | None = None

    @property
    def key(self) -> str:
        """Identifies the row in files."""
        parts: list[str] = [self.kind]
        if self.kind in ("fedmd", "selective-fd"):
            parts.append(self.labels)
        if self.secure is not None:
            parts.append(self.secure)
        if self.unit is not None:
            parts.append("dp-sgd" if self.kind == "fedavg" else f"dp-{self.unit}")
        return "-".join(parts)

    @property
    def label(self) -> str:
        """Names the row to a reader."""
        names = {"fedavg": "FedAvg", "independent": "Independent", "fedmd": "FedMD"}
        parts = [names.get(self.kind, "Selective-FD")]
        if self.kind in ("fedmd", "selective-fd"):
            parts[0] += f" {self.labels}"
        if self.secure is not None:
            parts.append({"masks": "masks", "he": "HE"}[self.secure])
        if self.unit is not None:
            parts.append("DP-SGD" if self.kind == "fedavg" else f"DP {self.unit} unit")
        return " + ".join(parts)


def row_specs(plan: Plan) -> tuple[RowSpec, ...]:
    """The rows in the order of the table.

    Raises ConfigurationError where a row is asked for by a key that these settings do not have.
    """
    every = {spec.key: spec for spec in _every_row(plan)}
    if plan.settings.rows == "all":
        return tuple(every.values())
    wanted = [key.strip() for key in plan.settings.rows.split(",")]
    for key in wanted:
        if key not in every:
            raise ConfigurationError("rows", key, f"use all, or some of {', '.join(every)}")
    return tuple(spec for key, spec in every.items() if key in wanted)


def _every_row(plan: Plan) -> tuple[RowSpec, ...]:
    wanted = plan.settings.labels
    labels: tuple[Labels, ...] = ("soft", "hard") if wanted == "both" else (wanted,)
    protected = labels[-1]
    secure: Literal["masks"] | None = "masks" if plan.settings.secure_agg else None
    rows = [RowSpec("fedavg"), RowSpec("independent"), RowSpec("fedmd", labels[0])]
    rows += [RowSpec("selective-fd", kind) for kind in labels]
    if secure:
        rows.append(RowSpec("selective-fd", protected, secure))
    if plan.settings.aggregation == "he":
        rows.append(RowSpec("selective-fd", protected, "he"))
    if plan.settings.dp_eps is not None:
        if "label" in plan.units:
            rows.append(RowSpec("selective-fd", protected, secure, "label"))
        if "record" in plan.units:
            rows += [RowSpec("selective-fd", protected, secure, "record")]
            rows += [RowSpec("fedavg", unit="record")]
        if "client" in plan.units:
            rows.append(RowSpec("selective-fd", protected, secure, "client"))
    return tuple(rows)
