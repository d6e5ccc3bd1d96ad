"""What parties agree on and keep, read strictly: rosters, cards, envelopes, keys, records."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from secure_fd.crypto.primitives import proxy_commitment
from secure_fd.endings import USAGE_ERROR
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.flower import keys
from secure_fd.flower.commands import main
from secure_fd.flower.enrol import enrol
from secure_fd.flower.envelope import Answer, AnswerState, Push, PushKind
from secure_fd.flower.join import Desk, site_of
from secure_fd.flower.loop import Arrived
from secure_fd.flower.records import count_records, proxies_in, records_in
from secure_fd.flower.roster import Roster, SiteEntry, Terms, parse, render, render_site
from secure_fd.flower.serve import JOURNAL, Place, serve
from secure_fd.flower.serving import serve_rounds

CLASSES = ("cat", "dog")
PUSH = Push(PushKind.CARRY, 5, (b"one", b"", b"three")).encode()
ANSWER = Answer(AnswerState.DONE, 5, bytes(8), 2, 0.25, (b"one", b"two")).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def _enrolled(folder: Path, home: Path, terms: Terms) -> Roster:
    text = enrol(
        home,
        [folder / site / "home" / "card.toml" for site in "abc"],
        folder / "proxies",
        shape=(1, 16, 16),
        classes=CLASSES,
        address="127.0.0.1:9443",
        terms=terms,
        name="three",
    )
    return parse(text.encode())


@pytest.fixture(scope="module")
def roster(folder: Path) -> Roster:
    return _enrolled(folder, folder / "server", Terms(rounds=2))


def test_a_roster_has_what_its_cards_and_folders_say(folder: Path, roster: Roster) -> None:
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


def test_what_is_rendered_is_parsed_as_it_was(roster: Roster) -> None:
    again = parse(render(roster).encode())
    assert replace(again, digest=roster.digest).__dict__ == {
        k: v for k, v in roster.__dict__.items() if k in Roster.__dataclass_fields__
    }


def test_another_roster_is_another_session(roster: Roster) -> None:
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
def test_a_roster_of_another_form_is_refused(roster: Roster, change: Callable[[str], str]) -> None:
    text = render(roster)
    assert change(text) != text
    with pytest.raises(ConfigurationError):
        parse(change(text).encode())


def test_a_card_that_comes_twice_is_refused(folder: Path, tmp_path: Path) -> None:
    card = folder / "a" / "home" / "card.toml"
    with pytest.raises(ConfigurationError, match="once"):
        enrol(
            tmp_path / "server",
            [card, card, card],
            folder / "proxies",
            shape=(1, 16, 16),
            classes=CLASSES,
            address="127.0.0.1:9443",
            terms=Terms(),
            name="three",
        )
    assert not (tmp_path / "server").exists()


def test_keys_are_for_their_owner_alone(folder: Path, roster: Roster) -> None:
    assert roster.certificate.startswith("-----BEGIN CERTIFICATE")
    homes = [folder / "server", *(folder / site / "home" for site in "abc")]
    secret = [home / "state" for home in homes] + [folder / "server" / "server.key"]
    assert {stat.S_IMODE(home.stat().st_mode) for home in homes} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    with pytest.raises(ConfigurationError, match="exists"):
        keys.create_site(folder / "a" / "home")


def test_other_records_than_the_roster_counts_are_refused(folder: Path, roster: Roster) -> None:
    fewer = replace(roster, sites=(replace(roster.sites[0], records=17), *roster.sites[1:]))
    with pytest.raises(ConfigurationError, match="roster has 17"):
        records_in(folder / "a" / "records", fewer, 0)
    unknown = replace(roster, classes=("cat", "bird"))
    with pytest.raises(ConfigurationError, match="dog"):
        records_in(folder / "a" / "records", unknown, 0)


def test_a_site_that_is_on_no_roster_is_refused(
    folder: Path, roster: Roster, tmp_path: Path
) -> None:
    keys.create_site(tmp_path / "home")
    desk = Desk(tmp_path / "home", folder / "a" / "records", Path(), folder / "proxies", 1.0)
    file = keys.open_state(tmp_path / "home")
    with pytest.raises(ConfigurationError, match="not on it"):
        site_of(desk, roster, file)
    file.close()


def test_a_ledger_that_is_gone_is_not_made_again(folder: Path, tmp_path: Path) -> None:
    """Nobody knows what was released under it. The twin, with the ledger there, goes on."""
    terms = Terms(unit="record", epsilon=4.0)
    agreed = _enrolled(folder, tmp_path / "server", terms)
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
    folder: Path, roster: Roster, tmp_path: Path, start: str
) -> None:
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
    folder: Path,
    roster: Roster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connected: list[object] = []

    def attend(*given: object) -> None:
        connected.append(given)

    monkeypatch.setattr("secure_fd.flower.join.quantum_safe_available", lambda: False)
    assert _joined(folder, roster, attend, monkeypatch) == USAGE_ERROR
    assert not connected
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_site_that_the_run_leaves_without_a_network_ends_with_an_error(
    folder: Path,
    roster: Roster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    network = folder / "c" / "home" / "network.pt"

    def nothing_trained(_: str, __: Path, answer: Callable[[bytes], bytes], *___: object) -> None:
        answer(Push(PushKind.END, 1).encode())

    def trained(*_: object) -> None:
        network.touch()

    monkeypatch.setattr("secure_fd.flower.join.quantum_safe_available", lambda: True)
    assert _joined(folder, roster, nothing_trained, monkeypatch) == USAGE_ERROR
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert _joined(folder, roster, trained, monkeypatch) == 0


def test_a_home_without_the_keys_of_a_server_serves_nothing(folder: Path) -> None:
    file = keys.open_state(folder / "a" / "home")
    with pytest.raises(LocalError, match="agreement"):
        keys.agreement_in(file)
    file.close()


@pytest.mark.parametrize(("data", "read"), [(PUSH, Push.decode), (ANSWER, Answer.decode)])
def test_envelopes_are_read_whole_or_refused(
    data: bytes, read: Callable[[bytes], Push | Answer]
) -> None:
    assert read(data).encode() == data
    for length in range(len(data)):
        with pytest.raises(PeerError):
            read(data[:length])
    with pytest.raises(PeerError):
        read(data + b"\0")
    for wrong in (b"sfx1" + data[4:], data[:4] + b"\xff" + data[5:], os.urandom(len(data))):
        with pytest.raises(PeerError):
            read(wrong)
