"""Create TLS certificates and node keys."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as Key
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from wafl.base.files import write_whole

HOSTS = ("localhost", "127.0.0.1")
"""The hosts on which local programs reach the SuperLink; every server certificate includes them.

These programs are the operator's commands, the proxy and the ServerApp.
"""
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
MOST_DAYS = 36500
CA_DAYS = 3650
"""The validity of the CA. It is longer than the server certificates', so a node keeps its ca.crt when they are
renewed."""
CA_NAME = "WAFL federation CA"
UNUSED = dict.fromkeys(
    ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
    False,
)
"""The uses of a key that no certificate allows."""
CLOCKS = timedelta(hours=1)  # by how much a node's clock may be behind


class Certificates:
    """The files of a federation's certificates and node keys; every node gets ``ca``, to trust the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.ca_key = folder / "ca.crt", folder / "ca.key"
        self.server_cert, self.server_key = folder / "server.pem", folder / "server.key"

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the files that :func:`make_certificates` created in a folder."""
        files = cls(folder.resolve())
        for file in (files.ca, files.server_cert, files.server_key):
            if not file.is_file():
                raise FileNotFoundError(f"{file} is missing: make it with wafl flower certificates {folder}")
        return files

    def hosts(self) -> list[str]:
        """Return the names and addresses in the server certificate."""
        names = _read(self.server_cert).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names]

    def nodes(self) -> list[str]:
        """Return the nodes that have a key pair here."""
        return sorted(path.stem for path in (self.folder / "keys").glob("*.pub") if self.node_key(path.stem).is_file())

    def node_key(self, name: str) -> Path:
        """Return the private key of a node, which only this node receives."""
        return self.folder / "keys" / name

    def node_pub(self, name: str) -> Path:
        """Return the public key of a node, which the server receives through ``flwr supernode register``."""
        return self.folder / "keys" / f"{name}.pub"


def make_certificates(
    folder: Path, *, hosts: Sequence[str] = HOSTS, nodes: Sequence[str] = (), days: int = 365
) -> Certificates:
    """Create a CA, a server certificate for these hosts and localhost, and one key pair per node; return the files.

    The server certificate is valid for ``days`` days, the CA for at least ten years. In a folder that has certificates,
    only key pairs are added, and nothing is overwritten; see :func:`renew_certificates`.
    """
    _check(hosts, nodes, days)
    files = Certificates(folder.resolve())
    made = files.ca.exists()  # this file is written last
    _refuse_overwriting(files, nodes, made=made)
    known = files.hosts() if made and tuple(hosts) != HOSTS else hosts
    if new := [host for host in hosts if host not in known]:
        has = f"{files.server_cert} is for {', '.join(known)}"
        raise FileExistsError(f"{has}, not for {new[0]}: choose a different folder, or pass all hosts with --renew")
    files.folder.parent.mkdir(parents=True, exist_ok=True)
    for each in (files.folder, files.folder / "keys"):
        each.mkdir(mode=0o700, exist_ok=True)
    if not made:
        ca_key = generate_private_key(SECP384R1())
        server_key, server = _server(ca_key, hosts, days)
        write_whole(files.ca_key, _private(ca_key), 0o600)
        write_whole(files.server_key, server_key, 0o600)
        write_whole(files.server_cert, server, 0o644)
        write_whole(files.ca, _ca(ca_key, days), 0o644)
    _write_keys(files, nodes)
    return files


def renew_certificates(
    folder: Path, *, hosts: Sequence[str] | None = None, days: int = 365
) -> tuple[datetime, datetime | None]:
    """Replace the server's certificate and key; pass ``hosts`` if the hosts have changed.

    The CA keeps its key, so nodes continue to trust it with their ``ca.crt``. The ``ca.crt`` is renewed as well if it
    would expire first.

    Returns:
        The expiry of the new certificate, and if the CA's certificate was renewed, the expiry of the nodes' old one.
    """
    files = Certificates.open(folder)
    wanted = files.hosts() if hosts is None else hosts
    _check(wanted, (), days)
    if not files.ca_key.is_file():
        raise FileNotFoundError(f"{files.ca_key} is missing: restore it, and renew again")
    ca_key, ca = form.load_pem_private_key(files.ca_key.read_bytes(), None), _read(files.ca)
    if not isinstance(ca_key, Key) or ca_key.public_key() != ca.public_key():
        raise ValueError(f"{files.ca_key} is not the key of {files.ca}: restore the right key, and renew again")
    lasts = ca.not_valid_after_utc >= datetime.now(UTC) + timedelta(days=days)
    if not lasts:
        write_whole(files.ca, _ca(ca_key, days), 0o644)
    server_key, server = _server(ca_key, wanted, days)
    write_whole(files.server_key, server_key, 0o600)
    write_whole(files.server_cert, server, 0o644)
    return _read(files.server_cert).not_valid_after_utc, None if lasts else ca.not_valid_after_utc


def renew_keys(folder: Path, nodes: Sequence[str]) -> Certificates:
    """Replace the key pairs of these nodes; the SuperLink accepts their old keys until they are unregistered."""
    files = Certificates.open(folder)
    _check(HOSTS, nodes, 1)
    if missing := [name for name in nodes if name not in files.nodes()]:
        raise FileNotFoundError(f"node {missing[0]!r} has no key in {files.folder}: add it without --renew")
    _write_keys(files, nodes)
    return files


def _check(hosts: Sequence[str], nodes: Sequence[str], days: int) -> None:
    if not 1 <= days <= MOST_DAYS:
        raise ValueError(f"days is {days}: give 1 to {MOST_DAYS}")
    if not hosts:
        raise ValueError("hosts is empty: pass the name or the address by which nodes reach the server")
    for host in hosts:
        if not _is_address(host) and not _is_name(host):
            raise ValueError(
                f"host {host!r} is not a DNS name or IP address: pass one such as fl.example.org or 10.0.0.5"
            )
    for name in nodes:
        if not NODE.fullmatch(name) or name.endswith(".pub"):
            raise ValueError(f"node {name!r}: give 1 to 64 letters, digits, '.', '_' and '-', and no .pub at the end")
    for what, names in (("host", hosts), ("node", nodes)):
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{what} {repeated[0]!r} is given more than once: pass each once")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _is_name(host: str) -> bool:
    """Return whether a host is a DNS name. If the last label is only digits, the host is a misspelled address."""
    labels = host.split(".")
    return len(host) <= 253 and all(map(LABEL.fullmatch, labels)) and not labels[-1].isdigit()


def _refuse_overwriting(files: Certificates, nodes: Sequence[str], *, made: bool) -> None:
    if made and not nodes:
        raise FileExistsError(
            f"{files.folder} contains certificates: choose a different folder, add nodes with --node, or renew them "
            "with --renew"
        )
    certificates = () if made else (files.ca_key, files.server_key, files.server_cert)
    for file in certificates:
        if file.exists():
            raise FileExistsError(f"{file} exists, but {files.ca.name} does not: choose another folder")
    for name in nodes:
        for file in (files.node_key(name), files.node_pub(name)):
            if file.exists():
                raise FileExistsError(f"{file} exists: choose another name, or remove the key and its .pub file")


def _ca(key: Key, days: int) -> bytes:
    """Return the CA's self-signed certificate, which outlives a server certificate of ``days`` days."""
    return _signed(_builder(CA_NAME, key, key, max(days, CA_DAYS), ca=True), key)


def _server(ca_key: Key, hosts: Sequence[str], days: int) -> tuple[bytes, bytes]:
    """Return a new key of the server, and its certificate."""
    key = generate_private_key(SECP384R1())
    everywhere = dict.fromkeys((*hosts, *HOSTS))
    names = [x509.IPAddress(ip_address(host)) if _is_address(host) else x509.DNSName(host) for host in everywhere]
    certificate = (
        _builder("WAFL federation server", key, ca_key, days, ca=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return _private(key), _signed(certificate, ca_key)


def key_fingerprint(public: Path) -> str:
    """Return the fingerprint that a server computes for a node's public key, a file of ``ssh-keygen``."""
    try:
        key = form.load_ssh_public_key(public.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{public} is not a public key of a node, as ssh-keygen writes it (NAME.pub): {error}"
        ) from error
    pem = key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    return sha256(pem).hexdigest()


def _write_keys(files: Certificates, nodes: Sequence[str]) -> None:
    """Write a key pair per node in the formats of ``ssh-keygen -t ecdsa -b 384``, which Flower requires."""
    for name in nodes:
        key = generate_private_key(SECP384R1())
        public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
        write_whole(files.node_key(name), _private(key, ssh=True), 0o600)
        write_whole(files.node_pub(name), public + f" {name}\n".encode(), 0o644)


def _read(certificate: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.read_bytes())


def _builder(subject: str, key: Key, ca_key: Key, days: int, *, ca: bool) -> x509.CertificateBuilder:
    """Return the start of every certificate of the CA: the subject, the CA's name, a key, and the validity."""
    now = datetime.now(UTC)
    owner, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, CA_NAME))
    return (
        x509.CertificateBuilder()
        .subject_name(owner)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **UNUSED),
            critical=True,
        )
    )


def _signed(builder: x509.CertificateBuilder, key: Key) -> bytes:
    return builder.sign(key, SHA384()).public_bytes(form.Encoding.PEM)


def _private(key: Key, *, ssh: bool = False) -> bytes:
    encoding = form.PrivateFormat.OpenSSH if ssh else form.PrivateFormat.PKCS8
    return key.private_bytes(form.Encoding.PEM, encoding, form.NoEncryption())
