"""Training that survives a crash: its progress on disk, whole or not at all, the last two of them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from wafl.algorithms import State
from wafl.core.errors import CheckpointError
from wafl.core.files import sealed, sync, unsealed
from wafl.core.history import History
from wafl.engine.callbacks import Callback
from wafl.engine.progress import Place, Progress, RunProgress

FORMAT = 2
KEPT = 2
"""Checkpoints on disk: the last, and the one before in case the last is damaged."""


class Checkpoint(Callback):
    """Progress kept in a folder every so many rounds, and when the training is interrupted.

    >>> import tempfile
    >>> Checkpoint(tempfile.mkdtemp(), every=5).read("") is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every={every} must be at least 1: how many rounds lie between two checkpoints")
        self.folder, self.every = Path(folder), every
        self._fingerprint = ""
        self._unsaved: Progress | None = None
        self._rounds = 0
        self._count = 0
        self._damaged: set[Path] = set()

    def read(self, fingerprint: str) -> Progress | None:
        """The last good progress of this very training; None where there is none yet."""
        self._fingerprint = fingerprint
        written = self._written()
        self._count = _number(written[-1]) if written else 0
        faults: list[str] = []
        for folder in reversed(written):
            try:
                return read_progress(folder, fingerprint)
            except CheckpointError as error:
                self._damaged.add(folder)
                faults.append(f"{folder.name}: {error}")
        if faults:
            raise CheckpointError(
                f"{self.folder} holds no usable checkpoint ({'; '.join(faults)}). Nothing was changed: move the folder "
                "away to start anew"
            )
        return None

    def on_progress(self, progress: Progress) -> None:
        """Remember the progress, and every so many rounds write it."""
        self._unsaved = progress.snapshot()
        self._rounds += 1
        if self._rounds % self.every == 0:
            self.write()

    def write(self) -> None:
        """Write what has not been written yet."""
        if self._unsaved is None:
            return
        self._count += 1
        write_progress(self.folder / f"{self._count:09d}", self._unsaved, self._fingerprint)
        self._unsaved = None
        good = [folder for folder in self._written() if folder not in self._damaged]
        for folder in good[:-KEPT]:
            shutil.rmtree(folder)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self.write()
        else:
            with suppress(OSError):  # such as a full disk, which is then what the training stopped for
                self.write()

    def _written(self) -> list[Path]:
        """Whole checkpoints, oldest first; what a crash left half written has another name."""
        return sorted(path for path in self.folder.glob("*") if path.name.isdigit()) if self.folder.is_dir() else []


def write_progress(folder: Path, progress: Progress, fingerprint: str) -> None:
    """A folder with the tensors and a description of them, which holds their checksum and its own."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    runs: dict[str, Any] = {}
    for place, run in progress.runs.items():
        state = run.state
        tensors[f"{place}.params"] = state.params
        tensors[f"{place}.client_weights"] = state.client_weights
        tensors |= {f"{place}.vectors.{name}": value for name, value in state.vectors.items()}
        runs[str(place)] = {
            "round": state.round,
            "scalars": {name: value.hex() for name, value in state.scalars.items()},
            "stopped": run.stopped,
            "history": run.history.to_json(),
        }
    for (run, client), kept in progress.memory.items():
        tensors |= {f"memory.{run}.{client}.{name}": value for name, value in kept.items()}
    content = save({name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()})
    about = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "sha256": sha256(content).hexdigest(),
        "chunk_sizes": {str(group): size for group, size in progress.chunk_sizes.items()},
        "runs": runs,
    }
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, data in (("state.safetensors", content), ("state.json", sealed(about, indent=None))):
        with (partial / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    partial.replace(folder)
    sync(folder.parent)


def read_progress(folder: Path, fingerprint: str) -> Progress:
    """What :func:`write_progress` wrote; raises a CheckpointError if it is damaged or of another training."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        about = unsealed((folder / "state.json").read_bytes())
        if about["format"] > FORMAT:
            raise CheckpointError(f"it has format {about['format']}, this version reads {FORMAT}: update wafl-learn")
        if about["format"] < FORMAT:
            raise CheckpointError(
                f"it has format {about['format']}, from an earlier version; this one reads {FORMAT}: finish the study "
                "with the version that began it, or start again"
            )
        content = (folder / "state.safetensors").read_bytes()
        if sha256(content).hexdigest() != about["sha256"]:
            raise CheckpointError("state.safetensors is damaged: its checksum differs")
        if about["fingerprint"] != fingerprint:
            raise CheckpointError("it is of another training: other methods, schedule, model or clients")
        tensors = load(content)
        runs = {int(place): _run(int(place), row, tensors) for place, row in about["runs"].items()}
    except (OSError, KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"it cannot be read: {error}") from error
    memory: dict[Place, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("memory."):
            _, run, client, part = name.split(".", 3)
            memory.setdefault((int(run), int(client)), {})[part] = value
    return Progress(runs, dict(memory), {int(group): size for group, size in about["chunk_sizes"].items()})


def _run(place: int, row: dict[str, Any], tensors: dict[str, Tensor]) -> RunProgress:
    prefix = f"{place}.vectors."
    scalars = {name: float.fromhex(value) for name, value in row["scalars"].items()}
    state = State(
        row["round"],
        tensors[f"{place}.params"],
        tensors[f"{place}.client_weights"].to(torch.float64),
        scalars,
        {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)},
    )
    return RunProgress(state, History.from_json(row["history"]), row["stopped"])


def _number(folder: Path) -> int:
    return int(folder.name)
