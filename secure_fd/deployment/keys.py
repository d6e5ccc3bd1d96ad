"""Secrets of a site and of the server: keys in a state file, the server's certificate beside it.

A home is a folder of mode 0700. Its state file holds the identity and what the party must not
lose. A site that loses its file cannot come back and is enrolled anew, in a new roster.
"""

import ipaddress
import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from secure_fd.crypto.keys import AgreementKey, IdentityKey, SecretHolder
from secure_fd.deployment.members import follows
from secure_fd.deployment.roster import RosterFile
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.storage import Store

JOURNAL: Final = "rounds.jsonl"
"""In the server's home: the lines of the ServerApp, one for each round."""
_SEED_BYTES: Final = 32
ENDING: Final = 60.0
"""Seconds in which the processes of a server that was killed end."""
_VALID: Final = timedelta(days=730)
BACKDATED: Final = timedelta(minutes=5)
"""Time before it was made from which a certificate is valid, for clocks that are late."""


class NewServer(SecretHolder):
    """Keys and certificate of a server that are not on disk yet.

    host: name or address that sites connect to. identity, agreement: public keys. certificate:
    PEM, signed by its own key.
    """

    __slots__ = ("_agreed", "_private", "_seed", "agreement", "certificate", "identity")

    def __init__(self, host: str) -> None:
        self._seed, self._agreed = os.urandom(_SEED_BYTES), os.urandom(_SEED_BYTES)
        self.identity = _identity(self._seed).public.raw
        self.agreement = AgreementKey.derive(self._agreed).public
        self.certificate, self._private = _certificate(host)

    def store(self, home: Path) -> None:
        """Create the server's home; ConfigurationError where it has a state file."""
        with closing(_new(home)) as file:
            file.put({"identity": self._seed, "agreement": self._agreed})
        for path, text in zip(tls_files(home), (self.certificate, self._private), strict=True):
            with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
                out.write(text)


def create_site(home: Path) -> bytes:
    """Create a site's home and identity, and return the public key (32 bytes).

    Raises ConfigurationError where the home has a state file.
    """
    with closing(_new(home)) as file:
        seed = os.urandom(_SEED_BYTES)
        file.put({"identity": seed})
    return _identity(seed).public.raw


def home_of(home: Path | None, data: Path) -> Path:
    """Return a site's home, by default beside its records."""
    return home.resolve() if home else data.resolve().parent / "home"


def open_state(home: Path, patience: float = 0.0) -> Store:
    """Open the state file of a home; ConfigurationError if it is missing or in use.

    patience: seconds to wait for a process that uses it.
    """
    return Store.open(home / "state", "state", patience)


def certificate_of(roster: RosterFile, home: Path) -> Path:
    """Write the server's certificate to a file of a site's home, and return its path."""
    path = home / "server.pem"
    path.write_text(roster.certificate)
    return path


def check_home(home: Path, roster: RosterFile) -> None:
    """Raise ConfigurationError unless the roster names the keys of this home; nothing is written.

    Also for one that does not follow the home's. A home and its journal belong to one federation.
    """
    with closing(open_state(home, ENDING)) as file:
        if identity_in(file).public.raw != roster.identity:
            allowed = f"use the home whose keys the roster {roster.name!r} names"
            raise ConfigurationError("home", str(home), allowed)
        follows(file, roster)


def identity_in(file: Store) -> IdentityKey:
    """Return the identity; LocalError where the file has none."""
    return _identity(_seed(file, "identity"))


def agreement_in(file: Store) -> AgreementKey:
    """Return the server's key of agreement; LocalError where the file has none."""
    return AgreementKey.derive(_seed(file, "agreement"))


def tls_files(home: Path) -> tuple[Path, Path]:
    """Paths of the server's certificate and of its private key."""
    return home / "server.pem", home / "server.key"


def _new(home: Path) -> Store:
    home = home.resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Store.create(home / "state", "state")


def _seed(file: Store, name: str) -> bytes:
    found = file.get(name)
    if found is None:
        raise LocalError(f"this state file has no {name} key")
    return found


def _identity(seed: bytes) -> IdentityKey:
    return IdentityKey.generate(lambda _: seed)


def _certificate(host: str) -> tuple[str, str]:
    """Make a certificate that signs itself, for the host and this machine, and its private key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    hosts: list[x509.GeneralName] = [x509.DNSName("localhost")]
    for each in (host, "127.0.0.1"):
        try:
            hosts.append(x509.IPAddress(ipaddress.ip_address(each)))
        except ValueError:
            hosts.append(x509.DNSName(each))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return made.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
