"""Store the clients' memory, such as FedRobust's maps and SCAFFOLD's control variates, in files on their node.

Flower's own state would be lost with the Flower run.
"""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from wafl.base.files import tensors_to_bytes, write_whole
from wafl.results.progress import ClientState


def state_folder(node_config: Mapping[str, Any]) -> Path:
    """Return the folder of a node's files: ``state`` in its configuration, $WAFL_STATE, or Flower's folder."""
    named = node_config.get("state") or os.environ.get("WAFL_STATE")
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    return Path(str(named)) if named else home / "wafl"


class Keepsakes:
    """The files of the clients' memory, per run and round; older memory stays until its round is certainly over."""

    def __init__(self, folder: Path, training: str, entry: str) -> None:
        self._folder = folder / sha256(f"{training}\n{entry}".encode()).hexdigest()[:32]

    def before(self, run: int, name: str, round: int) -> ClientState | None:
        """Return the client's memory after its last round before this one."""
        from safetensors.torch import load

        earlier = [number for number in self._rounds(run, name) if number < round]
        return load(self._file(run, name, earlier[-1]).read_bytes()) if earlier else None

    def keep(self, run: int, name: str, round: int, kept: ClientState, saved: int) -> None:
        """Store the memory after the round; remove files that no resume from round ``saved`` or later could need."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._file(run, name, round), tensors_to_bytes(kept))
        rounds = self._rounds(run, name)
        undone = [number for number in rounds if number > round]  # the server has returned to an earlier round
        for number in [*[number for number in rounds if number <= saved][:-1], *undone]:
            self._file(run, name, number).unlink(missing_ok=True)

    def _rounds(self, run: int, name: str) -> list[int]:
        pattern = self._file(run, name, 0).name.replace("-000000000.", "-*.")
        return sorted(int(path.stem.rpartition("-")[2]) for path in self._folder.glob(pattern))

    def _file(self, run: int, name: str, round: int) -> Path:
        client = sha256(name.encode()).hexdigest()[:16]
        return self._folder / f"{run}-{client}-{round:09d}.safetensors"
