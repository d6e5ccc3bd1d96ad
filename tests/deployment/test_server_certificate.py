"""The certificate of a roster is pinned: a site talks to no other server."""

import datetime
import socket
import ssl
import threading
from contextlib import closing, suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from secure_fd.deployment import keys

HOST = "sums.example.org"
REFUSED = ssl.SSLCertVerificationError


@pytest.fixture
def server(tmp_path):
    """A server whose files are in the folder server."""
    made = keys.NewServer(HOST)
    made.store(tmp_path / "server")
    return made


def _meets(pinned, files, name=HOST):
    """A site that pins a certificate meets the server of these files under a name."""
    offered = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    offered.load_cert_chain(*files)
    expected = ssl.create_default_context(cadata=pinned)
    near, far = socket.socketpair()
    far.settimeout(5)

    def answer():
        with closing(far), suppress(ssl.SSLError, OSError):
            offered.wrap_socket(far, server_side=True).close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        expected.wrap_socket(near, server_hostname=name).close()
    finally:
        near.close()
        thread.join()


def test_the_pinned_server_is_met_under_its_names_alone(server, tmp_path):
    files = keys.tls_files(tmp_path / "server")
    for name in (HOST, "localhost", "127.0.0.1"):
        _meets(server.certificate, files, name)
    for name in ("example.org", "other.example.org", "127.0.0.2"):
        with pytest.raises(REFUSED, match="match"):
            _meets(server.certificate, files, name)


def test_another_server_of_that_name_is_refused(server, tmp_path):
    keys.NewServer(HOST).store(tmp_path / "another")
    with pytest.raises(REFUSED):
        _meets(server.certificate, keys.tls_files(tmp_path / "another"))


def test_the_servers_key_vouches_for_no_other_certificate(server, tmp_path):
    """The certificate signs itself alone: it is no authority."""
    home = tmp_path / "server"
    own = serialization.load_pem_private_key(keys.tls_files(home)[1].read_bytes(), None)
    issuer = x509.load_pem_x509_certificate(server.certificate.encode()).subject
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "child")])
    child = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=True)
        .sign(own, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    files = tmp_path / "child.pem", tmp_path / "child.key"
    files[0].write_text(child.public_bytes(encoding).decode() + server.certificate)
    files[1].write_bytes(secret)
    with pytest.raises(REFUSED, match="invalid CA"):
        _meets(server.certificate, files)
