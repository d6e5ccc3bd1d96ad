"""A round over real processes on loopback: Flower's own SecAgg+ beside this package's masked sum.

PYTHONPATH=. python benchmarks/flower_secagg.py > flower_secagg.json

Three sites that train nothing send 6,000 values of 22 bits, SecAgg+'s default resolution. Flower:
SuperLink, three SuperNodes and `flwr run` on the app in secaggplus/, as Flower ships the mod and
the workflow; bytes are those of values, without names and framing. Ours: `secure-fd serve` and
three `secure-fd join`; bytes are whole messages and envelopes. Both counted at the server, over all
sites. The first round has the set-up, or starts what Flower starts; rounds after it are averaged.

Needs the extra: pip install "secure-fd[flower]".
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from secure_fd.flower.serve import environment
from tests.flower_processes import SITES, federation, free_port

ROUNDS: Final = 4
STAGES: Final = 4
"""Of SecAgg+: set-up, shares, masked vectors, unmasking."""
APP: Final = Path(__file__).parent / "secaggplus"
Report = dict[str, Any]


def ours(folder: Path) -> Report:
    """Means over the rounds after the first."""
    method = ("--method", "tests.known_words:LongWords")
    with federation(folder, *method, "--rounds", str(ROUNDS)) as made:
        for name in (*SITES, "server"):
            made.start(name)
        if made.wait("server"):
            sys.exit(made.log("server"))
        rounds = [one for one in made.rounds() if not one["void"]][1:]
    return _means(
        [
            {
                "stages": one["clock"]["stages"],
                "seconds": sum(v for k, v in one["clock"].items() if k != "stages"),
                "bytes_up": one["bytes_up"],
                "bytes_down": one["bytes_down"],
            }
            for one in rounds
        ]
    )


def flowers(folder: Path) -> Report:
    """The same of Flower's workflow."""
    port, control, out = free_port(), free_port(), folder / "counted.json"
    home = folder / "flower"
    home.mkdir()
    ports = ("--host", "127.0.0.1", "--port", str(port))
    config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
    (home / "config.toml").write_text(config + "insecure = true\n")
    app = folder / "secaggplus"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    link = ("flower-superlink", "--insecure", *ports, "--isolation", "subprocess")
    with _running(home, *link):
        time.sleep(8)
        with _nodes(home, port, control):
            run = f'rounds={ROUNDS} sites={len(SITES)} out="{out}"'
            command = (_program("flwr"), "run", str(app), "here", "--run-config", run)
            with (home / "log").open("ab") as log:
                subprocess.run(  # noqa: S603 - Flower's program beside this Python
                    command, env=environment(home), stdout=log, stderr=log, check=True, cwd=home
                )
            until = time.monotonic() + 300
            while not out.exists():
                if time.monotonic() > until:
                    sys.exit((home / "log").read_text()[-3000:])
                time.sleep(0.2)
    time.sleep(0.5)
    stages = json.loads(out.read_text())["stages"]
    rounds = [stages[at : at + STAGES] for at in range(STAGES, len(stages), STAGES)]
    return _means(
        [
            {
                "stages": len(one),
                "seconds": sum(each["seconds"] for each in one),
                "bytes_up": sum(each["up"] for each in one),
                "bytes_down": sum(each["down"] for each in one),
            }
            for one in rounds
        ]
    )


def _means(rows: list[Report]) -> Report:
    names = rows[0].keys()
    return {"rounds": len(rows)} | {k: sum(row[k] for row in rows) / len(rows) for k in names}


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@contextmanager
def _nodes(home: Path, port: int, first: int) -> Iterator[None]:
    """Three SuperNodes, one inside the other's context so that all of them end."""
    if len(list(home.glob("node*"))) == len(SITES):
        yield
        return
    number = len(list(home.glob("node*")))
    (home / f"node{number}").touch()
    own = free_port() if number else first
    node = ("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}")
    with (
        _running(home, *node, "--host", "127.0.0.1", "--port", str(own)),
        _nodes(home, port, first),
    ):
        yield


@contextmanager
def _running(home: Path, program: str, *options: str) -> Iterator[None]:
    """A program of Flower and what it starts, ended at the end."""
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - Flower's program beside this Python
            [_program(program), *options],
            env=environment(home) | {"PYTHONPATH": ""},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            process_group=0,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """Measure both on this machine, one after the other, and print them."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended
    with tempfile.TemporaryDirectory() as folder:
        found = {"flower": flowers(Path(folder)), "ours": ours(Path(folder) / "ours")}
    print(json.dumps({"processors": os.cpu_count(), "sites": len(SITES), **found}, indent=2))


if __name__ == "__main__":
    main()
