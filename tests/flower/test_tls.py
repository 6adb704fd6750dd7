"""Certificates and node keys, checked by programs that did not make them."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from wafl.flower.ops.tls import Certificates, make_certificates, renew_certificates, renew_keys


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def verify(made: Certificates, host: x509.DNSName | x509.IPAddress, when: datetime | None = None) -> None:
    ca, server = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (made.ca, made.server_cert))
    policy = PolicyBuilder().store(Store([ca])).time(when or datetime.now(UTC))
    policy.build_server_verifier(host).verify(server, [])


def test_the_server_is_trusted_under_its_names_only(tmp_path: Path):
    made = make_certificates(tmp_path / "c", hosts=("fl.example.org", "10.0.0.5", "::1"), days=30)
    for host in (x509.DNSName("fl.example.org"), *map(x509.IPAddress, map(ip_address, ("10.0.0.5", "::1")))):
        verify(made, host)
    with pytest.raises(VerificationError):
        verify(made, x509.DNSName("other.example.org"))
    for host in (x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))):
        verify(made, host)  # where the SuperLink itself listens
    with pytest.raises(VerificationError):
        verify(make_certificates(tmp_path / "other"), x509.DNSName("fl.example.org"))
    verify(made, x509.DNSName("fl.example.org"), datetime.now(UTC) + timedelta(days=29))
    with pytest.raises(VerificationError):
        verify(made, x509.DNSName("fl.example.org"), datetime.now(UTC) + timedelta(days=31))


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
    assert Certificates.open(folder).folder == made.folder


def test_the_ca_key_may_be_kept_elsewhere(tmp_path: Path):
    made = make_certificates(tmp_path / "c")
    made.ca_key.unlink()
    assert make_certificates(tmp_path / "c", nodes=["a"]).node_key("a").exists()
    assert not made.ca_key.exists()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({}, "add nodes with --node, or renew them with --renew"),
        ({"nodes": ["b", "a"]}, "keys/a exists: choose another name"),
        (
            {"hosts": ("localhost", "new.example.org"), "nodes": ["b"]},
            "not for new.example.org: choose a different folder, or",
        ),
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
        ({"hosts": ("a b",)}, "host 'a b' is not a DNS name or IP address: pass one such as"),
        ({"hosts": ("https://fl.example.org",)}, "host 'https"),
        ({"hosts": ("10.0.0.256",)}, "host '10.0.0.256'"),
        ({"hosts": ("münchen.de",)}, "host 'münchen.de'"),
        ({"hosts": ("a.org\n",)}, "host 'a.org"),
        ({"hosts": ("a.org", "a.org")}, "host 'a.org' is given more than once"),
        ({"nodes": ["../a"]}, r"node '\.\./a': give 1 to 64 letters"),
        ({"nodes": ["a.pub"]}, r"no \.pub at the end"),
        ({"nodes": ["a", "a"]}, "node 'a' is given more than once"),
        ({"days": 0}, "days is 0: give 1 to 36500"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, arguments: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        make_certificates(tmp_path / "c", **arguments)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "c").exists()


def test_nodes_trust_a_renewed_server_by_the_ca_that_they_have(tmp_path: Path):
    made = make_certificates(tmp_path / "c", hosts=("fl.example.org",), nodes=["a"], days=30)
    before = files_of(made.folder)
    until, old_ca = renew_certificates(made.folder, days=60)
    assert old_ca is None
    assert timedelta(days=59) < until - datetime.now(UTC) < timedelta(days=61)
    changed = {path.name for path, content in files_of(made.folder).items() if before.get(path) != content}
    assert changed == {"server.pem", "server.key"}
    assert files_of(made.folder).keys() == before.keys(), "nothing is left lying about"
    assert made.server_key.stat().st_mode & 0o777 == 0o600
    later = datetime.now(UTC) + timedelta(days=50)
    verify(made, x509.DNSName("fl.example.org"), later)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_cert, made.server_key)


def test_a_server_may_get_other_names_when_it_is_renewed(tmp_path: Path):
    made = make_certificates(tmp_path / "c", hosts=("fl.example.org",))
    renew_certificates(made.folder, hosts=("new.example.org",))
    verify(made, x509.DNSName("new.example.org"))
    verify(made, x509.DNSName("localhost"))
    with pytest.raises(VerificationError):
        verify(made, x509.DNSName("fl.example.org"))


def test_a_ca_that_would_expire_is_renewed_so_that_old_and_new_copies_both_work(tmp_path: Path):
    made = make_certificates(tmp_path / "c", hosts=("fl.example.org",))
    old = made.ca.read_bytes()
    _, old_ca = renew_certificates(made.folder, days=4000)
    assert old_ca is not None
    assert timedelta(days=3649) < old_ca - datetime.now(UTC) < timedelta(days=3651)
    new = made.ca.read_bytes()
    assert new != old
    verify(made, x509.DNSName("fl.example.org"), datetime.now(UTC) + timedelta(days=3999))
    made.ca.write_bytes(old)  # a node that has not been given the new one
    verify(made, x509.DNSName("fl.example.org"))


def test_a_nodes_key_is_replaced_and_nothing_else(tmp_path: Path):
    made = make_certificates(tmp_path / "c", nodes=["a", "b"])
    before = files_of(made.folder)
    renew_keys(made.folder, ["a"])
    changed = {path.name for path, content in files_of(made.folder).items() if before.get(path) != content}
    assert changed == {"a", "a.pub"}
    key = serialization.load_ssh_private_key(made.node_key("a").read_bytes(), None)
    assert key.public_key() == serialization.load_ssh_public_key(made.node_pub("a").read_bytes())
    assert made.node_key("a").stat().st_mode & 0o777 == 0o600


def test_renewal_needs_the_cas_own_key_and_known_nodes(tmp_path: Path):
    made, other = make_certificates(tmp_path / "c", nodes=["a"]), make_certificates(tmp_path / "other")
    before = files_of(made.folder)
    with pytest.raises(FileNotFoundError, match=r"node 'z' has no key in .*: add it without --renew"):
        renew_keys(made.folder, ["a", "z"])
    with pytest.raises(ValueError, match="days is 0"):
        renew_certificates(made.folder, days=0)
    with pytest.raises(FileNotFoundError, match=r"ca\.crt is missing: make it with"):
        renew_certificates(tmp_path / "nowhere")
    assert files_of(made.folder) == before
    made.ca_key.write_bytes(other.ca_key.read_bytes())
    with pytest.raises(ValueError, match=r"ca\.key is not the key of .*ca\.crt"):
        renew_certificates(made.folder)
    made.ca_key.unlink()
    with pytest.raises(FileNotFoundError, match=r"ca\.key is missing: restore it, and renew again"):
        renew_certificates(made.folder)


def test_a_folder_without_certificates_cannot_be_opened(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"ca\.crt is missing: make it with wafl flower certificates"):
        Certificates.open(tmp_path)
