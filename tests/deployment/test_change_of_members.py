"""Sites are added, replaced and removed by a roster that the server signed; attackers are not."""

import gc
import os
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from secure_fd.crypto.keys import IdentityKey, IdentityPublic
from secure_fd.data import patches
from secure_fd.deployment import enrol, keys, model
from secure_fd.deployment.budget import default_ledger
from secure_fd.deployment.loop import serve_rounds
from secure_fd.deployment.members import move
from secure_fd.deployment.preflight import site_checks
from secure_fd.deployment.roster import parse, render
from secure_fd.deployment.serve import lines_of
from secure_fd.errors import BudgetError, ConfigurationError
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.training.models import flatten
from tests.drivers.flower_federation import CLASSES, Courier, Enrolled
from tests.refusals import refused


class Federation(Enrolled):
    """Sites a to e and a server, whose parties play in this process."""

    def __init__(self, folder, kept=None):
        super().__init__(folder, "abcde", kept)
        self.sites = {}

    @contextmanager
    def joined(self, name, sites, **budget):
        """Processes of sites."""
        with ExitStack() as opened:
            for number, site in enumerate(sites):
                file = opened.enter_context(closing(keys.open_state(self.home(site))))
                self.sites[number] = self.site(self.roster(name), site, file, **budget)
            yield
        self.sites = {}
        gc.collect()  # which closes their ledgers

    def play(self, name, sites, **budget):
        """All rounds of a roster file, by these of its sites."""
        with self.joined(name, sites, **budget):
            self.serve(name)
            assert all(site.done for site in self.sites.values())

    def serve(self, name):
        paths = self.home("server"), self.folder / f"{name}.toml", self.folder / "proxies"
        serve_rounds(*paths, Courier(self))

    def network(self, site):
        return flatten(model.load(self.home(site) / "network.pt").network).numpy()

    def spent(self, site):
        with BudgetLedger.open(default_ledger(self.records(site))) as ledger:
            return ledger.spent


@pytest.fixture(scope="module", autouse=True)
def steps():
    """The number of steps taken where more are due."""
    taken = {"count": 1}

    def run_few(jobs):
        for job in jobs:
            replace(job, count=taken["count"]).run()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("secure_fd.deployment.site.run_each", run_few)
        yield taken


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """Federations by the number of rosters played: none, old of a, b and c, then new of a, b, d."""
    made = [Federation(tmp_path_factory.mktemp("sites") / "0")]
    for name, sites, terms in (
        ("old", "abc", {"method": "fedmd", "rounds": 2}),
        ("new", "abd", {"previous": "old"}),
    ):
        made.append(Federation(tmp_path_factory.mktemp("sites") / name, made[-1].folder))
        made[-1].enrol(name, sites, **terms)
        made[-1].play(name, sites)
    return made


@pytest.fixture
def federation(histories, tmp_path):
    return Federation(tmp_path / "copy", histories[0].folder)


@pytest.fixture
def first(histories, tmp_path):
    """The roster old, of a, b and c, was played."""
    return Federation(tmp_path / "copy", histories[1].folder)


@pytest.fixture
def changed(histories, tmp_path):
    """The roster new, of a, b and d, was played after it."""
    return Federation(tmp_path / "copy", histories[2].folder)


@pytest.mark.parametrize(
    ("method", "before", "after"),
    [
        ("fedmd", "abc", "cbad"),  # added, in another order
        ("fedmd", "abcd", "bcd"),  # removed
        ("fedavg", "abc", "abd"),  # replaced
    ],
)
def test_models_of_sites_that_stay_go_on(federation, steps, monkeypatch, method, before, after):
    """No site trains in the second federation, so its networks are those that it began with."""
    federation.enrol("old", before, method=method, deadline=0.5)
    federation.play("old", before)
    stay = sorted(set(before) & set(after))
    start = {site: federation.network(site) for site in stay}
    new = federation.enrol("new", after, "old")
    assert (new.terms.method, new.terms.rounds) == (method, 1)
    monkeypatch.setitem(steps, "count", 0)
    federation.play("new", after)
    *_, last, _ = lines_of(federation.home("server"))
    assert set(last["survivors"][0]) == set(range(len(after)))
    for site in after if method == "fedavg" else stay:
        expected = start[stay[0] if method == "fedavg" else site]
        np.testing.assert_allclose(federation.network(site), expected, atol=1e-6)


def test_the_ledger_of_a_site_that_stays_counts_on(federation, monkeypatch):
    """A new roster beyond the budget ends no session. Each party fits a map of its own."""
    monkeypatch.setattr(enrol, "LEAST_NOISY_RECORDS", 18)
    monkeypatch.setattr(patches, "_FILTERS", 8)
    monkeypatch.setattr(patches, "_PATCHES", 2_000)
    federation.enrol("old", "abc", unit="record", epsilon=1.0)
    federation.play("old", "abc", epsilon=4.0)
    once, before = federation.spent("a"), federation.state("a")
    assert 0 < once <= 1
    dear = federation.enrol("dear", "abd", "old", epsilon=8.0)
    with pytest.raises(BudgetError):
        federation.join(dear, "a")
    assert federation.state("a") == before
    gc.collect()
    federation.enrol("new", "abd", "old")
    federation.play("new", "abd")
    assert federation.spent("a") > 1.2 * once
    assert federation.spent("c") == once


# Attackers, and mistakes.


@contextmanager
def unchanged(federation, site, field="roster"):
    """It refuses, and its state is that of before."""
    before = federation.state(site)
    with refused(field):
        yield
    assert federation.state(site) == before


def test_a_new_session_has_no_state_of_the_one_before(first):
    old, new = first.roster("old"), first.enrol("new", "abd", "old")
    for name in ("identity", "agreement", "certificate"):
        assert getattr(new, name) == getattr(old, name)
    assert new.nonce != old.nonce
    for home, session in (("a", {"place", "role"}), ("server", {"set up", "begun"})):
        before = first.state(home)
        assert session | {"memory", "seed", "roster"} <= before.keys()
        with closing(keys.open_state(first.home(home))) as file:
            move(file, new)
        left = first.state(home)
        assert left.keys() <= {"identity", "agreement", "fingerprint", "ledger", "roster"}
        assert left["identity"] == before["identity"]
        assert left["roster"] != before["roster"]


def test_an_old_roster_is_refused_once_a_site_has_a_newer_one(changed):
    old = changed.roster("old")
    with unchanged(changed, "a"):
        changed.join(old, "a")
    with unchanged(changed, "a"):
        list(site_checks(old, changed.records("a"), changed.home("a")))
    with unchanged(changed, "server"):
        keys.check_home(changed.home("server"), old)
    with unchanged(changed, "server"):
        changed.enrol("third", "abc", "old")


def test_a_second_roster_that_follows_the_same_one_is_refused(first):
    """Site a has followed one; site b, which has not, takes either."""
    one, two = (first.enrol(name, "abd", "old") for name in ("one", "two"))
    assert one.previous == two.previous == (first.roster("old").digest,)
    for site, taken, other in (("a", one, two), ("b", two, one)):
        first.join(taken, site)
        with unchanged(first, site):
            first.join(other, site)


def test_a_site_that_missed_a_roster_follows_the_next_one(changed):
    third = changed.enrol("third", "cde", "new")
    changed.join(third, "c")
    with unchanged(changed, "c"):
        changed.join(changed.roster("old"), "c")


def test_a_removed_site_takes_no_part_in_either_session(changed):
    with unchanged(changed, "c"):
        changed.join(changed.roster("new"), "c")
    server, begun = changed.home("server"), len(lines_of(changed.home("server")))
    with changed.joined("old", "c"):
        removed = changed.sites[0]
        with changed.joined("new", "abd"):
            changed.sites[3] = removed
            changed.serve("new")
    lines = lines_of(server)[begun:]
    assert any("not on this roster" in line.get("refused", "") for line in lines)
    assert lines[-1]["event"] == "ended"


def forged(federation):
    """A roster that names the home's server, signed by another: the attacker takes site d's place.

    Its keys get what the members of the sum get, and two more would read a site's input.
    """
    attacker, new = IdentityKey.generate(os.urandom), federation.roster("new")
    taken = structs.replace(new.sites[2], identity=attacker.public.raw)
    made = structs.replace(new, sites=(*new.sites[:2], taken), previous=(new.digest,))
    return parse(render(made, attacker.sign).encode())


def unsigned(federation):
    new = federation.roster("new")
    with refused("signature"):
        render(structs.replace(new, nonce=bytes(32)))
    return parse(render(structs.replace(new, previous=(), nonce=bytes(32))).encode())


def of_another_server(federation):
    """It has this home's roster among those before it, and a good signature of its own server."""
    server, new = IdentityKey.generate(os.urandom), federation.roster("new")
    other = structs.replace(new, identity=server.public.raw, previous=(new.digest,))
    return parse(render(other, server.sign).encode())


@pytest.mark.parametrize(
    ("made", "field"),
    [(forged, "signature"), (unsigned, "roster"), (of_another_server, "roster")],
)
def test_a_roster_that_the_server_did_not_sign_is_refused(changed, made, field):
    with unchanged(changed, "a", field):
        changed.join(made(changed), "a")


def test_mutant_without_the_signature_check_follows_a_forged_roster(changed, monkeypatch):
    before = changed.state("a")
    monkeypatch.setattr(IdentityPublic, "verify", lambda *_: None)
    changed.join(forged(changed), "a")
    assert changed.state("a") != before


def test_the_signature_covers_every_line(changed):
    lines = (changed.folder / "new.toml").read_bytes().splitlines(keepends=True)
    assert parse(b"".join(lines)).sites
    for index in range(len(lines)):
        for changed_line in ([], [lines[index], b"# a comment\n"]):
            with pytest.raises(ConfigurationError):
                parse(b"".join([*lines[:index], *changed_line, *lines[index + 1 :]]))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"classes": (*CLASSES, "horse")}, "classes"),
        ({"size": 20}, "shape"),
        ({"address": "127.0.0.1:9444"}, "address"),
        ({"image_set": "digits"}, "size"),
        ({"epsilon": 4.0}, "epsilon"),
        ({"sites": "ab"}, "roster"),
        ({"home": "other"}, "home"),
        ({"proxies": "fewer"}, "proxies"),
    ],
)
def test_what_a_new_roster_cannot_change_is_refused(federation, options, field):
    federation.enrol("old", "abc")
    fewer = federation.folder / "fewer"
    fewer.symlink_to(federation.records("a") / "cat")
    federation.enrol("other", "abc", home=federation.folder / "other")
    places = {k: federation.folder / options[k] for k in ("home", "proxies") if k in options}
    with refused(field):
        federation.enrol("new", previous="old", **{"sites": "abd", **options, **places})
    assert not (federation.folder / "new.toml").exists()
    federation.enrol("new", "abd", "old", rounds=7, deadline=3.0)


def test_a_home_without_a_session_takes_any_roster(federation):
    """As a site that has joined and waits, and is sent a corrected roster."""
    for name in ("one", "two"):
        federation.join(federation.enrol(name, home=federation.folder / name), "a")
