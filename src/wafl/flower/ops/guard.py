"""A SuperNode that runs no app but those that its operator has allowed by their digests.

The check is made in the SuperNode's own process, before an app's code is unpacked. Flower refuses an app without a
signature of a trusted entity; here the only trusted entity is a key that this process makes for itself, and it signs an
app if its digest is allowed. So if anything about this goes wrong, no app runs.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from logging import ERROR, WARNING, getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.cli.build import build_fab_from_disk
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from wafl.flower.ops.deployment import check_digest

log = getLogger("flwr").log
ENTITY = "fpk_operator"
CODE = re.compile(r"\w:[^\W\d]")
"""``module:function`` in a value of the run config: any installed function could be called by it."""


def bundle(app: Path) -> bytes:
    """The app in a folder as ``flwr run`` sends it."""
    if not (app / "pyproject.toml").is_file():
        raise FileNotFoundError(f"{app} holds no pyproject.toml: give the folder of an app, as for flwr run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        return build_fab_from_disk(app)


def app_digest(app: Path) -> str:
    """The digest of the app in a folder, by which a node's operator allows it."""
    return sha256(bundle(app)).hexdigest()


def run_node(arguments: Sequence[str], allowed: Sequence[str]) -> None:
    """Run ``flower-supernode`` with these arguments in this process, and no apps but those with ``allowed`` digests.

    If there are no such digests, all apps may run.
    """
    guard = Guard(allowed)
    if not guard.allowed:
        log(WARNING, "This node runs any app that the SuperLink sends: --allow-app limits it to some.")
        _supernode(arguments, FleetHttpClient)
        return
    if any(argument.partition("=")[0] == "--trusted-entities" for argument in arguments):
        raise ValueError("--allow-app and --trusted-entities exclude each other: give one of them")
    with TemporaryDirectory(prefix="wafl-node-") as folder:
        entities = Path(folder) / "entities.yaml"
        entities.write_text(json.dumps(guard.entities()))
        _supernode([*arguments, "--trusted-entities", str(entities)], guard.client())


def _supernode(arguments: Sequence[str], client: type[FleetHttpClient]) -> None:
    connection: Any = fleet_http_connection
    before = sys.argv, connection.FleetHttpClient
    try:
        sys.argv, connection.FleetHttpClient = ["flower-supernode", *arguments], client
        flower_supernode()
    finally:
        sys.argv, connection.FleetHttpClient = before


class Guard:
    """What signs the apps that are allowed, for this process only."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = frozenset(map(check_digest, allowed))
        self._key = Ed25519PrivateKey.generate()
        self._refused: dict[int, str] = {}

    def entities(self) -> dict[str, str]:
        """Those whom Flower is to trust, by name, with their public keys: this guard."""
        public = self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return {ENTITY: public.decode()}

    def look_at(self, run: GetRunResponse) -> GetRunResponse:
        """The same run, which is remembered if its run config names code that is not the app's own choice."""
        for key, value in run.run.override_config.items():
            if CODE.search(value.string):
                self._refused[run.run.run_id] = f"{key}={value.string!r} names code: write it into the app instead"
        return run

    def sign(self, run_id: int, found: GetFabResponse) -> GetFabResponse:
        """The app, signed if it may run; signatures that came with it do not count."""
        digest = sha256(found.fab.content).hexdigest()
        found.fab.verifications.clear()
        why = self._refused.get(run_id) or (None if digest in self.allowed else "its digest is not allowed here")
        if why is not None:
            log(ERROR, "Flower run %d does not run here: app %s, %s", run_id, digest, why)
        else:
            at = int(now().timestamp())
            signature = self._key.sign(create_message_to_sign(bytes.fromhex(digest), at))
            found.fab.verifications[ENTITY] = json.dumps(
                {"signed_at": at, "signature": urlsafe_b64encode(signature).decode()}
            )
        found.fab.verifications["valid_license"] = "of the operator"
        return found

    def client(self) -> type[FleetHttpClient]:
        """The class of Flower's connection to the SuperLink, with this guard at its side."""
        guard = self

        class Guarded(FleetHttpClient):
            def GetRun(self, request: GetRunRequest) -> GetRunResponse:
                return guard.look_at(super().GetRun(request))

            def GetFab(self, request: GetFabRequest) -> GetFabResponse:
                return guard.sign(request.run_id, super().GetFab(request))

        return Guarded
