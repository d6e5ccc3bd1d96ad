"""What a site and the server keep for themselves: keys in state files, certificates beside them.

A home is a folder of mode 0700. Its state file has the identity and, later, what the parties must
not forget; with the file lost the site cannot come back, and is enrolled anew in a new roster.
"""

import ipaddress
import os
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secure_fd.crypto.keys import AgreementKey, IdentityKey, SecretHolder
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.storage import Store

_SEED_BYTES: Final = 32
_VALID: Final = timedelta(days=730)
_STATE: Final = "state"


class NewServer(SecretHolder):
    """Keys and certificates of a server, which are stored nowhere yet.

    host: a name or an address; ConfigurationError for one that no certificate can name. identity,
    agreement: its public keys. certificate: PEM of its authority.
    """

    __slots__ = ("_agreed", "_pems", "_seed", "agreement", "certificate", "identity")

    def __init__(self, host: str) -> None:
        self._pems = _certificates(host)
        self._seed, self._agreed = os.urandom(_SEED_BYTES), os.urandom(_SEED_BYTES)
        self.identity = _identity(self._seed).public.raw
        self.agreement = AgreementKey.derive(self._agreed).public
        self.certificate = self._pems[0].decode()

    def store(self, home: Path) -> None:
        """Make the server's home. ConfigurationError where it has a state file."""
        with closing(_new(home)) as file:
            file.put({"identity": self._seed, "agreement": self._agreed})
        for path, data in zip(tls_files(home), self._pems, strict=True):
            with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
                out.write(data)


def create_site(home: Path) -> bytes:
    """Make a site's home and identity; its public half, 32 bytes.

    Raises ConfigurationError where the home has a state file.
    """
    with closing(_new(home)) as file:
        seed = os.urandom(_SEED_BYTES)
        file.put({"identity": seed})
    return _identity(seed).public.raw


def open_state(home: Path) -> Store:
    """The state file of a home; ConfigurationError where there is none, or a process has it."""
    return Store.open(home / _STATE, "state")


def identity_in(file: Store) -> IdentityKey:
    """The identity; LocalError where the file has none."""
    return _identity(_seed(file, "identity"))


def agreement_in(file: Store) -> AgreementKey:
    """The server's key of agreement; LocalError where the file has none."""
    return AgreementKey.derive(_seed(file, "agreement"))


def tls_files(home: Path) -> tuple[Path, Path, Path]:
    """Certificate of the authority, certificate and key of the server."""
    return home / "authority.pem", home / "server.pem", home / "server.key"


def _new(home: Path) -> Store:
    home = home.resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Store.create(home / _STATE, "state")


def _seed(file: Store, name: str) -> bytes:
    found = file.get(name)
    if found is None:
        raise LocalError(f"this state file has no {name} key")
    return found


def _identity(seed: bytes) -> IdentityKey:
    return IdentityKey.generate(lambda _: seed)


def _certificates(host: str) -> tuple[bytes, bytes, bytes]:
    """The content of `tls_files`. The authority's key is dropped at once: it can sign no other."""
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    public = authority.public_key()
    root = (
        _certificate("secure-fd roster", "secure-fd roster", public)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        _certificate("secure-fd server", "secure-fd roster", own.public_key())
        .add_extension(x509.SubjectAlternativeName(_names_of(host)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(authority, hashes.SHA256())
    )
    secret = own.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    authority_pem, own_pem = (
        made.public_bytes(serialization.Encoding.PEM) for made in (root, leaf)
    )
    return authority_pem, own_pem, secret


def _certificate(
    subject: str, issuer: str, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _VALID)
    )


def _usage(*, sign: bool) -> x509.KeyUsage:
    """sign: of the server's certificate, which signs handshakes; else of the authority's."""
    return x509.KeyUsage(
        digital_signature=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=not sign,
        crl_sign=not sign,
        encipher_only=False,
        decipher_only=False,
    )


def _names_of(host: str) -> list[x509.GeneralName]:
    """The host, and this machine for the server's own processes."""
    return [_name_of(name) for name in dict.fromkeys((host, "127.0.0.1", "localhost"))]


def _name_of(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigurationError("address", host, "use a host's name or address") from error
