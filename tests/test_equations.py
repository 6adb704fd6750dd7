"""docs/equations.md: every row names a function that exists and a test that runs."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import wafl
from research.reproduction import experiments

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "equations.md"
ITEMS = [
    *(f"({number})" for number in (*range(1, 21), 23, 24, *range(26, 29), *range(33, 37))),  # the rest are in "to"
    *(f"assumption 3.{number}" for number in range(1, 6)),
    *("theorem 3.6", "definition 4.1", "lemma 4.2", "remark 4.3", "theorem 4.4", "corollary 4.5", "corollary 5.1"),
    *("corollary B.1", "lemma C.1", "lemma C.2", "lemma C.3", "proposition D.1", "proposition F.1"),
    *(f"figure {number}" for number in range(1, 7)),
    *(f"table {number}" for number in (1, 2, 3)),
]
"""What the paper numbers."""


def rows() -> list[list[str]]:
    """The cells of every row but the heads."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] not in ("paper", "what", "---")]


@cache
def functions_in(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_numbered_item_of_the_paper_has_a_row() -> None:
    named = " ".join(row[0] for row in rows())
    assert [item for item in ITEMS if item not in named] == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_rows_function_exists_and_its_test_runs(row: list[str]) -> None:
    assert len(row) == 5, "an unescaped bar in a cell"
    functions, (test,) = re.findall("`((?:wafl|python -m research)[^`]+)`", row[2]), re.findall("`([^`]+)`", row[3])
    assert functions
    for name in functions:
        if name.startswith("python -m research reproduce "):
            assert name.split()[-1] in experiments.names()
            assert name.split()[-1].replace("-", " ") in row[0], "the paper's own number"
            continue
        result = wafl
        for part in name.split(".")[1:]:
            result = getattr(result, part)
        assert result.__doc__
    file, _, function = test.partition("::")
    held = functions_in(file)[function]
    marks = [ast.unparse(each) for each in held.decorator_list]
    assert not any("skip" in mark or "xfail" in mark for mark in marks)
    assert any(isinstance(node, ast.Assert | ast.With) for node in ast.walk(held)) or "assert" in ast.unparse(held)
