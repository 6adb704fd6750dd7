"""The suite keeps its own rules."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG

ROOT = Path(__file__).parents[1]


def test_a_test_that_starts_a_process_without_the_mark_fails() -> None:
    with pytest.raises(RuntimeError, match=r"starts .*: mark it with pytest.mark.processes"):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(RuntimeError, match="mark it with"):
        os.fork()


@pytest.mark.processes
def test_a_test_with_the_mark_may_start_processes() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_every_long_test_exists() -> None:
    """A test that is renamed would run all its cases again, and nobody would notice."""
    for file in {name.partition("::")[0] for name in LONG}:
        found = {
            node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
        }
        missing = {name for name in LONG if name.startswith(f"{file}::")} - {f"{file}::{name}" for name in found}
        assert not missing, "run tools/long_tests.py again, or rename them in tests/long.txt"


def test_no_small_reference_is_long() -> None:
    """Only the first case of a long test runs, and each of theirs is the one that can tell a method from FedAvg."""
    assert not [name for name in LONG if "/test_small_references.py::" in name]
