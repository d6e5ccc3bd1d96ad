"""The `secure-fd` command, and what the command lines of all scripts have in common."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from secure_fd.endings import USAGE_ERROR
from secure_fd.errors import ConfigurationError, SecureFDError
from secure_fd.extras import extra

_PATHS = {
    "--data-dir": "DATA_DIR",
    "--data_dir": "DATA_DIR",
    "--out": "OUT",
    "--images": "IMAGES",
    "--proxies": "PROXIES",
}
COMMANDS: Mapping[str, tuple[str, str]] = {
    "compare": ("experiments.privacy_compare", "accuracy, bytes and leakage of methods in one run"),
    "audit": ("experiments.privacy_audit", "test what is promised of privacy"),
    "suite": ("experiments.attack_suite", "every attack against every protocol"),
    "study": ("experiments.studies", "a table or figure: study --help lists them"),
    "check": ("experiments.check", "leakage against limits, or against a stored baseline"),
    "site": ("secure_fd.flower.commands", "keys of a site, and the roster of a federation"),
    "serve": ("secure_fd.flower.commands", "the server of a roster, over Flower"),
    "join": ("secure_fd.flower.commands", "take part with the records of this machine"),
    "verify": ("secure_fd.flower.commands", "check the transcript that a server signed"),
}
"""Command -> module whose `main(arguments, prog)` runs it, and a line of help.

A module that is not installed is left out of the help.
"""


def main(arguments: Sequence[str] | None = None, prog: str = "secure-fd") -> int:
    """Run a command of `secure-fd`, by default that of the command line; returns the status."""
    return dispatch(prog, _known(), sys.argv[1:] if arguments is None else arguments)


def _known() -> Mapping[str, tuple[str, str]]:
    return {name: home for name, home in COMMANDS.items() if find_spec(home[0]) is not None}


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
        with extra("all"):
            loaded = import_module(module)
    except SecureFDError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    if hasattr(loaded, "STUDY"):
        from experiments import study  # slower to import than a list of commands

        return study.main(module, arguments, prog)
    return int(loaded.main(arguments, prog))


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
