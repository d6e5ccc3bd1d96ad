"""A party's file: whole values, one owner, and a refusal of anything that is not one."""

import os

import pytest

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.state import StateFile


def test_values_are_replaced_as_a_whole_and_outlive_the_object(tmp_path):
    path = tmp_path / "client"
    file = StateFile.create(path)
    file.write({"told": b"one", "half": b"two"})
    file.write({"told": b"three"})
    file.close()
    back = StateFile.open(path)
    assert (back.read("told"), back.read("half"), back.read("other")) == (b"three", b"two", None)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "three" not in repr(back)


def test_nothing_is_opened_that_is_not_a_file_of_ones_own(tmp_path):
    path = tmp_path / "client"
    with pytest.raises(ConfigurationError, match="enrol anew"):
        StateFile.open(path)
    file = StateFile.create(path)
    for attempt in (StateFile.create, StateFile.open):
        with pytest.raises(ConfigurationError, match="a process has it open"):
            attempt(path)
    file.close()
    with pytest.raises(ConfigurationError, match="it exists"):
        StateFile.create(path)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others may open it"):
        StateFile.open(path)


def test_another_kind_of_file_and_damage_are_refused(tmp_path):
    ledger, path = tmp_path / "ledger", tmp_path / "client"
    BudgetLedger.create(ledger, "ward 7", epsilon=4.0, delta=1e-5).close()
    with pytest.raises(LocalError, match="no file of this kind"):
        StateFile.open(ledger)
    file = StateFile.create(path)
    file.write({"told": os.urandom(9000)})
    file.close()
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(LocalError, match=r"damaged|cannot be read"):
        StateFile.open(path).read("told")


def test_a_closed_file_takes_and_gives_nothing(tmp_path):
    file = StateFile.create(tmp_path / "client")
    file.close()
    for use in (lambda: file.write({"told": b"one"}), lambda: file.read("told")):
        with pytest.raises(LocalError, match="it was closed"):
            use()
