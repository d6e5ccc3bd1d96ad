"""Processes that are killed while they release something, and what is found afterwards.

`python -m tests.privacy.ledger_crashes FOLDER` imports the ledger once, without torch, and forks a
process for each life. A life opens the ledger of a folder and makes one release; draws and answers
are noted in a file of that folder. It is killed (SIGKILL) before a line of the ledger's code, or
nowhere. The notes are printed as JSON.

Killing a process loses nothing that it wrote, synced or not: what a loss of power needs besides is
for tests/privacy/test_ledger_faults.py.
"""

import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from secure_fd.errors import SecureFDError
from secure_fd.privacy.events import Event, Gaussian
from secure_fd.privacy.ledger import BudgetLedger, Total
from secure_fd.storage import Store

DATA, EVENT, REQUEST = "ward 7", Gaussian(1.1), b"round 1"  # epsilon 3.93 at delta 1e-5
ONE, TWO = Total(DATA, 4.0, 1e-5), Total(DATA, 6.0, 1e-5)
"""Totals that suffice for one release, and for two."""
Act: TypeAlias = Callable[[], None]
Life: TypeAlias = dict[str, object]
"""Result of two processes: notes, bookings, the ledger's kind and total."""
TraceFunction: TypeAlias = Callable[[FrameType, str, object], object]


class Notes:
    """Notes of a process, written before it goes on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "notes"

    def add(self, what: str, value: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{what} {value}\n")

    def draw(self) -> bytes:
        """Noise that is never the same."""
        drawn = os.urandom(8)
        self.add("drew", drawn.hex())
        return drawn

    def read(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


class DrawsFirst(BudgetLedger):
    """A mutation that books once the noise is there."""

    __slots__ = ()

    def release(
        self, name: str, event: Event, request: bytes, draw: Callable[[], bytes], **_: object
    ) -> bytes:
        drawn = b"" if self._answers else draw()
        return super().release(name, event, request, lambda: drawn)


class SendsFirst(BudgetLedger):
    """A mutation that lets the answer leave before it is stored."""

    __slots__ = ()

    def release(
        self, name: str, event: Event, request: bytes, draw: Callable[[], bytes], **_: object
    ) -> bytes:
        def sent() -> bytes:
            drawn = draw()
            draw.__self__.add("left", drawn.hex())  # type: ignore[attr-defined]
            return drawn

        return super().release(name, event, request, sent)


class _Nowhere(Store):
    """Stores nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def append(self, body: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class Forgets(BudgetLedger):
    """A mutation that adds nothing to the file."""

    __slots__ = ()

    @classmethod
    def open(cls, path: str | PathLike[str], data: str, **_: object) -> BudgetLedger:  # noqa: ARG003
        return cls(_Nowhere(), Total(data, 4.0, 1e-5))


class _Free(Store):
    """Takes entries beside others."""

    __slots__ = ()

    def append(self, body: bytes) -> None:
        pass


class Unlocked(BudgetLedger):
    """A mutation without a lock, which does not look whether others have booked."""

    __slots__ = ()

    @classmethod
    def open(cls, path: str | PathLike[str], data: str, **_: object) -> BudgetLedger:  # noqa: ARG003
        Path(f"{path}.lock").unlink(missing_ok=True)
        return cls._read(_Free(Path(path), "ledger", new=False))


def killed_before(line: int) -> TraceFunction:
    """A tracer that kills this process before a line of the ledger's code, counted as they run."""
    left = line

    def trace(frame: FrameType, event: str, _argument: object) -> TraceFunction | None:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("/ledger.py", "/storage.py")):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def forked(folder: Path, act: Act) -> int:
    """Do it in a process of its own; a refusal is noted."""
    child = os.fork()
    if child:
        return child
    gc.disable()  # objects of other tests end in their own process
    try:
        act()
    except SecureFDError as refusal:
        Notes(folder).add(type(refusal).__name__, str(refusal))
    except BaseException as failure:  # noqa: BLE001 - a fork must not go on as its parent
        Notes(folder).add("failed", repr(failure))
    finally:
        os._exit(0)


def was_killed(child: int) -> bool:
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def release(folder: Path, kind: type[BudgetLedger], before: Act = lambda: None) -> None:
    """One life. before: what it does between opening and releasing."""
    notes = Notes(folder)
    with kind.open(folder / "ledger", DATA) as ledger:
        before()
        answer = ledger.release("means", EVENT, REQUEST, notes.draw)
        sys.settrace(None)
        notes.add("left", answer.hex())


def bookings(folder: Path) -> int:
    with BudgetLedger.open(folder / "ledger", DATA) as ledger:
        return len(ledger.bookings)


def ledger_in(folder: Path, total: Total = ONE) -> Path:
    """A folder with a new ledger."""
    folder.mkdir(parents=True)
    BudgetLedger.create(folder / "ledger", DATA, epsilon=total.epsilon, delta=total.delta).close()
    return folder


def two_lives(folder: Path, kind: type[BudgetLedger], total: Total, step: int) -> Iterator[Life]:
    """The first is killed before every step-th line of its release, the second goes on."""
    for line in count(1, step):
        place = ledger_in(folder / f"{kind.__name__} {total.epsilon} {line}", total)
        before = partial(sys.settrace, killed_before(line))
        killed = was_killed(forked(place, partial(release, place, kind, before)))
        Notes(place).add("restarted", "")
        was_killed(forked(place, partial(release, place, kind)))
        life = {"notes": Notes(place).read(), "bookings": bookings(place)}
        yield life | {"kind": kind.__name__, "total": total.epsilon}
        if not killed:
            return


def creations(folder: Path, step: int) -> Iterator[tuple[bool, list[str]]]:
    """A file is made by a process that is killed before a line; then it is opened, and used."""

    def create(place: Path, line: int) -> None:
        sys.settrace(killed_before(line))
        BudgetLedger.create(place / "ledger", DATA, epsilon=4.0, delta=1e-5).close()

    for line in count(1, step):
        place = folder / f"create {line}"
        place.mkdir()
        killed = was_killed(forked(place, partial(create, place, line)))
        was_killed(forked(place, partial(release, place, BudgetLedger)))
        yield killed, Notes(place).read()
        if not killed:
            return


def race(folder: Path, kind: type[BudgetLedger], *, unlink: bool = False) -> list[str]:
    """Four processes open one ledger whose total suffices for one, and then release.

    None releases before all have opened it or were refused. unlink: whether each finds the lock of
    the one before removed.
    """
    place, go = ledger_in(folder / f"race {kind.__name__} {unlink}"), os.pipe()

    def wait(opened: int) -> None:
        os.write(opened, b"!")
        os.close(go[1])
        os.read(go[0], 1)  # until all have closed the other end

    children = []
    for _ in range(4):
        if unlink:
            (place / "ledger.lock").unlink(missing_ok=True)
        reading, writing = os.pipe()
        children.append(forked(place, partial(release, place, kind, partial(wait, writing))))
        os.close(writing)
        os.read(reading, 1)  # until it has opened the ledger or is gone
        os.close(reading)
    os.close(go[1])
    for child in children:
        was_killed(child)
    return Notes(place).read()


def full_disk(folder: Path) -> list[str]:
    """The booking finds room on the disk and the answer does not; then a caller asks again."""
    place = ledger_in(folder / "full")
    notes = Notes(place)

    def large() -> bytes:
        notes.draw()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = (place / "ledger").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return bytes(100_000)

    def ask() -> None:
        with BudgetLedger.open(place / "ledger", DATA) as ledger:
            ledger.release("means", EVENT, REQUEST, large)

    for _ in range(2):
        was_killed(forked(place, ask))
    return notes.read()


def inherited(folder: Path) -> list[str]:
    """A process forks while it has a ledger open, and the fork uses it."""
    place = ledger_in(folder / "fork")
    with BudgetLedger.open(place / "ledger", DATA) as ledger:
        was_killed(forked(place, partial(ledger.book, "means", EVENT)))
    return Notes(place).read()


def main(folder: Path) -> None:
    lives = [*two_lives(folder, BudgetLedger, ONE, 1), *two_lives(folder, BudgetLedger, TWO, 7)]
    for mutation in (DrawsFirst, SendsFirst, Forgets):
        lives += two_lives(folder, mutation, ONE, 11)
    found = {
        "lives": lives,
        "creations": list(creations(folder, 8)),
        "race": race(folder, BudgetLedger),
        "race without lock": race(folder, BudgetLedger, unlink=True),
        "race without a look": race(folder, Unlocked),
        "full disk": full_disk(folder),
        "fork": inherited(folder),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
