"""The command ``wafl``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wafl.cli_data import data_app
from wafl.cli_evaluate import evaluate
from wafl.cli_runs import parse_norm
from wafl.cli_theory import theory

app = typer.Typer(
    help="Wasserstein-robust federated learning: one model from many clients that holds up when their data shift.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.command()(evaluate)
app.command()(theory)


def _version(wanted: bool) -> None:
    if wanted:
        from wafl import __version__

        typer.echo(f"wafl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Wasserstein-robust federated learning."""


@app.command()
def run(
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="Train this method alone; repeat for several. Default: all seven."),
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="WAFL: the price of transport.")] = None,
    radius: Annotated[float | None, typer.Option(help="WAFL: the ball's radius, instead of gamma.")] = None,
    norm: Annotated[str | None, typer.Option(help="WAFL: the ground norm, 1, 2 or inf.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 100,
    cohort: Annotated[int, typer.Option(min=1, help="Clients asked in a round.")] = 10,
    local_epochs: Annotated[int, typer.Option(min=1, help="Passes of a client over its data in a round.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    learning_rate: Annotated[float | None, typer.Option(help="Default: each method's own.")] = None,
    model: Annotated[str, typer.Option(help="mlr or cnn.")] = "mlr",
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 20,
    labels_per_client: Annotated[int, typer.Option(min=1, help="Labels each client knows.")] = 3,
    epsilon: Annotated[float, typer.Option(min=0.0, help="Size of the test attack, in pixels of [0, 1].")] = 0.15,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, trained side by side.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="The first seed, and that of the partition.")] = 0,
    name: Annotated[str | None, typer.Option(help="Folder of the results below --output. Default: a new one.")] = None,
    output: Annotated[Path, typer.Option(help="Where results go.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Train WAFL and its rivals on handwritten digits, and see who holds up when clients' data shift.

    The digits come with scikit-learn; nothing is downloaded. Each client knows a few labels only. The trained models
    are tested on held-out data of all clients while a growing share of the clients is attacked.
    """
    from wafl import PGD, DivergedError, UnboundedError, load_dataset, models, study

    try:
        changes: dict[str, Any] = {"local_epochs": local_epochs, "batch_size": batch_size}
        entries = study.demo_entries(rounds=rounds, cohort=min(cohort, clients), **changes)
        options = {"gamma": gamma, "radius": radius, "norm": None if norm is None else parse_norm(norm)}
        options = {key: value for key, value in options.items() if value is not None}
        chosen = [study.with_method(entries, each) for each in method] if method else entries
        chosen = [_adjust(entry, options, learning_rate, bool(method)) for entry in chosen]
        federation = load_dataset("digits").partition(clients, labels_per_client=labels_per_client, seed=seed)
        builders = {"mlr": models.mlr, "cnn": models.cnn}
        if model not in builders:
            raise ValueError(f"unknown model {model!r}: use one of {', '.join(builders)}")
        attack = PGD(epsilon=epsilon, step_size=0.01, steps=40, bounds=(0.0, 1.0))
        folder = _new_folder(output, name)
        _train_and_show(
            builders[model](federation), federation, chosen, attack, range(seed, seed + seeds), folder, device
        )
    except (ValueError, OSError, DivergedError, UnboundedError) as error:
        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(2) from error


def _train_and_show(
    model: Any, federation: Any, entries: list[Any], attack: Any, seeds: range, folder: Path, device: str
) -> None:
    import warnings

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from wafl.errors import ConcavityWarning
    from wafl.report.figures import accuracy_against_attacked
    from wafl.report.tables import comparison
    from wafl.study import run_study

    console = Console()
    console.print(f"{federation}\n{len(seeds)} seeds side by side; results go to [bold]{folder}[/]\n")
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", ConcavityWarning)
        totals = [entry.schedule["rounds"] * len(seeds) for entry in entries]
        bars = [
            progress.add_task(entry.method.name, total=total, start=False)
            for entry, total in zip(entries, totals, strict=True)
        ]

        def advance(place: int, done: int) -> None:
            if done == 1:
                progress.start_task(bars[place])
            progress.update(bars[place], completed=done)

        try:
            outcomes = run_study(
                model, federation, entries, attack, seeds=seeds, folder=folder, device=device, on_round=advance
            )
        except KeyboardInterrupt:
            progress.stop()
            console.print(f"\nStopped. What had finished is in [bold]{folder}[/].")
            raise typer.Exit(130) from None
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        console.print(f"[yellow]Warning:[/] {message}")
    words = attack.describe(federation.unit)
    console.print(comparison(outcomes, words, len(seeds)))
    figure = accuracy_against_attacked(outcomes, words, folder / "accuracy.png")
    console.print(f"\nFigure: {figure}\nNumbers: {folder / 'results.json'}\nRuns (first seed): {folder}/<method>/")


def _adjust(entry: Any, options: dict[str, Any], learning_rate: float | None, named: bool) -> Any:
    """What the command line says, applied where it belongs; a method asked for by name must have the option."""
    from dataclasses import replace

    from wafl.study import with_options

    if named or entry.method.name == "WAFL":
        entry = with_options(entry, **options)
    return (
        entry if learning_rate is None else replace(entry, schedule={**entry.schedule, "learning_rate": learning_rate})
    )


def _new_folder(output: Path, name: str | None) -> Path:
    """A folder that does not exist yet, so that nothing already saved is lost."""
    if name is not None:
        folder = output / name
        if folder.exists():
            raise ValueError(f"{folder} exists already: choose another --name, or remove it")
    else:
        folders = (output / ("digits" if count == 1 else f"digits-{count}") for count in range(1, 100_000))
        folder = next(folder for folder in folders if not folder.exists())
    return folder


if __name__ == "__main__":
    app()
