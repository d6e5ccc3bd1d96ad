"""How a run stands, for its operator: one small file that is replaced whole at every change.

It names sites and counts rounds; nothing in it is a value, a key or a message.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from secure_fd.files import write_atomically

STATUS: Final = "status.json"
"""In the server's home."""


@dataclass(slots=True)
class Clock:
    """Wall seconds of a round: where the slowest site, or the deadline, spent them.

    computing: in the slowest site. moving: on the way there and back, polls included. waiting: for
    sites that did not answer. server: in the server's own party.
    """

    computing: float = 0.0
    moving: float = 0.0
    waiting: float = 0.0
    server: float = 0.0
    stages: int = 0

    def stage(self, whole: float, computing: float, last: float) -> None:
        """Add a stage. last: when the last answer came; computing: of that site."""
        self.stages += 1
        self.computing += computing
        self.moving += max(0.0, last - computing)
        self.waiting += max(0.0, whole - last)

    def add(self, other: "Clock") -> None:
        """Add another round's.

        >>> total = Clock(1.0)
        >>> total.add(Clock(2.0, stages=2))
        >>> total.computing, total.stages
        (3.0, 2)
        """
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def rounded(self) -> dict[str, float]:
        """Seconds to the millisecond, by name."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


class Doing(StrEnum):
    """What the server does now."""

    STARTING = "starting"
    GATHERING = "waiting for sites"
    COLLECTING = "waiting for answers"
    COMPUTING = "computing"
    ENDED = "ended"
    STOPPED = "stopped"


@dataclass(slots=True)
class Health:
    """Of one run: in all lives of its server, but for `clock`, which is this one's.

    sites: their names, by number. seen, here: those that proved who they are, ever in this life
    and now. completed, void: rounds. clock: where the time of completed and void rounds went.
    """

    sites: tuple[str, ...]
    planned: int
    path: Path | None = field(default=None, repr=False)
    seen: set[int] = field(default_factory=set)
    here: set[int] = field(default_factory=set)
    completed: int = 0
    void: int = 0
    clock: Clock = field(default_factory=Clock)
    doing: Doing = Doing.STARTING

    def now(self, doing: Doing, here: Iterable[int]) -> None:
        """Take in what is done, and who is there, and write it."""
        self.doing, self.here = doing, set(here)
        self.seen |= self.here
        if self.path is not None:
            text = json.dumps(self.summary() | {"doing": doing, "time": round(time.time(), 1)})
            write_atomically(self.path, lambda file: file.write(f"{text}\n".encode()))

    def over(self, *, void: bool) -> None:
        """Count a round."""
        self.void += void
        self.completed += not void

    def summary(self) -> dict[str, Any]:
        """For a line of the journal: rounds, sites by how they stand, seconds."""
        away, never = self.seen - self.here, set(range(len(self.sites))) - self.seen
        rounds = {"planned": self.planned, "completed": self.completed, "void": self.void}
        groups = (("here", self.here), ("away", away), ("never", never))
        stand = {name: [self.sites[k] for k in sorted(who)] for name, who in groups}
        return {"rounds": rounds, "sites": stand, "seconds": self.clock.rounded()}
