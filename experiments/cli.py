"""The `secure-fd` command, and what the command lines of all scripts have in common."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from secure_fd.errors import ConfigurationError, SecureFDError

USAGE_ERROR = 2
INTERRUPTED = 130
_PATHS = {"--data-dir": "DATA_DIR", "--data_dir": "DATA_DIR", "--out": "OUT"}
COMMANDS: Mapping[str, tuple[str, str]] = {
    "compare": ("experiments.privacy_compare", "accuracy, bytes and leakage of methods in one run"),
}
"""Command -> module whose `main(arguments, prog)` runs it, and a line of help."""


def main() -> int:
    """Run a command of `secure-fd`; returns the exit status."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        module, _ = COMMANDS[name]
        return int(import_module(module).main(arguments, f"secure-fd {name}"))
    listed = "".join(f"\n  {known}: {line}" for known, (_, line) in COMMANDS.items())
    asked = name in ("-h", "--help")
    wrong = "" if asked else f"error: there is no command {name!r}\n"
    usage = f"{wrong}usage: secure-fd COMMAND [options]; COMMAND --help lists its options{listed}"
    print(usage, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else USAGE_ERROR


def exit_status(work: Callable[[], int], *, interrupted: str) -> int:
    """What `work` returns, or the status after one sentence on what ended it early."""
    try:
        return work()
    except SecureFDError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print(f"interrupted: {interrupted}", file=sys.stderr)
        return INTERRUPTED


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
