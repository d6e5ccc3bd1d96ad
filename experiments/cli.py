"""The `secure-fd` command, and what the command lines of all scripts have in common."""

import errno
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NoReturn

from secure_fd.errors import ConfigurationError, SecureFDError
from secure_fd.extras import extra
from secure_fd.options import flag

USAGE_ERROR = 2
FAILED = 3
"""Exit status where the machine, and no setting, ended a run: a full disk, a killed worker."""
INTERRUPTED = 130
TERMINATED = 143
_PATHS = {
    "--data-dir": "DATA_DIR",
    "--data_dir": "DATA_DIR",
    "--out": "OUT",
    "--images": "IMAGES",
    "--proxies": "PROXIES",
}
COMMANDS: Mapping[str, tuple[str, str]] = {
    "compare": ("experiments.privacy_compare", "accuracy, bytes and leakage of methods in one run"),
    "audit": ("experiments.privacy_audit", "test what is promised of privacy; RUN: a transcript"),
    "suite": ("experiments.attack_suite", "every attack against every protocol"),
    "study": ("experiments.studies", "a table or figure: study --help lists them"),
    "check": ("experiments.check", "leakage against limits, or against a stored baseline"),
    "site": ("secure_fd.flower.commands", "keys of a site, and the roster of a federation"),
    "serve": ("secure_fd.flower.commands", "the server of a roster, over Flower"),
    "join": ("secure_fd.flower.commands", "take part with the records of this machine"),
}
"""Command -> module whose `main(arguments, prog)` runs it, and a line of help.

A module that is not installed is left out of the help.
"""
_OF_A_RUN: Mapping[str, str] = {"audit": "secure_fd.flower.commands"}
"""Command -> the module that runs it where a folder comes before any option."""


class _Terminated(BaseException):
    """SIGTERM arrived: what runs ends as it does after Ctrl-C."""


def main(arguments: Sequence[str] | None = None, prog: str = "secure-fd") -> int:
    """Run a command of `secure-fd`, by default that of the command line; returns the status."""
    return dispatch(prog, _known(), sys.argv[1:] if arguments is None else arguments)


def _known() -> Mapping[str, tuple[str, str]]:
    return {name: home for name, home in COMMANDS.items() if find_spec(home[0]) is not None}


def dispatch(prog: str, known: Mapping[str, tuple[str, str]], arguments: Sequence[str]) -> int:
    """Run the command that the first argument names with the others; returns the exit status."""
    name, *rest = arguments or ["--help"]
    if name in known:
        named = bool(rest) and not rest[0].startswith("-")
        module = _OF_A_RUN.get(name, known[name][0]) if named else known[name][0]
        return _run(module, rest, f"{prog} {name}")
    listed = "".join(f"\n  {name:<18} {line}".rstrip() for name, (_, line) in known.items())
    asked = name in ("-h", "--help")
    wrong = "" if asked else f"error: there is no {name!r} in {prog}\n"
    usage = f"{wrong}usage: {prog} NAME [options]; NAME --help lists its options{listed}"
    print(usage, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else USAGE_ERROR


def _run(module: str, arguments: Sequence[str], prog: str) -> int:
    try:
        with extra("all"):
            loaded = import_module(module)
    except SecureFDError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    if hasattr(loaded, "STUDY"):
        from experiments import study  # slower to import than a list of commands

        return study.main(module, arguments, prog)
    return int(loaded.main(arguments, prog))


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


def command(script: str, arguments: Sequence[str]) -> list[str]:
    """The command that repeats a run, without this machine's paths.

    >>> command("run.py", ["--out", "/tmp/x", "--quick"])
    ['python', 'experiments/run.py', '--out', 'OUT', '--quick']
    """
    shown: list[str] = []
    before = ""
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if before in _PATHS:
            shown.append(_PATHS[before])
        elif equals and name in _PATHS:
            shown.append(f"{name}={_PATHS[name]}")
        else:
            shown.append(argument)
        before = argument
    return ["python", f"experiments/{script}", *shown]


def data_folder(asked: Path | None, environment_dir: str | None) -> Path | None:
    """The folder of the image sets, if any. ConfigurationError where it is not there."""
    chosen = asked or (Path(environment_dir) if environment_dir else None)
    if chosen is not None and not chosen.is_dir():
        raise ConfigurationError("data_dir", str(chosen), "it must be an existing folder")
    return chosen
