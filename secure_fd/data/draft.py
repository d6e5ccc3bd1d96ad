"""`secure-fd columns`: a first description of a table's columns, from public rows alone."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import tyro

from secure_fd.cli import exit_status
from secure_fd.data.columns import MISSING, Frame
from secure_fd.data.tables import public_rows
from secure_fd.errors import ConfigurationError
from secure_fd.votes.codec import FloatArray

_MOST_CATEGORIES: Final = 50
"""Different texts that a draft lists; a column of more is left out."""
_SKEWED: Final = 20.0
"""Ratio of a column's mean to its median from which a draft takes logarithms."""
_HEAD: Final = (
    "# Drafted from public rows. Correct ranges and categories from what is known in public,",
    "# and delete the columns that are not to be used. Never fit them to private rows.",
)


@dataclass(frozen=True, slots=True)
class DraftCommand:
    """Write a first description of the columns of a table, from public rows alone."""

    public: tyro.conf.Positional[Path]
    """Public rows, CSV or Parquet."""
    label: str = ""
    """The column of the classes, which is described as a category even where it has numbers."""
    out: Path = Path("columns.toml")
    """The new file."""

    def __call__(self) -> int:
        """Write the file; ConfigurationError where it is there already."""
        if self.out.exists():
            raise ConfigurationError("out", str(self.out), "use a new file")
        self.out.write_text(drafted(self.public, self.label), encoding="utf-8")
        print(f"{self.out}: Next: correct the ranges, and delete the columns that are not used")
        return 0


def main(arguments: Sequence[str], prog: str) -> int:
    """Run the command; returns the exit status."""

    def work() -> int:
        return tyro.cli(DraftCommand, args=arguments, prog=prog)()

    return exit_status(work, interrupted="nothing was written")


def drafted(public: Path, label: str) -> str:
    """Return the description of the columns of public rows; see `data.columns`.

    Raises ConfigurationError where there are no such rows, or no such column of classes.
    """
    rows = public_rows("public", public, None)
    if label and label not in rows:
        raise ConfigurationError("label", label, f"{public.name} has no such column")
    return "\n".join((*_HEAD, *_lines(rows, label), ""))


def _lines(rows: Frame, label: str) -> Iterator[str]:
    from pandas import to_numeric  # slow to import

    for name in rows.columns:
        texts = rows[name]
        present = texts[~texts.isin(MISSING)]
        numbers = to_numeric(present, errors="coerce").to_numpy(np.float64)
        different = sorted(set(present))
        yield ""
        if name != label and len(present) and np.isfinite(numbers).all():
            yield f"[{json.dumps(name)}]"
            yield from _number(numbers)
        elif 0 < len(different) <= _MOST_CATEGORIES:
            yield f"[{json.dumps(name)}]"
            yield f'kind = "category"\ncategories = {json.dumps(different)}'
        else:
            yield f"# {json.dumps(name)} has {len(different):,} different texts: left out."
            continue
        if len(present) < len(texts):
            yield 'missing = [""]'


def _number(numbers: FloatArray) -> Iterator[str]:
    low, high = float(numbers.min()), float(numbers.max())
    yield f'kind = "number"\nlow = {low!r}\nhigh = {high if high > low else low + 1.0!r}'
    if low >= 0 and numbers.mean() > _SKEWED * max(float(np.median(numbers)), 1e-12):
        yield "log = true"
