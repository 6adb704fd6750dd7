"""Certificates as files: keys, forgeries and the status of each line."""

import json
from hashlib import sha256

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import wafl
from tests.oracles import objective as oracles
from wafl.promises.promise import to_bytes


def write_keys(folder, name="issuer"):
    """A private and a public key, as openssl writes them."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def forge(file, change):
    """Change a certificate and seal it again, as anyone without the key can."""
    content = json.loads(file.read_bytes())
    content.pop("checksum")
    signature = content.pop("signature", None)
    change(content)
    content["checksum"] = sha256(to_bytes(content)).hexdigest()
    file.write_bytes(to_bytes(content if signature is None else {**content, "signature": signature}))


def status(result):
    return {line.name: line.status for line in (*result.lines, *result.clients.values())}


def a_bounded_case():
    rng = np.random.default_rng(0)
    pairs = [(rng.uniform(size=(20, 2)), np.arange(20) % 2) for _ in range(2)]
    return oracles.linear_model(rng.normal(size=(2, 2)), rng.normal(size=2)), wafl.Federation.from_arrays(
        pairs, bounds=(0.0, 1.0)
    )


def publish(model, clients, *, points=None, **options):
    """What a file states about a model on clients."""
    return wafl.certify(model, clients, achieved=False, **options).publish(points=points)


def publish_next_client(model, seen, unseen, *, share=0.9, own_sampling=True, **options):
    """What a file states about the next client."""
    return wafl.next_client(model, seen, unseen, **options).publish(share=share, own_sampling=own_sampling)
