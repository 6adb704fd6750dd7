"""A study in the terminal: bars while it trains, then its table and its figure."""

import json
import shlex
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Option

from wafl.base.errors import DivergedError, TrainingWarning
from wafl.base.shown import shown
from wafl.cli.terminal import make_console, program_name, say

if TYPE_CHECKING:
    from rich.progress import Progress as Display

    from wafl.studies.study import Study


SOME_DIVERGED = 3
"""The exit status if some run diverged and the others finished."""


Quiet = Annotated[bool, Option("--quiet", "-q", help="Print nothing but warnings and errors.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object per line: rounds, and then the results.")]
Serve = Annotated[bool, Option("--serve", help="Show the study in a browser while it trains, on this machine.")]


def check_packages(*, serve: bool) -> None:
    """Raise a ValueError if ``--serve`` needs a package that is missing, before a study is written."""
    if serve:
        from wafl.report.page import check_page_packages

        check_page_packages()


def train_and_show(study: "Study", *, quiet: bool = False, as_json: bool = False, serve: bool = False) -> None:
    """Train what is not done yet of a study, and show what it gave; exits if it was interrupted or a run diverged."""
    from wafl.cli.bars import Bars
    from wafl.cli.tables import comparison
    from wafl.studies.pages.figures import draw_figures

    if quiet and as_json:
        raise ValueError("--quiet and --json exclude each other: give one")
    console, path = make_console(quiet=quiet or as_json), study.folder.path
    shown_path = escape(str(path))
    seeds = len(study.plan.experiment.seeds)
    console.print(
        f"{escape(study.plan.who)}\n"
        f"{seeds} seed{'s side by side' if seeds > 1 else ''}; results go to [bold]{shown_path}[/]\n"
    )
    bars = Bars(study, console, "json" if as_json else "quiet" if quiet else "bars")
    kept = f"What was done is in {path}. To resume: wafl resume {shlex.quote(str(path))}"
    with watched(bars.display, TrainingWarning, lambda: kept), _served(path, serve):
        try:
            if study.plan.experiment.engine == "flower-sim":
                from wafl.flower.ops.simulation import simulate

                results = simulate(study, bars.show)
            else:
                results = study.run([bars])
        except Exception as error:
            bars.display.stop()
            if isinstance(error, DivergedError):
                console.print(comparison(study.folder.read_results()))
            console.print(f"\nWhat had finished is in [bold]{shown_path}[/].")
            raise
    if as_json:
        print(json.dumps({"event": "results", "study": str(path), **results}), flush=True)
    console.print(comparison(results))
    figures = ", ".join(map(str, draw_figures(study, results))) or "none: nothing was tested"
    console.print(
        f"\nFigures: {figures}\nNumbers: {path / 'results.json'}\nRuns (first seed): {path}/<method>/\n\n"
        + "\n".join(("Next:", *_next_commands(study, results))),
        markup=False,
        soft_wrap=True,
    )
    exit_if_diverged(results)


def _next_commands(study: "Study", results: Mapping[str, Any]) -> list[str]:
    """Return the commands to try after a study, each with its purpose."""
    experiment, path = study.plan.experiment, study.folder.path
    commands = {f"report {shlex.quote(str(path))}": "the whole study on one page"}
    trained = [
        study.run_folder(entry, study.points(entry)[0])
        for entry in study.plan.entries
        if "diverged" not in results["methods"].get(study.labels(entry)[0], {"diverged": {}})
    ]
    if experiment.engine != "flower" and trained:
        run = shlex.quote(str(trained[0]))
        commands[f"certify {run}"] = "upper bounds on the loss by distance from the data, as a file to check"
        if experiment.data.unseen is not None:
            metric, what = (" --metric error", "error") if results["measure"] == "accuracy" else ("", "loss")
            commands[f"next-client {run}{metric}"] = f"an upper bound on the {what} of the next client"
    program = program_name()
    width = max(map(len, commands))
    return [f"  {program} {command:<{width}}  # {purpose}" for command, purpose in commands.items()]


@contextmanager
def watched(display: "Display", category: type[Warning], kept: Callable[[], str]) -> Generator[None, None, None]:
    """A block of training with its bars, after which warnings come, each once; a signal ends it with what is kept."""
    from wafl.train.checkpoint.signals import Stopped, exit_status, stopped_by_signals

    console = display.console
    with stopped_by_signals(), shown("", wanted=False), display, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", category)
        try:
            yield
        except (KeyboardInterrupt, Stopped) as stop:
            display.stop()
            console.print(f"\nStopped. {kept()}", markup=False, soft_wrap=True)
            raise typer.Exit(exit_status(stop)) from None
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        if console.quiet:
            say(f"Warning: {message}", typer.colors.YELLOW)
        else:
            console.print(f"[yellow]Warning:[/] {escape(message)}")


@contextmanager
def _served(path: Path, wanted: bool) -> Generator[None, None, None]:
    """A block in which a study is also a live page, if that is wanted."""
    if not wanted:
        yield
        return
    from wafl.studies.pages.live import make_server

    with make_server(path) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        say(f"{path} is shown at {server.url} while it trains; afterwards: wafl serve {path.parent}")
        try:
            yield
        finally:
            server.shutdown()


def exit_if_diverged(results: Mapping[str, Any]) -> None:
    """Exit with a status of its own if some run diverged, so that scripts can tell."""
    from wafl.studies.study import diverged

    if diverged(results):
        raise typer.Exit(SOME_DIVERGED)
