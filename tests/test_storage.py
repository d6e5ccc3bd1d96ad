"""A party's file: whole values, one owner, and a refusal of anything that is not one."""

import os
import sqlite3
from pathlib import Path
from threading import Timer

import pytest

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.storage import Store
from tests.programs import printed


def test_values_are_replaced_as_a_whole_and_outlive_the_object(tmp_path):
    path = tmp_path / "client"
    file = Store.create(path, "state")
    file.put({"first": b"one", "second": b"two"})
    file.put({"first": b"three"})
    file.close()
    back = Store.open(path, "state")
    assert (back.get("first"), back.get("second"), back.get("other")) == (b"three", b"two", None)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "three" not in repr(back)


def test_nothing_is_opened_that_is_not_a_file_of_ones_own(tmp_path):
    path = tmp_path / "client"
    with pytest.raises(ConfigurationError, match="enrol anew"):
        Store.open(path, "state")
    file = Store.create(path, "state")
    for attempt in (Store.create, Store.open):
        with pytest.raises(ConfigurationError, match="a process has it open"):
            attempt(path, "state")
    file.close()
    with pytest.raises(ConfigurationError, match="it exists"):
        Store.create(path, "state")
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others may open it"):
        Store.open(path, "state")


def test_a_path_may_be_relative_and_a_file_that_does_not_open_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Store.create(Path("client"), "state").close()
    Store.open(Path("client"), "state").close()

    def refusing(*_: object, **__: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(sqlite3, "connect", refusing)
    for _ in range(2):  # the lock is given up
        with pytest.raises(ConfigurationError, match="it cannot be opened: unable to open"):
            Store.open(Path("client"), "state")


def test_files_of_another_kind_or_version_and_damage_are_refused(tmp_path):
    paths = [tmp_path / name for name in ("ledger", "earlier", "damaged", "closed")]
    BudgetLedger.create(paths[0], "ward 7", epsilon=4.0, delta=1e-5).close()
    earlier, damaged, closed = (Store.create(path, "state") for path in paths[1:])
    earlier._database.execute("PRAGMA user_version = 1")
    damaged.put({"first": os.urandom(9000)})
    for file in (earlier, damaged, closed):
        file.close()
    paths[2].write_bytes(paths[2].read_bytes()[:5000])
    for path in paths[:3]:
        with pytest.raises(LocalError) as refusal:
            Store.open(path, "state").get("first")
        assert "\n" not in str(refusal.value)
    for use in (lambda: closed.put({"first": b"one"}), lambda: closed.get("first")):
        with pytest.raises(LocalError):
            use()


FORK = """
import gc, os, subprocess, sys
from pathlib import Path
from secure_fd.storage import Store

file = Store.create(Path(sys.argv[1]), "state")
child = os.fork()
if not child:
    file.close()
    del file
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
lock = f"FileLock({sys.argv[1] + '.lock'!r}, timeout=0).acquire()"
command = [sys.executable, "-c", f"from filelock import FileLock; {lock}"]
print("Timeout" in subprocess.run(command, capture_output=True, text=True).stderr)
file.put({"first": b"one"})
"""


def test_the_end_of_a_forked_process_leaves_its_parent_the_lock(tmp_path):
    """A fork shares the parent's lock, and must not give it up.

    It is a process of its own: where other threads run, a fork can wait for their locks for ever.
    """
    assert printed("-c", FORK, str(tmp_path / "client"), timeout=60) == "True\n"


def test_an_open_waits_for_a_process_that_ends_in_time(tmp_path):
    path = tmp_path / "state"
    held = Store.create(path, "state")
    with pytest.raises(ConfigurationError):
        Store.open(path, "state")
    Timer(0.2, held.close).start()
    Store.open(path, "state", patience=20).close()
