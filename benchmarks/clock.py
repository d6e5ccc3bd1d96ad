"""CPU seconds, the cost of a round, and the report of a benchmark."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from experiments.core.provenance import code, created_now, machine, versions


class Stopwatch:
    """CPU seconds of this process, all of its threads included, while inside `with`."""

    def __init__(self) -> None:
        self.seconds = self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._start


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Return the CPU seconds of one call, the mean of `times` calls."""
    watch = Stopwatch()
    with watch:
        for _ in range(times):
            work()
    return watch.seconds / times


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return medians by name over turns."""
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds and bytes of one round.

    client_s, up_bytes: mean over the clients that stay to the end. server_s: the server, all
    clients together, and a helper of the server.
    """

    client_s: float
    server_s: float
    up_bytes: float


def report(
    config: Mapping[str, object], libraries: Iterable[str], **rows: Sequence[Mapping[str, object]]
) -> None:
    """Print rows as JSON, with the code, versions, machine and time that they were measured with.

    config: settings of the command line. libraries: beside those of every results file.
    """
    measured = code(more=("benchmarks",))
    about = {
        "commit": measured.commit,
        "dirty": measured.dirty,
        "command": ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]],
        "config": config,
        "versions": versions() | {name: version(name) for name in libraries},
        "machine": machine() | {"load": round(os.getloadavg()[1], 1)},
        "created": created_now(),
        "cpu_seconds": round(sum(os.times()[:4])),
    }
    print(json.dumps(about | rows, indent=1))
