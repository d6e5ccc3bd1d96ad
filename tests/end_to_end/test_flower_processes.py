"""Three sites and a server of Flower as processes on loopback: `flwr run`, two commands a site."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.drivers.flower_processes import SITES, federation

pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')


def _running(*parts):
    """Command lines with all of this in them, by process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_text(errors="replace")
            if all(each in line for each in parts):
                found[int(path.parent.name)] = line.split("\0")
    return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A federation in which a site is killed, then the server, and both come back."""
    folder = tmp_path_factory.mktemp("run") / "f"
    with federation(folder, "--rounds", "4", "--deadline", "20") as made:
        for name in (*SITES, "server"):
            made.start(name)
        made.until(lambda: len(made.rounds()) >= 1)
        made.kill("north")
        made.start("north")
        made.until(lambda: len(made.rounds()) >= 2)
        app = Path("/proc", str(made.journal()[0]["pid"]))
        made.kill("server")
        programs = ("flower-superlink", str(folder))
        made.until(lambda: not app.exists() and not _running(*programs), 60)
        made.start("server")
        assert made.wait("server") == 0, made.log("server")
        assert [made.wait(name, 60) for name in SITES] == [0, 0, 0]
    return made


def test_rounds_survive_a_kill_of_a_site_and_of_the_server(ended):
    """Each begins once; one that was open when the server ended has no line."""
    rounds = ended.rounds()
    indices = [one["index"] for one in rounds]
    assert indices == sorted(set(indices))
    assert indices[-1] == 3
    assert rounds[0]["survivors"] == [[0, 1, 2]] * len(rounds[0]["survivors"]) != []
    assert [rounds[-1]["why"], rounds[-1]["survivors"][-1]] == ["", [0, 1, 2]]
    assert {"event": "sites", "here": list(SITES)} in ended.journal()
    last = ended.journal()[-1]
    assert last["event"] == "ended"
    assert all(last["digest"] in ended.log(name) for name in SITES)


def test_each_site_has_a_model_of_its_own_and_nothing_of_flower_is_left(ended):
    homes = [ended.folder / name / "home" for name in SITES]
    assert len({(home / "network.pt").read_bytes() for home in homes}) == len(SITES)
    assert all((home / "model" / "model.pt2").is_file() for home in homes)
    assert not (ended.folder / "server" / "flower").exists()
    assert not _running(str(ended.folder))


def test_no_secret_is_in_a_file_or_log_but_its_own(ended):
    """Nor is anything as long as a key in hexadecimal in a site's log."""
    for name in ("server", *SITES):
        ended.check_secrets(name)
    for name in SITES:
        assert not re.search(r"[0-9a-f]{32}", ended.log(name))


@pytest.mark.skipif("SECURE_FD_PROCESSES" not in os.environ, reason="half a minute: test-long")
def test_mutant_without_a_watcher_leaves_flower_behind_a_killed_server(tmp_path):
    with federation(tmp_path / "f", "--rounds", "2") as made:
        made.start("server")
        made.until(lambda: bool(made.journal()))
        shells = _running("read -r _", str(made.folder))
        app, group = Path("/proc", str(made.journal()[0]["pid"])), os.getpgid(next(iter(shells)))
        for shell in shells:
            os.kill(shell, signal.SIGKILL)
        made.kill("server")
        time.sleep(5)
        assert app.exists()
        assert _running("--ssl-keyfile", str(made.folder))
        os.killpg(group, signal.SIGKILL)
