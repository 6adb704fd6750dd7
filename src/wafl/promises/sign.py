"""Sign bytes with Ed25519, with keys from ``openssl genpkey -algorithm ed25519`` or ``ssh-keygen``."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wafl.base.extras import require

ALGORITHM = "Ed25519"


def sign(content: bytes, key: str | os.PathLike[str]) -> str:
    """Return the signature in hexadecimal digits; ``key`` is the file of a private key without a password."""
    return read_key(key, private=True).sign(content).hex()


def is_signed_by(content: bytes, signature: str, key: str | os.PathLike[str]) -> bool:
    """Return whether the owner of the public key in this file has signed exactly these bytes."""
    return _verifies(read_key(key, private=False), content, signature)


def is_signed_with(content: bytes, signature: str, digits: str) -> bool:
    """Return whether the owner of a public key, as its 64 hexadecimal digits, has signed exactly these bytes."""
    require("cryptography", extra="sign", what="a signature")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return _verifies(Ed25519PublicKey.from_public_bytes(bytes.fromhex(digits)), content, signature)


def _verifies(public: Any, content: bytes, signature: str) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_digits(file: str | os.PathLike[str], *, private: bool) -> str:
    """Return the public key of a file, or of the private key in it, as 64 hexadecimal digits."""
    key = read_key(file, private=private)
    return _digits(key.public_key() if private else key)


def public_keys(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read public keys by name: from the files in a folder, or from a file, named by their position in it.

    A file has one key per line, as 64 hexadecimal digits or in the format of ``ssh-keygen``, or PEM keys in sequence.
    The same key has the same digits in every format.
    """
    place = Path(path)
    if place.is_dir():
        keys = dict[str, str]()
        for file in sorted(each for each in place.iterdir() if not each.name.startswith(".")):
            name = file.name.removesuffix(".pem").removesuffix(".pub")
            if name in keys:
                raise ValueError(f"{place} has two keys named {name}: keep one")
            keys[name] = public_digits(file, private=False)
        return keys
    try:
        text = place.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{place} cannot be read: pass a file of public keys, one per line, or a folder") from error
    return {f"key {index} of {place}": each for index, each in enumerate(_listed(text, place), start=1)}


PEM = re.compile(r"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----|^[^#\n]+", re.DOTALL | re.MULTILINE)
"""A key in PEM, or a line up to a comment."""


def _listed(text: str, place: Path) -> Iterator[str]:
    for written in filter(None, (each.strip() for each in PEM.findall(text))):
        if re.fullmatch("[0-9a-fA-F]{64}", written):
            yield written.lower()
            continue
        key = _load(written.encode(), private=False)
        if type(key).__name__ != f"{ALGORITHM}PublicKey":
            raise ValueError(f"{place}: {written[:40]!a} is not a public key of {ALGORITHM}")
        yield _digits(key)


def _digits(public: Any) -> str:
    return public.public_bytes_raw().hex()


def read_key(file: str | os.PathLike[str], *, private: bool) -> Any:
    """Read a key in PEM or in the format of OpenSSH; raise a ValueError for any other file."""
    require("cryptography", extra="sign", what="a signature")
    path = Path(file)
    kind = "private" if private else "public"
    make = "genpkey -algorithm ed25519 -out key.pem" if private else "pkey -in key.pem -pubout -out public.pem"
    if not path.is_file():
        raise ValueError(f"{path} is not a file: pass the file of a {kind} key; openssl {make} makes one")
    key = _load(path.read_bytes(), private=private)
    if key is None:
        raise ValueError(f"{path} contains no {kind} key without a password: openssl {make} makes one")
    if type(key).__name__ != f"{ALGORITHM}{kind.capitalize()}Key":
        raise ValueError(f"{path} is not an {ALGORITHM} key: make one with openssl genpkey -algorithm ed25519")
    return key


def _load(data: bytes, *, private: bool) -> Any:
    """Return the key in PEM or in the format of OpenSSH; None if there is none."""
    require("cryptography", extra="sign", what="a signature")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as library

    for form in ("pem", "ssh"):
        try:
            load = getattr(library, f"load_{form}_{'private' if private else 'public'}_key")
            return load(data, *([None] if private else []))
        except (ValueError, TypeError, UnsupportedAlgorithm):
            continue
    return None
