"""Training that survives a crash: its progress on disk, written completely or not at all, and the one before it."""

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

FORMAT = 3
"""Raised with what is kept, and with what is drawn: a training must not go on with other cohorts than it began with."""
KEPT = 2
"""How many checkpoints stay on disk: the last, and the one before in case the last is damaged."""


class Checkpoint(Callback):
    """Keeps the progress of a training in a folder, from which the same call to :func:`wafl.fit` resumes.

    Args:
        folder: where to write; one folder per training.
        every: how many rounds pass between two checkpoints; an interrupted training always writes one.

    >>> import tempfile
    >>> Checkpoint(tempfile.mkdtemp(), every=5).read("") is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every={every} must be at least 1: it is how many rounds pass between two checkpoints")
        self.folder, self.every = Path(folder), every
        self._fingerprint = ""
        self._unsaved: Progress | None = None
        self._rounds = 0
        self._count = 0
        self._damaged: set[Path] = set()

    def read(self, fingerprint: str) -> Progress | None:
        """The last good progress of the training with this fingerprint; None if there is none yet."""
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
                "away to start from scratch"
            )
        return None

    def on_progress(self, progress: Progress) -> None:
        """Remember the progress, and write it every :attr:`every` rounds."""
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
            with suppress(OSError):  # such as a full disk, which may be why the training stopped
                self.write()

    def _written(self) -> list[Path]:
        """Complete checkpoints, oldest first; one that a crash left half written has another name."""
        return sorted(path for path in self.folder.glob("*") if path.name.isdigit()) if self.folder.is_dir() else []


def write_progress(folder: Path, progress: Progress, fingerprint: str) -> None:
    """Write a folder with the tensors and a description, which holds their checksum and its own."""
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
    """Read what :func:`write_progress` wrote; a CheckpointError if it is damaged or belongs to another training."""
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
            raise CheckpointError("it belongs to another training, with other methods, schedule, model or clients")
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
