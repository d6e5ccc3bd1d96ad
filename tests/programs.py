"""Programs of Python, in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(**more):
    """Without a data folder of the user's; one thread, and a wide terminal."""
    kept = {k: v for k, v in os.environ.items() if k != "SECURE_FD_DATA"}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}


def ended(*arguments, cwd=ROOT, timeout=300, **more):
    """Status, output and errors of this interpreter, run in a folder with these arguments."""
    return subprocess.run(  # noqa: S603 - our own programs
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def printed(*arguments, timeout=300):
    """Run such a program in the repository and return its output; it must end well."""
    made = ended(*arguments, timeout=timeout)
    assert made.returncode == 0, made.stderr[-2000:]
    return made.stdout


@contextmanager
def started(*arguments, log, cwd=ROOT, **more):
    """A program of this interpreter in a process group of its own, which is killed at the end."""
    with log.open("w") as stream:
        program = subprocess.Popen(  # noqa: S603 - our own programs
            [sys.executable, *map(str, arguments)],
            cwd=cwd,
            env=environment(**more),
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        yield program
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait(timeout=60)


def wait_for(done, *logs):
    end = time.monotonic() + 240
    while not done():
        assert time.monotonic() < end, [log.read_text() for log in logs]
        time.sleep(0.1)
