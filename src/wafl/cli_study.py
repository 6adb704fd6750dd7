"""``wafl run``, ``wafl resume`` and ``wafl runs``: experiments, from a file or the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wafl.cli_runs import one_line_errors, parse_norm

if TYPE_CHECKING:
    from wafl.runs.config import Experiment
    from wafl.runs.study import OnRound, Study

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="With a file: change a value of it, such as schedule.rounds=50."),
]


def run(
    context: typer.Context,
    experiment: Annotated[
        Path | None, typer.Argument(help="An experiment file. Without one: all seven methods on digits.")
    ] = None,
    changes: Changes = None,
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
    engine: Annotated[
        str | None, typer.Option(help="embedded, or flower-sim: clients on simulated Flower nodes.")
    ] = None,
) -> None:
    """Train methods, and see who holds up when clients' data shift.

    With an experiment file: what it describes (`wafl config init` writes one). Without: WAFL and its rivals on
    handwritten digits, which come with scikit-learn; each client knows a few labels only, and the trained models are
    tested while a growing share of the clients is attacked. A run that is interrupted goes on with `wafl resume`.
    """
    from wafl.runs.demo import demo_experiment
    from wafl.runs.folder import source_of
    from wafl.runs.read import read_experiment
    from wafl.runs.study import Study

    with one_line_errors():
        if experiment is not None:
            _refuse_options(context)
            described = read_experiment(experiment, [*(changes or []), *([f"engine={engine}"] if engine else [])])
        else:
            if changes:
                raise ValueError("--set changes an experiment file: give one, `wafl config init` writes it")
            options = {"gamma": gamma, "radius": radius, "norm": None if norm is None else parse_norm(norm)}
            described = demo_experiment(
                methods=method or [],
                options={key: value for key, value in options.items() if value is not None},
                learning_rate=learning_rate,
                rounds=rounds,
                cohort=cohort,
                local_epochs=local_epochs,
                batch_size=batch_size,
                model=model,
                clients=clients,
                labels_per_client=labels_per_client,
                epsilon=epsilon,
                seeds=range(seed, seed + seeds),
                device=device,
                engine=engine or "embedded",
            )
        folder = _new_folder(output, name, described)
        study = Study.create(described, folder, None if experiment is None else source_of(experiment))
        _train_and_show(study)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was interrupted.")],
) -> None:
    """Go on with a run where it was interrupted, to the same numbers as if it had not been."""
    from rich.console import Console

    from wafl.runs.study import Study

    with one_line_errors():
        study = Study.resume(folder)
        if study.folder.status() == "finished":
            study.run()  # trains nothing, and makes whole again what was damaged of the metrics
            Console().print(f"{folder} is finished already: there is nothing to train.")
            return
        _train_and_show(study)


def runs(output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where runs are.")] = Path("runs")) -> None:
    """List runs: how far each has come, and what it found."""
    from rich.console import Console

    from wafl.report.tables import run_folders
    from wafl.runs.folder import RunFolder

    with one_line_errors():
        if not output.is_dir():
            raise FileNotFoundError(f"{output} is not a folder: wafl run makes one")
        found = [RunFolder(path.parent) for path in sorted(output.glob("*/config.toml"))]
        Console().print(run_folders(found) if found else f"{output} holds no runs yet: wafl run makes one.")


def _train_and_show(study: Study) -> None:
    import shlex
    import warnings

    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from wafl.errors import ConcavityWarning
    from wafl.report.figures import measure_against_attacked
    from wafl.report.tables import comparison

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
    from wafl.flower.simulation import simulate

    return simulate(study, advance)


def _is_plain(entry: Any) -> bool:
    return entry.name == entry.method.name.lower()


def _refuse_options(context: typer.Context) -> None:
    """With a file, what it describes is changed by --set alone."""
    allowed = {"experiment", "changes", "name", "output", "engine"}
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in allowed}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        option = "--" + given[0].replace("_", "-")
        raise ValueError(f"{option} does not go with an experiment file: change the file, or use --set KEY=VALUE")


def _new_folder(output: Path, name: str | None, experiment: Experiment) -> Path:
    """A folder that does not exist yet, so that nothing already saved is lost."""
    if name is not None:
        folder = output / name
        if folder.exists():
            raise ValueError(f"{folder} exists already: choose another --name, or remove it")
        return folder
    from wafl.runs.folder import free_folder

    return free_folder(output / experiment.name)
