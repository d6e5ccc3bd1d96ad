"""Where a study finds its data, puts its results, and how many processes share the work."""

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
