"""What parties agree on and keep, read strictly: rosters, cards, envelopes, keys, records."""

import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest
from PIL import Image

from secure_fd.crypto.primitives import proxy_commitment
from secure_fd.endings import USAGE_ERROR
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.exchange import Sum
from secure_fd.flower import keys
from secure_fd.flower.commands import Init, MakeRoster, main
from secure_fd.flower.enrol import enrol
from secure_fd.flower.envelope import Answer, AnswerState, Push, PushKind
from secure_fd.flower.join import Desk, site_of
from secure_fd.flower.loop import Arrived
from secure_fd.flower.parties import Agreement
from secure_fd.flower.records import count_records, proxies_in, records_in
from secure_fd.flower.roster import (
    Roster,
    SiteEntry,
    Terms,
    parse,
    render,
    render_site,
    site_entry,
)
from secure_fd.flower.serve import JOURNAL, Place, serve
from secure_fd.flower.serving import serve_rounds

CLASSES = ("cat", "dog")
PUSH = Push(PushKind.CARRY, 5, (b"one", b"", b"three")).encode()
ANSWER = Answer(AnswerState.DONE, 5, bytes(8), 2, 0.25, (b"one", b"two")).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records of three sites, proxies and cards."""
    root, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    places = [root / site / "records" / c for site in "abc" for c in CLASSES] + [root / "proxies"]
    for place in places:
        place.mkdir(parents=True)
        for index in range(10):
            pixels = rng.integers(0, 256, (16, 16), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{index}.png")
    for site in "abc":
        home, records = root / site / "home", root / site / "records"
        entry = SiteEntry(site, keys.create_site(home), count_records(records))
        (home / "card.toml").write_text(render_site(entry))
    return root


def _enrolled(folder: Path, home: Path, terms: Terms, **changed: Any) -> Roster:
    options: dict[str, Any] = {
        "cards": [folder / site / "home" / "card.toml" for site in "abc"],
        "proxies": folder / "proxies",
        "shape": (1, 16, 16),
        "classes": CLASSES,
        "address": "127.0.0.1:9443",
        "terms": terms,
        "name": "three",
    }
    return parse(enrol(home, **options | changed).encode())


@pytest.fixture(scope="module")
def roster(folder):
    return _enrolled(folder, folder / "server", Terms(rounds=2))


def test_a_roster_has_what_its_cards_and_folders_say(folder, roster):
    assert roster.proxies == proxy_commitment(proxies_in(folder / "proxies", 16, 1))
    for number, site in enumerate("abc"):
        file = keys.open_state(folder / site / "home")
        assert roster.number_of(keys.identity_in(file).public.raw) == number
        file.close()
        assert len(records_in(folder / site / "records", roster, number).train) == 18
    file = keys.open_state(folder / "server")
    assert keys.identity_in(file).public.raw == roster.identity
    assert keys.agreement_in(file).public == roster.agreement
    file.close()


def test_what_is_rendered_is_parsed_as_it_was(roster):
    again = parse(render(roster).encode())
    assert replace(again, digest=roster.digest).__dict__ == {
        k: v for k, v in roster.__dict__.items() if k in Roster.__dataclass_fields__
    }


def test_another_roster_is_another_session(roster):
    changed = parse(render(roster).encode() + b"# one more byte\n")
    assert changed.session.id != roster.session.id


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("format = 1", "format = 2"),
        lambda text: text.replace("rounds = 2", "rounds = -1"),
        lambda text: text.replace("rounds = 2", "rounds = true"),
        lambda text: text.replace("rounds = 2", "rounds = 2\nhidden = 1"),
        lambda text: text.replace('unit = "none"', 'unit = "nothing"'),
        lambda text: text.replace("[server]\n", "[server]\nkey = 1\n"),
        lambda text: text[: text.rindex("[[sites]]")],
        lambda text: text.replace("records = 18", "records = 0"),
        lambda text: text.replace('nonce = "', 'nonce = "0'),
        lambda text: text + "\x00",
    ],
)
def test_a_roster_of_another_form_is_refused(roster, change):
    text = render(roster)
    assert change(text) != text
    with pytest.raises(ConfigurationError):
        parse(change(text).encode())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"epsilon": 4.0}, "epsilon"),
        ({"unit": "record"}, "unit"),
        ({"unit": "record", "epsilon": -3.0}, "epsilon"),
        ({"unit": "record", "epsilon": 0.0}, "epsilon"),
        ({"unit": "record", "epsilon": 1e9}, "epsilon"),
        ({"unit": "record", "epsilon": math.nan}, "epsilon"),
        ({"unit": "record", "epsilon": True}, "epsilon"),
        ({"unit": "record", "epsilon": "4"}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": -math.inf}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"rounds": True}, "rounds"),
        ({"rounds": 10**9}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**40}, "seed"),
        ({"held": 0.0}, "held"),
        ({"held": math.inf}, "held"),
        ({"held": math.nan}, "held"),
        ({"deadline": math.nan}, "deadline"),
        ({"deadline": math.inf}, "deadline"),
        ({"deadline": True}, "deadline"),
        ({"method": ""}, "method"),
        ({"image_set": "mn\nist"}, "image_set"),
        ({"labels": 3}, "labels"),
    ],
)
def test_terms_that_no_run_can_keep_are_refused(options, field):
    with pytest.raises(ConfigurationError) as refused:
        Terms(**options)
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", ["fedmd", "ds-fl", "feded"])
def test_a_roster_with_noise_that_the_method_never_uses_is_refused(folder, roster, method):
    noisy = replace(roster.terms, method=method, unit="record", epsilon=4.0)
    public = roster.check_proxies(proxies_in(folder / "proxies", 16, 1))
    with pytest.raises(ConfigurationError) as refused:
        Agreement.of(replace(roster, terms=noisy), public)
    assert refused.value.field == "unit"
    kept = replace(noisy, method="selective-fd")
    assert Agreement.of(replace(roster, terms=kept), public).method.name == "Pooled heads"


def test_a_roster_of_feded_makes_its_central_network_and_a_new_process_answers_alike(
    folder, roster
):
    agreed = replace(roster, terms=replace(roster.terms, method="feded"))
    public = agreed.check_proxies(proxies_in(folder / "proxies", 16, 1))
    sent = []
    for _ in range(2):
        made = Agreement.of(agreed, public)
        assert made.method.name == "FedED hard"
        turn = made.server_half(bytes(32)).round(0)
        asked = next(turn)
        total = np.arange(asked.length, dtype=np.uint64) % 3
        with pytest.raises(StopIteration) as ended:
            turn.send(Sum(total, survivors=(0, 1, 2)))
        sent.append(ended.value.value)
    assert sent[0] == sent[1]


def test_a_record_epsilon_is_taken_with_its_unit_and_none_without():
    assert Terms(unit="record", epsilon=4).epsilon == 4
    assert math.isinf(Terms().epsilon)


def _line(name: str, value: str) -> Callable[[str], str]:
    """Replace the first line of that name."""
    return lambda text: re.sub(rf"(?m)^{name} = .*$", lambda _: f"{name} = {value}", text, count=1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_line("format", "true"), "format"),
        (_line("format", "1.0"), "format"),
        (_line("name", '""'), "name"),
        (_line("name", '"a\\u0007"'), "name"),
        (_line("name", f'"{"x" * 201}"'), "name"),
        (_line("address", '"nowhere"'), "address"),
        (_line("address", '"host:99999"'), "address"),
        (_line("address", '"host:-1"'), "address"),
        (_line("certificate", '"none"'), "certificate"),
        (_line("classes", "[]"), "classes"),
        (_line("classes", '["cat"]'), "classes"),
        (_line("classes", "[1, [2]]"), "classes"),
        (_line("classes", '["cat", "cat"]'), "classes"),
        (_line("classes", '["cat", "../dog"]'), "classes"),
        (_line("classes", '["cat", ".."]'), "classes"),
        (_line("shape", "[]"), "shape"),
        (_line("shape", '["x", 28, 28]'), "shape"),
        (_line("shape", "[1, 16]"), "shape"),
        (_line("shape", "[1, 16, -16]"), "shape"),
        (_line("shape", "[true, 16, 16]"), "shape"),
        (_line("shape", "[1.0, 16, 16]"), "shape"),
        (_line("shape", "[1, 99999, 99999]"), "shape"),
        (_line("shape", f"[1, 16, 0x{'f' * 9000}]"), "shape"),
        (_line("shape", "[1, 17, 17]"), "image_set"),
        (_line("image_set", '"nothing"'), "image_set"),
        (_line("hybrid", "1"), "hybrid"),
        (_line("proxies", '"ab cd"'), "proxies"),
        (_line("agreement", f'"{"00" * 32}"'), "server"),
        (_line("deadline", f"1{'0' * 400}"), "deadline"),
        (_line("records", "true"), "records"),
        (_line("records", f"{10**12}"), "records"),
        (lambda text: text.replace('name = "b"', 'name = "a"'), "sites"),
        (lambda text: text.replace('name = "b"', 'name = "simulation"'), "name"),
        (lambda text: text + text[text.rindex("[[sites]]") :], "sites"),
        (lambda text: "deep = " + "[" * 20000 + text, "roster"),
    ],
)
def test_a_roster_with_a_value_that_means_nothing_is_refused_by_field(roster, change, field):
    text = render(roster)
    assert change(text) != text
    with pytest.raises(ConfigurationError) as refused:
        parse(change(text).encode())
    assert refused.value.field == field
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["Klinik \U0001f600", "Münster", 'a "quoted" \\ name', "東京"])
def test_a_name_in_any_script_is_read_as_it_was_written(roster, name):
    site = replace(roster.sites[0], name=name)
    assert site_entry(tomllib.loads(render_site(site))) == site
    again = replace(roster, name=name, sites=(site, *roster.sites[1:]))
    found = parse(render(again).encode())
    assert (found.name, found.sites) == (name, again.sites)


@pytest.mark.parametrize("name", ["", "\x7f", "\ud800", "two\nlines", "x" * 201, "simulation", 3])
def test_a_name_that_cannot_be_printed_is_refused(name):
    with pytest.raises(ConfigurationError) as refused:
        SiteEntry(name, bytes(32), 20)
    assert refused.value.field == "name"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"shape": (1, 8, 8)}, "images"),
        ({"shape": (1, -8, -8)}, "shape"),
        ({"shape": (2, 16, 16)}, "channels"),
        ({"terms": Terms(image_set="digits")}, "size"),
        ({"terms": Terms(image_set="nothing")}, "image_set"),
        ({"terms": Terms(method="nothing")}, "method"),
        ({"terms": Terms(unit="record", epsilon=4.0)}, "records"),
        ({"classes": ("cat", "cat")}, "classes"),
        ({"address": "127.0.0.1:0"}, "address"),
        ({"address": "no host at all!:9443"}, "address"),
        ({"address": "höst:9443"}, "address"),
        ({"name": ""}, "name"),
    ],
)
def test_a_roster_that_cannot_be_run_makes_no_keys(folder, tmp_path, options, field):
    """So that the corrected command is taken."""
    home = tmp_path / "server"
    with pytest.raises(ConfigurationError) as refused:
        _enrolled(folder, home, **{"terms": Terms(), **options})
    assert refused.value.field == field
    assert not home.exists()


def test_a_site_of_three_images_is_refused_before_it_has_keys(folder, tmp_path):
    records = tmp_path / "few" / "cat"
    records.mkdir(parents=True)
    for index in range(3):
        copyfile(folder / "a" / "records" / "cat" / f"{index}.png", records / f"{index}.png")
    with pytest.raises(ConfigurationError) as refused:
        Init(data=records.parent, name="few", home=tmp_path / "home")()
    assert refused.value.field == "data"
    with pytest.raises(ConfigurationError) as unnamed:
        Init(data=folder / "a" / "records", name="\n", home=tmp_path / "home")()
    assert unnamed.value.field == "name"
    assert not (tmp_path / "home").exists()


def test_a_card_of_too_few_records_is_refused(folder, tmp_path):
    card = tmp_path / "card.toml"
    card.write_text(render_site(SiteEntry("few", bytes(32), 3)))
    others = [folder / site / "home" / "card.toml" for site in "ab"]
    with pytest.raises(ConfigurationError) as refused:
        _enrolled(folder, tmp_path / "server", Terms(), cards=[*others, card])
    assert refused.value.field == "records"
    card.write_text(render_site(SiteEntry("few", bytes(32), 18)) + "#" * 5000)
    with pytest.raises(ConfigurationError) as long:
        _enrolled(folder, tmp_path / "server", Terms(), cards=[*others, card])
    assert long.value.field == "cards"


def test_a_roster_without_a_place_to_be_written_makes_no_keys(folder, tmp_path):
    command = MakeRoster(
        home=tmp_path / "server",
        cards=tuple(folder / site / "home" / "card.toml" for site in "abc"),
        proxies=folder / "proxies",
        classes=CLASSES,
        address="127.0.0.1:9443",
        out=tmp_path / "nowhere" / "roster.toml",
        size=16,
    )
    with pytest.raises(ConfigurationError) as refused:
        command()
    assert refused.value.field == "out"
    assert not (tmp_path / "server").exists()
    with pytest.raises(ConfigurationError) as noiseless:
        replace(command, out=tmp_path / "roster.toml", epsilon=4.0)()
    assert noiseless.value.field == "epsilon"
    assert not (tmp_path / "server").exists()
    assert replace(command, out=tmp_path / "roster.toml")() == 0


def test_a_card_that_comes_twice_is_refused(folder, tmp_path):
    with pytest.raises(ConfigurationError, match="once"):
        _enrolled(folder, tmp_path / "server", Terms(), cards=[folder / "a/home/card.toml"] * 3)
    assert not (tmp_path / "server").exists()


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
    with pytest.raises(ConfigurationError, match="roster has 17"):
        records_in(folder / "a" / "records", fewer, 0)
    unknown = replace(roster, classes=("cat", "bird"))
    with pytest.raises(ConfigurationError, match="dog"):
        records_in(folder / "a" / "records", unknown, 0)


def test_a_site_that_is_on_no_roster_is_refused(folder, roster, tmp_path):
    keys.create_site(tmp_path / "home")
    desk = Desk(tmp_path / "home", folder / "a" / "records", Path(), folder / "proxies", 1.0)
    file = keys.open_state(tmp_path / "home")
    with pytest.raises(ConfigurationError, match="not on it"):
        site_of(desk, roster, file)
    file.close()


def test_a_ledger_that_is_gone_is_not_made_again(folder, tmp_path):
    """Nobody knows what was released under it. The twin, with the ledger there, goes on."""
    plain = _enrolled(folder, tmp_path / "server", Terms())
    noisy = replace(plain.terms, unit="record", epsilon=4.0)
    agreed = parse(render(replace(plain, terms=noisy)).encode())
    desk = Desk(folder / "b" / "home", folder / "b" / "records", Path(), folder / "proxies", 1.0)
    file = keys.open_state(desk.home)
    site_of(desk, agreed, file)
    ledger = desk.home / "ledger"
    assert ledger.exists()
    for path in desk.home.glob("ledger*"):
        path.unlink()
    with pytest.raises(ConfigurationError, match="enrol anew"):
        site_of(desk, agreed, file)
    file.close()


@pytest.mark.parametrize("start", ["serve", "serve_rounds"])
def test_a_server_with_another_federation_s_home_writes_nothing_there(
    folder, roster, tmp_path, start
):
    _enrolled(folder, tmp_path / "other", Terms())
    path, home = tmp_path / "roster.toml", tmp_path / "other"
    path.write_text(render(roster))
    (home / JOURNAL).write_text("")
    before = {each: each.read_bytes() for each in home.iterdir()}
    with pytest.raises(ConfigurationError) as refused:
        if start == "serve":
            serve(Place(home, path, folder / "proxies"), print)
        else:
            serve_rounds(home, path, folder / "proxies", _NoCourier())
    assert refused.value.field == "home"
    assert {each: each.read_bytes() for each in home.iterdir()} == before


class _NoCourier:
    """Reaches no site."""

    def nodes(self) -> Sequence[int]:
        return []

    def push(self, messages: Mapping[int, bytes], deadline: float) -> Iterable[Arrived]:
        del messages, deadline
        return []


def _joined(
    folder: Path, roster: Roster, attend: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> int:
    """Exit status of `secure-fd join` at site c; attend: what its connection does."""
    pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')
    monkeypatch.setattr("secure_fd.flower.node.attend", attend)
    path = folder / "roster.toml"
    text = render(replace(roster, hybrid=True))
    path.write_text(text)
    return main(["--data", str(folder / "c" / "records"), "--roster", str(path)], "secure-fd join")


def test_a_site_that_cannot_open_hybrid_channels_refuses_before_it_connects(
    folder, roster, monkeypatch, capsys
):
    connected: list[object] = []

    def attend(*given: object) -> None:
        connected.append(given)

    monkeypatch.setattr("secure_fd.flower.join.quantum_safe_available", lambda: False)
    assert _joined(folder, roster, attend, monkeypatch) == USAGE_ERROR
    assert not connected
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_site_that_the_run_leaves_without_a_network_ends_with_an_error(
    folder, roster, monkeypatch, capsys
):
    network = folder / "c" / "home" / "network.pt"

    def nothing_trained(_: str, __: Path, answer: Callable[[bytes], bytes], *___: object) -> None:
        answer(Push(PushKind.END, 1).encode())

    def trained(*_: object) -> None:
        network.touch()

    monkeypatch.setattr("secure_fd.flower.join.quantum_safe_available", lambda: True)
    assert _joined(folder, roster, nothing_trained, monkeypatch) == USAGE_ERROR
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert _joined(folder, roster, trained, monkeypatch) == 0


def test_a_home_without_the_keys_of_a_server_serves_nothing(folder):
    file = keys.open_state(folder / "a" / "home")
    with pytest.raises(LocalError, match="agreement"):
        keys.agreement_in(file)
    file.close()


@pytest.mark.parametrize(("data", "read"), [(PUSH, Push.decode), (ANSWER, Answer.decode)])
def test_envelopes_are_read_whole_or_refused(data, read):
    assert read(data).encode() == data
    for length in range(len(data)):
        with pytest.raises(PeerError):
            read(data[:length])
    with pytest.raises(PeerError):
        read(data + b"\0")
    for wrong in (b"sfx1" + data[4:], data[:4] + b"\xff" + data[5:], os.urandom(len(data))):
        with pytest.raises(PeerError):
            read(wrong)
