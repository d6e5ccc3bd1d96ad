"""When, where and with which libraries results were made, and what any results must satisfy."""

import os
import platform
from collections.abc import Hashable, Sequence
from datetime import UTC, datetime

import numpy as np

from secure_fd.errors import ConfigurationError

_LIBRARIES = ("secure-fd", "torch", "numpy", "scipy")
PRIVACY_LIBRARIES = ("cryptography", "dp-accounting", "opacus", "pycryptodome", "scikit-learn")
"""What runs with masks, noise or attacks use besides."""


def created_now() -> str:
    """ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions(*others: str) -> dict[str, str]:
    """Of Python and of the libraries that figures come from; others: what these use besides."""
    from importlib.metadata import version  # slow to import

    libraries = {name: version(name) for name in (*_LIBRARIES, *others)}
    return {"python": platform.python_version(), **libraries}


def machine() -> dict[str, object]:
    """What a reader needs to judge seconds by."""
    return {"cpus": os.cpu_count() or 1}


def check_schema(found: str, read: str) -> None:
    """Raise ConfigurationError where a file is of another schema than the one that is read."""
    if found != read:
        raise ConfigurationError("schema", found, f"this version reads {read!r}")


def check_cells(cells: Sequence[Hashable]) -> None:
    """Raise ConfigurationError where there is no cell, or one twice."""
    if not cells or len(set(cells)) < len(cells):
        raise ConfigurationError("cells", len(cells), "use one or more, each once")


def check_measured(accuracies: Sequence[float], seconds: float) -> None:
    """Raise ConfigurationError for an accuracy that is no fraction, or a time below zero."""
    for value in accuracies:
        if not 0 <= value <= 1:
            raise ConfigurationError("accuracy", value, "use a fraction from 0 to 1")
    if seconds < 0:
        raise ConfigurationError("seconds", seconds, "use 0 or more")


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Over seeds; one seed alone has no deviation."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
