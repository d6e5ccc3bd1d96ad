"""Processes of the server: a SuperLink of Flower, and the ServerApp that `flwr run` starts in it.

Nothing is installed at run time and no telemetry is sent. Flower's files are in a folder of this
run only, which is removed at the end; what the party must not lose is in its home.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from secure_fd.cli import FAILED
from secure_fd.deployment import keys
from secure_fd.deployment.keys import JOURNAL
from secure_fd.deployment.preflight import check_server
from secure_fd.deployment.roster import proxies_of, read
from secure_fd.deployment.screen import shown
from secure_fd.errors import ConfigurationError
from secure_fd.optional import extra

_FREED: Final = 8.0
"""Seconds in which the SuperLink of a server that was killed leaves its port."""
_FLOWER_LOG: Final = "flower.log"
_START: Final = 300.0
"""Seconds in which the SuperLink, then the ServerApp, must have begun."""
_LOG_BYTES: Final = 10_000_000
"""Size beyond which a log is moved to another file."""
_GROUP: Final = """trap : TERM
{ trap : TERM; "$@"; kill -KILL 0; } &
read -r _
kill -TERM 0
sleep 5
kill -KILL 0"""
"""Shell script that runs a command until its own input ends, then ends its process group.

The input ends when `serve` ends, also by kill -9. A command that ends takes the group with it."""


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """Run the rounds of a roster, and show what each site does.

    A line for each round goes to rounds.jsonl in the home. Only its operator ends a federation
    early: sites may come and go, and the server waits for them.
    """

    roster: Path
    """The roster, the same file at all parties."""
    home: Path | None = None
    """The server's folder; by default server beside the roster."""
    proxies: Path | None = None
    """The public images, by default the folder proxies beside the roster; of a table its TOML
    file."""
    listen: str | None = None
    """Address to listen at; by default 127.0.0.1 if the roster's address is local, else 0.0.0.0,
    which accepts sites from other machines."""
    min_sites: int | None = None
    """Sites that must be connected before the set-up, by default all. The server waits one deadline
    for all of them, and then for this many; later sites can take part under a new roster only."""
    json: bool = False
    """Print the lines of rounds.jsonl, for programs."""

    def __call__(self) -> int:
        """Run the remaining rounds, print the journal, and return the exit status.

        Raises ConfigurationError for a home or a roster that cannot be read, and for a port in
        use; OSError where Flower does not start.
        """
        roster = self.roster.resolve()
        home = (self.home or roster.parent / "server").resolve()
        agreed = read(roster)
        keys.check_home(home, agreed)
        check_server(agreed, home, proxies_of(self.proxies, roster))
        with extra("flower"):
            import flwr  # noqa: F401 - its programs are run
        sites = len(agreed.sites)
        enough = sites if self.min_sites is None else self.min_sites
        if not agreed.session.least_members <= enough <= sites:
            allowed = f"use {agreed.session.least_members} to {sites}"
            raise ConfigurationError("min_sites", enough, allowed)
        port = int(agreed.address.rpartition(":")[2])
        until = time.monotonic() + _FREED
        while _answers(port) and time.monotonic() < until:
            time.sleep(0.2)  # the SuperLink of a server that was killed ends within seconds
        if _answers(port):
            allowed = "its port is taken on this machine"
            raise ConfigurationError("address", agreed.address, allowed)
        _bound(home / JOURNAL)
        scratch = home / "flower"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        names = [site.name for site in agreed.sites]
        given = {"home": home, "roster": roster, "proxies": proxies_of(self.proxies, roster)}
        try:
            with (
                _superlink(home, self.listen or _place(agreed.address), port),
                shown(home, names, plain=self.json) as say,
            ):
                event = _flwr_run({**given, "min-sites": enough}, home, port, say)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return 0 if event == "ended" else FAILED


def _place(address: str) -> str:
    """Return the address to listen on for sites that use this address.

    >>> _place("localhost:9443"), _place("server.example.org:9443")
    ('127.0.0.1', '0.0.0.0')
    """
    return "127.0.0.1" if address.startswith(("127.", "localhost:")) else "0.0.0.0"  # noqa: S104


def _started(home: Path, *command: str) -> "subprocess.Popen[bytes]":
    """Start a process without telemetry, look for updates or installation; it logs in the home."""
    programs = str(Path(sys.executable).parent)
    own = {
        "PATH": programs + os.pathsep + os.environ.get("PATH", ""),
        "FLWR_HOME": str(home / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    with (home / _FLOWER_LOG).open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - Flower's program beside this Python
            command,
            env=os.environ | own,
            cwd=home / "flower",
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _bound(log: Path) -> None:
    """Move a log that is too long to NAME.old, also while processes append to it."""
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        shutil.copyfile(log, log.with_name(f"{log.name}.old"))
        os.truncate(log, 0)


@contextmanager
def _superlink(home: Path, listen: str, port: int) -> Iterator[None]:
    certificate, key = map(str, keys.tls_files(home))
    process = _started(
        home,
        *("/bin/sh", "-c", _GROUP, "sh", "flower-superlink", "--host", listen, "--port", str(port)),
        *("--isolation", "subprocess", "--disable-runtime-dependency-installation"),
        *("--ssl-ca-certfile", certificate, "--ssl-certfile", certificate, "--ssl-keyfile", key),
    )
    try:
        until = time.monotonic() + _START
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise OSError("Flower's SuperLink did not start: see flower.log in the home")
            time.sleep(0.2)
        yield
    finally:
        process.communicate()  # ends its input, and waits


def _answers(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def _flwr_run(
    config: Mapping[str, Path | int],
    home: Path,
    port: int,
    say: Callable[[Mapping[str, Any]], None],
) -> str:
    """Run the ServerApp as a user of Flower does; print its journal and return the last event."""
    certificate = json.dumps(str(keys.tls_files(home)[0]))
    connection = f'address = "127.0.0.1:{port}"\nroot-certificates = {certificate}\n'
    superlink = f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{connection}'
    (home / "flower" / "config.toml").write_text(superlink)
    plain = {name: each if isinstance(each, int) else str(each) for name, each in config.items()}
    given = " ".join(f"{name}={json.dumps(each)}" for name, each in plain.items())
    app = str(Path(__file__).parent / "app")
    process = _started(home, "flwr", "run", app, "here", "--stream", "--run-config", given)
    seen, event, lives, running = len(lines_of(home)), "", True, {process.pid}
    until = time.monotonic() + _START
    try:
        while lives and event not in ("ended", "failed"):
            time.sleep(0.2)
            _bound(home / _FLOWER_LOG)
            lives = process.poll() is None and (event != "" or time.monotonic() < until)
            for line in lines_of(home)[seen:]:
                say(line)
                seen, event = seen + 1, line["event"]
                if event == "begun":
                    running.add(line["pid"])
    finally:
        for pid in running:  # a ServerApp that Flower ends later would still hold the state file
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if not event:
        raise OSError("flwr run failed: its log is flower.log in the home")
    return event


def lines_of(home: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a home's journal."""
    text = (home / JOURNAL).read_text() if (home / JOURNAL).exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
