"""Implement commands that describe experiments: ``wafl config`` for files, ``wafl methods`` for methods."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from typer import Argument

from wafl.cli.terminal import Changes, Trust, make_console, one_line_errors, reading, tell
from wafl.config.known import default_of, known_method, known_methods, range_of
from wafl.config.toml_file import read_toml
from wafl.evaluation.tables import plain_table

config_app = typer.Typer(help="Experiment files: write a starter, check one, print the schema.", no_args_is_help=True)


@config_app.command()
def init(path: Annotated[Path, Argument()] = Path("experiment.toml")) -> None:
    """Write a commented experiment file that runs unchanged."""
    with one_line_errors():
        if path.exists():
            raise FileExistsError(f"{path} exists already: choose another name, or remove it")
        text = files("wafl.config").joinpath("starter.toml").read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
    typer.echo(f"Wrote {path}. Run it: wafl run {path}")


@config_app.command()
def check(
    path: Annotated[Path, Argument(metavar="FILE")],
    changes: Changes = None,
    trust: Trust = False,
) -> None:
    """Check an experiment file, and print its runs without training."""
    with reading(trust):
        read_toml(path)
        from wafl.config.plan import make_plan
        from wafl.config.read import read_experiment
        from wafl.studies.folder import source_of
        from wafl.studies.tune import make_search

        plan = make_plan(read_experiment(path, changes or []), source_of(path), trust=False)
        if plan.experiment.tune is not None:
            make_search(plan)
    console = make_console()
    console.print(plan.who, highlight=False, markup=False)
    for entry in plan.entries:
        count = len(entry.specs(plan.experiment.seeds))
        swept = f", swept: {', '.join(entry.grid)}" if entry.grid else ""
        runs = "1 run" if count == 1 else f"{count} runs"
        tell(f"{entry.name}: {entry.method.name}, {entry.schedule['rounds']} rounds, {runs}{swept}")
    console.print(f"[green]{escape(str(path))} is valid.[/]")


@config_app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for completion and checks in an editor."""
    from wafl.config.experiment import Experiment

    text = json.dumps(Experiment.model_json_schema(), indent=1)
    typer.echo(text.replace(": Infinity", ': "inf"'))  # JSON has no infinity; the files also accept the word


def methods(name: Annotated[str | None, Argument(metavar="[METHOD]")] = None) -> None:
    """List the methods with their moves, messages, options and papers."""
    with one_line_errors():
        if name is None:
            table = plain_table("method", "moves", "clients send", "options", "paper")
            table.columns[0].no_wrap = True
            for each in known_methods().values():
                options = ", ".join(each.options) or "-"
                table.add_row(each.name, each.moves, each.sends, options, escape(each.short))
            make_console().print(table)
            return
        method = known_method(name)
        table = plain_table("option", "default", "range", "what it is")
        for column in table.columns[:-1]:
            column.no_wrap = True
        for option in method.options.values():
            table.add_row(option.name, default_of(option), escape(range_of(option)), escape(option.doc))
        console = make_console()
        console.print(
            f"[bold]{method.name}[/]: {escape(method.summary)}\n\nmoves: {method.moves}\nclients send: {method.sends}\n"
            f"use it: {escape(method.use)}\npaper: {escape(method.paper)}"
        )
        console.print(table if method.options else "\nIt has no other options.")
