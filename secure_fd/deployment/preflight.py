"""Checks of a party's files, machine and connection before it takes part.

A group of checks yields the name of each one that passes. One that fails raises SecureFDError with
a sentence: what is wrong, and what to do.
"""

import os
import shutil
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from cryptography import x509

from secure_fd.cli import USAGE_ERROR
from secure_fd.data.own_images import colour_and_side
from secure_fd.deployment import keys
from secure_fd.deployment.enrol import card_name, read_card
from secure_fd.deployment.envelope import Answer, Push, other_roster, roster_hint
from secure_fd.deployment.members import follows
from secure_fd.deployment.parties import agreed_proxies, check_records, is_table_file, records_in
from secure_fd.deployment.roster import RosterFile, proxies_of, read
from secure_fd.errors import SecureFDError
from secure_fd.optional import extra

_FREE: Final = 1 << 30
"""Bytes that a home needs: state, ledger and logs, and two copies of a network."""
_ANSWER: Final = 3.0
"""Seconds in which a server must answer one question, so that all answers come in ten."""
_GREETED: Final = 6.0
"""Seconds to wait for a greeting of the server."""
_AHEAD, _BEHIND = 5.0, 60.0
"""Seconds by which a site's clock may differ: Flower refuses 5 ahead of it, and 305 behind."""

_Link = TypeVar("_Link", bound=HTTPConnection)


class PreflightError(SecureFDError):
    """A check failed. field: its subject. The sentence is what is wrong, and what to do."""

    def __init__(self, field: str, wrong: str, advice: str) -> None:
        super().__init__(f"{wrong}: {advice}")
        self.field = field


class UnreachableError(PreflightError):
    """Nothing answers at the server's address, or nothing yet."""


def site_checks(agreed: RosterFile, data: Path, home: Path) -> Iterator[str]:
    """Check what a site needs without a connection, but for the values of its records."""
    number = _number_of(agreed, home)
    yield "identity"
    _check_disk(home)
    yield "disk"
    check_records(data, agreed)
    yield "classes"
    card = home / card_name(agreed.sites[number].name)
    if not is_table_file(data):
        if card.is_file() and read_card(card).channels != colour_and_side(data)[0]:
            wrong = "of the images here and those of this site's card, one has colour and one not"
            raise PreflightError("colour", wrong, "use the images of the card, or enrol anew")
        yield "colour"
    _check_validity(agreed.certificate)
    yield "clock"


def check_server(agreed: RosterFile, home: Path, proxies: Path) -> None:
    """Check what the server needs before it starts Flower."""
    _check_disk(home)
    _check_validity(agreed.certificate)
    agreed_proxies(proxies, agreed)


def connection_checks(agreed: RosterFile) -> Iterator[str]:
    """Check the server from a site's machine."""
    host, _, port = agreed.address.rpartition(":")
    place = host.strip("[]"), int(port)
    try:
        with closing(_towards(place, HTTPConnection)) as link:
            _connect(link)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        wrong = f"the server at {agreed.address} does not answer ({why.lower()})"
        advice = "ask the coordinator if it runs, and your network's operator if you may reach it"
        raise UnreachableError("address", wrong, advice) from error
    yield "address"
    date = _server_date(place, agreed.certificate)
    yield "certificate"
    ahead = (datetime.now(UTC) - date).total_seconds()
    if not -_BEHIND <= ahead <= _AHEAD:
        way = "ahead of" if ahead > 0 else "behind"
        wrong = f"this clock is {abs(ahead):.0f} s {way} the server's, which Flower may refuse"
        raise PreflightError("clock", wrong, "set both clocks")
    yield "server's clock"


@dataclass(frozen=True, slots=True)
class SiteFiles:
    """Folders and files of a site."""

    data: Path
    """The records: one folder of images a class, or the TOML file of a table. They stay here."""
    roster: Path
    """The roster, the same file at all parties."""
    home: Path | None = None
    """This site's folder, which `secure-fd site init` made; by default home beside the records."""
    proxies: Path | None = None
    """The public images, by default the folder proxies beside the roster; of a table its own."""

    def public(self) -> Path:
        """Return the place of the proxy samples."""
        given = self.proxies or (self.data if is_table_file(self.data) else None)
        return proxies_of(given, self.roster.resolve())


@dataclass(frozen=True, slots=True)
class CheckCommand(SiteFiles):
    """Check a site's files, machine and connection, up to the first check that fails."""

    def __call__(self) -> int:
        """Print a line for each check, and return the exit status."""
        try:
            for name in self.checks():
                print(f"ok     {name}")
        except SecureFDError as error:
            print(f"fails  {error}")
            return USAGE_ERROR
        return 0

    def checks(self) -> Iterator[str]:
        """Check all that `join` will need."""
        roster, home = self.roster.resolve(), keys.home_of(self.home, self.data)
        agreed = read(roster)
        yield "roster"
        yield from site_checks(agreed, self.data, home)
        records_in(self.data, agreed, number := _number_of(agreed, home))
        yield "records"
        agreed_proxies(self.public(), agreed)
        yield "proxies"
        yield from connection_checks(agreed)
        yield _compare_digests(agreed, agreed.sites[number].identity, home)


def _number_of(agreed: RosterFile, home: Path) -> int:
    """Return the number of the site whose keys are in a home."""
    if not (home / "state").is_file():
        advice = "use secure-fd site init first, or name this site's --home"
        raise PreflightError("home", f"{home} has no keys of a site", advice)
    with closing(keys.open_state(home)) as file:
        number = agreed.number_of(keys.identity_in(file).public.raw)
        follows(file, agreed)
    return number


def _check_disk(home: Path) -> None:
    if not os.access(home, os.W_OK | os.X_OK):
        raise PreflightError("home", f"{home} cannot be written", "give this user the right to")
    if (free := shutil.disk_usage(home).free) < _FREE:
        wrong = f"{home} has {free >> 20} MiB of free space and needs {_FREE >> 20}"
        raise PreflightError("disk", wrong, "free some, or move the home")


def _check_validity(certificate: str) -> None:
    """Compare this clock with the time in which the roster's certificate is valid."""
    found, now = x509.load_pem_x509_certificate(certificate.encode()), datetime.now(UTC)
    first, last = found.not_valid_before_utc, found.not_valid_after_utc
    if not first <= now <= last:
        valid = f"the roster's certificate is valid from {_day(first)} to {_day(last)}"
        advice = "set the clock, or ask the coordinator for a new roster"
        raise PreflightError("clock", f"this clock shows {_day(now)}, and {valid}", advice)


def _towards(place: tuple[str, int], kind: Callable[..., _Link]) -> _Link:
    """Return a connection, not yet open, through the proxy that HTTPS_PROXY names, if it does."""
    proxy = getproxies().get("https")
    if proxy is None or proxy_bypass(place[0]):
        return kind(*place, timeout=_ANSWER)
    named = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    link = kind(named.hostname, named.port or 80, timeout=_ANSWER)
    login = f"{unquote(named.username or '')}:{unquote(named.password or '')}"
    encoded = {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}
    link.set_tunnel(*place, headers=encoded if named.username else {})
    return link


def _connect(link: HTTPConnection) -> None:
    """Open a connection, or raise OSError in time: a search for an address has no time limit."""
    failed = list[Exception]()

    def connect() -> None:
        try:
            link.connect()
        except Exception as error:  # noqa: BLE001 - it is raised in the caller's thread
            failed.append(error)

    trial = threading.Thread(target=connect, daemon=True)
    trial.start()
    trial.join(2 * _ANSWER)
    if trial.is_alive():
        raise TimeoutError(f"no address or connection in {2 * _ANSWER:g} s")
    if failed:
        raise failed[0]


def _unverified() -> ssl.SSLContext:
    """Return a context that reads any certificate; nothing is sent over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _server_date(place: tuple[str, int], certificate: str) -> datetime:
    """Return the server's date, in whole seconds, if its certificate is the roster's.

    A server's certificate is made with its roster.
    """
    trusted = ssl.create_default_context(cadata=certificate)
    try:
        with closing(_towards(place, partial(HTTPSConnection, context=trusted))) as asked:
            _connect(asked)
            asked.request("HEAD", "/")
            return parsedate_to_datetime(asked.getresponse().getheader("Date", ""))
    except ssl.SSLCertVerificationError as error:
        with closing(_towards(place, partial(HTTPSConnection, context=_unverified()))) as link:
            _connect(link)
            found = link.sock.getpeercert(binary_form=True) or b""
        made = x509.load_der_x509_certificate(found).not_valid_before_utc
        advice = f"ask the coordinator for the roster of {_day(made + keys.BACKDATED)}"
        wrong = "the server's certificate is not the one in your roster"
        raise PreflightError("certificate", wrong, advice) from error
    except (OSError, HTTPException, ValueError) as error:
        wrong = f"what answers at {place[0]}:{place[1]} is no server of a federation"
        raise PreflightError("certificate", wrong, "ask the coordinator for the address") from error


def _compare_digests(agreed: RosterFile, identity: bytes, home: Path) -> str:
    """Compare digests with a server that greets this machine, which takes no further part.

    Returns what to print. A server in the middle of a round greets no site.
    """
    with extra("flower"):
        from secure_fd.deployment.flower import attend

    own, greetings, until = roster_hint(agreed.digest), list[bytes](), time.monotonic() + _GREETED

    def answer(data: bytes) -> bytes:
        greetings.extend(Push.decode(data).parts[1:2])
        return Answer(True, 0, 0.0, (identity, own)).encode()

    def done() -> bool:
        return bool(greetings) or time.monotonic() > until

    certificate = keys.certificate_of(agreed, home)
    attend(agreed.address, certificate, answer, done, _GREETED, partial(connection_checks, agreed))
    if greetings and greetings[0] != own:
        wrong = other_roster("the server", greetings[0], own)
        raise PreflightError("digest", wrong, "ask the coordinator for its roster")
    unknown = f" {own.hex()}, as far as known: the server did not greet; compare it by telephone"
    return f"digest{'' if greetings else unknown}"


def _day(date: datetime) -> str:
    return f"{date.day} {date:%B %Y}"
