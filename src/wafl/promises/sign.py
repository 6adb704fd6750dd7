"""Signatures of bytes: Ed25519, with keys as ``openssl genpkey -algorithm ed25519`` or ``ssh-keygen`` writes them."""

import os
from pathlib import Path
from typing import Any

from wafl.base.extras import require

ALGORITHM = "Ed25519"


def sign(content: bytes, key: str | os.PathLike[str]) -> str:
    """The signature in hexadecimal digits; ``key`` is the file of a private key without a password."""
    return read_key(key, private=True).sign(content).hex()


def is_signed_by(content: bytes, signature: str, key: str | os.PathLike[str]) -> bool:
    """Whether the owner of the public key in this file has signed exactly these bytes."""
    public = read_key(key, private=False)
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_key(file: str | os.PathLike[str], *, private: bool) -> Any:
    """Read a key in PEM or in the format of OpenSSH; raise a ValueError for any other file."""
    require("cryptography", extra="sign", what="a signature")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as library

    path = Path(file)
    kind = "private" if private else "public"
    make = "genpkey -algorithm ed25519 -out key.pem" if private else "pkey -in key.pem -pubout -out public.pem"
    if not path.is_file():
        raise ValueError(f"{path} is not a file: give the file of a {kind} key; openssl {make} makes one")
    data = path.read_bytes()
    for form in ("pem", "ssh"):
        try:
            key = getattr(library, f"load_{form}_{kind}_key")(data, *([None] if private else []))
        except (ValueError, TypeError, UnsupportedAlgorithm):
            continue
        if type(key).__name__ == f"{ALGORITHM}{kind.capitalize()}Key":
            return key
        raise ValueError(f"{path} is not an {ALGORITHM} key: make one with openssl genpkey -algorithm ed25519")
    raise ValueError(f"{path} holds no {kind} key without a password: openssl {make} makes one")
