"""End Flower's processes: for `serve` when it ends, and as a process of its own when it is killed.

`python watch.py GROUP JOURNAL LINES` waits until its input ends, which the end of `serve` brings in
any case, kill -9 too. It needs the standard library alone, so that it is there at once.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_LEAVE: Final = 5.0
"""Seconds in which a process that was asked to end does."""
_LOOK: Final = 0.05


def lines_of(journal: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal; none where there is no file."""
    text = journal.read_text() if journal.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def lives(pid: int) -> bool:
    """Whether there is such a process.

    >>> lives(os.getpid())
    True
    """
    return _reached(os.kill, pid, 0)


def end_group(group: int, reap: Callable[[], object] = lambda: None) -> None:
    """End the SuperLink and what it started: all that is in its group. reap: for a parent."""

    def gone() -> bool:
        reap()
        return not _reached(os.killpg, group, 0)

    for number in (signal.SIGTERM, signal.SIGKILL):
        _reached(os.killpg, group, number)
        if _comes(gone):
            return


def end_apps(journal: Path, seen: int) -> None:
    """End the ServerApps that began after so many lines; Flower gives each a session of its own.

    Their files stand any end.
    """
    for line in lines_of(journal)[seen:]:
        if line["event"] == "begun":
            _end_app(int(line["pid"]))


def _end_app(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _reached(os.kill, pid, number) or _comes(lambda: not lives(pid)):
            return


def _reached(send: Callable[[int, int], None], whom: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        send(whom, number)
        return True
    return False


def _comes(found: Callable[[], bool]) -> bool:
    until = time.monotonic() + _LEAVE
    while not found():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK)
    return True


def main() -> None:
    """Wait for the end of the input, then end all."""
    group, journal, seen = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    sys.stdin.buffer.read()
    end_group(group)
    end_apps(journal, seen)


if __name__ == "__main__":
    main()
