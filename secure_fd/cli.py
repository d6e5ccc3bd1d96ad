"""The `secure-fd` command: it runs the module that its first argument names."""

import sys
from collections.abc import Mapping, Sequence

from secure_fd import __version__
from secure_fd.endings import USAGE_ERROR
from secure_fd.errors import SecureFDError
from secure_fd.optional import extra, import_ours

COMMANDS: Mapping[str, tuple[str, str]] = {
    "compare": ("experiments.privacy_compare", "accuracy, bytes and leakage of methods in one run"),
    "audit": ("experiments.privacy_audit", "test what is promised of privacy"),
    "suite": ("experiments.attack_suite", "every attack against every protocol"),
    "study": ("experiments.studies", "a table or figure: study --help lists them"),
    "check": ("experiments.check", "leakage against limits, or against a stored baseline"),
    "site": ("secure_fd.deployment.commands", "keys of a site, and the roster of a federation"),
    "serve": ("secure_fd.deployment.commands", "the server of a roster, over Flower"),
    "join": ("secure_fd.deployment.commands", "take part with the records of this machine"),
}
"""Command -> module whose `main(arguments, prog)` runs it, and a line of help."""


def main(arguments: Sequence[str] | None = None, prog: str = "secure-fd") -> int:
    """Run a command of `secure-fd`, by default that of the command line; returns the status."""
    given = sys.argv[1:] if arguments is None else arguments
    if list(given) == ["--version"]:
        print(f"secure-fd {__version__}")
        return 0
    return dispatch(prog, COMMANDS, given)


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
        return int(import_ours("experiments.study").main(module, arguments, prog))
    return int(loaded.main(arguments, prog))
