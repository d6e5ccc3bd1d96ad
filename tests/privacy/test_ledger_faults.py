"""A budget survives what happens to its process and its file; mutations that forget are caught."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fd import storage
from secure_fd.errors import LocalError
from secure_fd.privacy.events import Gaussian, Response
from secure_fd.privacy.ledger import BudgetLedger, Total
from secure_fd.storage import Store
from tests.privacy.ledger_crashes import DATA, Forgets

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def crashes():
    """The notes of `ledger_crashes`; in memory where there is such a place: it is faster."""
    shared = Path("/dev/shm")  # noqa: S108 - a kill loses nothing of it, and no name is guessed
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "tests.privacy.ledger_crashes", folder],
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
            capture_output=True,
            check=True,
        )
    yield json.loads(done.stdout)


def words(notes: list[str], kind: str) -> list[str]:
    return [value for what, _, value in (note.partition(" ") for note in notes) if what == kind]


def broken(life: dict[str, Any]) -> str | None:
    """Describe how two lives of a ledger broke its guarantee; None if they kept it."""
    notes, again = life["notes"], life["notes"].index("restarted ")
    if words(notes, "failed"):
        return "it failed in no way that is foreseen"
    if len(words(notes, "drew")) > life["bookings"]:
        return "noise was drawn that was not booked"
    if life["total"] == 4.0 and life["bookings"] > 1:
        return "it is beyond its total"
    if len(set(words(notes, "left"))) > 1:
        return "two answers to one request left"
    if words(notes[:again], "left") and not words(notes[again:], "left"):
        return "an answer left and is not replayed"
    return None


def of(crashes: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [life for life in crashes["lives"] if life["kind"] == kind]


def test_whatever_line_a_process_dies_at_no_noise_is_drawn_unpaid(crashes):
    lives = of(crashes, "BudgetLedger")
    assert [broken(life) for life in lives] == [None] * len(lives)
    one = [life["notes"] for life in lives if life["total"] == 4.0]
    assert len(one) > 40
    before = [notes for notes in one if notes[0] == "restarted "]
    unpaid = [notes for notes in before if words(notes, "left")]
    paid = [notes for notes in before if words(notes, "BudgetError")]
    lost = [notes for notes in one if notes[0] != "restarted " and not words(notes, "left")]
    stored = [notes for notes in one if notes[0] != "restarted " and words(notes, "left")]
    assert all((unpaid, paid, lost, stored))
    assert len(unpaid) + len(paid) + len(lost) + len(stored) == len(one)
    assert all("its answer was lost" in words(notes, "BudgetError")[0] for notes in paid + lost)
    assert all(set(words(notes, "left")) == set(words(notes, "drew")) for notes in stored)


def test_a_lost_answer_is_drawn_again_where_that_is_paid_for_again(crashes):
    lives = [life for life in of(crashes, "BudgetLedger") if life["total"] > 4.0]
    twice = [life["bookings"] for life in lives if len(words(life["notes"], "drew")) == 2]
    assert set(twice) == {2}
    assert all(len(words(life["notes"], "left")) >= 1 for life in lives)


@pytest.mark.parametrize(
    ("mutation", "how"),
    [
        ("DrawsFirst", "noise was drawn that was not booked"),
        ("SendsFirst", "an answer left and is not replayed"),
        ("Forgets", "noise was drawn that was not booked"),
    ],
)
def test_mutations_that_draw_or_send_too_early_or_forget_are_caught(crashes, mutation, how):
    assert how in {broken(life) for life in of(crashes, mutation)}


def test_an_interrupted_creation_leaves_a_ledger_or_none(crashes):
    outcomes = {notes[0].split()[0] for _, notes in crashes["creations"]}
    assert outcomes == {
        "ConfigurationError",
        "LocalError",
        "drew",
    }  # no file, no ledger, a whole one
    unfinished = [notes[0] for _, notes in crashes["creations"] if notes[0][:10] == "LocalError"]
    assert all("nothing was released under it: remove it" in note for note in unfinished)


def test_two_processes_at_once_spend_a_budget_once(crashes):
    refused = words(crashes["race"], "ConfigurationError")
    assert len(refused) == 3
    assert all("a process has it open: close it there" in sentence for sentence in refused)
    assert len(words(crashes["race"], "drew")) == 1
    without = crashes["race without lock"]
    assert len(words(without, "drew")) == 1
    assert len(words(without, "LocalError")) == 3
    assert all("another process has added" in note for note in words(without, "LocalError"))
    assert len(words(crashes["race without a look"], "drew")) == 4


def test_an_answer_that_finds_no_room_does_not_leave(crashes):
    notes = crashes["full disk"]
    assert [note.split()[0] for note in notes] == ["drew", "LocalError", "BudgetError"]
    assert "an entry could not be written" in notes[1]
    assert "its answer was lost" in notes[2]


def test_a_forked_process_has_no_part_in_a_ledger(crashes):
    assert len(words(crashes["fork"], "LocalError")) == len(crashes["fork"]) == 1


# Loss of power: what is booked must be in the file, and waited for, before noise is drawn.


def booked_when_drawn(kind: type[BudgetLedger], folder: Path) -> int:
    """Count the bookings in the file while the noise is drawn."""
    path, found = folder / "ledger", []

    def draw() -> bytes:
        with BudgetLedger.open(shutil.copy2(path, folder / "copy"), DATA) as other:
            found.append(len(other.bookings))
        return b"noise"

    BudgetLedger.create(path, DATA, epsilon=4.0, delta=1e-5).close()
    with kind.open(path, DATA) as ledger:
        ledger.release("means", Gaussian(2.0), b"", draw)
    return found[0]


class Unsynced(BudgetLedger):
    """A mutation that does not wait for the disk."""

    __slots__ = ()

    def __init__(self, file: Store, total: Total) -> None:
        super().__init__(file, total)
        self._file._database.execute("PRAGMA synchronous = OFF")


def waits(ledger: BudgetLedger) -> bool:
    """Check that a commit syncs the file, its journal, and the folder."""
    return ledger._file._database.execute("PRAGMA synchronous").fetchone() == (3,)


def test_a_booking_is_on_the_disk_before_noise_is_drawn(tmp_path):
    (tmp_path / "mutation").mkdir()
    assert booked_when_drawn(BudgetLedger, tmp_path) == 1
    assert booked_when_drawn(Forgets, tmp_path / "mutation") == 0
    for kind, expected in ((BudgetLedger, True), (Unsynced, False)):
        with kind.open(tmp_path / "ledger", DATA) as ledger:
            assert waits(ledger) is expected


# Damage.


def state(path: Path) -> tuple[object, ...]:
    """Contents of a ledger: its total, its bookings and its answers."""
    with BudgetLedger.open(path, DATA) as ledger:
        answers = [
            ledger.release("means", Gaussian(2.0), b"%d" % i, lambda: b"drawn") for i in range(2)
        ]
        return ledger.total, ledger.bookings, answers


@pytest.fixture
def whole(tmp_path):
    """A file with bookings, a lost answer, and answers long enough for pages of their own."""
    path = tmp_path / "ledger"
    with BudgetLedger.create(path, DATA, epsilon=9.0, delta=1e-5) as ledger:
        for i in range(2):
            ledger.release("means", Gaussian(2.0), b"%d" % i, lambda: os.urandom(3000))
        ledger.book("an answer", Response(1.0, 11))
    return path


class Trusting(Store):
    """A mutation that takes what SQLite gives it."""

    __slots__ = ()

    def entries(self) -> list[bytes]:
        rows = self._rows("SELECT body FROM entries ORDER BY number")
        self._count = len(rows)
        return [body for (body,) in rows]


def after_damage(whole: Path, damaged: bytes) -> object:
    """Read a file of these bytes; None if it is refused."""
    path = whole.with_name("damaged")
    path.write_bytes(damaged)
    path.chmod(0o600)
    try:
        return state(path)
    except LocalError:
        return None


def flipped(data: bytes) -> Iterator[bytes]:
    """One byte changed, at 80 places of the file."""
    rng = np.random.default_rng(0)
    for place in rng.choice(len(data), 80, replace=False):
        yield data[:place] + bytes([data[place] ^ int(rng.integers(1, 256))]) + data[place + 1 :]


def test_a_damaged_file_is_refused_or_says_the_same(whole, monkeypatch):
    """SQLite passes over bytes that mean nothing, so some changes are none."""
    data, truth = whole.read_bytes(), state(whole)
    after = [after_damage(whole, changed) for changed in flipped(data)]
    assert set(map(repr, after)) == {repr(None), repr(truth)}
    assert after.count(None) > 15
    monkeypatch.setattr("secure_fd.privacy.ledger.Store", Trusting)
    trusting = [after_damage(whole, changed) for changed in flipped(data)]
    assert len(set(map(repr, trusting))) > 2  # it believes other answers


LAST = "DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)"
GUARDS = ("DROP TRIGGER no_update", "DROP TRIGGER no_delete")


def _run(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize("statement", [LAST, "UPDATE entries SET number = number + 1"])
def test_what_was_booked_is_neither_deleted_nor_changed(whole, statement):
    with pytest.raises(sqlite3.IntegrityError, match="entries are only added"):
        _run(whole, statement)
    _run(whole, *GUARDS, LAST)
    with pytest.raises(LocalError, match="no file of this kind and format"):
        BudgetLedger.open(whole, DATA)


def test_mutation_without_these_guards_forgets_its_newest_booking(whole, monkeypatch):
    before = state(whole)
    _run(whole, *GUARDS, LAST)
    plain = tuple(each for each in storage._SCHEMA if "TRIGGER" not in each)
    monkeypatch.setattr(storage, "_SCHEMA", plain)
    after = state(whole)
    assert len(after[1]) == len(before[1]) - 1


def test_a_shortened_file_is_refused(whole):
    data = whole.read_bytes()
    for size in (0, 1, 99, 100, 512, *range(4096, len(data), 2048), len(data) - 1):
        assert after_damage(whole, data[:size]) is None
    assert after_damage(whole, b"no database at all" * 500) is None
