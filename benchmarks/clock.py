"""CPU seconds, the cost of a round, and the report of a benchmark."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.core.provenance import versions


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
    """Return medians by name over turns, of which the first is a warm-up."""
    return {name: statistics.median(turn[name] for turn in turns[1:]) for name in turns[0]}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds and bytes of one round.

    client_s, up_bytes: mean over the clients that stay to the end. server_s: the server, all
    clients together, and a helper of the server.
    """

    client_s: float
    server_s: float
    up_bytes: float


def options(about: str | None) -> argparse.ArgumentParser:
    """Return the command line of a benchmark, whose option `--repeats` is common to all."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, choices=range(1, 100), metavar="COUNT")
    return parser


def report(repeats: int, rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows as JSON, with the versions that they were measured with."""
    print(json.dumps({"versions": versions(), "repeats": repeats, "rows": [*rows]}, indent=2))
