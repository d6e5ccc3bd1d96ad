"""What parties agree on and keep, read strictly: rosters, cards, envelopes, keys, records."""

import dataclasses
import hashlib
import math
import os
import re
import stat
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from secure_fd.cli import USAGE_ERROR
from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.deployment import keys, serve
from secure_fd.deployment.budget import Budget, default_ledger
from secure_fd.deployment.commands import main
from secure_fd.deployment.enrol import InitCommand, RosterCommand, card_name
from secure_fd.deployment.envelope import Answer, Push, PushKind
from secure_fd.deployment.loop import serve_rounds
from secure_fd.deployment.parties import CPU, card_of, parts_of, proxies_in, records_in
from secure_fd.deployment.roster import (
    RosterFile,
    SiteCard,
    SiteEntry,
    Terms,
    checked,
    parse,
    read,
    render,
    render_card,
)
from secure_fd.deployment.serve import JOURNAL, ServeCommand
from secure_fd.deployment.site import site_of
from secure_fd.errors import (
    BudgetError,
    ConfigurationError,
    LocalError,
    MissingCapabilityError,
    PeerError,
)
from secure_fd.privacy.events import Gaussian
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.wire import Sum
from tests.flower_federation import CLASSES, image_folders

PUSH = Push(PushKind.CARRY, (b"one", b"", b"three")).encode()
ANSWER = Answer(False, 2, 0.25, (b"one", b"two")).encode()


@contextmanager
def refuses(field: str, why: str = ".") -> Iterator[None]:
    """One sentence about this field, which fits on a screen."""
    with pytest.raises(ConfigurationError, match=why) as refused:
        yield
    assert refused.value.field == field
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records of three sites, proxies and cards."""
    root = tmp_path_factory.mktemp("files")
    for records in image_folders(root, "abc"):
        assert InitCommand(data=records, name=records.parent.name)() == 0
    return root


def _cards(folder: Path, sites: str = "abc") -> list[Path]:
    return [folder / site / "home" / f"{site}.toml" for site in sites]


def _command(folder: Path, home: Path, **changed: Any) -> RosterCommand:
    options: dict[str, Any] = {
        "home": home,
        "cards": tuple(_cards(folder)),
        "proxies": folder / "proxies",
        "address": "127.0.0.1:9443",
        "out": home.parent / "three.toml",
        "size": 16,
    }
    return RosterCommand(**options | changed)


def _enrolled(folder: Path, home: Path, **changed: Any) -> RosterFile:
    command = _command(folder, home, **changed)
    assert command() == 0
    return read(command.out)


@pytest.fixture(scope="module")
def roster(folder):
    return _enrolled(folder, folder / "server", rounds=2)


@pytest.fixture
def public(folder, roster):
    return roster.check_proxies(proxies_in(folder / "proxies", 16, 1))


def test_a_roster_has_what_its_cards_and_folders_say(folder, roster):
    assert roster.proxies == proxy_commitment(proxies_in(folder / "proxies", 16, 1))
    for number, site in enumerate("abc"):
        with closing(keys.open_state(folder / site / "home")) as file:
            assert roster.number_of(keys.identity_in(file).public.raw) == number
            with pytest.raises(LocalError, match="agreement"):
                keys.agreement_in(file)  # which is the server's
        assert len(records_in(folder / site / "records", roster, number).train) == 18
    with closing(keys.open_state(folder / "server")) as file:
        assert keys.identity_in(file).public.raw == roster.identity
        assert keys.agreement_in(file).public == roster.agreement


def test_what_is_rendered_is_parsed_as_it_was_and_one_more_byte_is_another_session(roster):
    data = render(roster).encode()
    assert replace(parse(data), digest=roster.digest) == roster
    assert parse(data + b"# one more byte\n").session.id != roster.session.id


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("epsilon", (4.0, math.nan, -math.inf)),
        ("unit", ("record",)),
        ("rounds", (True, 10**9, 2.5)),
        ("seed", (-1, 2**40)),
        ("held", (0.0, math.inf, math.nan)),
        ("deadline", (math.nan, math.inf, True)),
        ("method", ("",)),
    ],
)
def test_terms_that_no_run_can_keep_are_refused(field, values):
    for value in values:
        with refuses(field):
            checked("terms", {field: value}, Terms)


def test_a_record_epsilon_is_taken_with_its_unit_and_none_without():
    for epsilon in (-3.0, 0.0, 1e9, math.nan, True, "4"):
        with refuses("epsilon"):
            checked("terms", {"unit": "record", "epsilon": epsilon}, Terms)
    assert Terms(unit="record", epsilon=4).epsilon == 4
    assert math.isinf(Terms().epsilon)


@pytest.mark.parametrize("method", ["fedmd", "ds-fl", "feded"])
def test_a_roster_with_noise_that_the_method_never_uses_is_refused(roster, public, method):
    with refuses("unit"):
        Terms(method=method, unit="record", epsilon=4.0)
    kept = replace(roster, terms=Terms(unit="record", epsilon=4.0, image_set="digits"))
    assert parts_of(kept, public).method.name == "Pooled heads"


def test_a_roster_of_feded_makes_its_central_network_and_a_new_process_answers_alike(
    roster, public
):
    agreed = replace(roster, terms=replace(roster.terms, method="feded"))
    sent = []
    for _ in range(2):
        made = parts_of(agreed, public)
        assert made.method.name == "FedED hard"
        setting = made.setting(bytes(32), CPU)
        turn = made.method.server(setting, made.network(0)).round(0)
        asked = next(turn)
        total = np.arange(asked.length, dtype=np.uint64) % 3
        with pytest.raises(StopIteration) as ended:
            turn.send(Sum(total, survivors=(0, 1, 2)))
        sent.append(ended.value.value)
    assert sent[0] == sent[1]


LINES = {
    "format": ("1", "true", "1.0"),
    "name": ('""', '"a\\u0007"', f'"{"x" * 201}"'),
    "address": ('"nowhere"', '"host:99999"', '"host:-1"'),
    "certificate": ('"none"', r'"-----BEGIN CERTIFICATE-----\nnone"'),
    "classes": (
        "[]",
        '["cat"]',
        "[1, [2]]",
        '["cat", "cat"]',
        '["cat", "../dog"]',
        '["cat", ".."]',
    ),
    "shape": (
        *("[]", '["x", 28, 28]', "[1, 16]", "[1, 16, -16]", "[true, 16, 16]", "[1.0, 16, 16]"),
        *("[1, 99999, 99999]", f"[1, 16, 0x{'f' * 9000}]"),
    ),
    "image_set": ('"nothing"', '"mn\\nist"'),
    "hybrid": ("1",),
    "proxies": ('"ab cd"',),
    "nonce": (f'"{"0" * 65}"',),
    "unit": ('"nothing"',),
    "rounds": ("-1", "true"),
    "deadline": (f"1{'0' * 400}",),
    "records": ("0", "true", f"{10**12}"),
}
"""By name and field, values that mean nothing."""


def _line(name: str, value: str) -> Callable[[str], str]:
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
        (lambda text: text.replace('name = "b"', 'name = "simulation"'), "name"),
        (lambda text: text[: text.rindex("[[sites]]")], "sites"),
        (lambda text: text + text[text.rindex("[[sites]]") :], "sites"),
        (lambda text: "deep = " + "[" * 20000 + text, "roster"),
        (lambda text: text + "\x00", "roster"),
    ],
)
def test_a_roster_with_a_value_that_means_nothing_is_refused_by_field(roster, change, field):
    text = render(roster)
    assert change(text) != text
    with refuses(field):
        parse(change(text).encode())


@pytest.mark.parametrize("name", ["Klinik \U0001f600", "Münster", 'a "quoted" \\ name', "東京"])
def test_a_name_in_any_script_is_read_as_it_was_written(roster, name):
    card = replace(CARD, name=name)
    assert checked("card", tomllib.loads(render_card(card)), SiteCard) == card
    site = replace(roster.sites[0], name=name)
    again = replace(roster, name=name, sites=(site, *roster.sites[1:]))
    found = parse(render(again).encode())
    assert (found.name, found.sites) == (name, again.sites)


CARD = SiteCard("c", bytes(32), 18, classes=CLASSES, channels=1, side=16)
OLD_CARD = f'name = "c"\nidentity = "{"A" * 43}="\nrecords = 18\n'
UNSEEN = ["\x7f", "\ud800", "two\nlines", "a\u200b", "\u202ea", "a\ufeff", "a\xa0"]


@pytest.mark.parametrize("name", ["", *UNSEEN, "x" * 201, "simulation", 3])
def test_a_name_that_cannot_be_printed_is_refused(name):
    card = {"name": name, "identity": "A" * 43 + "=", "records": 20}
    with refuses("name"):
        checked("card", card, SiteEntry)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"size": None}, "size"),
        ({"size": 8}, "images"),
        ({"size": -8}, "shape"),
        ({"channels": 2}, "channels"),
        ({"image_set": "digits"}, "size"),
        ({"image_set": "nothing"}, "image_set"),
        ({"method": "nothing"}, "method"),
        ({"unit": "record", "epsilon": 4.0}, "records"),
        ({"classes": ("cat", "cat")}, "classes"),
        ({"classes": ("cat", "bird")}, "classes"),
        ({"epsilon": 4.0}, "epsilon"),
        ({"address": "127.0.0.1:0"}, "address"),
        ({"address": "no host at all!:9443"}, "address"),
        ({"address": "höst:9443"}, "address"),
        ({"cards": "ab"}, "roster"),
        ({"cards": "aab"}, "cards"),
        ({"cards": {"records": 3}}, "records"),
        ({"cards": {"classes": ("cat",)}}, "classes"),
        ({"cards": {"classes": ("cat", "dog", "horse")}}, "classes"),
        ({"cards": {"channels": 3}}, "channels"),
        ({"cards": {"identity": None}}, "cards"),
        ({"cards": "name = 3"}, "cards"),
        ({"cards": OLD_CARD}, "cards"),
    ],
)
def test_a_roster_that_cannot_be_run_makes_no_keys(folder, tmp_path, options, field):
    """So that the corrected command is taken."""
    home, cards = tmp_path / "server", options.get("cards", "abc")
    if isinstance(cards, dict):
        first = checked("card", tomllib.loads(_cards(folder, "a")[0].read_text()), SiteCard)
        same = first.identity if "identity" in cards else CARD.identity
        cards = render_card(replace(CARD, **cards | {"identity": same}))
    if "=" in cards:
        (tmp_path / "c.toml").write_text(cards)
        found = [*_cards(folder, "ab"), tmp_path / "c.toml"]
    else:
        found = _cards(folder, cards)
    with refuses(field):
        _enrolled(folder, home, **{**options, "cards": tuple(found)})
    assert not home.exists()


def test_a_site_of_three_images_is_refused_before_it_has_keys(folder, tmp_path):
    records, home = tmp_path / "few" / "cat", tmp_path / "home"
    records.mkdir(parents=True)
    for index in range(3):
        copyfile(folder / "a" / "records" / "cat" / f"{index}.png", records / f"{index}.png")
    with refuses("data"):
        InitCommand(data=records.parent, name="few", home=home)()
    with refuses("name"):
        InitCommand(data=folder / "a" / "records", name="\n", home=home)()
    assert not home.exists()


def test_a_card_shows_counts_of_classes_only_where_its_site_agrees(folder, tmp_path):
    """An empty folder is a class, and a given list hides which classes the site holds."""
    records = tmp_path / "records"
    (records / "horse").mkdir(parents=True)
    (records / "cat").symlink_to(folder / "a" / "records" / "cat")
    (records / "dog").symlink_to(folder / "a" / "records" / "dog")
    assert card_of(records, "a").classes == (*CLASSES, "horse")
    assert card_of(records, "a").counts == ()
    listed = card_of(records, "a", ("horse", "dog", "cat", "cow"), public_counts=True)
    assert listed.classes == ("horse", "dog", "cat", "cow")
    assert listed.counts == (0, 10, 10, 0)
    assert (listed.channels, listed.side) == (1, 16)
    with refuses("data"):
        card_of(records, "a", CLASSES)


@pytest.mark.parametrize("name", ["St. Mary/2", "東京", "..", "-x", "😀", "東" * 200])
def test_a_card_has_a_file_name_for_every_name_of_a_site(tmp_path, name):
    made = tmp_path / card_name(name)
    made.touch()
    assert not made.name.startswith((".", "-"))
    assert [path.name for path in tmp_path.glob("*.toml")] == [made.name]


def test_a_roster_prints_what_was_agreed_on(folder, tmp_path, capsys):
    roster = _enrolled(folder, tmp_path / "server", rounds=7)
    printed = capsys.readouterr().out
    for value in (*"abc", *CLASSES, "7", "16", "none", roster.address, roster.digest.hex()[:16]):
        assert value in printed


def test_a_roster_without_a_place_to_be_written_makes_no_keys(folder, tmp_path):
    command = _command(folder, tmp_path / "server", out=tmp_path / "nowhere" / "roster.toml")
    with refuses("out"):
        command()
    placed = dataclasses.replace(command, out=tmp_path / "roster.toml")
    with refuses("epsilon"):
        dataclasses.replace(placed, epsilon=4.0)()
    assert not command.home.exists()
    assert placed() == 0


def test_keys_are_for_their_owner_alone(folder, roster):
    assert roster.certificate.startswith("-----BEGIN CERTIFICATE")
    homes = [folder / "server", *(folder / site / "home" for site in "abc")]
    secret = [home / "state" for home in homes] + [folder / "server" / "server.key"]
    assert {stat.S_IMODE(home.stat().st_mode) for home in homes} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    with pytest.raises(ConfigurationError, match="exists"):
        keys.create_site(folder / "a" / "home")


def test_other_records_than_the_roster_counts_are_refused(folder, roster):
    fewer = replace(roster, sites=(replace(roster.sites[0], records=17), *roster.sites[1:]))
    for other, why in ((fewer, "roster has 17"), (replace(roster, classes=("cat", "bird")), "dog")):
        with refuses("data", why):
            records_in(folder / "a" / "records", other, 0)


def _start_site(
    folder: Path, home: Path, roster: RosterFile, site: str = "b", **budget: Any
) -> None:
    data = folder / site / "records"
    chosen = Budget(**{"path": default_ledger(data), **budget})
    with closing(keys.open_state(home)) as file:
        site_of(home, data, roster, folder / "proxies", file, chosen)


def test_a_site_that_is_on_no_roster_is_refused(folder, roster, tmp_path):
    keys.create_site(tmp_path / "home")
    with refuses("roster", "not on it"):
        _start_site(folder, tmp_path / "home", roster)


def _noisy(roster: RosterFile, epsilon: float = 4.0) -> RosterFile:
    noisy = replace(roster.terms, unit="record", epsilon=epsilon)
    return parse(render(replace(roster, terms=noisy, nonce=os.urandom(32))).encode())


def test_a_ledger_that_is_gone_is_not_made_again(folder, roster):
    """Nobody knows what was released under it. The twin, with the ledger there, goes on."""
    agreed, home = _noisy(roster), folder / "b" / "home"
    _start_site(folder, home, agreed)
    _start_site(folder, home, agreed)
    for path in (folder / "b").glob("records.ledger*"):
        path.unlink()
    with refuses("ledger", "enrol anew"):
        _start_site(folder, home, agreed)


def _spend(folder: Path, site: str, sums: int = 1) -> float:
    """What one sum's noise at so many sites costs, booked on a site's ledger."""
    with BudgetLedger.open(default_ledger(folder / site / "records")) as ledger:
        for _ in range(sums):
            ledger.book("an earlier federation", Gaussian(1.2))
        return ledger.spent


def test_a_second_federation_counts_on_in_the_ledger_of_the_records(folder, roster, caplog):
    """It is refused where both together go beyond the total, and warned of above 80 %."""
    home, path = folder / "c" / "home", folder / "c" / "records.ledger"
    _start_site(folder, home, _noisy(roster, 1.0), "c", epsilon=6.5)
    spent = _spend(folder, "c")
    assert 3 < spent < 4
    caplog.clear()
    _start_site(folder, home, _noisy(roster, 1.0), "c")
    assert not [line for line in caplog.records if line.levelname == "WARNING"]
    caplog.clear()
    _start_site(folder, home, _noisy(roster, 4.0), "c")
    assert [line for line in caplog.records if line.levelname == "WARNING"]
    with pytest.raises(BudgetError):
        _start_site(folder, home, _noisy(roster, 5.5), "c")
    with refuses("epsilon"):
        _start_site(folder, home, _noisy(roster, 1.0), "c", epsilon=50.0)
    path.unlink()


def test_the_ledger_of_other_records_is_refused(folder, roster):
    """Before anything is booked it may be taken for any."""
    path, home, agreed = folder / "a" / "records.ledger", folder / "b" / "home", _noisy(roster)
    _start_site(folder, folder / "a" / "home", agreed, "a")
    _spend(folder, "a")
    with refuses("ledger", "other records"):
        _start_site(folder, home, agreed, "b", path=path)
    content = path.read_bytes()
    for image in (folder / "a" / "records").rglob("*.png"):
        assert hashlib.blake2b(image.read_bytes(), digest_size=32).digest() not in content


@pytest.mark.parametrize("start", ["serve", "serve_rounds"])
def test_a_server_with_another_federation_s_home_writes_nothing_there(
    folder, roster, tmp_path, start
):
    _enrolled(folder, tmp_path / "other", out=tmp_path / "other.toml")
    path, home = tmp_path / "roster.toml", tmp_path / "other"
    path.write_text(render(roster))
    (home / JOURNAL).write_text("")
    before = {each: each.read_bytes() for each in home.iterdir()}
    with refuses("home"):
        if start == "serve":
            ServeCommand(path, home, folder / "proxies")()
        else:
            serve_rounds(home, path, folder / "proxies", transport=None)
    assert {each: each.read_bytes() for each in home.iterdir()} == before


@pytest.fixture
def joined(folder, roster, monkeypatch):
    """Exit status of `secure-fd join` at site c, by what its connection does."""
    pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')
    path, records = folder / "roster.toml", folder / "c" / "records"
    path.write_text(render(replace(roster, hybrid=True)))

    def join(attend: Callable[..., None]) -> int:
        monkeypatch.setattr("secure_fd.deployment.flower.attend", attend)
        return main(["--data", str(records), "--roster", str(path)], "secure-fd join")

    return join


def test_a_site_that_cannot_open_hybrid_channels_refuses_before_it_connects(
    joined, capsys, monkeypatch
):
    def lacking() -> None:
        raise MissingCapabilityError("there is no ML-KEM-768")

    connected = []
    monkeypatch.setattr("secure_fd.secagg.session.check_capsules", lacking)
    assert joined(lambda *given: connected.append(given)) == USAGE_ERROR
    assert not connected
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_site_that_the_run_leaves_without_a_network_ends_with_an_error(folder, joined, capsys):
    def nothing_trained(_: str, __: Path, answer: Callable[[bytes], bytes], *___: object) -> None:
        answer(Push(PushKind.END).encode())

    network = folder / "c" / "home" / "network.pt"
    assert joined(nothing_trained) == USAGE_ERROR
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert joined(lambda *_: network.touch()) == 0


@pytest.mark.parametrize(("data", "read"), [(PUSH, Push.decode), (ANSWER, Answer.decode)])
def test_envelopes_are_read_whole_or_refused(data, read):
    assert read(data).encode() == data
    cut = (data[:length] for length in range(len(data)))
    changed = (b"sfx1" + data[4:], data[:4] + b"\xff" + data[5:], os.urandom(len(data)))
    for wrong in (*cut, data + b"\0", *changed):
        with pytest.raises(PeerError):
            read(wrong)


def test_a_server_app_that_never_begins_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "flower").mkdir()
    hung = subprocess.Popen(["/bin/sleep", "60"])
    monkeypatch.setattr(serve, "_started", lambda *_: hung)
    monkeypatch.setattr(serve, "_START", 0.1)
    with pytest.raises(LocalError, match="flwr run failed"):
        serve._flwr_run({"home": tmp_path}, tmp_path, 1, print)
    assert hung.wait(5) != 0
