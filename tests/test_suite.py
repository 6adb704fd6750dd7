"""The suite keeps its own rules."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from tests.conftest import LISTED, SEED, pytest_sessionstart, shuffled

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "tests").rglob("*.py"))


def test_a_test_that_starts_a_process_without_the_mark_fails() -> None:
    with pytest.raises(RuntimeError, match=r"starts .*: mark it with pytest.mark.processes"):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(RuntimeError, match="mark it with"):
        os.fork()


@pytest.mark.processes
def test_a_test_with_the_mark_may_start_processes() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_every_long_test_exists() -> None:
    """A test that is renamed would run all its cases again, and no one would notice."""
    for file in {name.partition("::")[0] for name in LISTED}:
        result = re.findall(r"^def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE)
        missing = {name for name in LISTED if name.startswith(f"{file}::")} - {f"{file}::{name}" for name in result}
        assert not missing, "run tools/long_tests.py again, or rename them in tests/long.txt"


def test_no_small_reference_is_long() -> None:
    """``make check`` runs only the first case of a listed test, but each reference is the only case of its method."""
    assert not [name for name in LISTED if "/test_small_references.py::" in name]


def imports_of(source: str) -> list[str]:
    """Return what a module imports, each name with its module."""
    imported: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported += [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    return imported


def is_test(name: str) -> bool:
    """Return True for the name of a test module, or of something in one."""
    return name.startswith(("tests.", ".")) and ".test_" in name


def test_nothing_is_imported_from_a_test_module() -> None:
    """Tests that share objects depend on each other: what they share is in a module without tests."""
    lines = "import tests.a.test_b\nfrom tests.a.test_b import c\nfrom tests.a import test_b\nfrom .test_b import c"
    assert all(map(is_test, imports_of(lines)))
    assert not any(map(is_test, imports_of("from tests.a.b import c\nimport tests.a.b")))
    result = {
        str(file.relative_to(ROOT)): [name for name in imports_of(file.read_text()) if is_test(name)] for file in FILES
    }
    assert not {file: names for file, names in result.items() if names}, "move what is shared to a module without tests"


def test_the_order_is_random_but_the_same_for_a_seed_and_keeps_files_together() -> None:
    tests = [(file, number) for file in "abcdef" for number in range(6)]
    orders = [shuffled(tests, lambda test: test[0], seed) for seed in ("1", "1", "2")]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    for order in orders:
        assert sorted(order) == tests
        files = [file for file, _ in order]
        assert sum(one != two for one, two in pairwise(files)) == 5, "each file in one piece"
        assert files != sorted(files)
        assert order != sorted(tests, key=lambda test: files.index(test[0])), "shuffled within files"


def test_the_seed_is_printed_and_given_to_every_process() -> None:
    lines: list[str] = []
    reporter = SimpleNamespace(write_line=lines.append)
    plugins = SimpleNamespace(get_plugin={"terminalreporter": reporter}.get)
    pytest_sessionstart(cast(pytest.Session, SimpleNamespace(config=SimpleNamespace(pluginmanager=plugins))))
    assert lines == [f"Order of tests: WAFL_TEST_SEED={SEED}"]
    assert os.environ["WAFL_TEST_SEED"] == SEED


DRAWN = torch.rand(1)


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_and_every_module_draws_as_if_it_were_alone(turn: int) -> None:
    first = torch.Generator().manual_seed(0)
    assert torch.equal(DRAWN, torch.rand(1, generator=first))
    assert torch.equal(torch.rand(1), DRAWN)


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_computes_on_one_thread_whatever_the_one_before_it_left(turn: int) -> None:
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
