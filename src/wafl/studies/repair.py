"""Repair a damaged study (``wafl repair``), or give a study more rounds (``wafl resume --set``)."""

import re
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from wafl.base.errors import CheckpointError, CheckpointWarning, ConfigError, FolderError, UnfitCheckpointError
from wafl.base.files import remove, write_whole
from wafl.config.experiment import Experiment
from wafl.config.plan import Entry, make_plan
from wafl.config.read import read_experiment
from wafl.objectives.base import learner_of
from wafl.objectives.learned_gamma import LONGEST_WARM_UP
from wafl.results.progress import Progress
from wafl.results.run import Run
from wafl.results.saved import load_run
from wafl.studies.folder import StudyFolder
from wafl.studies.metrics import joined
from wafl.studies.same_study import fingerprint_of, refuse_changes
from wafl.studies.study import Study

ROUNDS = r"schedule\.rounds|methods\.[^.]+\.rounds"
"""The settings of a study that can change."""


def extend(path: Path, changes: Sequence[str]) -> Study:
    """Extend a study by changes such as ``methods.afl.rounds=800``.

    Everything is checked before anything is written.
    """
    folder = StudyFolder.existing(path)
    for change in changes:
        if not re.fullmatch(ROUNDS, change.partition("=")[0].strip()):
            raise ConfigError(
                f"--set {change}: only schedule.rounds, or the rounds of a method, can change in a study that was "
                f"begun. To change anything else, start another: wafl run {folder.config} --set {change}"
            )
    before, after = folder.experiment(), read_experiment(folder.config, changes)
    if before == after:
        return Study.resume(path)
    folder.refuse_older()
    earlier = _rounds(before)
    _check(folder, earlier, _rounds(after))
    study = Study(folder, make_plan(after, folder.source(), trust=False))
    refuse_changes(folder, fingerprint_of(study.plan))
    if not study.plan.extensible:
        nodes = f"engine = {after.engine!r}, whose nodes forget what their clients keep"
        what = nodes if after.privacy is None else "privacy, whose noise was found for its rounds"
        raise ConfigError(
            f"{path} has {what}: for more rounds, start another study with wafl run {folder.config} --set {changes[-1]}"
        )
    for entry in study.plan.entries:
        _check_warm_up(folder, entry, earlier[entry.name])
    with folder.locked():
        _extend_checkpoints(study, earlier)
        folder.extend(study.plan.experiment)
    return study


def _rounds(experiment: Experiment) -> dict[str, int]:
    """Return the rounds of each method: its own, or the schedule's."""
    return {method.label: method.rounds or experiment.schedule.rounds or 0 for method in experiment.methods}


def _check(folder: StudyFolder, before: dict[str, int], after: dict[str, int]) -> None:
    for name, rounds in after.items():
        if rounds < before[name]:
            raise ConfigError(
                f"rounds={rounds} is below the {before[name]} that {name} has in {folder.path}: rounds can be added, "
                f"not taken back. For fewer, start another: wafl run {folder.config} --set schedule.rounds={rounds}"
            )
    if before == after:
        raise ConfigError(
            f"schedule.rounds changes nothing: every method of {folder.path} has its own rounds. Change them, "
            f"such as --set methods.{next(iter(after))}.rounds=..."
        )


def _check_warm_up(folder: StudyFolder, entry: Entry, before: int) -> None:
    """Raise an error if more rounds would have changed the rounds that were trained."""
    learner, after = learner_of(entry.method.objective), entry.schedule["rounds"]
    again = f"Start another study: wafl run {folder.config} --set schedule.rounds={after}"
    if entry.method.client_weights.counts_rounds and before != after:
        raise ConfigError(f"the steps of the client weights of {entry.name} end with its {before} rounds. {again}")
    if learner is None:
        return
    grew, would_grow = learner.warm_up(before), learner.warm_up(after)
    if grew != would_grow:
        raise ConfigError(
            f"the ball of {entry.name} grew over the first {grew} of {before} rounds, and would grow over the first "
            f"{would_grow} of {after}: a ball with a radius takes a third of the rounds, at most {LONGEST_WARM_UP}. "
            f"{again}"
        )


def _extend_checkpoints(study: Study, earlier: dict[str, int]) -> None:
    """Extend checkpoints to more rounds; raise an error if a finished method has none."""
    trainer, seeds = study.plan.trainer(), study.plan.experiment.seeds
    done = study.folder.read_results().get("done", [])
    for entry in study.plan.entries:
        asked = replace(entry, schedule={**entry.schedule, "rounds": earlier[entry.name]})
        before, after = (trainer.fingerprint(each.specs(seeds)) for each in (asked, entry))
        checkpoint = study.checkpoint(entry)
        if not checkpoint.extend(before, after) and entry.name in done:
            raise FolderError(
                f"{study.folder.path} does not contain where {entry.name} ended, {checkpoint.folder}: to train for "
                f"more rounds, start another study with wafl run {study.folder.config} --set schedule.rounds=..."
            )


FILES = ("run.json", "params.safetensors")
Sound = dict[str, list[Run] | None]
"""The runs of each method, or None if one of them is damaged."""


@dataclass
class Repair:
    """The report of a repair: a line for each dropped file, and for each rebuilt file.

    ``untested`` are trained methods with lost scores and with clients on nodes. ``pending`` are methods that must still
    be trained. ``together`` are the pending methods whose intact runs train again with the damaged ones, since no
    checkpoint is left.
    """

    dropped: list[str] = field(default_factory=list[str])
    made: list[str] = field(default_factory=list[str])
    untested: list[str] = field(default_factory=list[str])
    pending: list[str] = field(default_factory=list[str])
    together: list[str] = field(default_factory=list[str])


def repair(study: Study) -> Repair:
    """Repair a study from :meth:`Study.resume`, keeping all intact files, and return the report."""
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
    """Return all runs of a method; None if one is damaged, missing or older than the study's extension."""
    folders = [study.run_folder(entry, point) for point in study.points(entry)]
    saved = [folder for folder in folders if any((folder / name).exists() for name in FILES)]
    sound: dict[Path, Run] = {}
    for folder in saved:
        try:
            sound[folder] = load_run(folder, model=study.plan.model)
        except (OSError, ValueError) as error:
            done.dropped.append(f"{folder}: {error}")
            for name in FILES:
                remove(folder / name)
    missing = [folder for folder in folders if folder not in saved]
    if missing and results is not None and entry.name in results["done"]:
        done.dropped += [f"{folder}: it is missing" for folder in missing]
    if [sound[folder].settings["schedule"] for folder in folders if folder in sound] != study.schedules(entry):
        return None
    return [sound[folder] for folder in folders]


def _write_results(study: Study, results: dict[str, Any] | None, runs: Sound, done: Repair) -> None:
    """Write the rows of methods with intact runs, and recompute missing rows by testing."""
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
    """Return the progress of unfinished methods, from their last good checkpoints."""
    reached: dict[str, Progress] = {}
    for entry in study.plan.entries:
        checkpoint = study.checkpoint(entry)
        if runs[entry.name] is not None or not checkpoint.folder.exists():
            continue
        specs = entry.specs(study.plan.experiment.seeds)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CheckpointWarning)  # the report mentions it below
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
    """Write the rounds of all saved runs, and of the unfinished method up to its checkpoint. More rounds may follow."""
    lines = _lines(study, runs)
    for entry in (entry for entry in study.plan.entries if entry.name in progress):
        lines += study.lines_of(entry, [run.history for _, run in sorted(progress[entry.name].runs.items())])
    path, wanted = study.folder.metrics, joined(lines)
    content = path.read_bytes() if path.is_file() else b""
    finished = all(sound is not None for sound in runs.values())
    if content == wanted or (not finished and content.startswith(wanted)):
        return
    if path.is_dir():
        remove(path)
    write_whole(path, wanted)
    done.made.append(f"{path}: from the saved runs{' and the checkpoint' if progress else ''}")


def _lines(study: Study, runs: Sound) -> list[str]:
    """Return the lines of the metrics of all intact runs."""
    lines: list[str] = []
    for entry in study.plan.entries:
        if sound := runs[entry.name]:
            lines += study.lines_of(entry, [run.history for run in sound])
    return lines
