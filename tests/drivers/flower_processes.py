"""Real processes of a federation on loopback, each ended by the test that started it."""

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from secure_fd.deployment import keys
from secure_fd.deployment.serve import lines_of

ROOT = Path(__file__).parents[2]
SITES = ("north", "south", "west")


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLWR")}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


class Federation:
    """The example's sites, with few records, and their server below a new folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.port = folder, free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        script = ROOT / "examples" / "hospitals" / "prepare.py"
        address = ("--small", "--address", f"127.0.0.1:{self.port}")
        prepare = runpy.run_path(str(script))["main"]
        with patch("sys.argv", [str(script), str(folder), *address, *options]):
            prepare()

    def start(self, name: str, *, relay: Path | None = None) -> None:
        """The server, or a site by its name. relay: the file that makes its relay tamper."""
        place, program = self.folder / name, ("-m", "secure_fd", "join")
        if relay is not None:
            program = (str(ROOT / "tests" / "drivers" / "flower_relay.py"), str(relay))
        roster = ("--roster", str(self.folder / "roster.toml"))
        if name == "server":
            command = ["-m", "secure_fd", "serve", *roster]
        else:
            command = [*program, *roster, "--data", str(place / "records")]
        with (place / "log").open("ab") as log:
            self.running[name] = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, *command],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self, name: str, seconds: float = 420) -> int:
        return self.running[name].wait(seconds)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.wait(name)

    def check_secrets(self, name: str) -> None:
        """The party's real key is in its own state file, and in no other file and no log."""
        home = self.folder / name / ("" if name == "server" else "home")
        with closing(keys.open_state(home, 60)) as state:
            secret = state.get("identity")
        kept = {home / "state", home / "state-wal"}
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        found = {path for path in files if _holds(path.read_bytes(), secret)}
        assert found
        assert found <= kept

    def journal(self) -> list[dict[str, Any]]:
        return lines_of(self.folder / "server")

    def rounds(self) -> list[dict[str, Any]]:
        return [line for line in self.journal() if line["event"] == "round"]

    def until(self, found: Callable[[], bool], seconds: float = 420) -> None:
        end = time.monotonic() + seconds
        while not found():
            assert time.monotonic() < end, self.log("server")
            time.sleep(0.1)

    def log(self, name: str) -> str:
        return (self.folder / name / "log").read_text()

    def end(self) -> None:
        """First as a user does, then for good; the server takes its own processes with it."""
        for number in (signal.SIGCONT, signal.SIGTERM):
            for process in self.running.values():
                if process.poll() is None:
                    process.send_signal(number)
        for process in self.running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _holds(data: bytes, secret: bytes) -> bool:
    return secret in data or re.search(secret.hex().encode(), data, re.IGNORECASE) is not None


@contextmanager
def federation(folder: Path, *options: str) -> Iterator[Federation]:
    made = Federation(folder, *options)
    try:
        yield made
    finally:
        made.end()
