"""Certificates and node keys, checked by programs that did not make them."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from socket import create_connection, create_server

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from wafl.flower.ops.certificates import Certificates, make_certificates


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def verify(made: Certificates, host: x509.DNSName | x509.IPAddress, when: datetime | None = None) -> None:
    ca, server = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (made.ca, made.server_cert))
    policy = PolicyBuilder().store(Store([ca])).time(when or datetime.now(UTC))
    policy.build_server_verifier(host).verify(server, [])


@contextmanager
def tls_server(made: Certificates) -> Iterator[int]:
    """A server that sends hello after a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_cert, made.server_key)
    with create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, context.wrap_socket(connection, server_side=True) as secure:
                secure.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            thread.join(10)


def test_the_server_is_trusted_under_its_names_only(tmp_path: Path):
    made = make_certificates(tmp_path / "c", hosts=("fl.example.org", "10.0.0.5", "::1"), days=30)
    for host in (x509.DNSName("fl.example.org"), *map(x509.IPAddress, map(ip_address, ("10.0.0.5", "::1")))):
        verify(made, host)
    with pytest.raises(VerificationError):
        verify(made, x509.DNSName("localhost"))
    with pytest.raises(VerificationError):
        verify(make_certificates(tmp_path / "other"), x509.DNSName("fl.example.org"))
    verify(made, x509.DNSName("fl.example.org"), datetime.now(UTC) + timedelta(days=29))
    with pytest.raises(VerificationError):
        verify(made, x509.DNSName("fl.example.org"), datetime.now(UTC) + timedelta(days=31))


def test_a_tls_client_that_has_the_ca_connects(tmp_path: Path):
    made = make_certificates(tmp_path / "c")
    context = ssl.create_default_context(cafile=made.ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        tls_server(made) as port,
        create_connection(("127.0.0.1", port), timeout=10) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as secure,
    ):
        assert secure.recv(5) == b"hello"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_the_server_certificate(tmp_path: Path):
    made = make_certificates(tmp_path / "c")
    verification = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(made.ca)]
    for host in (["-verify_hostname", "localhost"], ["-verify_ip", "127.0.0.1"]):
        subprocess.run([*verification, *host, str(made.server_cert)], check=True, capture_output=True, timeout=30)


def test_a_nodes_files_are_a_matching_p384_key_pair(tmp_path: Path):
    made = make_certificates(tmp_path / "c", nodes=["a", "b"])
    keys = [serialization.load_ssh_private_key(made.node_key(name).read_bytes(), None) for name in "ab"]
    publics = [serialization.load_ssh_public_key(made.node_pub(name).read_bytes()) for name in "ab"]
    for key, public in zip(keys, publics, strict=True):
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp384r1"
        assert key.public_key() == public
    assert publics[0] != publics[1]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_ssh_keygen_derives_the_same_public_key(tmp_path: Path):
    made = make_certificates(tmp_path / "c", nodes=["a"])
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-f", made.node_key("a")], check=True, capture_output=True, text=True, timeout=30
    ).stdout
    kind, public = made.node_pub("a").read_text().split()[:2]
    assert kind == "ecdsa-sha2-nistp384"
    assert derived.split()[:2] == [kind, public]


def test_private_files_are_readable_by_their_owner_only(tmp_path: Path):
    made = make_certificates(tmp_path / "deep" / "c", nodes=["a"])
    for private in (made.ca_key, made.server_key, made.node_key("a")):
        assert private.stat().st_mode & 0o777 == 0o600
    for folder in (made.folder, made.folder / "keys"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_nodes_can_be_added_and_nothing_else_changes(tmp_path: Path):
    folder = tmp_path / "c"
    make_certificates(folder, hosts=("fl.example.org",), nodes=["a"])
    before = files_of(folder)
    made = make_certificates(folder, hosts=["localhost", "127.0.0.1"], nodes=["b"])  # the default
    make_certificates(folder, hosts=("fl.example.org",), nodes=["c"])
    after = files_of(folder)
    assert {path: after[path] for path in before} == before
    assert {path.name for path in after.keys() - before.keys()} == {"b", "b.pub", "c", "c.pub"}
    assert Certificates.open(folder) == made


def test_the_ca_key_may_be_kept_elsewhere(tmp_path: Path):
    made = make_certificates(tmp_path / "c")
    made.ca_key.unlink()
    assert make_certificates(tmp_path / "c", nodes=["a"]).node_key("a").exists()
    assert not made.ca_key.exists()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({}, "add nodes to it with --node"),
        ({"nodes": ["b", "a"]}, "keys/a exists: choose another name"),
        ({"hosts": ("localhost", "new.example.org"), "nodes": ["b"]}, "not for new.example.org: choose another folder"),
    ],
)
def test_nothing_is_overwritten(tmp_path: Path, arguments: dict[str, object], remedy: str):
    make_certificates(tmp_path / "c", nodes=["a"])
    before = files_of(tmp_path)
    with pytest.raises(FileExistsError, match=remedy):
        make_certificates(tmp_path / "c", **arguments)  # pyright: ignore[reportArgumentType]
    assert files_of(tmp_path) == before


def test_a_key_that_we_did_not_make_is_not_overwritten(tmp_path: Path):
    (tmp_path / "server.key").write_text("precious")
    with pytest.raises(FileExistsError, match=r"server\.key exists"):
        make_certificates(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["server.key"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hosts": ()}, "hosts is empty"),
        ({"hosts": ("a b",)}, "host 'a b' is not a DNS name or an IP address: give one such as"),
        ({"hosts": ("",)}, "host ''"),
        ({"hosts": ("https://fl.example.org",)}, "host 'https"),
        ({"hosts": ("-a.org",)}, "host '-a.org'"),
        ({"hosts": ("a..org",)}, "host 'a..org'"),
        ({"hosts": ("10.0.0.256",)}, "host '10.0.0.256'"),
        ({"hosts": ("fe80::1%eth0",)}, "host 'fe80::1%eth0'"),
        ({"hosts": ("münchen.de",)}, "host 'münchen.de'"),
        ({"hosts": ("a.org\n",)}, "host 'a.org"),
        ({"hosts": ("a" * 64,)}, "host 'aaa"),
        ({"hosts": ("a.org", "a.org")}, "host 'a.org' is given more than once"),
        ({"nodes": ["../a"]}, r"node '\.\./a': give 1 to 64 letters"),
        ({"nodes": [""]}, "node ''"),
        ({"nodes": [".a"]}, r"node '\.a'"),
        ({"nodes": ["a.pub"]}, r"no \.pub at the end"),
        ({"nodes": ["a", "a"]}, "node 'a' is given more than once"),
        ({"nodes": ["a" * 65]}, "node 'aaa"),
        ({"days": 0}, "days is 0: give 1 to 36500"),
        ({"days": 99999}, "days is 99999"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, arguments: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        make_certificates(tmp_path / "c", **arguments)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "c").exists()


def test_a_folder_without_certificates_cannot_be_opened(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"ca\.crt is missing: make it with wafl flower certificates"):
        Certificates.open(tmp_path)
