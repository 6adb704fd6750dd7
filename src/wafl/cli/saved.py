"""Load saved runs and their data for commands, and report unfinished, diverged or changed ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wafl.base.errors import FolderError
from wafl.base.files import check_place
from wafl.cli.terminal import say

if TYPE_CHECKING:
    from wafl.config.plan import Plan
    from wafl.data.federation import Federation
    from wafl.results.run import Run
    from wafl.studies.folder import StudyFolder


def check_signing(key: Path | None, *, private: bool) -> None:
    """Read the key of a signature, if there is one, before any work."""
    if key is not None:
        from wafl.promises.sign import read_key

        read_key(key, private=private)


def prepare_output(file: Path, *, page: bool = False) -> None:
    """Create the folder of a file, and check its name, before any work."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    check_place(file, page=page)


def load_runs(folder: Path) -> dict[str, Run]:
    """Load the run of a folder, or the first run of each method of a study that did not diverge, by name."""
    return {name: run for runs in load_seeds(folder, at_most=1).values() for name, run in runs.items()}


def only_run(folder: Path) -> tuple[str, Run]:
    """Return the only run in a folder, with its name; raise an error if there are several."""
    folders = [] if (folder / "run.json").exists() else _run_folders(folder)
    if len(folders) > 1:
        study = _study_of(folder)
        labels = [] if study is None else [method.label for method in study.experiment().methods]
        example = next((folder / label for label in labels if folder / label in folders), folders[0])
        raise ValueError(f"{folder} is a study with several runs: pass one of them, such as {example}")
    return next(iter(load_runs(folder).items()))


def load_seeds(folder: Path, at_most: int | None = None) -> dict[str, dict[str, Run]]:
    """Load the runs that did not diverge, of a study or of one method, by method and then by folder.

    ``at_most`` limits the runs of each method. Diverged runs are named on stderr.
    """
    _refuse_links(folder)
    single, plan = (folder / "run.json").exists(), cache(lambda: _plan_of(folder))
    if single and (at_most == 1 or not _run_folders(folder, "seed-*")):
        run = _load_run(folder, plan)
        if run.diverged:
            raise ValueError(f"{folder} diverged: {run.diverged}")
        return {folder.name: {folder.name: run}}
    methods = [folder] if single else _run_folders(folder)
    if not single:
        _say_what_is_unfinished(folder)
    if not methods:
        raise FileNotFoundError(f"{folder} contains no run: there is no run.json in it or one folder below")
    sound: dict[str, dict[str, Run]] = {}
    for method in methods:
        for path in (method, *_run_folders(method, "seed-*")):
            runs = sound.get(method.name, {})
            if at_most is not None and len(runs) >= at_most:
                break
            run = _load_run(path, plan)
            if run.diverged:
                say(f"Left out: {path} diverged: {run.diverged}", typer.colors.YELLOW)
            else:
                sound[method.name] = {**runs, str(path.relative_to(method.parent)): run}
    if not sound:
        raise ValueError(f"every run in {folder} diverged: lower the learning rate, or raise gamma")
    return sound


def check_study(folder: Path) -> None:
    """Raise FolderError, before anything is loaded, for a folder without a study."""
    if not any((folder / name).is_file() for name in ("config.toml", "run.json")):
        raise FolderError(f"{folder} is not a study: it has no config.toml")


def _refuse_links(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: pass a study, such as runs/digits, or one of its runs")
    from wafl.studies.folder import refuse_links

    refuse_links(folder)


def _run_folders(folder: Path, names: str = "*") -> list[Path]:
    """Return the folders of runs in a folder; a method's other seeds, ``seed-*``, are in its first seed's folder."""
    return sorted((path.parent for path in folder.glob(f"{names}/run.json")), key=by_number)


def by_number(path: Path) -> list[str | float]:
    """Return a key that sorts names by their numbers: gamma=2 before gamma=10."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", path.name)  # text and numbers in turn
    return [float(part) if index % 2 else part for index, part in enumerate(parts)]


def seen_and_unseen(runs: dict[str, Run], folder: Path, data_dir: Path | None) -> tuple[Federation, Federation | None]:
    """Return the federation that the runs were trained on, and the held-out clients, if any."""
    from wafl.base.json_types import check_types
    from wafl.config.unseen import shifted
    from wafl.data import load_dataset
    from wafl.studies.same_study import data_fingerprint, refuse_changes, warn_of_versions

    study = _study_of(folder)
    if study is not None:
        warn_of_versions(study)
    recipes = {name: run.settings.get("data") for name, run in runs.items()}
    first = next(iter(recipes.values()))
    if any(recipe != first for recipe in recipes.values()):
        raise ValueError("these runs were trained on different data: pass them one by one")
    if first is None:
        plan = _plan_of(folder)
        if plan is None or plan.federation is None:
            raise ValueError("these runs do not record how to load their data: use wafl from Python with your data")
        return plan.federation, plan.unseen
    check_types(first, {"dataset": str, "partition": dict[str, Any], "held_out?": list[tuple[float, int, str]]}, "data")
    options = dict(first["partition"])
    if "sizes" in options:
        options["sizes"] = tuple(options["sizes"])
    try:
        clients, others = load_dataset(first["dataset"], data_dir).partition(**options), None
    except TypeError as error:
        raise ValueError(f"{folder} is damaged: its data cannot be made again: {error}") from error
    for share, seed, side in first.get("held_out", []):
        seen, unseen = clients.hold_out(share, seed=seed)
        clients, others = (seen, unseen) if side == "seen" else (unseen, None)
    if study is not None:
        others = others and shifted(others, study.experiment().data)
        refuse_changes(study, data_fingerprint(clients, others))
    return clients, others


def _load_run(path: Path, plan: Callable[[], Plan | None]) -> Run:
    """Load a saved run; the plan of its study is needed only if you wrote the model."""
    from wafl.results.saved import has_own_model, load_run

    made = plan() if has_own_model(path) else None
    try:
        return load_run(path) if made is None else load_run(path, model=made.model)
    except ValueError as error:
        study = _study_of(path)
        if study is None:
            raise
        raise ValueError(
            f"{error}. wafl repair {study.path} keeps what is sound, and wafl resume trains the rest again"
        ) from error


def _say_what_is_unfinished(folder: Path) -> None:
    """Print the methods of a study that are missing or incomplete in its table."""
    study = _study_of(folder)
    names = [] if study is None else study.unfinished()
    if names:
        verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
        note = f"Note: {', '.join(names)} {verb} not finished: wafl resume {folder} trains {them}"
        say(note, typer.colors.YELLOW)


def _plan_of(folder: Path) -> Plan | None:
    from wafl.studies.study import Study

    study = _study_of(folder)
    return None if study is None else Study.resume(study.path).plan


def _study_of(folder: Path) -> StudyFolder | None:
    """Return the study of a run: in its folder, or up to two folders above."""
    from wafl.studies.folder import StudyFolder

    folders = (folder, folder.resolve().parent, folder.resolve().parent.parent)
    return next((StudyFolder.existing(path) for path in folders if StudyFolder.is_in(path)), None)
