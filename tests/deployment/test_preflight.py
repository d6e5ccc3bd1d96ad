"""Mistakes of an operator: the check that names each, in less than ten seconds."""

import shutil
import socket
import ssl
import threading
import time
from base64 import b64encode
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from PIL import Image

from secure_fd.cli import USAGE_ERROR
from secure_fd.deployment import keys, preflight
from secure_fd.deployment.commands import main
from secure_fd.deployment.enrol import InitCommand
from secure_fd.deployment.envelope import CHALLENGE_BYTES, Push, PushKind
from secure_fd.deployment.serve import ServeCommand
from secure_fd.errors import SecureFDError
from tests.drivers.flower_federation import Enrolled
from tests.drivers.flower_processes import free_port

FLWR = 'needs the extra: pip install "secure-fd[flower]"'


class _Handler(BaseHTTPRequestHandler):
    shift = 0.0

    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def date_time_string(self, _=None):
        return super().date_time_string(time.time() + self.shift)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Three enrolled sites, and a server that answers HTTPS."""
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    made = Enrolled(tmp_path_factory.mktemp("preflight") / "sites")
    made.enrol("roster", address=f"127.0.0.1:{server.server_port}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*keys.tls_files(made.home("server")))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


class Mistaken(Enrolled):
    """A copy, so that each mistake is made once. It is at site a, or between it and the server."""

    def __init__(self, folder, prepared, monkeypatch):
        super().__init__(folder, kept=prepared.folder)
        self.patch, self.path = monkeypatch.setattr, folder / "roster.toml"
        self.options = ["--data", str(self.records("a")), "--roster", str(self.path)]
        self.greets(self.roster("roster").digest)

    def greets(self, digest):
        """A server of this roster greets once."""
        greeting = Push(PushKind.HELLO, (bytes(CHALLENGE_BYTES), digest[:8])).encode()
        attend = "secure_fd.deployment.flower.attend"
        self.patch(attend, lambda _, __, answer, *___: answer(greeting))

    def again(self, address=""):
        """A new roster for the same cards, with another server."""
        old = self.roster("roster").address
        self.path.unlink()
        self.enrol("roster", home=self.folder / "server2", address=address or old)

    def with_other_keys(self):
        shutil.rmtree(self.home("a"))
        InitCommand(data=self.records("a"), name="a")()

    def with_a_full_disk(self):
        self.patch(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))

    def with_a_changed_roster(self):
        self.path.write_text(self.path.read_text().replace("rounds = 1", "rounds = -1"))

    def with_other_proxies(self):
        (self.folder / "proxies" / "0.png").unlink()

    def with_an_old_certificate(self):
        self.patch(keys, "_VALID", timedelta(minutes=-1))
        self.again()

    def with_a_clock_that_is_late(self):
        self.patch(keys, "BACKDATED", timedelta(days=-1))
        self.again()

    def with_a_name_that_is_searched_for_long(self):
        self.patch(socket, "getaddrinfo", lambda *_, **__: time.sleep(8) or [])
        self.patch(preflight, "_ANSWER", 0.2)


@pytest.fixture
def sites(prepared, tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason=FLWR)
    return Mistaken(tmp_path / "f", prepared, monkeypatch)


def test_a_site_without_a_mistake_passes_all_checks(sites, capsys):
    assert main(["check", *sites.options], "secure-fd site") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert all(line.startswith("ok ") for line in lines)


MISTAKES = [
    (lambda sites: sites.path.unlink(), "roster", True),
    (Mistaken.with_a_changed_roster, "rounds", True),
    (lambda sites: shutil.rmtree(sites.home("a")), "home", True),
    (Mistaken.with_other_keys, "roster", True),
    (Mistaken.with_a_full_disk, "disk", True),
    (lambda sites: (sites.records("a") / "bird").mkdir(), "data", True),
    (lambda sites: Image.new("RGB", (8, 8)).save(sites.records("a") / "cat/0.png"), "colour", True),
    (lambda sites: (sites.records("a") / "cat" / "0.png").unlink(), "data", True),
    (Mistaken.with_other_proxies, "proxies", True),
    (Mistaken.with_an_old_certificate, "clock", True),
    (Mistaken.with_a_clock_that_is_late, "clock", True),
    (lambda sites: sites.again(f"127.0.0.1:{free_port()}"), "address", False),
    (Mistaken.with_a_name_that_is_searched_for_long, "address", False),
    (Mistaken.again, "certificate", True),
    (lambda sites: sites.patch(_Handler, "shift", -120.0), "clock", True),
    (lambda sites: sites.patch(_Handler, "shift", 120.0), "clock", True),
    (lambda sites: sites.greets(b"another roster"), "digest", False),
]
"""Mistake, the field of the check that fails, and whether `join` ends by it."""


@pytest.mark.parametrize(("make", "field", "ends"), MISTAKES)
def test_a_mistake_fails_its_check_and_join_ends_with_one_sentence(
    sites, capsys, make, field, ends
):
    make(sites)
    with pytest.raises(SecureFDError, check=lambda error: error.field == field):
        list(preflight.CheckCommand(sites.records("a"), sites.path).checks())
    capsys.readouterr()
    begun = time.monotonic()
    assert main(["check", *sites.options], "secure-fd site") == USAGE_ERROR
    *passed, last = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in passed)
    assert last.startswith("fails ")
    assert main(sites.options, "secure-fd join") == USAGE_ERROR
    assert time.monotonic() - begun < 20
    [error] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    # In these tests a connection that is made ends without a network; there is none to wait for.
    assert ("no network" in error) == (not ends)


@pytest.mark.parametrize(
    ("make", "field"),
    [(Mistaken.with_an_old_certificate, "clock"), (Mistaken.with_other_proxies, "proxies")],
)
def test_a_server_with_a_mistake_ends_before_it_starts_flower(sites, make, field):
    make(sites)
    home = sorted(path.parent for path in sites.folder.glob("server*/state"))[-1]
    with pytest.raises(SecureFDError, check=lambda error: error.field == field):
        ServeCommand(sites.path, home)()
    assert not (home / "flower").exists()


class _Proxy(BaseHTTPRequestHandler):
    """Carries bytes to any server for user u with password p:q."""

    log_message = _Handler.log_message

    def do_CONNECT(self):
        if self.headers["Proxy-Authorization"] != "Basic " + b64encode(b"u:p:q").decode():
            self.send_error(407)
            return
        host, port = self.path.split(":")
        with socket.create_connection((host, int(port))) as server:
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            threading.Thread(target=self._carry, args=(server, self.connection)).start()
            self._carry(self.connection, server)

    @staticmethod
    def _carry(source, sink):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("login", "passed"), [("u:p%3Aq", 3), ("u:wrong", 0)])
def test_a_site_asks_its_server_through_the_proxy(prepared, monkeypatch, login, passed):
    agreed, found = prepared.roster("roster"), []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("https_proxy", f"http://{login}@127.0.0.1:{proxy.server_port}")
        with nullcontext() if passed else pytest.raises(preflight.UnreachableError, match="407"):
            found.extend(preflight.connection_checks(agreed))
        proxy.shutdown()
    assert len(found) == passed


@pytest.mark.filterwarnings("ignore:.verify=<str>:DeprecationWarning")  # of flwr
def test_a_server_that_does_not_answer_is_named_once_a_minute(tmp_path, monkeypatch, caplog):
    flower = pytest.importorskip("secure_fd.deployment.flower", reason=FLWR)
    monkeypatch.setattr(flower, "_RECONNECT", 0.01)
    address, tries = f"127.0.0.1:{free_port()}", iter(range(6))
    agreed = SimpleNamespace(address=address, certificate=keys.NewServer("localhost").certificate)
    certificate = tmp_path / "server.pem"
    certificate.write_text(agreed.certificate)
    check = partial(preflight.connection_checks, agreed)
    ends = (lambda _: b""), (lambda: next(tries, None) is None)
    flower.attend(address, certificate, *ends, 60.0, check)
    [warned] = [line.message for line in caplog.records if line.levelname == "WARNING"]
    assert address in warned
