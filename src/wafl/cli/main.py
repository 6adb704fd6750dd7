"""The command ``wafl``: its commands, each loaded when it is called, so that help and completion need no torch."""

from importlib import import_module
from typing import Annotated, Any, cast

import click
import typer
from click.shell_completion import CompletionItem
from typer.core import TyperCommand, TyperGroup

from wafl.base.near import did_you_mean
from wafl.cli.output import lasting_output

COMMANDS = {
    "run": "Train methods, and see which hold up when clients' data shift.",
    "tune": "Try the same number of settings of every method, and write the experiment with the best.",
    "resume": "Continue a study where it was interrupted, to the same numbers as if it had not been.",
    "repair": "Keep what is sound of a damaged study, and say what is dropped.",
    "runs": "List studies: how far each has come, and what it found.",
    "methods": "List the methods: what each moves, what its clients send, its options and its paper.",
    "evaluate": "Test saved runs on their clients' held-out data while a share of the clients is attacked.",
    "report": "Write one page that shows what studies found; it opens in any browser, from disk, without a network.",
    "serve": "Show studies in a browser while they run, on this machine only unless --host says otherwise.",
    "theory": "Print what is promised about saved runs, to whom, how surely and how loosely, and draw certificates.",
    "certify": "Write a certificate: how large the expected loss can be within each radius, as a file that anyone can "
    "check.",
    "verify": "Check a certificate: prove again what the model and the data allow, and say what is only attested.",
    "audit": "See how far your own data are from those of a certificate, label by label, and what it certifies for "
    "them.",
    "next-client": "Say what a client that nobody has seen may expect, from those that were held out of training.",
    "weights": "Compute client weights from optimal transport, and show the distances they come from and the W_2 they "
    "reach.",
    "export": "Write a model that takes raw examples, or the metrics of a study, to a new file.",
    "config": "Experiment files: write a starter, check one, print the schema.",
    "data": "Data sets: list them, download one, look at one.",
    "reproduce": "Make a figure or a table of the paper again: its numbers as JSON, and a picture of them.",
    "bench": "Measure the speed of wafl on this machine, against a plain PyTorch loop and other libraries.",
    "leaderboard": "Rank methods on natural clients: people and places that no training has seen.",
    "flower": "Flower: an experiment as a Flower app, and what a deployment needs.",
}
"""The first line of each command's help; its file in ``commands/`` has the command, or the group ``<command>_app``."""

LOOKS: dict[str, Any] = {"rich_markup_mode": "markdown", "pretty_exceptions_enable": False}


class _Commands(TyperGroup):
    """A group that loads a command when it is called; a list of commands shows their names and first lines alone."""

    _listing = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if self._listing else _load(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            error.message = f"No such command {args[0]!r}{did_you_mean(args[0], COMMANDS)}"
            raise

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        self._listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._listing = False


class _Command(TyperCommand):
    """A command that asks for all it lacks at once, and knows what is no experiment file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if self.name == "run" and not given[0].startswith("-") and not given[0].endswith(".toml"):
                error.message += f". {given[0]} is no experiment file: to train a method, use --method {given[0]}"
            raise
        except click.MissingParameter:
            known = self.make_context(self.name, given, ctx.parent, resilient_parsing=True).params
            lacking = [each for each in self.params if each.required and known.get(each.name or "") is None]
            names = [each.get_error_hint(ctx) for each in lacking]
            raise click.UsageError(f"Missing {', '.join(names)}.", ctx) from None


def _load(name: str) -> click.Command:
    word = name.replace("-", "_")
    module: Any = import_module(f"wafl.cli.commands.{word}")
    parent, group = typer.Typer(**LOOKS, add_completion=False), getattr(module, f"{word}_app", None)
    if group is None:
        parent.command(name, cls=_Command)(getattr(module, word))
        return typer.main.get_command(parent)
    parent.add_typer(group, name=name)
    return cast(click.Group, typer.main.get_command(parent)).commands[name]


app = typer.Typer(
    cls=_Commands,
    help="Wasserstein-robust federated learning: one model from many clients that holds up when their data shift.",
    no_args_is_help=True,
    **LOOKS,
)


def _version(wanted: bool) -> None:
    if wanted:
        from wafl import __version__

        typer.echo(f"wafl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Wasserstein-robust federated learning."""
    context.with_resource(lasting_output())
