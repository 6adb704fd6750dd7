"""Define a study's folder: its content, its lock, and its progress.

config.toml      the experiment with every value in force
about.json       package versions, digests of data, model and code, git commit, machine, start time
metrics.jsonl    one line per round and run, appended
checkpoint/      progress of the method in training, and the end of finished ones
results.json     results of the finished methods
<method>/        their runs, as wafl.Run.save writes them
figures/
"""

import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Self

import torch

from wafl.base.conditions import SPLITS
from wafl.base.errors import FolderError
from wafl.base.files import is_locked, lock, not_plain, read_limited, sealed, sync, unsealed, whole_folder, write_whole
from wafl.base.json_types import check_types
from wafl.base.toml import LONGEST
from wafl.config.experiment import Experiment
from wafl.config.read import read_experiment

ABOUT: dict[str, Any] = {
    "format?": int,
    "started?": str,
    "config?": str,
    "source?": str | None,
    "packages?": dict[str, str | None],
    "fingerprint?": dict[str, str],
}

SPREAD: dict[str, Any] = {"mean": float, "std": float, "seeds": list[float]}
UNSEEN: dict[str, Any] = {
    **{split: {**SPREAD, "interval": tuple[float, float], "worst_tenth": SPREAD} for split in SPLITS},
    "out_of_sample_gap": SPREAD,
    "participation_gap": SPREAD,
}
RESULTS: dict[str, Any] = {
    "attack?": str | None,
    "shift?": str,
    "radius?": float,
    "seeds": list[int],
    "measure": str,
    "methods": dict[str, dict[str, Any]],
    "done": list[str],
    "finished": bool,
    "metrics?": str,
}
PRIVACY = ("epsilon", "epsilon_of_all_seeds", "delta", "noise_multiplier", "clip_norm")
ROW: dict[str, Any] = {
    "diverged?": dict[str, str],
    "untested?": list[str],
    "left_out?": {"*": {"rounds": int, "why": str}},
    "chosen?": {"*": {"radius": float, "why": str}},
    "privacy?": dict.fromkeys(PRIVACY, float),
}
TESTED: dict[str, Any] = {
    "clean": SPREAD,
    "attacked": {"*": SPREAD},
    "worst_client": SPREAD,
    "seconds": float,
    "generalization?": UNSEEN,
    "certified?": SPREAD,
    "estimate?": SPREAD,
    "unproven?": str,
}


def check_results(results: Mapping[str, Any]) -> None:
    """Raise ValueError with the first value of a ``results.json`` that is missing or has the wrong type."""
    check_types(results, RESULTS)
    for label, row in results["methods"].items():
        check_types(row, ROW | TESTED if "clean" in row else ROW, f"methods.{label}")


FORMAT = 2
"""The version of the format, raised when the same experiment gives different numbers. Finished older studies can still
be read.
"""
PACKAGES = ("wafl-learn", "torch", "numpy", "scipy", "scikit-learn", "pot", "safetensors", "pydantic")
PATIENCE = 0.5
"""The seconds that a writer waits for processes that only check the lock."""

SOUND = "Runs that are sound load in Python with wafl.load_run"

Status = Literal["finished", "running", "interrupted"]


class StudyFolder:
    """The files of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.about = path / "about.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint"
        self.results = path / "results.json"
        self.figures = path / "figures"
        self._lock = path / ".lock"

    @classmethod
    def create(
        cls,
        path: Path,
        experiment: Experiment,
        source: Path | None = None,
        fingerprint: Mapping[str, str] | None = None,
        *,
        numbered: bool = False,
    ) -> Self:
        """Create a new folder with its description; it must not exist.

        ``source`` is the folder of your own modules, and ``fingerprint`` contains digests of data, model and code. If
        the folder exists and may be ``numbered``, the first free one of folder-2, folder-3, ... is used.
        """
        text = to_toml(experiment).encode()
        modules = None if source is None else str(source.resolve())
        what = {"config": sha256(text).hexdigest(), "source": modules, "fingerprint": dict(fingerprint or {})}
        about = sealed({**provenance(), **what})
        for free in (each for each in (_folders(path) if numbered else [path]) if not each.exists()):
            with suppress(FileExistsError), whole_folder(free) as new:  # another process may have created it first
                write_whole(new / "config.toml", text)
                write_whole(new / "about.json", about)
                return cls(free)
        raise FolderError(f"{path} exists already: choose another --name, or remove it")

    @classmethod
    def existing(cls, path: Path) -> Self:
        """Return the folder of an existing study; raise FolderError if it is damaged or from a newer version."""
        folder = cls(path)
        if (path / "run.json").is_file():
            raise FolderError(f"{path} is a run, not a study: give the folder that it is in, such as {path.parent}")
        refuse_links(path)
        for file in (folder.config, folder.about):
            if not file.is_file():
                raise FolderError(f"{path} is not a study: it has no {file.name}")
        about = folder.read_about()
        if about.get("format", 0) > FORMAT:
            raise FolderError(f"{path} has format {about['format']}, this version reads {FORMAT}: update wafl-learn")
        try:
            config = sha256(read_limited(folder.config, LONGEST)).hexdigest()
        except ValueError as error:
            raise FolderError(f"{folder.config} cannot be read: {error}. {SOUND}. Nothing was changed") from error
        if config not in (about.get("config"), about.get("config_before")):
            raise FolderError(
                f"{folder.config} is not the file that the study was started with, and cannot be made again: put it "
                f"back, or start a new study with wafl run. {SOUND}. Nothing was changed"
            )
        return folder

    @classmethod
    def is_in(cls, path: Path) -> bool:
        """Return whether a folder contains a study, damaged or not."""
        return cls(path).config.is_file() and cls(path).about.is_file()

    def refuse_older(self) -> None:
        """Raise FolderError for a study of an earlier version, whose next runs would draw different cohorts."""
        number = self.read_about().get("format", 0)
        if number < FORMAT:
            raise FolderError(
                f"{self.path} was begun by an earlier version (format {number}, this one writes {FORMAT}), which draws "
                f"other cohorts: finish it with that version, or start again with wafl run {self.config}"
            )

    def experiment(self) -> Experiment:
        """Return the experiment."""
        return read_experiment(self.config)

    def source(self) -> Path | None:
        """Return the folder of the experiment's own modules, if it has one."""
        source = self.read_about().get("source")
        return None if source is None else Path(source)

    def read_about(self) -> dict[str, Any]:
        """Return the content of ``about.json``; raise FolderError if it is damaged."""
        remedy = f"It cannot be made again: put it back, or start a new study with wafl run {self.config}. {SOUND}"
        return _read_json(self.about, lambda about: check_types(about, ABOUT), remedy)

    def read_results(self) -> dict[str, Any]:
        """Return the results of the finished methods; empty if there are none yet."""
        remedy = f"wafl repair {self.path} makes it again from the saved runs"
        return _read_json(self.results, check_results, remedy) if self.results.exists() else {}

    def unfinished(self) -> list[str]:
        """Return the names of the unfinished methods."""
        done = self.read_results().get("done", [])
        return [method.label for method in self.experiment().methods if method.label not in done]

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write ``results.json``."""
        write_whole(self.results, sealed(results))

    def extend(self, experiment: Experiment) -> None:
        """Change a finished or unfinished study to more rounds; after a crash during the change, it can be resumed."""
        about, text, before = self.read_about(), to_toml(experiment).encode(), self.config.read_bytes()
        about["config"] = sha256(text).hexdigest()
        self.results.unlink(missing_ok=True)
        sync(self.path)
        shutil.rmtree(self.figures, ignore_errors=True)
        write_whole(self.about, sealed({**about, "config_before": sha256(before).hexdigest()}))
        write_whole(self.config, text)
        about.pop("config_before", None)
        write_whole(self.about, sealed(about))

    def locked(self) -> AbstractContextManager[None]:
        """Reserve the folder for writes of this process during the block."""
        busy = FolderError(f"{self.path} is in use by another process: wait until it is done, or stop it")
        return lock(self._lock, PATIENCE, busy)

    def status(self) -> Status:
        """Return the state of the study, without writing and without blocking writers."""
        try:
            if self.read_results().get("finished"):
                return "finished"
        except FolderError:
            return "interrupted"
        return "running" if is_locked(self._lock) else "interrupted"


def refuse_links(path: Path) -> None:
    """Raise FolderError for a pipe, a device, or a link, through which an untrusted study could write elsewhere."""
    for each in not_plain(path):
        if each.is_file() and not each.is_symlink():
            raise FolderError(
                f"{each} is a hard link, so that what is written here may appear in a file elsewhere: copy the folder "
                "(cp -r), and use the copy. Nothing was changed"
            )
        if not each.is_symlink():
            raise FolderError(f"{each} is neither a file nor a folder: remove it. Nothing was changed")
        raise FolderError(
            f"{each} is a link, which may lead out of the study: put what it points to in its place, or remove it. "
            "Nothing was changed"
        )


def free_folder(base: Path) -> Path:
    """Return the first of folder, folder-2, folder-3, ... that does not exist, to overwrite nothing."""
    return next(folder for folder in _folders(base) if not folder.exists())


def taken_folders(base: Path) -> list[Path]:
    """Return the existing folders of folder, folder-2, folder-3, ..., before the first missing one."""
    return list(itertools.takewhile(Path.exists, _folders(base)))


def _folders(base: Path) -> Iterator[Path]:
    return (base if count == 1 else base.with_name(f"{base.name}-{count}") for count in range(1, 100_000))


def source_of(experiment: Path) -> Path:
    """Return the folder of an experiment file's own modules: next to it, or for a study's file, the original one."""
    try:
        return StudyFolder(experiment.parent).source() or experiment.parent
    except FolderError:
        return experiment.parent


def provenance() -> dict[str, Any]:
    """Return the facts on which a result depends, in addition to the experiment."""
    return {
        "format": FORMAT,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "git_commit": _git_commit(),
        "machine": {
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def to_toml(experiment: Experiment) -> str:
    """Return the resolved experiment, with every value in force."""
    import tomlkit

    return tomlkit.dumps(experiment.model_dump(exclude_none=True))


@cache
def version_of(name: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the commit of the working directory, marked if files have changed or if this cannot be checked safely.

    The repository may belong to someone else, and its own configuration may name programs that Git runs when it
    compares files. Monitors, hooks, submodules and downloads are switched off. Filters cannot be switched off, so
    nothing is compared if the repository has its own filters.
    """
    try:
        commit = _git("rev-parse", "HEAD")
        if re.search(r"^(local|worktree)\s+filter\.", _git("config", "--show-scope", "--list"), re.MULTILINE):
            return f"{commit}-unknown"
        changed = _git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    """Return what Git prints in the working directory, without running anything that its repository names."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", *words]
    within = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, env=within).stdout.strip()


def _read_json(path: Path, check: Callable[[dict[str, Any]], None], remedy: str) -> dict[str, Any]:
    try:
        content = unsealed(read_limited(path))
        check(content)
        return content
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} is damaged and cannot be read: {error}. {remedy}. Nothing was changed") from error
