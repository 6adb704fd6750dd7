"""What commands share: errors in one line, saved runs and their data, numbers on the command line."""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from wafl.base.describe import visible
from wafl.base.errors import DivergedError, FolderError, TooFewRepliesError, UnboundedError
from wafl.cli.terminal import say

if TYPE_CHECKING:
    from wafl.config.plan import Plan
    from wafl.data.federation import Federation
    from wafl.results.run import Run
    from wafl.studies.folder import StudyFolder


@contextmanager
def one_line_errors() -> Generator[None, None, None]:
    """A block that reports bad input, or training that cannot go on, in one line, and exits with status 2."""
    try:
        yield
    except (ValueError, OSError, DivergedError, UnboundedError, TooFewRepliesError) as error:
        say(f"Error: {error}", typer.colors.RED)
        raise typer.Exit(2) from error
    except MemoryError as error:
        say("Error: this needs more memory than there is: are the files what they should be?", typer.colors.RED)
        raise typer.Exit(2) from error


Changes = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE")]
StudyOrRun = Annotated[Path, Argument(metavar="STUDY|RUN")]
OneStudy = Annotated[Path, Argument(metavar="STUDY")]
PublicKey = Annotated[Path | None, Option("--key")]
Trust = Annotated[bool, Option("--trust")]


@contextmanager
def reading(trust: bool) -> Generator[None, None, None]:
    """A block with errors and warnings in one line; code that a study names runs only with ``trust``, or if allowed."""
    from wafl.config.own_code import asking

    def allow(what: str) -> bool:
        return trust or (on_a_terminal() and typer.confirm(visible(f"{what}. Run it"), err=True))

    with one_line_errors(), asking(allow), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"Warning: {message}", typer.colors.YELLOW)
        yield


def check_signing(key: Path | None, *, private: bool) -> None:
    """Read the key of a signature, if there is one, before any work that a wrong key would waste."""
    if key is not None:
        from wafl.promises.sign import read_key

        read_key(key, private=private)


def on_a_terminal() -> bool:
    return sys.stdin.isatty()


def load_runs(folder: Path) -> dict[str, Run]:
    """The runs that a folder is or holds, by name: of a study, the first run of each method that did not diverge."""
    _refuse_links(folder)
    if (folder / "run.json").exists():
        return {folder.name: _sound_run(folder)}
    return {name: run for runs in _sound(folder, at_most=1).values() for name, run in runs.items()}


def only_run(folder: Path) -> tuple[str, Run]:
    """The one run that a folder is or holds, with its name; of several, none is loaded."""
    folders = [] if (folder / "run.json").exists() else _run_folders(folder)
    if len(folders) > 1:
        raise ValueError(f"{folder} is a study of several runs: give one, such as {folders[0]}")
    return next(iter(load_runs(folder).items()))


def load_seeds(folder: Path) -> dict[str, dict[str, Run]]:
    """All runs that did not diverge, of a study or of one method, by method and then by folder."""
    _refuse_links(folder)
    if (folder / "run.json").exists() and not _run_folders(folder, "seed-*"):
        return {folder.name: {folder.name: _sound_run(folder)}}
    return _sound(folder)


def check_study(folder: Path) -> None:
    """Refuse, before anything is loaded, a folder in which no study was begun."""
    if not any((folder / name).is_file() for name in ("config.toml", "run.json")):
        raise FolderError(f"{folder} is not a study: it has no config.toml")


def _refuse_links(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: give a study, such as runs/digits, or one of its runs")
    from wafl.studies.folder import refuse_links

    refuse_links(folder)


def _sound(folder: Path, at_most: int | None = None) -> dict[str, dict[str, Run]]:
    """The runs of each method that did not diverge, ``at_most`` so many; the others are named on stderr."""
    single = (folder / "run.json").exists()
    methods = [folder] if single else _run_folders(folder)
    if not single:
        _say_what_is_unfinished(folder)
    if not methods:
        raise FileNotFoundError(f"{folder} holds no run: there is no run.json in it or one folder below")
    plan = cache(lambda: _plan_of(folder))
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


def _run_folders(folder: Path, names: str = "*") -> list[Path]:
    """The folders of the runs in a folder; those of a method's other seeds, ``seed-*``, are in that of its first."""
    return sorted((path.parent for path in folder.glob(f"{names}/run.json")), key=by_number)


def by_number(path: Path) -> list[str | float]:
    """The key that sorts names with numbers in them by the numbers: gamma=2 before gamma=10."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", path.name)  # text and numbers in turn
    return [float(part) if index % 2 else part for index, part in enumerate(parts)]


def seen_and_unseen(runs: dict[str, Run], folder: Path, data_dir: Path | None) -> tuple[Federation, Federation | None]:
    """The federation that runs were trained on, and the clients that were held out of it, if any."""
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
        raise ValueError("these runs were trained on different data: give them one by one")
    if first is None:
        plan = _plan_of(folder)
        if plan is None or plan.federation is None:
            raise ValueError("these runs do not say how to make their data again: use wafl from Python with yours")
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


def _sound_run(folder: Path) -> Run:
    run = _load_run(folder, lambda: _plan_of(folder))
    if run.diverged:
        raise ValueError(f"{folder} diverged: {run.diverged}")
    return run


def _load_run(path: Path, plan: Callable[[], Plan | None]) -> Run:
    """A saved run; the plan of its study is made only if the model is your own."""
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
    """Say which methods of a study are not in its table yet, or not to the end."""
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
    """The study that a run belongs to: in its folder, or up to two folders above."""
    from wafl.studies.folder import StudyFolder

    folders = (folder, folder.resolve().parent, folder.resolve().parent.parent)
    return next((StudyFolder.existing(path) for path in folders if StudyFolder.is_in(path)), None)


def parse_numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name}={text!r} must be numbers with commas between them, such as 0.2,0.4") from None


def parse_norm(text: str) -> float:
    from wafl.cli.method_options import parse_choice

    return parse_choice("norm", text, (1, 2, math.inf))
