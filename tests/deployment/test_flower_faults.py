"""Processes that die, sleep and come back, in one federation of four sites on loopback.

It takes minutes: `make test-long` runs it.
"""

import os
import signal

import pytest

from tests.drivers.flower_processes import federation

pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')
pytestmark = pytest.mark.skipif(
    "SECURE_FD_PROCESSES" not in os.environ, reason="takes minutes: make test-long"
)

SITES = ("north", "south", "west", "east")
ROUNDS = 12


def _wait(made, rounds):
    made.until(lambda: len(made.rounds()) >= rounds)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A run in which each thing goes wrong once."""
    options = ("--sites", "4", "--rounds", str(ROUNDS), "--deadline", "40")
    folder = tmp_path_factory.mktemp("faults") / "f"
    with federation(folder, *options) as made:
        flag = folder / "tamper"
        for name in (*SITES, "server"):
            made.start(name, relay=flag if name == "east" else None)
        _wait(made, 1)
        made.kill("north")
        made.start("north")
        _wait(made, 3)
        made.running["south"].send_signal(signal.SIGSTOP)
        seen = len(made.rounds())
        made.until(lambda: any(1 in one["silent"] for one in made.rounds()[seen:]))
        made.running["south"].send_signal(signal.SIGCONT)
        _wait(made, len(made.rounds()) + 1)
        flag.touch()
        made.until(lambda: bool(made.rounds()[-1]["refused"]))
        flag.unlink()
        _wait(made, len(made.rounds()) + 1)
        made.running["server"].send_signal(signal.SIGTERM)
        made.wait("server")
        made.start("server")
        assert made.wait("server", 400) == 0, made.log("server")
        assert [made.wait(name, 120) for name in SITES] == [0] * len(SITES)
        yield made


def test_all_rounds_are_accounted_for(story):
    """Each begins once; one that was open when the server ended has no line and is aborted."""
    indices = [one["index"] for one in story.rounds()]
    assert indices == sorted(set(indices))
    assert indices[-1] == ROUNDS - 1
    assert len(indices) >= ROUNDS - 1
    assert all(one["aborted"] or one["survivors"] for one in story.rounds())


def test_sums_are_of_those_who_were_there(story):
    everyone = [0, 1, 2, 3]
    full = [one for one in story.rounds() if all(s == everyone for s in one["survivors"])]
    assert len([one for one in full if not one["aborted"]]) >= 3
    for one in story.rounds():
        for survivors in one["survivors"]:
            assert set(survivors) <= set(everyone)
            assert len(survivors) >= 3


def test_sites_that_were_away_came_back(story):
    last = story.rounds()[-1]
    assert not last["aborted"]
    assert last["survivors"][-1] == [0, 1, 2, 3]


def test_a_tampering_relay_is_found_out_in_the_rounds_in_which_it_changed_a_bit(story):
    """The relay is there in all rounds: only those in which it changed a bit refuse its site."""
    refused = [one for one in story.rounds() if one["refused"]]
    assert refused
    assert {site for one in refused for site in one["refused"]} == {"3"}
    assert all(3 not in survivors for one in refused for survivors in one["survivors"])
    unchanged = [one for one in story.rounds() if any(3 in s for s in one["survivors"])]
    assert len(unchanged) >= 3


def test_a_killed_site_has_its_network_and_no_secret_is_in_a_file_or_log_but_its_own(story):
    assert (story.folder / "north" / "home" / "network.pt").stat().st_size > 1000
    for name in ("server", *SITES):
        story.check_secrets(name)
