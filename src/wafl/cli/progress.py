"""A study in the terminal: bars while it trains, then its table and its figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from wafl.cli.bars import Bars
    from wafl.runs.study import Study


SOME_DIVERGED = 3
"""The exit status if some run diverged and the others finished."""


def train_and_show(study: Study) -> None:
    """Train what is not done yet, with bars, and show what it gave; exits if it was interrupted or a run diverged."""
    import shlex
    import warnings

    from rich.markup import escape

    from wafl.cli.bars import Bars
    from wafl.cli.tables import comparison
    from wafl.cli.terminal import make_console
    from wafl.core.errors import DivergedError, TrainingWarning
    from wafl.core.signals import Stopped, exit_status, stopped_by_signals
    from wafl.runs.figures import draw_figures

    console, path = make_console(), study.folder.path
    shown = escape(str(path))
    seeds = len(study.plan.experiment.seeds)
    console.print(
        f"{escape(study.plan.who)}\n"
        f"{seeds} seed{'s side by side' if seeds > 1 else ''}; results go to [bold]{shown}[/]\n"
    )
    bars = Bars(study, console)
    with stopped_by_signals(), bars.display as display, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", TrainingWarning)
        try:
            results = _run(study, bars)
        except (KeyboardInterrupt, Stopped) as stop:
            display.stop()
            command = f"wafl resume {shlex.quote(str(path))}"
            console.print(
                f"\nStopped. What had finished is in {path}. To resume: {command}", markup=False, soft_wrap=True
            )
            raise typer.Exit(exit_status(stop)) from None
        except BaseException as error:
            display.stop()
            if isinstance(error, DivergedError):
                console.print(comparison(study.folder.read_results()))
            console.print(f"\nWhat had finished is in [bold]{shown}[/].")
            raise
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        console.print(f"[yellow]Warning:[/] {escape(message)}")
    console.print(comparison(results))
    figures = ", ".join(map(str, draw_figures(study, results))) or "none: nothing was tested"
    console.print(
        f"\nFigures: {figures}\nNumbers: {path / 'results.json'}\nRuns (first seed): {path}/<method>/", markup=False
    )
    exit_if_diverged(results)


def exit_if_diverged(results: Mapping[str, Any]) -> None:
    """Let scripts tell a study whose runs all finished from one in which some diverged."""
    from wafl.runs.study import diverged

    if diverged(results):
        raise typer.Exit(SOME_DIVERGED)


def _run(study: Study, bars: Bars) -> dict[str, Any]:
    if study.plan.experiment.engine != "flower-sim":
        return study.run([bars])
    from wafl.flower.ops.simulation import simulate

    return simulate(study, bars.show)
