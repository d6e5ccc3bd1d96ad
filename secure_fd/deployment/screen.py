"""Display of a running federation: a line a site, or plain lines outside a terminal.

The server's rounds run in a process of Flower. It notes what each site does in a file of the home,
and `secure-fd serve` shows that.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from secure_fd.files import write_atomically

STATUS: Final = "status.json"
"""In the server's home: what each site does now."""
UNSEEN, HERE, TRAINING, SENT, MISSING = (
    *("not seen yet", "connected", "training", "answer sent", "missing"),
)
"""States of a site. A site that was asked trains first, where steps are due."""
_EVERY: Final = 0.2
"""Seconds between two writes of the file."""


@dataclass(slots=True)
class Status:
    """State of each site, its start (seconds of the epoch), the round and the number of rounds.

    seconds: of the rounds so far, which the time left is estimated from.
    """

    sites: dict[str, tuple[str, float]]
    rounds: int = 0
    round: int = 0
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, names: Sequence[str], rounds: int) -> "Status":
        """Start with sites that have not been seen yet."""
        return cls({name: (UNSEEN, time.time()) for name in names}, rounds)

    @property
    def left(self) -> float | None:
        """Seconds that the other rounds take at the pace of the last ones; None before any."""
        newest = self.seconds[-5:]
        return None if not newest else sum(newest) / len(newest) * (self.rounds - self.round)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield each site with its state, and how long it lasts or since when."""
        for name, (state, since) in self.sites.items():
            if state == MISSING:
                yield name, f"missing since {time.strftime('%H:%M:%S', time.localtime(since))}"
            else:
                yield name, f"{state} {duration(time.time() - since)}"


def duration(seconds: float) -> str:
    """Return whole seconds in words.

    >>> duration(40), duration(130), duration(7300)
    ('40 s', '2 min 10 s', '2 h 01 min')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return (
        f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
    )


class Board:
    """Writes the status of all sites into the home, a few times a second at most."""

    def __init__(self, home: Path, status: Status) -> None:
        self._path, self.status, self._written = home / STATUS, status, 0.0

    def note(self, name: str, state: str) -> None:
        """Note what a site does from now on; a state that lasts keeps its beginning."""
        if self.status.sites[name][0] != state:
            self.status.sites[name] = state, time.time()
            self.write(late=True)

    def ended(self, seconds: float) -> None:
        """Note the end of a round."""
        self.status.round += 1
        self.status.seconds = [*self.status.seconds[-4:], seconds]
        self.write()

    def write(self, *, late: bool = False) -> None:
        """Write the file. late: only where the last write is a moment ago."""
        if late and time.monotonic() - self._written < _EVERY:
            return
        self._written, made = time.monotonic(), self.status
        plain = {name: getattr(made, name) for name in Status.__dataclass_fields__}
        text = json.dumps(plain).encode()
        write_atomically(self._path, lambda file: file.write(text), mode=0o600)


def read_status(home: Path) -> Status | None:
    """Read what the server's rounds noted; None before they began."""
    try:
        found = json.loads((home / STATUS).read_bytes())
    except (OSError, ValueError):
        return None
    return Status(**found)


def sentence(line: Mapping[str, Any], names: Sequence[str], status: Status | None) -> str:
    """Say a line of the journal to a person. names: of the sites, by number.

    >>> sentence({"event": "ended", "digest": "ab12"}, [], None)
    'ended; the digest of all broadcasts is ab12, which every site must have too'
    """

    def of(numbers: Sequence[int]) -> str:
        return ", ".join(names[k] for k in numbers) or "none"

    match line["event"]:
        case "sites" if "refused" in line:
            return str(line["refused"])
        case "sites":
            missing = [name for name in names if name not in line["here"]]
            away = f"; not here: {', '.join(missing)}" if missing else ""
            return f"here: {', '.join(line['here']) or 'no site'}{away}"
        case "round":
            total = f" of {status.rounds}" if status is not None else ""
            made = f"round {line['index'] + 1}{total}: "
            if line["aborted"]:
                made += f"no sum ({line['why']})"
            elif line["survivors"]:
                made += f"sum of {of(line['survivors'][-1])}"
            else:
                made += "no sum was due"
            refused = (f"{names[int(k)]} was refused: {why}" for k, why in line["refused"].items())
            mean = line.get("accuracy")
            right = "" if mean is None else f"mean accuracy of the sites {mean:.1%}"
            silent = f"no answer of {of(line['silent'])}" if line["silent"] else ""
            return "; ".join(
                filter(None, [made, right, silent, *refused, f"{line['seconds']:.1f} s"])
            )
        case "ended":
            return (
                f"ended; the digest of all broadcasts is {line['digest']}, which every site must "
                "have too"
            )
        case "failed":
            return f"failed: {line['reason']}"
        case _:
            return "waiting for the sites"


@contextmanager
def shown(
    home: Path, names: Sequence[str], *, plain: bool = False
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show the server's status as a table in a terminal, until the end of the block.

    Yields a function that takes a line of the journal and prints it with the time. names: of the
    sites, by number. plain: print the journal's JSON lines and nothing else.
    """
    console = Console(highlight=False, soft_wrap=True)

    def say(line: Mapping[str, Any]) -> None:
        if plain:
            print(json.dumps(line), flush=True)
            return
        text = sentence(line, names, read_status(home))
        console.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False)

    if plain or not console.is_terminal:
        yield say
        return
    with _live(lambda: read_status(home), console):
        yield say


class OwnScreen:
    """Shows in a terminal what this site does; its log has a line a round everywhere."""

    def __init__(self) -> None:
        self._status = Status({})
        self._began = time.monotonic()

    def note(self, state: str, number: int, rounds: int) -> None:
        """Note what the site does from now on, in which round of how many."""
        status = self._status
        for name in status.sites:
            status.sites[name] = state, time.time()
        if number > status.round + 1:
            now = time.monotonic()
            status.round, status.rounds = number - 1, rounds
            status.seconds, self._began = [*status.seconds[-4:], now - self._began], now

    def live(self, name: str) -> AbstractContextManager[object]:
        """Show the line until the end of the block."""
        self._status.sites[name] = "connecting", time.time()
        console = Console(stderr=True)
        return _live(lambda: self._status, console) if console.is_terminal else nullcontext()


def _live(status: Callable[[], Status | None], console: Console) -> Live:
    return Live(
        get_renderable=lambda: table(status()),
        console=console,
        refresh_per_second=2,
        transient=True,
    )


def table(status: Status | None) -> Group:
    """Make a line with the round and the time left, and a table of the sites below it."""
    if status is None:
        return Group()
    rows = Table(box=None, show_header=False, pad_edge=False)
    for name, state in status.lines():
        rows.add_row(name, state)
    if not status.rounds:
        return Group(rows)
    left = "" if status.left is None else f"; about {duration(status.left)} left"
    number = min(status.round + 1, status.rounds)
    return Group(f"round {number} of {status.rounds}{left}", rows)
