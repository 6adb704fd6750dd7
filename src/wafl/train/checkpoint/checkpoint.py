"""Save the progress of training to disk, completely or not at all, together with the previous checkpoint.

    rounds.journal          every round of every run, appended
    memory-<n>.journal      the clients' memory, appended as it changes; rewritten when most of it is outdated
    <n>/state.safetensors   parameters, client weights and vectors of checkpoint n
    <n>/state.json          the rest, and the valid length of the journals

A checkpoint therefore costs the same after 100,000 rounds as after one, whatever the number of clients outside the
cohorts.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from wafl.base.errors import CheckpointError, CheckpointWarning, UnfitCheckpointError, warn_user
from wafl.base.files import (
    lock,
    read_limited,
    read_tensors,
    remove_temporary,
    sealed,
    tensors_to_bytes,
    unsealed,
    whole_folder,
    write_whole,
)
from wafl.base.fingerprint import changed
from wafl.base.json_types import parsed
from wafl.callbacks import Callback
from wafl.parts.messages import State
from wafl.results.history import History, Record
from wafl.results.progress import ChosenRadius, ClientState, LaneKey, Progress, RunProgress
from wafl.train.checkpoint.journal import Journal
from wafl.train.checkpoint.signals import Signals

FORMAT = 6
"""The version of the format, raised when the content or the random draws change. A resumed run must use the same
cohorts as before.
"""
KEPT = 2
"""The number of checkpoints on disk: the last, and the previous one in case the last is damaged."""


@dataclass
class _Unsaved(Progress):
    """Progress that later rounds do not change, with only the rounds that the journal does not contain yet."""

    records: list[tuple[int, Record]] = field(default_factory=list[tuple[int, Record]])


class Checkpoint(Callback):
    """A folder with the progress of training, from which the same call to :func:`wafl.fit` resumes.

    Args:
        folder: the folder to write to; each call needs its own folder.
        every: the number of rounds between two checkpoints; an interrupted call always writes one.
        seconds: write a checkpoint earlier if this much time has passed since the last one.

    >>> import tempfile
    >>> Checkpoint(tempfile.mkdtemp(), every=5).read({}) is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 1, seconds: float | None = None) -> None:
        if every < 1:
            raise ValueError(f"every={every} must be at least 1: it is how many rounds pass between two checkpoints")
        if seconds is not None and not seconds > 0.0:
            raise ValueError(f"seconds={seconds} must be above 0: it is how long to wait between two checkpoints")
        self.folder, self.every, self.seconds = Path(folder), every, seconds
        self._lock = ExitStack()
        self._signals = Signals()
        self._reset({})

    def _reset(self, fingerprint: Mapping[str, str]) -> None:
        self._fingerprint = dict(fingerprint)
        self._unsaved: _Unsaved | None = None
        self._rounds, self._written_at = 0, time.monotonic()
        self._count = 0
        self.damaged: dict[Path, str] = {}
        """The checkpoints that :meth:`read` could not use, with the reasons."""
        self._journal = Journal(self.folder / "rounds.journal")
        self._lengths: dict[int, int] = {}
        self._memory = _Memory(self.folder)

    def read(self, fingerprint: Mapping[str, str]) -> Progress | None:
        """Return the last good progress with this fingerprint, or None if there is none yet."""
        self._reset(fingerprint)
        written = self._written()
        self._count = int(written[-1].name) if written else 0
        kind = CheckpointError
        for folder in reversed(written):
            try:
                progress, about = read_progress(folder, fingerprint)
            except CheckpointError as error:
                self.damaged[folder] = str(error)
                kind = UnfitCheckpointError if isinstance(error, UnfitCheckpointError) else kind
                continue
            for skipped, reason in self.damaged.items():
                warn_user(
                    f"{skipped} is left out: {reason}. Training goes on from the checkpoint before it, and trains the "
                    "rounds since then again",
                    CheckpointWarning,
                )
            self._journal.size = about["journal"]
            self._lengths = {index: len(run.history) for index, run in progress.runs.items()}
            self._memory.resume(about["memory"], progress.memory)
            return progress
        if self.damaged:
            faults = "; ".join(f"{folder.name}: {reason}" for folder, reason in self.damaged.items())
            raise kind(
                f"{self.folder} holds no usable checkpoint ({faults}). Nothing was changed: move the folder "
                "away to start from scratch"
            )
        return None

    def extend(self, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
        """Prepare the same training with more rounds (``after``) to resume; return whether there is a checkpoint."""
        if self.read(before) is None:
            return False
        for folder in self._written():
            file = folder / "state.json"
            with suppress(OSError, ValueError):  # damaged: there is a better one
                about = unsealed(read_limited(file))
                write_whole(file, sealed({**about, "extended": [*about.get("extended", ()), dict(after)]}, indent=None))
        return True

    def keep_last(self) -> None:
        """Remove all files that are not needed to continue a finished run with more rounds."""
        for folder in self._written():
            if folder in self.damaged:
                shutil.rmtree(folder)
        self._keep(1)

    def _keep(self, count: int) -> None:
        """Remove all but the last good checkpoints."""
        good = [folder for folder in self._written() if folder not in self.damaged]
        for folder in good[:-count]:
            shutil.rmtree(folder)
        self._memory.forget(good[-count:])

    def on_progress(self, progress: Progress) -> None:
        """Store the progress, and write it if a checkpoint is due."""
        self._signals.go_on()
        with self._signals.held():
            self._remember(progress)
        late = self.seconds is not None and time.monotonic() - self._written_at >= self.seconds
        if late or self._rounds % self.every == 0:
            self.write()

    def _remember(self, progress: Progress) -> None:
        records = [] if self._unsaved is None else self._unsaved.records
        runs: dict[int, RunProgress] = {}
        for index, run in progress.runs.items():
            known = self._lengths.get(index, 0)
            records += [(index, record) for record in run.history[known:]]
            self._lengths[index] = len(run.history)
            runs[index] = RunProgress(run.state, History((), run.history.diverged), run.stopped)
        kept = dict(progress.memory), dict(progress.chunk_sizes), dict(progress.chosen)
        self._unsaved = _Unsaved(runs, *kept, records)
        self._rounds += 1

    def write(self) -> None:
        """Write all unsaved progress; a signal during this time waits until it is on disk."""
        with self._signals.held():
            if self._unsaved is not None:
                self._write(self._unsaved)

    def _write(self, unsaved: _Unsaved) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._count += 1
        folder = self.folder / f"{self._count:09d}"
        rows = ({"run": index, **vars(record)} for index, record in unsaved.records)
        self._journal.append(json.dumps(row).encode() for row in rows)
        unsaved.records = []
        memory = self._memory.write(unsaved.memory, self._count)
        lengths = {str(index): self._lengths[index] for index in unsaved.runs}
        about = {"journal": self._journal.size, "lengths": lengths, "memory": memory, "fingerprint": self._fingerprint}
        sizes = {str(group): size for group, size in unsaved.chunk_sizes.items()}
        chosen = {str(index): asdict(radius) for index, radius in unsaved.chosen.items()}
        write_state(folder, unsaved.runs, {**about, "chunk_sizes": sizes, **({"chosen": chosen} if chosen else {})})
        self._unsaved = None
        self._written_at = time.monotonic()
        self._keep(KEPT)

    def __enter__(self) -> Self:
        """Lock the folder against other writers; the lock ends with the process, even after a crash.

        Until then, SIGTERM and SIGHUP save the progress and end the process, and a second Ctrl-C waits for the first.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        busy = f"{self.folder} is in use by another process that trains: pass a different folder, or stop that process"
        self._lock.enter_context(lock(self.folder / ".lock", 0, CheckpointError(busy)))
        remove_temporary(self.folder)
        self._signals.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            # A full disk may be why training stopped.
            with nullcontext() if kind is None else suppress(OSError):
                self.write()
        finally:
            self._lock.close()
            self._signals.__exit__()

    def _written(self) -> list[Path]:
        """Return complete checkpoints, oldest first; incomplete ones have a different name."""
        return sorted(path for path in self.folder.glob("*") if path.name.isdigit()) if self.folder.is_dir() else []


class _Memory:
    """The clients' memory, in a journal of changes; a new journal is started when most of it is outdated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal: Journal | None = None
        self._written: dict[LaneKey, ClientState] = {}

    def resume(self, about: Mapping[str, Any] | None, memory: Mapping[LaneKey, ClientState]) -> None:
        """Continue the journal of a checkpoint."""
        self._journal = None if about is None else Journal(self._folder / about["file"], about["size"])
        self._written = dict(memory)

    def write(self, memory: Mapping[LaneKey, ClientState], count: int) -> dict[str, Any] | None:
        """Append the changes since the last checkpoint; return the file and its valid length."""
        if not memory:
            return None
        changed = {keeper: kept for keeper, kept in memory.items() if self._written.get(keeper) is not kept}
        size = sum(value.nbytes for kept in memory.values() for value in kept.values())
        journal = self._journal
        if journal is None or journal.size > 2 * size:
            journal, changed = Journal(self._folder / f"memory-{count:09d}.journal"), memory
        if changed:
            rows = changed.items()
            named = {f"{run}.{client}.{name}": value for (run, client), kept in rows for name, value in kept.items()}
            journal.append([tensors_to_bytes(named)])
        self._journal, self._written = journal, dict(memory)
        return {"file": journal.path.name, "size": journal.size}

    def forget(self, kept: list[Path]) -> None:
        """Remove the journals that none of the kept checkpoints needs."""
        needed = {self._journal.path.name} if self._journal is not None else set[str]()
        for folder in kept:
            with suppress(OSError, ValueError):
                about = unsealed(read_limited(folder / "state.json"))["memory"]
                needed |= {about["file"]} if about else set()
        for file in self._folder.glob("memory-*.journal"):
            if file.name not in needed:
                file.unlink()


def write_state(folder: Path, runs: Mapping[int, RunProgress], about: Mapping[str, Any]) -> None:
    """Write a folder with the tensors and a description, which contains the checksums of both."""
    tensors: dict[str, Tensor] = {}
    rows: dict[str, Any] = {}
    for index, run in runs.items():
        state = run.state
        tensors[f"{index}.params"] = state.params
        tensors[f"{index}.client_weights"] = state.client_weights
        tensors |= {f"{index}.vectors.{name}": value for name, value in state.vectors.items()}
        rows[str(index)] = {
            "round": state.round,
            "scalars": {name: value.hex() for name, value in state.scalars.items()},
            "stopped": run.stopped,
            "diverged": run.history.diverged,
        }
    content = tensors_to_bytes(tensors)
    sealing = {"format": FORMAT, "sha256": sha256(content).hexdigest(), "runs": rows, **about}
    with whole_folder(folder) as new:
        write_whole(new / "state.safetensors", content)
        write_whole(new / "state.json", sealed(sealing, indent=None))


def read_progress(folder: Path, fingerprint: Mapping[str, str] | None = None) -> tuple[Progress, dict[str, Any]]:
    """Return a checkpoint's progress and description.

    Raises CheckpointError if it is damaged or belongs to a different run.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        about = unsealed(read_limited(folder / "state.json"))
        if (written := about["format"]) != FORMAT:
            later = f"this version reads {FORMAT}: update wafl-learn"
            earlier = (
                f"from an earlier version; this one reads {FORMAT}: finish the study with the version that began it"
            )
            why = later if written > FORMAT else f"{earlier}, or start again"
            raise UnfitCheckpointError(f"it has format {written}, {why}")
        content = read_tensors(folder / "state.safetensors")
        if sha256(content).hexdigest() != about["sha256"]:
            raise CheckpointError("state.safetensors is damaged: its checksum differs")
        known = [about["fingerprint"], *about.get("extended", ())]
        if fingerprint is not None and all(changed(each, fingerprint) for each in known):
            changes = changed(known[-1], fingerprint)
            raise UnfitCheckpointError(f"it belongs to a different run, with different {', '.join(changes)}")
        tensors = load(content)
        histories = _histories(folder.parent, about)
        runs = {int(index): _run(int(index), row, tensors, histories) for index, row in about["runs"].items()}
        memory: dict[LaneKey, dict[str, Tensor]] = {}
        for entry in _memory_journal(folder.parent, about["memory"]).read():
            for name, value in load(entry).items():
                run, client, part = name.split(".", 2)
                memory.setdefault((int(run), int(client)), {})[part] = value
        sizes = {int(group): size for group, size in about["chunk_sizes"].items()}
        chosen = {int(index): ChosenRadius(**row) for index, row in about.get("chosen", {}).items()}
    except (OSError, KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"it cannot be read: {error}") from error
    return Progress(runs, dict(memory), sizes, chosen), about


def _memory_journal(folder: Path, about: Mapping[str, Any] | None) -> Journal:
    if about is None:
        return Journal(folder)
    if Path(about["file"]).name != about["file"]:
        raise ValueError(f"{about['file']!r} is not a file of its folder")
    return Journal(folder / about["file"], about["size"])


def _histories(folder: Path, about: Mapping[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """Return the rounds of each run; raise an error if their number is wrong."""
    histories: dict[int, list[dict[str, Any]]] = {int(index): [] for index in about["lengths"]}
    for entry in Journal(folder / "rounds.journal", about["journal"]).read():
        row = parsed(entry)
        histories[row.pop("run")].append(row)
    if {str(index): len(rows) for index, rows in histories.items()} != about["lengths"]:
        raise ValueError("rounds.journal does not contain the rounds of this checkpoint")
    return histories


def _run(
    index: int, row: dict[str, Any], tensors: dict[str, Tensor], histories: Mapping[int, list[dict[str, Any]]]
) -> RunProgress:
    prefix = f"{index}.vectors."
    scalars = {name: float.fromhex(value) for name, value in row["scalars"].items()}
    state = State(
        row["round"],
        tensors[f"{index}.params"],
        tensors[f"{index}.client_weights"].to(torch.float64),
        scalars,
        {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)},
    )
    history = History.from_json(histories[index])
    history.diverged = row["diverged"]
    return RunProgress(state, history, row["stopped"])
