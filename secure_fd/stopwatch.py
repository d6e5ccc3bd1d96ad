"""CPU time of this process, added up over many stretches."""

import time
from types import TracebackType


class Stopwatch:
    """Runs inside `with`. seconds: of CPU so far, in this process and all of its threads."""

    __slots__ = ("_start", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds += time.process_time() - self._start
