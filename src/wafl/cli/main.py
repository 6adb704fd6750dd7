"""The command ``wafl``."""

from __future__ import annotations

from typing import Annotated

import typer

from wafl.cli.config import config_app
from wafl.cli.data import data_app
from wafl.cli.evaluate import evaluate
from wafl.cli.export import export
from wafl.cli.flower import flower_app
from wafl.cli.resume import resume
from wafl.cli.run import run
from wafl.cli.runs import runs
from wafl.cli.theory import theory
from wafl.cli.tune import tune
from wafl.cli.weights import weights

app = typer.Typer(
    help="Wasserstein-robust federated learning: one model from many clients that holds up when their data shift.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in (run, tune, resume, runs, evaluate, theory, weights, export):
    app.command()(command)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")


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
