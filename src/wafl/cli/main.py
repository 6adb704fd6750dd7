"""Define the command ``wafl``, which loads a command when it is called, so that help needs no torch."""

import tomllib
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from wafl.base.errors import did_you_mean
from wafl.cli.terminal import lasting_output


def _table(file: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


COMMANDS: dict[str, str] = _table("commands.toml")
"""The first line of each command's help; its module in ``commands`` has the command, or ``<command>_app``."""

MODULES = {
    **dict.fromkeys(("run", "resume", "tune"), "train"),
    **dict.fromkeys(("runs", "repair", "report", "serve"), "studies"),
    **dict.fromkeys(("evaluate", "theory", "export"), "saved_runs"),
    "weights": "data",
    "methods": "config",
    **dict.fromkeys(("certify", "next-client", "prediction-sets", "verify", "audit"), "certificates"),
    **dict.fromkeys(("request", "receipt", "merge"), "receipts"),
}
"""The modules of commands that share one; any other command's module has its name."""

MOVED = {
    "reproduce": "python -m research reproduce",
    "leaderboard": "python -m research leaderboard",
    "bench": "python -m benchmarks.contest",
}
"""Former commands, and their replacements in a clone of the repository. Remove after one version."""

ERRORS: Any = import_module(typer.BadParameter.__module__)
"""Click's exceptions; since 0.26, typer includes its own Click and no longer raises the package's exceptions."""

LOOKS: dict[str, Any] = {"rich_markup_mode": "markdown", "pretty_exceptions_enable": False}


class _Commands(TyperGroup):
    """A group that loads the called command; the other commands have only names and first lines."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            name, _, rest = super().resolve_command(ctx, args)
        except ERRORS.UsageError as error:
            if args[0] in MOVED:
                raise ERRORS.UsageError(
                    f"`wafl {args[0]}` is no longer part of this package. "
                    f"In a clone of the repository, run: {MOVED[args[0]]}"
                ) from None
            error.message = f"No such command {args[0]!r}{did_you_mean(args[0], COMMANDS)}"
            raise
        return name, None if name is None else _load(name), rest


class _Command(TyperCommand):
    """A command that reports all missing arguments at once, and recognizes files that are not experiments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except ERRORS.NoSuchOption as error:
            if self.name == "run" and not given[0].startswith("-") and not given[0].endswith(".toml"):
                error.message += f". {given[0]} is not an experiment file: to train a method, pass --method {given[0]}"
            raise
        except ERRORS.MissingParameter:
            known = self.make_context(self.name, given, ctx.parent, resilient_parsing=True).params
            lacking = [each for each in self.params if each.required and known.get(each.name or "") is None]
            names = [_hint(each, ctx) for each in lacking]
            raise ERRORS.UsageError(f"Missing {', '.join(names)}.", ctx) from None


def _hint(parameter: Any, ctx: Any) -> str:
    """Return the name of a parameter in errors; the method needs the context in Click, but not in typer's Click."""
    method = parameter.get_error_hint
    return method(ctx) if signature(method).parameters else method()


def _load(name: str) -> Any:
    word = name.replace("-", "_")
    module: Any = import_module(f"wafl.cli.commands.{MODULES.get(name, name)}")
    parent, group = typer.Typer(**LOOKS, add_completion=False), getattr(module, f"{word}_app", None)
    if group is None:
        parent.command(name, cls=_Command)(getattr(module, word))
    else:
        parent.add_typer(group, name=name)
    loaded = typer.main.get_command(parent)
    command = loaded if group is None else cast(TyperGroup, loaded).commands[name]
    texts = _table("options.toml")
    return _helpful(command, texts.get(name, {}), texts["*"])


def _helpful(command: Any, texts: dict[str, Any], usual: dict[str, str]) -> Any:
    """Return the command with the help of its options: from its ``texts`` (of a group, by command) or the ``usual``."""
    command.help = "\n\n".join(filter(None, (command.help, texts.get("help"))))
    for name, each in command.commands.items() if isinstance(command, TyperGroup) else ():
        _helpful(each, texts.get(name, {}), usual)
    for option in cast("list[Any]", command.params):
        option.help = texts.get(option.name or "") or option.help or usual.get(option.name or "")
    return command


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
