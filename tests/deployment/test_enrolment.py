"""Strict parsing of rosters, cards, envelopes, keys and ledgers."""

import hashlib
import math
import os
import re
import stat
import tomllib
from contextlib import closing

import pytest
from msgspec.structs import replace

from secure_fd.cli import USAGE_ERROR
from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.deployment import keys
from secure_fd.deployment.budget import default_ledger
from secure_fd.deployment.commands import main
from secure_fd.deployment.enrol import InitCommand, card_name
from secure_fd.deployment.envelope import Answer, Push, PushKind
from secure_fd.deployment.loop import serve_rounds
from secure_fd.deployment.parties import card_of, proxies_in
from secure_fd.deployment.roster import SiteCard, Terms, checked, parse, render, render_card
from secure_fd.deployment.serve import JOURNAL, ServeCommand
from secure_fd.errors import BudgetError, MissingCapabilityError, PeerError
from secure_fd.privacy.events import Gaussian
from secure_fd.privacy.ledger import BudgetLedger
from tests.drivers.flower_federation import CLASSES, Enrolled
from tests.refusals import refused


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Records of three sites, proxies, cards, a server and its roster."""
    made = Enrolled(tmp_path_factory.mktemp("files") / "sites")
    made.enrol("roster", rounds=2)
    return made


@pytest.fixture
def roster(sites):
    return sites.roster("roster")


def test_a_roster_has_what_its_cards_and_folders_say(sites, roster, capsys):
    assert roster.proxies == proxy_commitment(proxies_in(sites.folder / "proxies", (1, 16, 16)))
    for number, site in enumerate("abc"):
        with closing(keys.open_state(sites.home(site))) as file:
            assert roster.number_of(keys.identity_in(file).public.raw) == number
            assert file.get("agreement") is None  # which is the server's
    with closing(keys.open_state(sites.home("server"))) as file:
        assert keys.identity_in(file).public.raw == roster.identity
        assert keys.agreement_in(file).public == roster.agreement
    data = render(roster).encode()
    assert replace(parse(data), digest=roster.digest) == roster
    assert parse(data + b"# one more byte\n").session.id != roster.session.id
    printed = sites.enrol("printed", rounds=7, home=sites.folder / "other")
    shown = capsys.readouterr().out
    for value in (*CLASSES, "7", printed.address, printed.digest.hex()[:16]):
        assert value in shown


def test_keys_are_for_their_owner_alone(sites):
    homes = [sites.home(name) for name in ("server", *"abc")]
    secret = [home / "state" for home in homes] + [*keys.tls_files(homes[0])]
    assert {stat.S_IMODE(home.stat().st_mode) for home in homes} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}


LINES = {
    "format": ("1", "true"),
    "name": ('""', '"a\\u0007"', f'"{"x" * 201}"'),
    "address": ('"nowhere"', '"host:99999"'),
    "certificate": ('"none"', r'"-----BEGIN CERTIFICATE-----\nnone"'),
    "classes": ('["cat"]', "[1, [2]]", '["cat", "cat"]', '["cat", "../dog"]', '["cat", ".."]'),
    "shape": ('["x", 28, 28]', "[1, 16]", "[1, 16, -16]", "[true, 16, 16]", f"[1, 16, {9**9}]"),
    "image_set": ('"nothing"',),
    "hybrid": ("1",),
    "proxies": ('"ab cd"',),
    "nonce": (f'"{"0" * 65}"',),
    "unit": ('"nothing"', '"record"'),
    "epsilon": ("4.0", "nan"),
    "method": ('""',),
    "rounds": ("-1", "true", "2.5", f"{10**9}", f"0x{'f' * 9000}"),
    "seed": ("-1", f"{2**40}"),
    "held": ("0.0", "inf"),
    "deadline": (f"1{'0' * 400}", "nan", "true"),
    "records": ("0", f"{10**12}"),
}
"""Invalid values, by name and field."""


def _line(name, value):
    """Replace the first line of that name."""
    return lambda text: re.sub(rf"(?m)^{name} = .*$", lambda _: f"{name} = {value}", text, count=1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *((_line(name, value), name) for name, values in LINES.items() for value in values),
        (_line("shape", "[1, 17, 17]"), "image_set"),
        (_line("agreement", f'"{"A" * 43}="'), "server"),
        (lambda text: text.replace("rounds = 2", "rounds = 2\nhidden = 1"), "terms"),
        (lambda text: text.replace("hybrid =", "key = 1\nhybrid ="), "roster"),
        (lambda text: text + "#" * (1 << 22), "roster"),
        (lambda text: text.replace("[terms]", "[[terms]]"), "terms"),
        (lambda text: text.replace('name = "b"', 'name = "a"'), "sites"),
        (lambda text: text[: text.rindex("[[sites]]")], "sites"),
        (lambda text: text + text[text.rindex("[[sites]]") :], "sites"),
        (lambda text: "deep = " + "[" * 20000 + text, "roster"),
        (lambda text: text + "\x00", "roster"),
    ],
)
def test_a_roster_with_a_value_that_means_nothing_is_refused_in_one_sentence(roster, change, field):
    text = render(roster)
    assert change(text) != text
    with refused(field) as found:
        parse(change(text).encode())
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 400


def test_a_record_epsilon_is_taken_with_a_method_that_uses_it():
    for epsilon in (0.0, 1e9, math.nan, True, "4"):
        with refused("epsilon"):
            checked("terms", {"unit": "record", "epsilon": epsilon}, Terms)
    with refused("unit"):
        Terms(method="fedmd", unit="record", epsilon=4.0)


CARD = SiteCard("c", bytes(32), 18, classes=CLASSES, channels=1, side=16)


def test_a_name_in_any_script_is_read_as_it_was_written_and_what_no_reader_sees_is_refused(roster):
    for name in ("Klinik \U0001f600", 'a "quoted" \\ name', "東京"):
        card = replace(CARD, name=name)
        assert checked("card", tomllib.loads(render_card(card)), SiteCard) == card
        first = replace(roster.sites[0], name=name)
        found = parse(render(replace(roster, name=name, sites=(first, *roster.sites[1:]))).encode())
        assert (found.name, found.sites[0]) == (name, first)
    for name in ("", "\x7f", "\ud800", "two\nlines", "a\u200b", "\u202ea", "a\ufeff", "a\xa0"):
        with refused("name"):
            render_card(replace(CARD, name=name))
    assert card_name("../..") == card_name("😀") == "site.toml"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"size": None}, "size"),
        ({"size": 8}, "images"),
        ({"channels": 2}, "channels"),
        ({"image_set": "digits"}, "size"),
        ({"method": "nothing"}, "method"),
        ({"unit": "record", "epsilon": 4.0}, "records"),
        ({"epsilon": 4.0}, "epsilon"),
        ({"classes": ("cat", "bird")}, "classes"),
        ({"address": "127.0.0.1:0"}, "address"),
        ({"address": "höst:9443"}, "address"),
        ({"out": "nowhere/roster.toml"}, "out"),
        ({"share_accuracy": True}, "share_accuracy"),
        ({"cards": "ab"}, "roster"),
        ({"cards": "aab"}, "cards"),
        ({"cards": {"records": 3}}, "records"),
        ({"cards": {"classes": ("cat", "dog", "horse")}}, "classes"),
        ({"cards": {"channels": 3}}, "channels"),
    ],
)
def test_a_roster_that_cannot_be_run_makes_no_keys(sites, tmp_path, options, field):
    """So that the corrected command is taken."""
    home, cards = tmp_path / "server", options.get("cards", "abc")
    if isinstance(cards, str):
        found = sites.cards(cards)
    else:
        found = (*sites.cards("ab"), tmp_path / "c.toml")
        found[-1].write_text(render_card(replace(CARD, **cards)))
    out = {"out": tmp_path / options.get("out", "roster.toml")}
    with refused(field):
        sites.enrol("refused", **options | out | {"home": home, "cards": found})
    assert not home.exists()


def test_a_site_that_cannot_take_part_gets_no_keys(sites, tmp_path):
    home = tmp_path / "home"
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "cat").symlink_to(sites.records("a") / "cat")
    for records, name, field in (
        (tmp_path / "few", "few", "data"),
        (sites.records("a"), "\n", "name"),
    ):
        with refused(field):
            InitCommand(data=records, name=name, home=home)()
    assert not home.exists()


def test_a_card_shows_counts_of_classes_only_where_its_site_agrees(sites, tmp_path):
    """An empty folder is a class, and a given list hides which classes the site holds."""
    (tmp_path / "horse").mkdir()
    for name in CLASSES:
        (tmp_path / name).symlink_to(sites.records("a") / name)
    plain = card_of(tmp_path, "a")
    assert (plain.classes, plain.counts) == ((*CLASSES, "horse"), ())
    listed = card_of(tmp_path, "a", ("horse", "dog", "cat", "cow"), public_counts=True)
    assert listed.classes == ("horse", "dog", "cat", "cow")
    assert listed.counts == (0, 10, 10, 0)
    assert (listed.channels, listed.side) == (1, 16)
    with refused("data"):
        card_of(tmp_path, "a", CLASSES)


# The ledger of a site's records, over all federations.


def _noisy(roster, epsilon=4.0):
    noisy = replace(roster.terms, unit="record", epsilon=epsilon)
    return parse(render(replace(roster, terms=noisy, nonce=os.urandom(32))).encode())


def _spend(sites, site):
    """Book the noise of one sum on a site's ledger."""
    with BudgetLedger.open(default_ledger(sites.records(site))) as ledger:
        ledger.book("an earlier federation", Gaussian(1.2))
        return ledger.spent


def test_a_ledger_that_is_gone_is_not_made_again(sites, roster):
    """Without the ledger, past releases are unknown. With the ledger there, the site goes on."""
    for _ in range(2):
        sites.join(_noisy(roster), "b")
    default_ledger(sites.records("b")).unlink()
    with refused("ledger"):
        sites.join(_noisy(roster), "b")


def test_a_second_federation_counts_on_in_the_ledger_of_the_records(sites, roster, caplog):
    """It is refused where both together go beyond the total, and warned of above 80 %."""
    sites.join(_noisy(roster, 1.0), "c", epsilon=6.5)
    assert 3 < _spend(sites, "c") < 4
    for epsilon, warned in ((1.0, False), (4.0, True)):
        caplog.clear()
        sites.join(_noisy(roster, epsilon), "c")
        assert any(line.levelname == "WARNING" for line in caplog.records) is warned
    with pytest.raises(BudgetError):
        sites.join(_noisy(roster, 5.5), "c")
    with refused("epsilon"):
        sites.join(_noisy(roster, 1.0), "c", epsilon=50.0)


def test_the_ledger_of_other_records_is_refused(sites, roster):
    """Before anything is booked it may be taken for any."""
    sites.join(_noisy(roster), "a")
    _spend(sites, "a")
    path = default_ledger(sites.records("a"))
    with refused("ledger"):
        sites.join(_noisy(roster), "b", path=path)
    content = path.read_bytes()
    for image in sites.records("a").rglob("*.png"):
        assert hashlib.blake2b(image.read_bytes(), digest_size=32).digest() not in content


@pytest.mark.parametrize("start", ["serve", "serve_rounds"])
def test_a_server_with_another_federation_s_home_writes_nothing_there(sites, tmp_path, start):
    path, home, proxies = sites.folder / "roster.toml", tmp_path / "other", sites.folder / "proxies"
    sites.enrol("other", home=home, out=tmp_path / "other.toml")
    (home / JOURNAL).write_text("")
    before = {each: each.read_bytes() for each in home.iterdir()}
    with refused("home"):
        if start == "serve":
            ServeCommand(path, home, proxies)()
        else:
            serve_rounds(home, path, proxies, transport=None)
    assert {each: each.read_bytes() for each in home.iterdir()} == before


def test_a_site_that_cannot_open_hybrid_channels_refuses_before_it_connects(
    sites, capsys, monkeypatch
):
    pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')

    def lacking():
        raise MissingCapabilityError("there is no ML-KEM-768")

    connected = []
    monkeypatch.setattr("secure_fd.deployment.flower.attend", lambda *_: connected.append(True))
    monkeypatch.setattr("secure_fd.secagg.session.check_capsules", lacking)
    given = ["--data", str(sites.records("c")), "--roster", str(sites.folder / "roster.toml")]
    assert main(given, "secure-fd join") == USAGE_ERROR
    assert not connected
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Push(PushKind.CARRY, (b"one", b"", b"three")), Push),
        (Answer(False, 2, 0.25, (b"one", b"two")), Answer),
    ],
)
def test_envelopes_are_read_whole_or_refused(message, kind):
    data = message.encode()
    assert kind.decode(data) == message
    cut = (data[:length] for length in range(len(data)))
    changed = (b"sfx1" + data[4:], data[:4] + b"\xff" + data[5:], os.urandom(len(data)))
    for wrong in (*cut, data + b"\0", *changed):
        with pytest.raises(PeerError):
            kind.decode(wrong)
