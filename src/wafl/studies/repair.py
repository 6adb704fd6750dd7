"""``wafl repair``: keep what is sound of a damaged study, make again what follows from it, and drop the rest."""

import shutil
import warnings
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from wafl.base.errors import CheckpointError, CheckpointWarning, FolderError, UnfitCheckpointError
from wafl.base.files import write_whole
from wafl.config.plan import Entry
from wafl.results.progress import Progress
from wafl.results.run import Run
from wafl.results.saved import load_run
from wafl.studies.metrics import joined
from wafl.studies.study import Study

FILES = ("run.json", "params.safetensors")
Sound = dict[str, list[Run] | None]
"""The runs of each method; None if one of them is not sound."""


@dataclass
class Repair:
    """What was done to a study: a line for each file that was dropped, and for each that was made again.

    ``untested`` are methods that are trained, but whose scores are lost and whose clients are on nodes; ``pending`` are
    those still to be trained, and ``together`` those of them whose sound runs are trained again with the damaged ones,
    as no checkpoint is left.
    """

    dropped: list[str] = field(default_factory=list[str])
    made: list[str] = field(default_factory=list[str])
    untested: list[str] = field(default_factory=list[str])
    pending: list[str] = field(default_factory=list[str])
    together: list[str] = field(default_factory=list[str])


def repair(study: Study) -> Repair:
    """Keep what is sound of a study that :meth:`Study.resume` took up, unchanged; returns what was done to it."""
    done = Repair()
    with study.folder.locked():
        results = _read_results(study, done)
        runs = {entry.name: _sound_runs(study, entry, results, done) for entry in study.plan.entries}
        _write_results(study, results, runs, done)
        progress = _read_progress(study, runs, done)
        _write_metrics(study, runs, progress, done)
    pending = [entry for entry in study.plan.entries if runs[entry.name] is None]
    done.pending = [entry.name for entry in pending]
    for entry in (entry for entry in pending if entry.name not in progress):
        if any((study.run_folder(entry, point) / "run.json").exists() for point in study.points(entry)):
            done.together.append(entry.name)
    return done


def _read_results(study: Study, done: Repair) -> dict[str, Any] | None:
    try:
        return study.folder.read_results() or study.blank()
    except FolderError as error:
        done.dropped.append(f"{study.folder.results}: {error.__cause__ or error}")
        return None


def _sound_runs(study: Study, entry: Entry, results: dict[str, Any] | None, done: Repair) -> list[Run] | None:
    """All runs of a method; None if one of them is damaged, missing or from before the study was given more rounds."""
    folders = [study.run_folder(entry, point) for point in study.points(entry)]
    saved = [folder for folder in folders if any((folder / name).exists() for name in FILES)]
    sound: dict[Path, Run] = {}
    for folder in saved:
        try:
            sound[folder] = load_run(folder, model=study.plan.model)
        except (OSError, ValueError) as error:
            done.dropped.append(f"{folder}: {error}")
            for name in FILES:
                _remove(folder / name)
    missing = [folder for folder in folders if folder not in saved]
    if missing and results is not None and entry.name in results["done"]:
        done.dropped += [f"{folder}: it is missing" for folder in missing]
    if [sound[folder].settings["schedule"] for folder in folders if folder in sound] != study.schedules(entry):
        return None
    return [sound[folder] for folder in folders]


def _write_results(study: Study, results: dict[str, Any] | None, runs: Sound, done: Repair) -> None:
    """Keep the rows of methods whose runs are sound, and make missing rows again by testing."""
    old, new = results or study.blank(), study.blank()
    for entry in study.plan.entries:
        sound = runs[entry.name]
        if sound is None:
            continue
        if entry.name not in old["done"] and study.plan.federation is None:
            done.untested.append(entry.name)
            continue
        new["done"].append(entry.name)
        if entry.name in old["done"]:
            new["methods"] |= {label: old["methods"][label] for label in study.labels(entry) if label in old["methods"]}
        else:
            new["methods"] |= study.rows_of(entry, sound)
            done.made.append(f"{study.folder.results}: {entry.name}, by testing its saved runs")
    if len(new["done"]) == len(runs):
        new |= {"finished": True, "metrics": sha256(joined(_lines(study, runs))).hexdigest()}
    if results is None or new["done"] != old["done"] or new["finished"] != old["finished"]:
        study.write_results(new)


def _read_progress(study: Study, runs: Sound, done: Repair) -> dict[str, Progress]:
    """The progress of methods that are not done, from their last good checkpoints."""
    reached: dict[str, Progress] = {}
    for entry in study.plan.entries:
        checkpoint = study.checkpoint(entry)
        if runs[entry.name] is not None or not checkpoint.folder.exists():
            continue
        specs = entry.specs(study.plan.experiment.seeds)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CheckpointWarning)  # it is said below
                progress = checkpoint.read(study.plan.trainer().fingerprint(specs))
        except UnfitCheckpointError:
            raise
        except CheckpointError:
            progress = None
        done.dropped += [f"{folder}: {reason}" for folder, reason in checkpoint.damaged.items()]
        for folder in checkpoint.damaged if progress is not None else [checkpoint.folder]:
            shutil.rmtree(folder)
        if progress is not None:
            reached[entry.name] = progress
    return reached


def _write_metrics(study: Study, runs: Sound, progress: dict[str, Progress], done: Repair) -> None:
    """Write the rounds of all saved runs, and of the method in training those of its checkpoint; more may follow."""
    lines = _lines(study, runs)
    for entry in (entry for entry in study.plan.entries if entry.name in progress):
        lines += study.lines_of(entry, [run.history for _, run in sorted(progress[entry.name].runs.items())])
    path, wanted = study.folder.metrics, joined(lines)
    content = path.read_bytes() if path.is_file() else b""
    finished = all(sound is not None for sound in runs.values())
    if content == wanted or (not finished and content.startswith(wanted)):
        return
    if path.is_dir():
        shutil.rmtree(path)
    write_whole(path, wanted)
    done.made.append(f"{path}: from the saved runs{' and the checkpoint' if progress else ''}")


def _lines(study: Study, runs: Sound) -> list[str]:
    """Return the lines of the metrics of all sound runs."""
    lines: list[str] = []
    for entry in study.plan.entries:
        if sound := runs[entry.name]:
            lines += study.lines_of(entry, [run.history for run in sound])
    return lines


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
