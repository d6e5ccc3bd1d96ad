"""Sites are added, replaced and removed by a roster that the server signed; attackers are not."""

import gc
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fd.crypto.keys import IdentityKey, IdentityPublic
from secure_fd.deployment import enrol, keys, model
from secure_fd.deployment.budget import Budget, default_ledger
from secure_fd.deployment.enrol import InitCommand, RosterCommand
from secure_fd.deployment.loop import serve_rounds
from secure_fd.deployment.members import move
from secure_fd.deployment.preflight import site_checks
from secure_fd.deployment.roster import RosterFile, parse, read, render
from secure_fd.deployment.serve import lines_of
from secure_fd.deployment.site import Site, site_of
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.training.models import flatten
from secure_fd.training.trainer import Steps
from tests.flower_federation import CLASSES, Courier, image_folders


class Steppers:
    """Takes so many steps where many are due."""

    count = 1

    def __call__(self, jobs: Sequence[Steps]) -> None:
        for job in jobs:
            replace(job, count=self.count).run()


class Federation:
    """Sites a to e and a server below a folder; their parties are in this process."""

    def __init__(self, folder: Path, kept: Path | None = None) -> None:
        self.folder, self.sites = folder, dict[int, Site]()
        if kept is not None:
            shutil.copytree(kept, folder)
            return
        for records in image_folders(folder, "abcde"):
            InitCommand(data=records, name=records.parent.name)()

    def home(self, site: str) -> Path:
        return self.folder / site / ("" if site == "server" else "home")

    def enrol(self, name: str, sites: str, previous: str = "", **options: Any) -> RosterFile:
        """A roster file of these sites; with a previous one or a new server."""
        given = {"rounds": 1, "size": 16, "address": "127.0.0.1:9443"} if not previous else {}
        out = self.folder / f"{name}.toml"
        RosterCommand(
            home=self.home("server"),
            cards=tuple(self.home(site) / f"{site}.toml" for site in sites),
            out=out,
            previous=self.folder / f"{previous}.toml" if previous else None,
            **given | options,
        )()
        return read(out)

    @contextmanager
    def joined(self, roster: RosterFile, sites: str, **budget: Any) -> Iterator[list[Site]]:
        """Processes of sites, over their homes."""
        with ExitStack() as opened:
            self.sites = {}
            for name in sites:
                records = self.folder / name / "records"
                chosen = Budget(**{"path": default_ledger(records), **budget})
                file = opened.enter_context(closing(keys.open_state(self.home(name))))
                given = self.home(name), records, roster, self.folder / "proxies", file, chosen
                site = site_of(*given)
                self.sites[len(self.sites)] = site
            try:
                yield list(self.sites.values())
            finally:
                self.sites = {}
                gc.collect()  # which closes their ledgers

    def play(self, name: str, sites: str, **budget: Any) -> None:
        """All rounds of a roster file, by these of its sites."""
        path, proxies = self.folder / f"{name}.toml", self.folder / "proxies"
        with self.joined(read(path), sites, **budget):
            serve_rounds(self.home("server"), path, proxies, Courier(self))  # type: ignore[arg-type]
            assert all(site.done for site in self.sites.values())

    def network(self, site: str) -> Any:
        return flatten(model.load(self.home(site) / "network.pt").network).numpy()

    def state(self, site: str) -> dict[str, bytes | None]:
        with closing(keys.open_state(self.home(site))) as file:
            return {name: file.get(name) for name in file.names()}


@pytest.fixture(scope="module", autouse=True)
def stepper():
    with pytest.MonkeyPatch.context() as patched:
        made = Steppers()
        patched.setattr("secure_fd.deployment.site.run_each", made)
        yield made


@pytest.fixture
def steps(stepper):
    yield stepper
    stepper.count = 1


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return Federation(tmp_path_factory.mktemp("sites"))


@pytest.fixture
def federation(kept, tmp_path):
    return Federation(tmp_path / "copy", kept.folder)


CHANGES = {
    "added": ("abc", "abcd"),
    "replaced": ("abc", "abd"),
    "removed": ("abcd", "bcd"),
    "in another order": ("abc", "cbad"),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("method", ["fedmd", "fedavg"])
def test_models_of_sites_that_stay_go_on(federation, steps, method, before, after):
    """No site trains in the second federation, so its networks are those that it began with."""
    federation.enrol("old", before, method=method, deadline=0.5)
    federation.play("old", before)
    stay = sorted(set(before) & set(after))
    kept = {site: federation.network(site) for site in stay}
    new, steps.count = federation.enrol("new", after, "old"), 0
    assert (new.terms.method, new.terms.rounds) == (method, 1)
    federation.play("new", after)
    *_, last, _ = lines_of(federation.home("server"))
    assert set(last["survivors"][0]) == set(range(len(after)))
    for site in after if method == "fedavg" else stay:
        start = kept[stay[0]] if method == "fedavg" else kept[site]
        np.testing.assert_allclose(federation.network(site), start, atol=1e-6)


def test_a_new_session_has_no_state_of_the_one_before(federation):
    old = federation.enrol("old", "abc", method="fedmd", rounds=2)
    federation.play("old", "abc")
    new = federation.enrol("new", "abd", "old")
    assert {new.identity, new.agreement, new.certificate} == {
        *(old.identity, old.agreement, old.certificate)
    }
    assert new.nonce != old.nonce
    for home, session in (("a", {"place", "role"}), ("server", {"set up", "begun"})):
        before = federation.state(home)
        assert session | {"memory", "seed", "roster"} <= before.keys()
        with closing(keys.open_state(federation.home(home))) as file:
            move(file, new)
        left = federation.state(home)
        assert left.keys() <= {"identity", "agreement", "fingerprint", "ledger", "roster"}
        assert left["identity"] == before["identity"]
        assert left["roster"] != before["roster"]


@pytest.fixture
def noisy(federation, monkeypatch):
    monkeypatch.setattr(enrol, "LEAST_NOISY_RECORDS", 18)
    federation.enrol("old", "abc", unit="record", epsilon=1.0)
    federation.play("old", "abc", epsilon=4.0)
    return federation


def spent(federation: Federation, site: str) -> float:
    with BudgetLedger.open(default_ledger(federation.folder / site / "records")) as ledger:
        return ledger.spent


def test_the_ledger_of_a_site_that_stays_counts_on(noisy):
    once = spent(noisy, "a")
    assert 0 < once <= 1
    noisy.enrol("new", "abd", "old")
    noisy.play("new", "abd")
    assert spent(noisy, "a") > 1.2 * once
    assert spent(noisy, "c") == once


def test_a_new_roster_beyond_the_budget_does_not_end_the_session(noisy):
    new, before = noisy.enrol("new", "abd", "old", epsilon=8.0), noisy.state("a")
    with pytest.raises(BudgetError), noisy.joined(new, "a"):
        pass
    assert noisy.state("a") == before


# Attackers, and mistakes.


@pytest.fixture(scope="module")
def played(kept, tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("played") / "copy", kept.folder)
    made.enrol("old", "abc", method="fedmd")
    made.play("old", "abc")
    made.enrol("new", "abd", "old")
    made.play("new", "abd")
    return made


@pytest.fixture
def changed(played, tmp_path):
    """The rosters old, of a, b and c, and new, of a, b and d; both were played."""
    return Federation(tmp_path / "copy", played.folder)


@contextmanager
def refused_at(federation: Federation, site: str) -> Iterator[None]:
    before = federation.state(site)
    with pytest.raises(ConfigurationError) as error:
        yield
    assert error.value.field == "roster"
    assert "\n" not in str(error.value)
    assert federation.state(site) == before


def offer(federation: Federation, roster: RosterFile, site: str) -> None:
    """Join a site, and let the checks before it see the roster as well."""
    with federation.joined(roster, site):
        pass


def test_an_old_roster_is_refused_once_a_site_has_a_newer_one(changed):
    old, records = read(changed.folder / "old.toml"), changed.folder / "a" / "records"
    with refused_at(changed, "a"):
        offer(changed, old, "a")
    with refused_at(changed, "a"):
        list(site_checks(old, records, changed.home("a")))
    with refused_at(changed, "server"):
        keys.check_home(changed.home("server"), old)
    with refused_at(changed, "server"):
        changed.enrol("third", "abc", "old")


def test_a_second_roster_that_follows_the_same_one_is_refused(federation):
    """Site a has followed the first; site b, which has not, takes either."""
    old = federation.enrol("old", "abc", method="fedmd")
    federation.play("old", "abc")
    first, second = (federation.enrol(name, "abd", "old") for name in ("first", "second"))
    assert first.previous == second.previous == (old.digest,)
    offer(federation, first, "a")
    with refused_at(federation, "a"):
        offer(federation, second, "a")
    offer(federation, second, "b")
    with refused_at(federation, "b"):
        offer(federation, first, "b")


def test_a_site_that_missed_a_roster_follows_the_next_one(changed):
    third = changed.enrol("third", "cde", "new")
    offer(changed, third, "c")
    with refused_at(changed, "c"):
        offer(changed, read(changed.folder / "old.toml"), "c")


def test_a_removed_site_takes_no_part_in_either_session(changed):
    new = read(changed.folder / "new.toml")
    with refused_at(changed, "c"):
        offer(changed, new, "c")
    server, begun = changed.home("server"), len(lines_of(changed.home("server")))
    old = read(changed.folder / "old.toml")
    with changed.joined(old, "c") as [removed], changed.joined(new, "abd"):
        changed.sites[3] = removed
        paths = server, changed.folder / "new.toml", changed.folder / "proxies"
        serve_rounds(*paths, Courier(changed))  # type: ignore[arg-type]
    lines = lines_of(server)[begun:]
    assert any("not on this roster has another roster" in line.get("refused", "") for line in lines)
    assert lines[-1]["event"] == "ended"


def test_an_unsigned_roster_is_refused_over_an_old_home(changed):
    new = read(changed.folder / "new.toml")
    bare = parse(render(structs.replace(new, previous=(), nonce=bytes(32))).encode())
    with refused_at(changed, "a"):
        offer(changed, bare, "a")
    with pytest.raises(ConfigurationError, match="signature"):
        render(structs.replace(new, nonce=bytes(32)))


def test_a_roster_of_another_server_is_refused_over_an_old_home(changed):
    """It has this home's roster among those before it, and a good signature of its own server."""
    server = IdentityKey.generate(os.urandom)
    new = read(changed.folder / "new.toml")
    other = structs.replace(new, identity=server.public.raw, previous=(new.digest,))
    with refused_at(changed, "a"):
        offer(changed, parse(render(other, server.sign).encode()), "a")


def forged(federation: Federation) -> RosterFile:
    """A roster that names the home's server, signed by another: the attacker takes site d's place.

    Its keys get what the members of the sum get, and two more would read a site's input.
    """
    attacker, new = IdentityKey.generate(os.urandom), read(federation.folder / "new.toml")
    taken = structs.replace(new.sites[2], identity=attacker.public.raw)
    made = structs.replace(new, sites=(*new.sites[:2], taken), previous=(new.digest,))
    return parse(render(made, attacker.sign).encode())


def test_a_forged_roster_is_refused(changed):
    before = changed.state("a")
    with pytest.raises(ConfigurationError) as error:
        offer(changed, forged(changed), "a")
    assert error.value.field == "signature"
    assert changed.state("a") == before


def test_mutant_without_the_signature_check_follows_a_forged_roster(changed, monkeypatch):
    before = changed.state("a")
    monkeypatch.setattr(IdentityPublic, "verify", lambda *_: None)
    offer(changed, forged(changed), "a")
    assert changed.state("a") != before


def test_the_signature_covers_every_line(changed):
    lines = (changed.folder / "new.toml").read_bytes().splitlines(keepends=True)
    assert parse(b"".join(lines)).sites
    for index in range(len(lines)):
        cut = lines[:index] + lines[index + 1 :]
        noted = [*lines[: index + 1], b"# a comment\n", *lines[index + 1 :]]
        for changes in (cut, noted):
            with pytest.raises(ConfigurationError):
                parse(b"".join(changes))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"classes": (*CLASSES, "horse")}, "classes"),
        ({"size": 20}, "shape"),
        ({"channels": 3}, "shape"),
        ({"address": "127.0.0.1:9444"}, "address"),
        ({"image_set": "digits"}, "size"),
        ({"epsilon": 4.0}, "epsilon"),
        ({"sites": "ab"}, "roster"),
    ],
)
def test_what_a_new_roster_cannot_change_is_refused_in_one_sentence(federation, options, field):
    federation.enrol("old", "abc")
    options = {"sites": "abd", **options}
    with pytest.raises(ConfigurationError) as error:
        federation.enrol("new", previous="old", **options)
    assert error.value.field == field
    assert not (federation.folder / "new.toml").exists()
    federation.enrol("new", "abd", "old", rounds=7, deadline=3.0)


def test_other_proxies_or_another_servers_home_make_no_new_roster(federation):
    federation.enrol("old", "abc")
    proxy = federation.folder / "proxies" / "0.png"
    content = proxy.read_bytes()
    proxy.unlink()
    with pytest.raises(ConfigurationError, match="proxies"):
        federation.enrol("new", "abd", "old")
    proxy.write_bytes(content)
    federation.home("server").rename(federation.folder / "kept")
    federation.enrol("other", "abc")
    with pytest.raises(ConfigurationError, match="home"):
        federation.enrol("new", "abd", "old")


def test_a_home_without_a_session_takes_any_roster(federation):
    """As a site that has joined and waits, and is sent a corrected roster."""
    first = federation.enrol("first", "abc")
    offer(federation, first, "a")
    federation.home("server").rename(federation.folder / "kept")
    offer(federation, federation.enrol("second", "abc"), "a")


def test_a_home_of_an_earlier_version_stays_with_its_session(changed):
    """It is bound to no roster; its memory is."""
    with closing(keys.open_state(changed.home("a"))) as file:
        file.put({}, drop=["roster"])
    third = changed.enrol("third", "abe", "new")
    with pytest.raises(LocalError, match="another session"):
        offer(changed, third, "a")
    offer(changed, read(changed.folder / "new.toml"), "a")
