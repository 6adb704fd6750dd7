"""A study on its way: bars while it trains, then its table and its figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from wafl.runs.study import OnRound, Study


def train_and_show(study: Study) -> None:
    import shlex
    import warnings

    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from wafl.cli.tables import comparison
    from wafl.core.errors import ConcavityWarning
    from wafl.plotting import measure_against_attacked

    console, path = Console(), study.folder.path
    shown = escape(str(path))
    seeds = len(study.plan.experiment.seeds)
    console.print(
        f"{study.plan.who}\n{seeds} seed{'s side by side' if seeds > 1 else ''}; results go to [bold]{shown}[/]\n"
    )
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", ConcavityWarning)
        bars = {
            entry.name: progress.add_task(
                entry.method.name if _is_plain(entry) else entry.name, total=None, start=False
            )
            for entry in study.plan.entries
        }

        def advance(name: str, done: int, total: int) -> None:
            if not progress.tasks[bars[name]].started:
                progress.start_task(bars[name])
            progress.update(bars[name], completed=done, total=total)

        try:
            results = _run(study, advance)
        except KeyboardInterrupt:
            progress.stop()
            go_on = f"wafl resume {shlex.quote(str(path))}"
            console.print(f"\nStopped. What had finished is in {path}. To go on: {go_on}", markup=False, soft_wrap=True)
            raise typer.Exit(130) from None
        except BaseException:
            progress.stop()
            console.print(f"\nWhat had finished is in [bold]{shown}[/].")
            raise
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        console.print(f"[yellow]Warning:[/] {message}")
    console.print(comparison(results))
    study.folder.figures.mkdir(exist_ok=True)
    figure = measure_against_attacked(results, study.folder.figures / "accuracy.png")
    console.print(
        f"\nFigure: {figure}\nNumbers: {path / 'results.json'}\nRuns (first seed): {path}/<method>/", markup=False
    )


def _run(study: Study, advance: OnRound) -> dict[str, Any]:
    if study.plan.experiment.engine != "flower-sim":
        return study.run(advance)
    from wafl.flower.ops.simulation import simulate

    return simulate(study, advance)


def _is_plain(entry: Any) -> bool:
    return entry.name == entry.method.name.lower()
