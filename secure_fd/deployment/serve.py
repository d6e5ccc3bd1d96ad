"""The server as processes of Flower: a SuperLink, and the ServerApp that `flwr run` starts in it.

Nothing is installed at run time and nothing is reported to anybody. What Flower keeps is in a
folder of this run alone, removed at the end; what the party must not forget is in its home.
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
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from secure_fd.deployment import keys
from secure_fd.deployment.roster import RosterFile, read
from secure_fd.errors import ConfigurationError, LocalError

APP: Final = Path(__file__).parent / "app"
"""What `flwr run` takes."""
JOURNAL: Final = "rounds.jsonl"
"""In the server's home: what the ServerApp says of each round."""
_START: Final = 300.0
"""Seconds in which the SuperLink, then the ServerApp, must have begun."""
_LEAVE: Final = 5.0
"""Seconds in which a process that was asked to end does."""
_LOOK: Final = 0.2
_WATCH: Final = 'read -r _; kill -TERM "-$1"; sleep 5; kill -KILL "-$1"'
"""For the shell: wait for the end of the input, which the end of `serve` brings in any case, by
kill -9 too, then end the processes of a group. Flower ends a ServerApp without a SuperLink."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs: its home, its roster, the proxies, and the address it listens at."""

    home: Path
    roster: Path
    proxies: Path
    listen: str = "127.0.0.1"

    @property
    def scratch(self) -> Path:
        """Flower's own folder."""
        return self.home / "flower"

    @property
    def log(self) -> Path:
        """What Flower's processes print."""
        return self.home / "flower.log"


def serve(place: Place, tell: Callable[[Mapping[str, Any]], None]) -> bool:
    """Run what is left of a roster's rounds; whether they ended. tell: takes the journal's lines.

    Raises ConfigurationError for a home or a roster that cannot be read, and a port that is taken;
    LocalError where Flower does not start.
    """
    agreed = read(place.roster)
    check_home(place.home, agreed)
    port = int(agreed.address.rpartition(":")[2])
    _check_free(place.listen, port)
    seen = len(lines_of(place.home / JOURNAL))
    shutil.rmtree(place.scratch, ignore_errors=True)
    place.scratch.mkdir(mode=0o700)
    try:
        with _apps_ended(place, seen), _superlink(place, port):
            _flwr_run(place, port)
            for line in _journal(place.home, seen):
                tell(line)
                if line["event"] in ("ended", "failed"):
                    return bool(line["event"] == "ended")
        return False
    finally:
        shutil.rmtree(place.scratch, ignore_errors=True)


def check_home(home: Path, roster: RosterFile) -> None:
    """Raise ConfigurationError unless the roster names the keys of this home; nothing is written.

    Its journal belongs to one federation.
    """
    with closing(keys.open_state(home)) as file:
        identity = keys.identity_in(file).public.raw
    if identity != roster.identity:
        allowed = f"use the home whose keys the roster {roster.name!r} names"
        raise ConfigurationError("home", str(home), allowed)


def _check_free(host: str, port: int) -> None:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            raise ConfigurationError("address", f"{host}:{port}", "it is taken") from error


def _of_flower(place: Place, log: BinaryIO) -> dict[str, Any]:
    """How a process of Flower is started: no telemetry, no look for updates, no installation."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR")}
    own = {
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", ""),
        "FLWR_HOME": str(place.scratch),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }
    output = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    return {**output, "env": kept | own, "cwd": place.scratch}


def _program(name: str) -> str:
    found = Path(sys.executable).parent / name
    if not found.is_file():
        allowed = 'install the extra: pip install "secure-fd[flower]"'
        raise ConfigurationError("flwr", name, allowed)
    return str(found)


@contextmanager
def _superlink(place: Place, port: int) -> Iterator[None]:
    certificate, key = keys.tls_files(place.home)
    command = [
        *(_program("flower-superlink"), "--host", place.listen, "--port", str(port)),
        *("--isolation", "subprocess", "--disable-runtime-dependency-installation"),
        *("--ssl-ca-certfile", str(certificate), "--ssl-certfile", str(certificate)),
        *("--ssl-keyfile", str(key)),
    ]
    with place.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - Flower's program beside this Python
            command, **_of_flower(place, log), process_group=0
        )
    with subprocess.Popen(  # noqa: S603 - ends Flower where this process is killed
        ["/bin/sh", "-c", _WATCH, str(place.home), str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watcher:
        try:
            _wait(process, port)
            yield
        finally:
            _end(lambda number: _reaching(process, number))
            watcher.kill()


def _reaching(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a process of ours and all that is in its group."""
    process.poll()
    os.killpg(process.pid, number)


@contextmanager
def _apps_ended(place: Place, seen: int) -> Iterator[None]:
    """Afterwards the ServerApps that began after so many lines of the journal are gone."""
    try:
        yield
    finally:
        for line in lines_of(place.home / JOURNAL)[seen:]:
            if line["event"] == "begun":
                _end(partial(os.kill, int(line["pid"])))


def _end(send: Callable[[int], None]) -> None:
    """Ask whom signals reach to end, and make it. Its files stand any end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            send(number)
            until = time.monotonic() + _LEAVE
            while time.monotonic() < until:
                time.sleep(_LOOK / 4)
                send(0)


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + _START
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(_LOOK)
    raise LocalError("Flower's SuperLink did not start: its log is flower.log in the home")


def _flwr_run(place: Place, port: int) -> None:
    """What a user of Flower types, `flwr run APP`, against this SuperLink."""
    certificate = keys.tls_files(place.home)[0].resolve()
    connection = (
        f'address = "127.0.0.1:{port}"\nroot-certificates = {json.dumps(str(certificate))}\n'
    )
    config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{connection}'
    (place.scratch / "config.toml").write_text(config)
    paths = {"home": place.home, "roster": place.roster, "proxies": place.proxies}
    given = " ".join(f"{name}={json.dumps(str(path.resolve()))}" for name, path in paths.items())
    app = place.scratch / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    with place.log.open("ab") as log:
        ended = subprocess.run(  # noqa: S603 - Flower's program beside this Python
            [_program("flwr"), "run", str(app), "here", "--run-config", given],
            **_of_flower(place, log),
            timeout=_START,
            check=False,
        )
    if ended.returncode:
        raise LocalError("flwr run failed: its log is flower.log in the home")


def lines_of(journal: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal; none where there is no file."""
    text = journal.read_text() if journal.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def lives(pid: int) -> bool:
    """Whether there is such a process.

    >>> lives(os.getpid())
    True
    """
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def _journal(home: Path, seen: int) -> Iterator[dict[str, Any]]:
    """New lines, until the process that writes them has ended."""
    pid, until = 0, time.monotonic() + _START
    while True:
        alive = lives(pid) if pid else time.monotonic() < until
        for line in lines_of(home / JOURNAL)[seen:]:
            seen += 1
            pid = line.get("pid", pid)
            yield line
        if not alive:
            return
        time.sleep(_LOOK)
