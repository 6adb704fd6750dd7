"""Count the spent privacy in the process that lives as long as a node, for the processes of single messages.

A process that handles one message does not know about earlier messages, so it would trust files restored from a backup.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from logging import ERROR
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from threading import Thread

from wafl.flower.node.ledger import Ledger
from wafl.flower.node.limits import PATIENCE
from wafl.flower.wire.logs import log
from wafl.flower.wire.values import WireError
from wafl.train.privacy.records import RecordPrivacy

KEEPER = "WAFL_KEEPER"
"""A variable in the node's environment: the socket of the counting process."""
LONGEST = 2**20
"""The maximum number of bytes of a question and of its answer, each one line."""


class KeptLedger(Ledger):
    """A ledger that another process keeps."""

    def __init__(self, folder: Path, path: str) -> None:
        super().__init__(folder)
        self._path = path

    def spend(self, steps: Mapping[str, int], privacy: RecordPrivacy) -> None:
        """Count steps in the other process; raise WireError if a client has too little privacy left."""
        with socket(AF_UNIX, SOCK_STREAM) as keeper, keeper.makefile("rb") as said:
            keeper.connect(self._path)
            keeper.sendall(json.dumps(dict(steps)).encode() + b"\n")
            answer = json.loads(said.readline(LONGEST))
        if answer["refused"]:
            raise WireError(answer["refused"])
        if not answer["counted"]:
            raise RuntimeError("the spent privacy is not known: the log of the node's own process contains the reason")


def ledger_in(folder: Path) -> Ledger:
    """Return the ledger in a node's state folder; the node's own process keeps it, if it runs."""
    path = os.environ.get(KEEPER)
    return KeptLedger(folder, path) if path else Ledger(folder)


def keep(ledger: Ledger, privacy: RecordPrivacy, path: Path) -> None:
    """Count in this process, for others that find the socket at a path; only this user can reach its folder."""
    listener = socket(AF_UNIX, SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    Thread(target=_serve, args=(listener, ledger, privacy), daemon=True).start()
    os.environ[KEEPER] = str(path)


def _serve(listener: socket, ledger: Ledger, privacy: RecordPrivacy) -> None:
    while True:
        asking, _ = listener.accept()
        with suppress(OSError), asking, asking.makefile("rb") as said:  # a process may end while it asks
            asking.settimeout(PATIENCE)
            asking.sendall(json.dumps(_answer(said.readline(LONGEST), ledger, privacy)).encode() + b"\n")


def _answer(question: bytes, ledger: Ledger, privacy: RecordPrivacy) -> dict[str, str | bool]:
    try:
        ledger.spend({str(name): int(count) for name, count in json.loads(question).items()}, privacy)
    except WireError as error:
        return {"counted": False, "refused": str(error)}
    except Exception as error:
        log(ERROR, "the privacy that the node has spent is not known: %s", error)
        return {"counted": False, "refused": ""}
    return {"counted": True, "refused": ""}
