"""Options that studies share: folders of data and results, and number of processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """Options of the studies over image sets; none of their figures depends on them.

    >>> SharedOptions(workers=1).out is None
    True
    """

    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds the image sets that are not bundled, each in a folder of its name."""
    out: Path | None = None
    """Folder of the results and finished cells; by default below runs/, by the study's name."""
    workers: int = 2
    """Processes that share the work."""
    scheduler: str | None = None
    """Use the workers of a running Dask cluster instead: the address of its scheduler,
    tcp://HOST:8786."""


@dataclass(frozen=True, slots=True)
class StudyOptions(SharedOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    image_sets: str | None = None
    """Image sets, with commas; by default those of the study."""
    seeds: str | None = None
    """Seeds of data and training, with commas; by default those of the study."""
    quick: bool = False
    """A minute's look at a bundled set. Figures mean nothing."""


@dataclass(frozen=True, slots=True)
class TableOptions(StudyOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    splits: str | None = None
    """Splits, with commas; by default all of the study's."""
    rows: str | None = None
    """Methods, or other rows of the study's tables, with commas; by default those of the study."""
