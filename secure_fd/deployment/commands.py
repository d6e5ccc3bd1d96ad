"""`secure-fd site`, `serve` and `join`: a federation of many machines.

Exit status: 0 the run ended; 2 a setting, a file or a peer was refused, in one sentence; 3 the
machine, or Flower, ended it; 130 and 143 after SIGINT and SIGTERM. A command that is given again
goes on where the last one stood. Options come from `--config FILE` too, as everywhere.
"""

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import tyro

from secure_fd.cli import FAILED, USAGE_ERROR, exit_status, expanded
from secure_fd.errors import ConfigurationError

_SHOWN: Final = ("reason", "push", "site", "node")
"""What a line of the log may have beside its text; never bytes of a message."""


@dataclass(frozen=True, slots=True)
class InitCommand:
    """Make a site's keys; its card, card.toml in the home, is for the roster and has no secret."""

    data: Path
    """The records: one folder of images a class."""
    name: str
    """What the others call this site."""
    home: Path | None = None
    """A new folder, for this site alone; by default home beside the records."""

    def __call__(self) -> int:
        """Write keys and card."""
        from secure_fd.deployment import keys
        from secure_fd.deployment.records import count_records
        from secure_fd.deployment.roster import SiteEntry, render_site

        records, home = count_records(self.data), _home(self.home, self.data)
        render_site(SiteEntry(self.name, bytes(32), records))  # refuses before there are keys
        entry = SiteEntry(self.name, keys.create_site(home), records)
        card = home / "card.toml"
        card.write_text(render_site(entry), encoding="utf-8")
        print(f"{card}: {records} training records; give it to the server")
        return 0


@dataclass(frozen=True, slots=True)
class RosterCommand:
    """Make the server's keys, and from the sites' cards the roster that everybody holds."""

    home: Path
    """A new folder, for the server alone."""
    cards: tuple[Path, ...]
    """Of three sites or more."""
    proxies: Path
    """A folder of public images, the same for all."""
    classes: tuple[str, ...]
    """Names of the classes' folders, in the order of labels."""
    address: str
    """HOST:PORT at which sites reach the server."""
    out: Path
    """The roster's file."""
    size: int = 28
    """Pixels a side to which all images are scaled."""
    channels: int = 1
    """1 for grey, 3 for colour."""
    method: str = "selective-fd"
    """Or fedavg, fedmd, dafkd, heads."""
    unit: str = "none"
    """record: noise under which no sum tells of one record; it goes with an epsilon."""
    epsilon: float = math.inf
    """Of the record unit, without which it is refused."""
    image_set: str = ""
    """One that the package knows, for its networks and recipe; by default images of one's own."""
    rounds: int = 0
    """0 takes the recipe's."""
    held: float = 1.0
    """Classes that a site holds, as if evenly, mean over sites; all, if it holds each in useful
    number."""
    seed: int = 0
    """Of networks and training, never of keys or noise."""
    deadline: float = 60.0
    """Seconds that the server waits for a stage, training included."""

    def __call__(self) -> int:
        """Write keys and roster."""
        from secure_fd.deployment.enrol import enrol
        from secure_fd.deployment.roster import Terms

        if self.out.exists():
            raise ConfigurationError("out", str(self.out), "it exists: name a new file")
        if not self.out.resolve().parent.is_dir():
            raise ConfigurationError("out", str(self.out), "its folder is missing: make it first")
        given = asdict(self)
        terms = Terms(**{name: given[name] for name in Terms.__struct_fields__ if name in given})
        text = enrol(
            self.home,
            self.cards,
            self.proxies,
            shape=(self.channels, self.size, self.size),
            classes=self.classes,
            address=self.address,
            terms=terms,
            name=self.out.stem,
        )
        self.out.write_text(text, encoding="utf-8")
        print(f"{self.out}: give it to all sites, by a way that they trust")
        return 0


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """Run the rounds of a roster; a line for each goes to rounds.jsonl in the home."""

    roster: Path
    """The file that everybody holds."""
    home: Path | None = None
    """The server's folder; by default server beside the roster."""
    proxies: Path | None = None
    """The public images, by default the folder proxies beside the roster."""
    listen: str = "127.0.0.1"
    """Address to listen at: 0.0.0.0 takes sites of other machines."""

    def __call__(self) -> int:
        """Serve until the last round."""
        from secure_fd.deployment.serve import Place, serve

        roster = self.roster.resolve()
        home = (self.home or roster.parent / "server").resolve()
        place = Place(home, roster, _beside(roster, self.proxies), self.listen)
        return 0 if serve(place, _tell) else FAILED


@dataclass(frozen=True, slots=True)
class JoinCommand:
    """Take part in the rounds of a roster; the network is network.pt in the home.

    `secure_fd.load_site_network` loads it.
    """

    data: Path
    """The records: one folder of images a class. They stay here."""
    roster: Path
    """The file that everybody holds."""
    home: Path | None = None
    """This site's folder, which `secure-fd site init` made; by default home beside the records."""
    proxies: Path | None = None
    """The public images, by default the folder proxies beside the roster."""
    patience: float = 3600.0
    """Seconds without a server after which it gives up."""

    def __call__(self) -> int:
        """Take part until the run is over."""
        from secure_fd.deployment.join import Desk, join

        roster, home = self.roster.resolve(), _home(self.home, self.data)
        proxies = _beside(roster, self.proxies)
        site = join(Desk(home, self.data, roster, proxies, self.patience))
        log = logging.getLogger(__name__)
        told = site.told.hex()[:16]
        log.info(f"ended after {site.pushes} pushes, {site.refusals} refused; told {told}")
        return 0


_COMMANDS: Final[Mapping[str, Any]] = {"serve": ServeCommand, "join": JoinCommand}
_SITE: Final[Mapping[str, Any]] = {"init": InitCommand, "roster": RosterCommand}


def main(arguments: Sequence[str], prog: str) -> int:
    """Run the command that `prog` ends with; returns the exit status."""
    name = prog.rsplit(maxsplit=1)[-1]
    if name == "site":
        step, *rest = arguments or ["--help"]
        if step not in _SITE:
            print(f"usage: {prog} {{{','.join(_SITE)}}} [options]", file=sys.stderr)
            return 0 if step in ("-h", "--help") else USAGE_ERROR
        return _ended(_SITE[step], rest, f"{prog} {step}")
    return _ended(_COMMANDS[name], arguments, prog)


def _ended(kind: Any, arguments: Sequence[str], prog: str) -> int:  # noqa: ANN401 - a command
    """What the command returns, or the status of what ended it, after one sentence."""
    _log_lines()

    def work() -> int:
        made: Callable[[], int] = tyro.cli(kind, args=expanded(arguments, apart=True), prog=prog)
        return made()

    return exit_status(work, interrupted="the same command goes on from there")


def _home(home: Path | None, data: Path) -> Path:
    return home.resolve() if home else data.resolve().parent / "home"


def _beside(roster: Path, proxies: Path | None) -> Path:
    return proxies.resolve() if proxies else roster.parent / "proxies"


def _tell(line: Mapping[str, Any]) -> None:
    print(json.dumps(dict(line)), flush=True)


class _Lines(logging.Formatter):
    """One JSON object a line, of named fields alone."""

    def format(self, record: logging.LogRecord) -> str:
        """Time in seconds, level, text, and what `_SHOWN` lets through."""
        more = {k: str(v) for k in _SHOWN if (v := getattr(record, k, None)) is not None}
        head = {"time": round(time.time(), 3), "level": record.levelname.lower()}
        return json.dumps(head | {"pid": os.getpid(), "what": record.getMessage()} | more)


def _log_lines() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    own = logging.getLogger("secure_fd")
    own.handlers, own.propagate = [handler], False
    own.setLevel(logging.INFO)
