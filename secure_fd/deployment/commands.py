"""`secure-fd site`, `serve` and `join`: a federation of many machines.

Exit status: 0 the run ended; 2 a setting, a file or a peer was refused, in one sentence; 3 the
machine, or Flower, ended it; 130 and 143 after SIGINT and SIGTERM. A command that is given again
goes on where the last one stood. Options come from `--config FILE` too, as everywhere.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TextIO

import tyro

from secure_fd.cli import dispatch, exit_status, expanded
from secure_fd.optional import import_ours

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("secure_fd.deployment.enrol", "InitCommand"),
    "roster": ("secure_fd.deployment.enrol", "RosterCommand"),
    "check": ("secure_fd.deployment.preflight", "CheckCommand"),
    "serve": ("secure_fd.deployment.serve", "ServeCommand"),
    "join": ("secure_fd.deployment.site", "JoinCommand"),
}
_STEPS: Final = {
    "init": (__name__, "make the keys and the card of a site"),
    "roster": (__name__, "make the keys of the server, and the roster from cards"),
    "check": (__name__, "check files, machine and connection of a site before it joins"),
}


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to stderr as it is at the time: above the lines of a screen, where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.stream = sys.stderr
        super().emit(record)


def main(arguments: Sequence[str], prog: str) -> int:
    """Run the command that `prog` ends with; returns the exit status."""
    name = prog.rsplit(maxsplit=1)[-1]
    if name == "site":
        return dispatch(prog, _STEPS, arguments)
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("secure_fd")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)

    def work() -> int:
        module, kind = _COMMANDS[name]
        words = expanded(arguments, apart=True)
        made: Callable[[], int] = tyro.cli(
            getattr(import_ours(module), kind), args=words, prog=prog
        )
        return made()

    return exit_status(work, interrupted="the same command goes on from there")
