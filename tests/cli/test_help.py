"""``wafl --help`` and completion are quick: they load no command, and so no torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import click
import pytest
import typer
from click.shell_completion import ShellComplete
from typer.testing import CliRunner

import wafl
from wafl.cli.main import COMMANDS, app


def test_help_lists_every_command_with_the_first_line_of_its_own_help() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    context = click.Context(group)
    for name, line in COMMANDS.items():
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert (command.help or "").partition("\n\n")[0].replace("\n", " ") == line
    shown = CliRunner().invoke(app, ["--help"], terminal_width=200).output
    assert all(f" {name} " in shown for name in COMMANDS)


def test_an_unknown_command_is_an_error() -> None:
    done = CliRunner().invoke(app, ["training"])
    assert done.exit_code == 2
    assert "No such command 'training'" in done.output


def test_completion_offers_commands_and_their_options() -> None:
    complete = ShellComplete(typer.main.get_command(app), {}, "wafl", "_WAFL_COMPLETE")
    assert {item.value for item in complete.get_completions([], "r")} == {
        "run",
        "resume",
        "repair",
        "runs",
        "report",
        "reproduce",
    }
    assert "--rounds" in {item.value for item in complete.get_completions(["run"], "--r")}


@pytest.mark.processes
def test_help_does_not_load_torch() -> None:
    asked = "app(['--help'], standalone_mode=False)"
    code = f"import sys; from wafl.cli.main import app; {asked}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)


def test_every_public_name_can_be_imported() -> None:
    names = set(wafl.__all__) - (set() if find_spec("flwr") else {"flower"})
    assert all(getattr(wafl, name) is not None for name in names)
    with pytest.raises(AttributeError, match="No wafl attribute fitt"):
        _ = wafl.fitt  # pyright: ignore
