"""Write ``nodes.json`` in a study's folder: its nodes, their last contact and bytes, the round, exclusions.

The server writes the file while it works, and ``wafl flower status`` shows it.
"""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafl.base.errors import FolderError
from wafl.base.files import write_whole
from wafl.callbacks import Callback, Moment
from wafl.flower.server.exchange import Account, Post, timestamp
from wafl.studies.attendance import read_nodes

if TYPE_CHECKING:
    from wafl.flower.server.grid import GridClients

FILE = "nodes.json"
OFTEN = 1.0
"""The seconds between two writes."""


class Bulletin(Callback):
    """A callback that periodically writes the nodes' accounts and the progress of training."""

    def __init__(self, folder: Path, post: Post, clients: "GridClients") -> None:
        self._file, self._post, self._clients = folder / FILE, post, clients
        self._known: dict[int, tuple[str, list[str]]] = {}
        self._left_out: dict[str, dict[str, Any]] = {}
        self._run: str | None = None
        self._round: int | None = None
        self._written = -OFTEN

    @contextmanager
    def kept(self) -> Generator[None, None, None]:
        """Update the file during the block, and write the outcome at its end."""
        self._post.on_entry = self._now_and_then
        state = "interrupted"
        try:
            self._write("training")
            yield
            state = "finished"
        except Exception:
            state = "failed"
            raise
        finally:
            self._post.on_entry = lambda: None
            self._write(state)

    def on_round(self, moment: Moment) -> None:
        """Record the round and its exclusions."""
        record, names = moment.record, self._clients.roster.names
        self._run, self._round = moment.name, record.round
        for client, why in dict(record.excluded).items():
            about = self._left_out.setdefault(names[client], {"rounds": 0})
            about.update(rounds=about["rounds"] + 1, last=record.round, why=why)
        self._now_and_then()

    def _now_and_then(self) -> None:
        if time.monotonic() >= self._written + OFTEN:
            self._write("training")

    def _write(self, state: str) -> None:
        present = self._clients.nodes()
        self._known |= present
        content = {
            "updated": timestamp(),
            "state": state,
            "run": self._run,
            "round": self._round,
            "nodes": [self._about(node, node in present) for node in sorted({*self._known, *self._post.accounts})],
            "left_out": dict(sorted(self._left_out.items())),
        }
        self._written = time.monotonic()
        with suppress(OSError):  # a full disk is not a reason to end training
            write_whole(self._file, json.dumps(content, indent=1).encode())

    def _about(self, node: int, present: bool) -> dict[str, Any]:
        name, clients = self._known.get(node, ("", []))
        account = vars(self._post.accounts.get(node, Account()))
        # As text, because the numbers have 64 bits, and JavaScript's numbers have 53.
        return {"id": str(node), "name": name, "clients": clients, "present": present, **account}


def read_status(folder: Path) -> dict[str, Any]:
    """Read the server's last report about the nodes of the study in this folder."""
    status = read_nodes(folder / FILE)
    if not status:
        raise FolderError(f"{folder} has no {FILE}: only a study with clients on Flower's nodes has one")
    return status
