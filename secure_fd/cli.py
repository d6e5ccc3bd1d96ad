"""The `secure-fd` command; options from a TOML file and exit statuses for every command."""

import errno
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from secure_fd import __version__
from secure_fd.errors import ConfigurationError, SecureFDError
from secure_fd.files import parse_toml, read_limited
from secure_fd.optional import extra, import_ours

USAGE_ERROR: Final = 2
FAILED: Final = 3
"""Exit status where the machine, and no setting, ended a run: a full disk, a killed worker."""
INTERRUPTED: Final = 130
TERMINATED: Final = 143

COMMANDS: Mapping[str, tuple[str, str]] = {
    "compare": ("experiments.privacy_compare", "accuracy, bytes and leakage of methods in one run"),
    "columns": ("secure_fd.data.draft", "describe the columns of a table, from public rows"),
    "audit": ("experiments.privacy.privacy_audit", "test the guarantees of privacy"),
    "attacks": ("attacks", "list the attacks: what each needs, its figure and its control"),
    "suite": ("experiments.suite.attack_suite", "every attack against every protocol"),
    "study": ("experiments.studies", "a table or figure (those of papers in a checkout alone)"),
    "check": ("experiments.check", "leakage against limits, of a small federation"),
    "site": ("secure_fd.deployment.commands", "keys of a site, and the roster of a federation"),
    "serve": ("secure_fd.deployment.commands", "the server of a roster, over Flower"),
    "join": ("secure_fd.deployment.commands", "take part with the records of this machine"),
    "predict": (
        "secure_fd.deployment.predict",
        "classes of images, by the model of a site",
    ),
}
"""Command -> module whose `main(arguments, prog)` runs it, and a line of help."""


def main(arguments: Sequence[str] | None = None, prog: str = "secure-fd") -> int:
    """Run a command of `secure-fd`, by default that of the command line.

    Returns:
        The exit status.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if list(given) == ["--version"]:
        print(f"secure-fd {__version__}")
        return 0
    # Also where Ctrl-C comes in the seconds in which a command is imported.
    return exit_status(lambda: dispatch(prog, COMMANDS, given), interrupted="use it again")


def dispatch(prog: str, known: Mapping[str, tuple[str, str]], arguments: Sequence[str]) -> int:
    """Run the command that the first argument names with the others; returns the exit status."""
    name, *rest = arguments or ["--help"]
    if name in known:
        return _run(known[name][0], rest, f"{prog} {name}")
    listed = "".join(f"\n  {name:<18} {line}".rstrip() for name, (_, line) in known.items())
    asked = name in ("-h", "--help")
    wrong = "" if asked else f"error: there is no {name!r} in {prog}\n"
    usage = f"{wrong}usage: {prog} NAME [options]; NAME --help lists its options{listed}"
    print(usage, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else USAGE_ERROR


def _run(module: str, arguments: Sequence[str], prog: str) -> int:
    try:
        with extra():
            loaded = import_ours(module)
    except SecureFDError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    if hasattr(loaded, "STUDY"):
        return int(import_ours("experiments.core.study").main(module, arguments, prog))
    return int(loaded.main(arguments, prog))


def exit_status(work: Callable[[], int], *, interrupted: str, options: Collection[str] = ()) -> int:
    """Run `work`; print one sentence on an error that ends it early.

    After a first Ctrl-C the process ignores further ones, to its end: it is about to end.

    Args:
        work: returns the exit status of a run that ends by itself.
        interrupted: how to go on after an interrupt, the end of the sentence.
        options: fields that an option of the same name sets; the sentence names the option.

    Returns:
        The exit status.
    """
    try:
        with _signals_as_exceptions():
            return work()
    except SecureFDError as error:
        status, sentence = USAGE_ERROR, f"error: {_by_option(error, options)}"
    except OSError as error:
        status, sentence = FAILED, f"error: {_reason(error)}; {interrupted}"
    except (BrokenProcessPool, MemoryError):  # the system ends workers where memory runs out
        killed = "error: a process was ended from outside, as where memory runs out: "
        status, sentence = FAILED, f"{killed}use fewer --workers; {interrupted}"
    except KeyboardInterrupt:
        status, sentence = INTERRUPTED, f"interrupted: {interrupted}"
    except _TerminatedError:
        status, sentence = TERMINATED, f"terminated: {interrupted}"
    print(sentence, file=sys.stderr)
    return status


class _TerminatedError(BaseException):
    """SIGTERM arrived."""


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # another thread may set no handler
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if signal.getsignal(signal.SIGINT) is _interrupt and interrupt is not _interrupt:
            signal.signal(signal.SIGINT, interrupt)


def _terminate(_: int, __: FrameType | None) -> NoReturn:
    raise _TerminatedError


def _interrupt(_: int, __: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _by_option(error: SecureFDError, options: Collection[str]) -> SecureFDError:
    """The same error about the option that sets its field, if one does."""
    if not isinstance(error, ConfigurationError) or error.field not in options:
        return error
    _, (field, value, allowed) = error.__reduce__()
    return ConfigurationError(flag(field), value, allowed)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{(error.strerror or str(error)).lower()}"


_CONFIG: Final = "--config"
_MOST_BYTES: Final = 1 << 16


def flag(field: str) -> str:
    """Return the option that sets a field.

    >>> flag("dp_eps")
    '--dp-eps'
    """
    return f"--{field.replace('_', '-')}"


def expanded(arguments: Sequence[str], *, apart: bool = False) -> list[str]:
    """Put the options of a `--config FILE` before all other arguments, which then win.

    Args:
        arguments: the command line.
        apart: whether the parts of a list become words of their own, in place of one word with
            commas.

    Returns:
        The command line without `--config`.

    Raises:
        ConfigurationError: the file is missing, larger than 64 KiB or not TOML, or holds anything
            but options.

    >>> expanded(["--dp-eps", "4", "--quick"])
    ['--dp-eps', '4', '--quick']
    """
    paths, typed, rest = [], [], iter(arguments)
    for argument in rest:
        if argument == _CONFIG:
            paths.append(next(rest, ""))
        elif argument.startswith(f"{_CONFIG}="):
            paths.append(argument.partition("=")[2])
        else:
            typed.append(argument)
    if len(paths) > 1:
        raise ConfigurationError(_CONFIG, paths, "use one file")
    settings = [(path, *setting) for path in paths for setting in content(path).items()]
    return [*(word for setting in settings for word in _words(*setting, apart)), *typed]


def content(path: str) -> Mapping[str, Any]:
    """Read a file of settings; ConfigurationError for one that `expanded` refuses as a whole."""
    try:
        data = read_limited(Path(path), _MOST_BYTES)
    except OSError:
        raise ConfigurationError(_CONFIG, path, "it must be a file that can be read") from None
    return parse_toml(_CONFIG, path, data, _MOST_BYTES)


def _words(path: str, name: str, value: object, apart: bool) -> list[str]:
    """One setting of a file as words of the command line."""
    option = flag(name)
    if name.startswith("-") or option == _CONFIG:
        raise ConfigurationError(_CONFIG, path, f"{name!r} is no option: use names as in dp-eps")
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        parts = [str(part) for part in value]
        if not apart:
            return [f"{option}={','.join(parts)}"]
        for part in parts:
            if part.startswith("-"):
                refused = f"{part!r} in a list would be read as an option"
                raise ConfigurationError(_CONFIG, path, refused)
        return [option, *parts]
    if isinstance(value, str | int | float):
        return [f"{option}={value}"]
    raise ConfigurationError(_CONFIG, path, f"{name}: use a number, a text, or true or false")
