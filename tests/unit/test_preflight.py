"""Mistakes of an operator: the check that names each, in less than ten seconds."""

import shutil
import ssl
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from secure_fd.cli import USAGE_ERROR
from secure_fd.deployment import keys, preflight
from secure_fd.deployment.commands import main
from secure_fd.deployment.enrol import InitCommand, RosterCommand
from secure_fd.deployment.envelope import CHALLENGE_BYTES, Answer, Push, PushKind
from secure_fd.deployment.roster import read
from secure_fd.deployment.serve import ServeCommand
from secure_fd.errors import SecureFDError
from tests.flower_federation import image_folders
from tests.flower_processes import free_port


class Federation:
    """Three sites below a folder, whose mistakes are at site a, and a server that answers HTTPS."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, HTTPServer(("127.0.0.1", 0), _Handler)
        self.server.shift = 0.0
        for records in image_folders(folder, "abc"):
            InitCommand(data=records, name=records.parent.name)()
        self.enrol(folder / "roster.toml")
        self.listen(folder / "server")

    def enrol(self, out: Path, address: str = "", home: Path | None = None) -> None:
        cards = tuple(self.folder / site / "home" / f"{site}.toml" for site in "abc")
        RosterCommand(
            home=home or self.folder / "server",
            cards=cards,
            proxies=self.folder / "proxies",
            address=address or f"127.0.0.1:{self.server.server_port}",
            out=out,
            size=16,
        )()

    def again(self, address: str = "") -> None:
        """A new roster for the same cards, with another server."""
        (self.folder / "roster.toml").unlink()
        home = self.folder / f"server{len(list(self.folder.iterdir()))}"
        self.enrol(self.folder / "roster.toml", address, home)

    def listen(self, home: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*keys.tls_files(home))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)

    @property
    def options(self) -> list[str]:
        records, roster = self.folder / "a" / "records", self.folder / "roster.toml"
        return ["--data", str(records), "--roster", str(roster)]


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def date_time_string(self, _: float | None = None) -> str:
        return super().date_time_string(time.time() + self.server.shift)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("preflight"))
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def federation(prepared, tmp_path, monkeypatch):
    """The folder's copy, so that each mistake is made once."""
    pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')
    copy = object.__new__(Federation)
    copy.folder, copy.server = tmp_path / "f", prepared.server
    shutil.copytree(prepared.folder, copy.folder)
    copy.server.shift = 0.0
    greets(monkeypatch, read(copy.folder / "roster.toml").digest)
    return copy


def greets(monkeypatch: pytest.MonkeyPatch, digest: bytes) -> list[Answer]:
    """Let a server of this roster greet once; returns the answers."""
    answers = []

    def attend(_: str, __: Path, answer: Callable[[bytes], bytes], *___: object) -> None:
        greeting = Push(PushKind.HELLO, (bytes(CHALLENGE_BYTES), digest[:8]))
        answers.append(Answer.decode(answer(greeting.encode())))

    monkeypatch.setattr("secure_fd.deployment.flower.attend", attend)
    return answers


def failed(federation: Federation, capsys: pytest.CaptureFixture[str]) -> str:
    """Field of the check that fails, of which the command prints the sentence."""
    capsys.readouterr()
    begun = time.monotonic()
    assert main(["check", *federation.options], "secure-fd site") == USAGE_ERROR
    assert time.monotonic() - begun < 10
    *passed, last = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in passed)
    data, roster = (Path(option) for option in federation.options[1::2])
    with pytest.raises(SecureFDError) as refused:
        list(preflight.CheckCommand(data, roster).checks())
    assert last.startswith("fails ")
    return refused.value.field


def test_a_site_without_a_mistake_passes_all_checks(federation, capsys):
    capsys.readouterr()
    assert main(["check", *federation.options], "secure-fd site") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert all(line.startswith("ok ") for line in lines)


def _other_home(federation, _):
    shutil.rmtree(federation.folder / "a" / "home")


def _other_keys(federation, _):
    shutil.rmtree(federation.folder / "a" / "home")
    InitCommand(data=federation.folder / "a" / "records", name="a")()


def _full_disk(_, monkeypatch):
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))


def _other_class(federation, _):
    (federation.folder / "a" / "records" / "bird").mkdir()


def _colour(federation, _):
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(
        federation.folder / "a" / "records" / "cat" / "0.png"
    )


def _fewer_images(federation, _):
    (federation.folder / "a" / "records" / "cat" / "0.png").unlink()


def _other_proxies(federation, _):
    (federation.folder / "proxies" / "0.png").unlink()


def _no_roster(federation, _):
    (federation.folder / "roster.toml").unlink()


def _changed_roster(federation, _):
    path = federation.folder / "roster.toml"
    path.write_text(path.read_text().replace("rounds = 0", "rounds = -1"))


def _old_certificate(federation, monkeypatch):
    monkeypatch.setattr(keys, "_VALID", timedelta(minutes=-1))
    federation.again()


def _early_clock(federation, monkeypatch):
    monkeypatch.setattr(keys, "BACKDATED", timedelta(days=-1))
    federation.again()


def _wrong_port(federation, _):
    federation.again(f"127.0.0.1:{free_port()}")


def _unknown_name(federation, _):
    federation.again("server.invalid:9443")


def _other_server(federation, _):
    federation.again()


def _server_is_late(federation, _):
    federation.server.shift = -120.0


def _server_is_early(federation, _):
    federation.server.shift = 120.0


def _other_roster(_, monkeypatch):
    greets(monkeypatch, b"another roster")


MISTAKES = [
    (_no_roster, "roster", True),
    (_changed_roster, "rounds", True),
    (_other_home, "home", True),
    (_other_keys, "roster", True),
    (_full_disk, "disk", True),
    (_other_class, "data", True),
    (_colour, "colour", True),
    (_fewer_images, "data", True),
    (_other_proxies, "proxies", True),
    (_old_certificate, "clock", True),
    (_early_clock, "clock", True),
    (_wrong_port, "address", False),
    (_unknown_name, "address", False),
    (_other_server, "certificate", True),
    (_server_is_late, "clock", True),
    (_server_is_early, "clock", True),
    (_other_roster, "digest", False),
]
"""Mistake, the field of the check that fails, and whether `join` ends by it."""


@pytest.mark.parametrize(("make", "field", "ends"), MISTAKES)
def test_a_mistake_fails_its_check_and_join_ends_with_one_sentence(
    federation, monkeypatch, capsys, make, field, ends
):
    make(federation, monkeypatch)
    assert failed(federation, capsys) == field
    begun = time.monotonic()
    assert main(federation.options, "secure-fd join") == USAGE_ERROR
    assert time.monotonic() - begun < 10
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    # In these tests a connection that is made ends without a network; there is none to wait for.
    assert ("no network" in errors[0]) == (not ends)


@pytest.mark.parametrize(
    ("make", "field"),
    [(_full_disk, "disk"), (_old_certificate, "clock"), (_other_proxies, "proxies")],
)
def test_a_server_with_a_mistake_ends_before_it_starts_flower(federation, monkeypatch, make, field):
    make(federation, monkeypatch)
    homes = sorted(path.parent for path in federation.folder.glob("server*/state"))
    with pytest.raises(SecureFDError) as refused:
        ServeCommand(federation.folder / "roster.toml", homes[-1])()
    assert refused.value.field == field
    assert not (homes[-1] / "flower").exists()


@pytest.mark.filterwarnings("ignore:.verify=<str>:DeprecationWarning")  # of flwr
def test_a_server_that_does_not_answer_is_named_once_a_minute(tmp_path, monkeypatch, caplog):
    flower = pytest.importorskip("secure_fd.deployment.flower")
    address, tries = f"127.0.0.1:{free_port()}", []
    monkeypatch.setattr(flower, "_RECONNECT", 0.01)
    agreed = SimpleNamespace(address=address, certificate=keys.NewServer("localhost").certificate)
    certificate = tmp_path / "server.pem"
    certificate.write_text(agreed.certificate)

    def is_done() -> bool:
        tries.append(time.monotonic())
        return len(tries) > 5

    check = partial(preflight.connection_checks, agreed)
    flower.attend(address, certificate, lambda _: b"", is_done, 60.0, check)
    [warned] = [line.message for line in caplog.records if line.levelname == "WARNING"]
    assert address in warned
