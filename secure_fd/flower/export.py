"""Round figures of `serve` for tools that draw them, made of the journal's lines as they come.

They have the names of a run's in one process (`secure_fd.reporting`), and beside them who was
silent and where the time went. The share of answers that one client gives alone is not among them:
none but the clients knows it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from secure_fd.reporting import MLflow, RoundFigures, TensorBoard

log = logging.getLogger(__name__)
Line = Mapping[str, Any]
Tell = Callable[[Line], None]


@contextmanager
def exporting(
    tools: Iterable[RoundFigures], sites: int, earlier: Sequence[Line] = ()
) -> Iterator[Tell]:
    """Takes the journal's lines and hands figures to every tool, each closed at the end.

    sites: of the roster. earlier: lines of earlier lives of the server, whose bytes count too.
    """
    with ExitStack() as until:
        made = tuple(tools)
        for tool in made:
            until.callback(tool.close)
        yield Export(made, sites, earlier)


def tools(tensorboard: Path | None, *, mlflow: bool) -> list[RoundFigures]:
    """Those that were asked for; MissingCapabilityError where one is not installed."""
    made: list[RoundFigures] = []
    if tensorboard is not None:
        made.append(TensorBoard(tensorboard))
    if mlflow:
        made.append(MLflow())
    return made


class Export:
    """Hands each round's figures to the tools.

    One that fails is told no more, and the log says so once: rounds go on without it.

    >>> class Shown:
    ...     failures = (OSError,)
    ...     def log(self, index, numbers):
    ...         print(index, numbers["bytes_up"], numbers["clients_in_the_sum"])
    >>> line = {"event": "round", "index": 0, "void": False, "kept": 0.5, "survivors": [[0, 2]],
    ...         "refused": {}, "silent": [1], "bytes_up": 300, "bytes_down": 30, "clock": {}}
    >>> Export([Shown()], 3)(line)
    0 100.0 2.0
    """

    def __init__(
        self, tools: Sequence[RoundFigures], sites: int, earlier: Sequence[Line] = ()
    ) -> None:
        self._tools, self._sites = list(tools), sites
        self._up = self._down = 0
        for line in earlier:
            self._count(line)

    def __call__(self, line: Line) -> None:
        """Take in a line of the journal; those that are of no round have no figures."""
        if line["event"] != "round":
            return
        self._count(line)
        numbers = self._figures(line)
        for tool in list(self._tools):
            try:
                tool.log(line["index"], numbers)
            except tool.failures as error:
                self._tools.remove(tool)
                name = type(tool).__name__
                log.warning(f"{name} gets no more figures", extra={"reason": str(error)})

    def _count(self, line: Line) -> None:
        if line["event"] == "round":
            self._up += line["bytes_up"]
            self._down += line["bytes_down"]

    def _figures(self, line: Line) -> dict[str, float]:
        """Bytes: mean over sites, of all rounds until now, as `secure_fd.transcript` counts."""
        survivors = line["survivors"][-1] if line["survivors"] and not line["void"] else ()
        known = {} if line["kept"] is None else {"kept": line["kept"]}
        seconds = {f"seconds_{name}": v for name, v in line["clock"].items() if name != "stages"}
        return (
            known
            | seconds
            | {
                "bytes_up": self._up / self._sites,
                "bytes_down": self._down / self._sites,
                "clients_in_the_sum": float(len(survivors)),
                "void": float(line["void"]),
                "refused": float(len(line["refused"])),
                "silent": float(len(line["silent"])),
            }
        )
