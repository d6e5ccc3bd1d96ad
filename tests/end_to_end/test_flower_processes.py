"""Three sites and a server of Flower as processes on loopback: `flwr run`, two commands a site."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.flower_processes import SITES, federation

pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A federation whose two rounds are over."""
    with federation(tmp_path_factory.mktemp("run") / "f", "--rounds", "2") as made:
        for name in (*SITES, "server"):
            made.start(name)
        assert made.wait("server") == 0, made.log("server")
        assert [made.wait(name, 60) for name in SITES] == [0, 0, 0]
    return made


def test_every_round_has_the_sums_of_all_sites(ended):
    rounds = ended.rounds()
    assert [one["index"] for one in rounds] == [0, 1]
    assert [one["why"] for one in rounds] == ["", ""], rounds
    assert all(survivors == [0, 1, 2] for one in rounds for survivors in one["survivors"])
    assert rounds[1]["stages"] == 2  # in steady state
    assert {"event": "sites", "here": list(SITES)} in ended.journal()
    last = ended.journal()[-1]
    assert last["event"] == "ended"
    assert all(last["digest"] in ended.log(name) for name in SITES)


def test_each_site_has_a_network_of_its_own(ended):
    networks = {(ended.folder / name / "home" / "network.pt").read_bytes() for name in SITES}
    assert len(networks) == len(SITES)


def _running(*said: str) -> dict[int, list[str]]:
    """Command lines with all of this in them, by process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_text(errors="replace")
            if all(each in line for each in said):
                found[int(path.parent.name)] = line.split("\0")
    return found


def test_nothing_of_flower_is_left(ended):
    assert not (ended.folder / "server" / "flower").exists()
    assert not _running(str(ended.folder))


@pytest.mark.parametrize("watched", [True, False])
def test_a_killed_server_takes_flower_with_it_and_its_twin_without_a_watcher_does_not(
    watched, tmp_path
):
    with federation(tmp_path / "f", "--rounds", "2") as made:
        made.start("server")
        made.until(lambda: bool(made.journal()))
        shells, app = (
            _running("read -r _", str(made.folder)),
            Path("/proc", str(made.journal()[0]["pid"])),
        )
        group = os.getpgid(next(iter(shells)))
        if not watched:
            for shell in shells:
                os.kill(shell, signal.SIGKILL)
        made.running["server"].kill()
        made.wait("server")
        if watched:
            made.until(lambda: not app.exists() and not _running(str(made.folder)), 60)
        else:
            time.sleep(5)
            assert app.exists()
            assert _running("--ssl-keyfile", str(made.folder))
            os.killpg(group, signal.SIGKILL)


def test_logs_are_lines_of_named_fields(ended):
    """No bytes of a message, and nothing as long as a key in hexadecimal, are in a site's log."""
    for name in SITES:
        assert not re.search(r"[0-9a-f]{32}", ended.log(name))
