"""Implement commands that train (``wafl run``, ``resume``, ``tune``), with bars, warnings and a final table."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from wafl.base.errors import DivergedError, TrainingWarning
from wafl.base.shown import shown
from wafl.cli.method_options import method_options, read_options, with_method_options
from wafl.cli.saved import check_study
from wafl.cli.terminal import Changes, OneStudy, Trust, make_console, one_line_errors, program_name, reading, say, tell
from wafl.config.toml_file import read_toml
from wafl.report.page import check_page_packages

if TYPE_CHECKING:
    from rich.console import Console

    from wafl.config.experiment import Experiment
    from wafl.studies.study import Study
    from wafl.studies.tune import TunedExperiment
    from wafl.tuning.judging import Tuning

SOME_DIVERGED = 3
"""The exit status if some run diverged and the others finished."""

Quiet = Annotated[bool, Option("--quiet", "-q", help="Print nothing but warnings and errors.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object per line: rounds, and then the results.")]
Serve = Annotated[bool, Option("--serve", help="Show the study in a browser while it trains, on this machine.")]


@with_method_options
def run(
    context: typer.Context,
    experiment: Annotated[Path | None, Argument()] = None,
    changes: Changes = None,
    method: Annotated[list[str] | None, Option("--method", "-m")] = None,
    rounds: Annotated[int, Option(min=1)] = 150,
    cohort: Annotated[int | None, Option(min=1)] = None,
    local_epochs: Annotated[int | None, Option(min=1)] = None,
    batch_size: Annotated[int, Option(min=1)] = 32,
    learning_rate: float = 1.0,
    model: str = "mlr",
    clients: Annotated[int, Option(min=1)] = 40,
    labels_per_client: Annotated[int, Option(min=1)] = 3,
    epsilon: Annotated[float, Option(min=0.0)] = 0.15,
    seeds: Annotated[int, Option(min=1)] = 3,
    seed: Annotated[int, Option(min=0)] = 0,
    name: str | None = None,
    output: Path = Path("runs"),
    device: str = "cpu",
    engine: str | None = None,
    quiet: Quiet = False,
    as_json: Json = False,
    serve: Serve = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train methods, and compare them on clean data, on attacked clients, and on clients held out of training.

    With an experiment file, this trains what the file describes (`wafl config init` writes a starter). Without one, it
    trains WAFL and its rivals on handwritten digits, which come with scikit-learn: each client has only a few labels.
    The trained models are tested on clean data, with 40% and with all of the clients attacked, and on clients held out
    of training. Their accuracy within a small ball (any small change of the test data's distribution) is certified. If
    it is interrupted, continue with `wafl resume`.

    The exit status is 0 if every run finished, 3 if some run diverged and the others finished, 2 after an error (also
    if every run diverged), and 130 after Ctrl-C. After SIGTERM and SIGHUP it is 143 and 129.
    """
    from wafl.config.demo import demo_experiment

    with one_line_errors():
        if serve:  # before a study is written
            check_page_packages()
        if experiment is not None:
            if experiment.suffix != ".toml" and not experiment.exists():
                raise ValueError(
                    f"{experiment} is not an experiment file: to train a method, pass --method {experiment}"
                )
            _refuse_options(context)
            read_toml(experiment)  # rejects a file that is not an experiment without loading torch
            from wafl.config.read import read_experiment

            described = read_experiment(experiment, [*(changes or []), *([f"engine={engine}"] if engine else [])])
        else:
            if changes:
                raise ValueError("--set changes an experiment file: give one (`wafl config init` writes a starter)")
            described = demo_experiment(
                methods=method or [],
                options=read_options(options, method_options()),
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
        from wafl.studies.folder import source_of
        from wafl.studies.study import Study

        folder = output / (name or described.name)
        if name is not None and folder.exists():  # so that nothing that was saved is lost
            hint = f"continue it with wafl resume {folder}, " if _was_left(folder) else ""
            raise ValueError(f"{folder} exists already: {hint}choose another --name, or remove it")
        source = None if experiment is None else source_of(experiment)
        study = Study.create(described, folder, source, numbered=name is None)
        if name is None:
            _offer_resume(folder, study.folder.path, study.plan.experiment)
        train_and_show(study, quiet=quiet, as_json=as_json, serve=serve)


def _refuse_options(context: typer.Context) -> None:
    """Raise ValueError for options next to an experiment file, which only --set may change."""
    allowed = {"experiment", "changes", "name", "output", "engine", "quiet", "as_json", "serve"}
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in allowed}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        option = "--" + given[0].replace("_", "-")
        raise ValueError(f"{option} cannot be used with an experiment file: change the file, or use --set KEY=VALUE")


def _offer_resume(base: Path, folder: Path, experiment: Experiment) -> None:
    """Name unfinished studies with the same name, and the command that continues them."""
    from wafl.studies.folder import StudyFolder, taken_folders, to_toml

    for left in (other for other in taken_folders(base) if other != folder and _was_left(other)):
        same = StudyFolder(left).config.read_text() == to_toml(experiment)
        what = "this same experiment was started there" if same else "an experiment with this name was started there"
        say(
            f"Note: {left} is not finished: {what} and left. To continue it: wafl resume {left}\n"
            f"This starts from scratch in {folder}.",
            typer.colors.YELLOW,
        )


def _was_left(folder: Path) -> bool:
    """Return whether the folder contains an unfinished study without a running process."""
    from wafl.studies.folder import StudyFolder

    study = StudyFolder(folder)
    return study.config.is_file() and study.status() == "interrupted"


def resume(
    folder: OneStudy,
    changes: Changes = None,
    quiet: Quiet = False,
    as_json: Json = False,
    serve: Serve = False,
    trust: Trust = False,
) -> None:
    """Continue an interrupted study; its results equal an uninterrupted study's."""
    with reading(trust):
        if serve:  # before a study is written
            check_page_packages()
        check_study(folder)
        from wafl.studies.pages.figures import draw_figures
        from wafl.studies.repair import extend
        from wafl.studies.study import Study

        study = extend(folder, changes) if changes else Study.resume(folder)
        if study.folder.status() == "finished":
            results = study.run()  # trains nothing, and repairs the metrics if they were damaged
            figures = "".join(f"\nFigure: {path}" for path in draw_figures(study, results, missing=True))
            make_console().print(f"{folder} is a finished study: there is nothing to train.{figures}", markup=False)
            exit_if_diverged(results)
            return
        train_and_show(study, quiet=quiet, as_json=as_json, serve=serve)


def tune(
    experiment: Annotated[Path, Argument()],
    changes: Changes = None,
    output: Path | None = None,
) -> None:
    """Tune every method with the same number of trials, and write an experiment file with the best settings."""
    with one_line_errors():
        read_toml(experiment)
        from wafl.studies.tune import TunedExperiment

        tuned = TunedExperiment.create(experiment, changes or [], output)
        tuning = _search(tuned)
    _show(tuned, tuning)
    if len(tuning.best) < len(tuning.trials):
        raise typer.Exit(SOME_DIVERGED)


def _search(tuned: TunedExperiment) -> Tuning:
    """Return the result of tuning, with a progress line for all trials; exit if it is interrupted."""
    search = tuned.search
    tell(f"{tuned.plan.who}\n{search.trials} trials per method, judged by {search.words()}\n")
    if tuned.known:
        tell(f"Already finished: {', '.join(tuned.known)}.")

    def kept() -> str:
        done = f"Finished methods are in {tuned.trials_file}; the same command continues with the others."
        return done if tuned.trials_file.exists() else "No method was finished."

    with watched(make_console(), Warning, kept), shown("trials"):
        return tuned.run()


def _show(tuned: TunedExperiment, tuning: Tuning) -> None:
    """Print the choices with reasons, and the next command."""
    from wafl.cli.tables import tuned_settings

    console = make_console()
    console.print(tuned_settings(tuning))
    edges = [f"[yellow]{name}:[/] {edge}." for name, best in tuning.best.items() for edge in best.edges]
    if edges:
        output = escape(shlex.quote(str(tuned.output)))
        hint = f"To search around the chosen values: wafl tune {output}; or widen \\[tune.space]."
        console.print("\n".join([*edges, hint]), highlight=False)
    for name, trials in tuning.trials.items():
        if name not in tuning.best:
            reason = escape(str(trials[0].diverged))
            console.print(f"[red]{name}:[/] every trial diverged, so its setting is unchanged: {reason}")
    command = f"wafl run {shlex.quote(str(tuned.output))}"
    tell(f"\nAll trials: {tuned.trials_file}\nTo train and test the chosen settings once: {command}")


def train_and_show(study: Study, *, quiet: bool = False, as_json: bool = False, serve: bool = False) -> None:
    """Train the unfinished methods of a study, and show the results; exit if interrupted or diverged."""
    from wafl.cli.bars import Bars
    from wafl.cli.tables import comparison
    from wafl.studies.pages.figures import draw_figures

    if quiet and as_json:
        raise ValueError("--quiet and --json exclude each other: pass one of them")
    console, path = make_console(quiet=quiet or as_json), study.folder.path
    shown_path = escape(str(path))
    seeds = len(study.plan.experiment.seeds)
    console.print(
        f"{escape(study.plan.who)}\n"
        f"{seeds} seed{'s side by side' if seeds > 1 else ''}; results go to [bold]{shown_path}[/]\n"
    )
    bars = Bars(study, console, "json" if as_json else "quiet" if quiet else "bars")
    kept = f"Finished work is in {path}. To resume: wafl resume {shlex.quote(str(path))}"
    served = _served(path) if serve else nullcontext()
    with watched(console, TrainingWarning, lambda: kept), shown("", wanted=False), bars.display, served:
        try:
            if study.plan.experiment.engine == "flower-sim":
                from wafl.flower.ops.app import simulate

                results = simulate(study, bars.show)
            else:
                results = study.run([bars])
        except Exception as error:
            bars.display.stop()
            if isinstance(error, DivergedError):
                console.print(comparison(study.folder.read_results()))
            console.print(f"\nFinished work is in [bold]{shown_path}[/].")
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


def _next_commands(study: Study, results: Mapping[str, Any]) -> list[str]:
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
        commands[f"certify {run}"] = "upper bounds on the loss by distance from the data, in a file to check"
        if experiment.data.unseen is not None:
            metric, what = (" --metric error", "error") if results["measure"] == "accuracy" else ("", "loss")
            commands[f"next-client {run}{metric}"] = f"an upper bound on the {what} of the next client"
    program = program_name()
    width = max(map(len, commands))
    return [f"  {program} {command:<{width}}  # {purpose}" for command, purpose in commands.items()]


@contextmanager
def watched(console: Console, category: type[Warning], kept: Callable[[], str]) -> Generator[None, None, None]:
    """Collect warnings of training during the block, and print each once; a signal exits with ``kept()``."""
    from wafl.train.checkpoint.signals import Stopped, exit_status, stopped_by_signals

    with stopped_by_signals(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", category)
        try:
            yield
        except (KeyboardInterrupt, Stopped) as stop:
            console.print(f"\nStopped. {kept()}", markup=False, soft_wrap=True)
            raise typer.Exit(exit_status(stop)) from None
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        if console.quiet:
            say(f"Warning: {message}", typer.colors.YELLOW)
        else:
            console.print(f"[yellow]Warning:[/] {escape(message)}")


@contextmanager
def _served(path: Path) -> Generator[None, None, None]:
    """Show a study as a live page during the block."""
    from wafl.studies.pages.live import make_server

    with make_server(path) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        say(f"{path} is shown at {server.url} while it trains; afterwards: wafl serve {path.parent}")
        try:
            yield
        finally:
            server.shutdown()


def exit_if_diverged(results: Mapping[str, Any]) -> None:
    """Exit with a special status if some run diverged, for scripts."""
    from wafl.studies.study import diverged

    if diverged(results):
        raise typer.Exit(SOME_DIVERGED)
