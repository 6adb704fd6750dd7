"""``wafl --help`` and completion are quick: they load no command, and so no torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from typer._completion_classes import BashComplete
from typer.core import TyperGroup
from typer.testing import CliRunner

import wafl
from research.__main__ import TOOLS
from research.catalog import EXPERIMENTS
from tests.cli.commands import click, every_command
from wafl.attacks import ATTACKS
from wafl.cli import main
from wafl.cli.main import COMMANDS, MOVED, app
from wafl.shifts import SHIFTS

COMMAND = typer.main.get_command(app)


def test_help_lists_every_command_with_the_first_line_of_its_own_help() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    context = click.Context(group)
    for name, line in COMMANDS.items():
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        assert command.name == name
        assert (command.help or "").partition("\n\n")[0].replace("\n", " ") == line
    shown = CliRunner().invoke(app, ["--help"], terminal_width=200).output
    assert all(f" {name} " in shown for name in COMMANDS)


def test_every_text_belongs_to_a_command_or_an_option() -> None:
    """That every option has one is looked at in test_run."""
    known = {path: {each.name for each in command.params} for path, command in every_command(COMMAND).items()}
    texts = tomllib.loads(Path(main.__file__).with_name("options.toml").read_text(encoding="utf-8"))
    assert set(texts.pop("*")) <= set.union(*known.values())
    groups = {path[0] for path in known if len(path) > 1}
    for name, section in texts.items():
        for path, options in (
            {(name, each): section[each] for each in section}.items() if name in groups else [((name,), section)]
        ):
            assert set(options) - {"help"} <= known[path], path
    evaluate = every_command(COMMAND)[("evaluate",)]
    options = {each.name: each.help or "" for each in evaluate.params if each.param_type_name == "option"}
    kinds = {**ATTACKS, **SHIFTS}
    assert all(f" {name}" in options["attack"] for name in ("none", *kinds))
    assert all(name in options[option] for name, kind in kinds.items() for option in kind.settings.names)


def test_completion_offers_commands_and_their_options() -> None:
    complete = BashComplete(typer.main.get_command(app), {}, "wafl", "_WAFL_COMPLETE")
    assert {item.value for item in complete.get_completions([], "r")} == {
        "run",
        "resume",
        "repair",
        "request",
        "receipt",
        "runs",
        "report",
    }
    assert "--rounds" in {item.value for item in complete.get_completions(["run"], "--r")}


@pytest.mark.parametrize(("name", "replacement"), MOVED.items())
def test_a_command_that_left_says_what_replaces_it(name: str, replacement: str) -> None:
    result = CliRunner().invoke(app, [name, "anything", "--scale", "smoke"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert replacement in result.output
    assert name not in COMMANDS
    module, *rest = replacement.removeprefix("python -m ").split()
    assert find_spec(module) is not None, "there is such a module"
    assert {*rest} <= {*EXPERIMENTS, *TOOLS}


ANSWERED_AT_ONCE = [
    *(f"{name} --help" for name in COMMANDS),
    "--help", "methods", "methods WAFL", "methods zzz", "rum", "reproduce figure-4", "bench", "audit",
    "run --method Wafel", "run FedSAM", "run FedSAM --rho 0.1", "run nope.toml", "run --gamma -1", "run --mu 1",
    "run --norm 3", "run --model gru", "run --set schedule.rounds=2", "tune nope.toml", "config check nope.toml",
    "verify nope.json", "export nope", "export .", "export . --format gguf", "certify nope", "certify . --norm 3",
    "evaluate nope", "evaluate . --attack pdg", "evaluate . --attacked 0,x",
    "resume nope", "repair nope", "theory nope", "report nope", "next-client nope",
]  # fmt: skip
"""Commands whose answer needs neither data nor a model."""

ASKING = """
import json, sys
from typer._completion_classes import BashComplete
from typer.core import TyperGroup
from typer.testing import CliRunner
from wafl.cli.main import app
for line in json.load(sys.stdin):
    done = CliRunner().invoke(app, line.split())
    assert done.output and done.exit_code in (0, 2), (line, done.exception)
    assert "torch" not in sys.modules, line
"""


@pytest.mark.processes
def test_help_the_list_of_methods_and_refusals_do_not_load_torch(tmp_path: Path) -> None:
    lines = json.dumps(ANSWERED_AT_ONCE)
    ask = [sys.executable, "-c", ASKING]
    done = subprocess.run(ask, input=lines, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


HEAVY = {"flwr", "jinja2", "matplotlib", "numpy", "pandas", "plotly", "pydantic", "scipy", "sklearn", "torch"}


@pytest.mark.processes
def test_the_longest_help_loads_little_more_than_what_draws_it() -> None:
    """It takes half a second of processor time, most of it for rich; under load a clock would say otherwise."""
    code = (
        "import sys, wafl.cli.main as main\nsys.argv = ['wafl', 'run', '--help']\ntry:\n    main.app()\nfinally:\n"
        f"    print(*{HEAVY!r} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "--label-cost" in done.stdout
    assert done.stderr.strip() == ""


def test_every_public_name_can_be_imported() -> None:
    names = set(vars(wafl)["__all__"]) - (set() if find_spec("flwr") else {"flower"})
    assert all(getattr(wafl, name) is not None for name in names)
    with pytest.raises(AttributeError, match="No wafl attribute fitt"):
        _ = wafl.fitt  # pyright: ignore
