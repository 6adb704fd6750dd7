"""More rounds for a study, finished or not: to the same bits as if it had asked for so many from the start."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wafl.base.errors import ConfigError, FolderError
from wafl.config.experiment import Experiment
from wafl.config.plan import Entry, make_plan
from wafl.config.read import read_experiment
from wafl.objectives.ball.learned_gamma import LONGEST_WARM_UP
from wafl.objectives.base import learner_of
from wafl.studies.folder import StudyFolder
from wafl.studies.same_study import fingerprint_of, refuse_changes
from wafl.studies.study import Study

ROUNDS = r"schedule\.rounds|methods\.[^.]+\.rounds"
"""What of a study can change."""


def extend(path: Path, changes: Sequence[str]) -> Study:
    """A study with as many rounds as changes such as ``methods.afl.rounds=800`` say; all is checked before a write."""
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
    """The rounds of each method: its own, or those of the schedule."""
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
            f"schedule.rounds changes nothing: every method of {folder.path} has rounds of its own. Change those, "
            f"such as --set methods.{next(iter(after))}.rounds=..."
        )


def _check_warm_up(folder: StudyFolder, entry: Entry, before: int) -> None:
    """Refuse rounds that would have changed those that were trained."""
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
    """Let what was trained go on with more rounds; an error if a finished method has not kept where it ended."""
    trainer, seeds = study.plan.trainer(), study.plan.experiment.seeds
    done = study.folder.read_results().get("done", [])
    for entry in study.plan.entries:
        asked = replace(entry, schedule={**entry.schedule, "rounds": earlier[entry.name]})
        before, after = (trainer.fingerprint(each.specs(seeds)) for each in (asked, entry))
        checkpoint = study.checkpoint(entry)
        if not checkpoint.extend(before, after) and entry.name in done:
            raise FolderError(
                f"{study.folder.path} does not hold where {entry.name} ended, {checkpoint.folder}: to train for more "
                f"rounds, start another study with wafl run {study.folder.config} --set schedule.rounds=..."
            )
