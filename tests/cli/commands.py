"""Every command of the command line."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from typer.core import TyperCommand

click: Any = import_module(TyperCommand.__mro__[1].__module__.rpartition(".")[0])
"""The Click that typer uses: the package, or since 0.26 its own copy."""


def every_command(group: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return every command below a group by the words that call it."""
    commands: dict[tuple[str, ...], Any] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.resolve_command(context, [name])[1]
        commands |= every_command(command, (*path, name)) if hasattr(command, "commands") else {(*path, name): command}
    return commands
