"""Experiment files for tests, and the command that checks them."""

from __future__ import annotations

import functools
import json
from collections.abc import Generator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import wafl
from wafl.cli.main import app

COMMON: dict[str, Any] = {"rounds": 2, "cohort": 3, "local_steps": 2, "batch_size": 16, "learning_rate": 0.1}
BASE: dict[str, Any] = {
    "seeds": [0, 4],
    "data": {"num_clients": 5, "labels_per_client": 4},
    "schedule": COMMON,
    "attack": {"kind": "none"},
}
"""An experiment without methods, and its schedule as a call of the library has it."""
STARTER = files("wafl.config").joinpath("starter.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    """The clients of that experiment."""
    return wafl.load_dataset("digits").partition(**BASE["data"])


@pytest.fixture(autouse=True, scope="module")
def one_command() -> Generator[None, None, None]:
    """Typer builds its command again for every call, which takes longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "300")
        patch.setattr("typer.testing._get_command", functools.cache(typer.main.get_command), raising=False)
        yield


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def check(path: Path, *changes: str) -> Any:
    return invoke("config", "check", "--trust", str(path), *(part for change in changes for part in ("--set", change)))


def assert_one_line(result: Any, *parts: str) -> None:
    """Exit status 2 and one line that holds each of the parts; no traceback."""
    assert result.exit_code == 2, result.output or result.exception
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for part in parts:
        assert part in result.stderr


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "exp.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {as_toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")
