"""How a command ends: its exit status, and one sentence on what ended it early."""

import errno
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from secure_fd.errors import ConfigurationError, SecureFDError
from secure_fd.options import flag

USAGE_ERROR: Final = 2
FAILED: Final = 3
"""Exit status where the machine, and no setting, ended a run: a full disk, a killed worker."""
INTERRUPTED: Final = 130
TERMINATED: Final = 143


class _Terminated(BaseException):
    """SIGTERM arrived: what runs ends as it does after Ctrl-C."""


def exit_status(work: Callable[[], int], *, interrupted: str, options: Collection[str] = ()) -> int:
    """What `work` returns, or the status after one sentence on what ended it early.

    options: fields that were set by an option of the same name, which the sentence then names.
    """
    try:
        with _ended_by_sigterm():
            return work()
    except _ENDINGS as error:
        status, sentence = _ending(error, interrupted, options)
        print(sentence, file=sys.stderr)
        return status


_ENDINGS = (
    *(SecureFDError, OSError, BrokenProcessPool, MemoryError),
    *(KeyboardInterrupt, _Terminated),
)


def _ending(error: BaseException, interrupted: str, options: Collection[str]) -> tuple[int, str]:
    match error:
        case ConfigurationError() if error.field in options:
            found = USAGE_ERROR, f"error: {_typed(error)}"
        case SecureFDError():
            found = USAGE_ERROR, f"error: {error}"
        case OSError():
            found = FAILED, f"error: {_reason(error)}; {interrupted}"
        case KeyboardInterrupt():
            found = INTERRUPTED, f"interrupted: {interrupted}"
        case _Terminated():
            found = TERMINATED, f"terminated: {interrupted}"
        case _:  # the system ends workers where memory runs out
            killed = "error: a process was ended from outside, as where memory runs out: "
            found = FAILED, f"{killed}use fewer --workers; {interrupted}"
    return found


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # another thread may set no handler
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_: int, __: FrameType | None) -> NoReturn:
    raise _Terminated


def _typed(error: ConfigurationError) -> ConfigurationError:
    """The same about the option that was typed."""
    _, (field, value, allowed) = error.__reduce__()
    return ConfigurationError(flag(field), value, allowed)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{(error.strerror or str(error)).lower()}"
