"""Every row of the tables of attacks in docs/security.md names a test that exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST = re.compile(r"`(test_\w+|\w+(?=` in `flower_matrix))`")
FUNCTION = re.compile(r"^ *def (\w+)", re.MULTILINE)
FILE = re.compile(r"(in )?`(\w+\.py)`")


def read() -> list[tuple[str, str]]:
    """Return the attack and the tests of each row of a table whose last column is ``test``."""
    page = (ROOT / "docs" / "security.md").read_text()
    assert page.count("| test |") == 3
    rows, inside = list[tuple[str, str]](), False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        inside = bool(cells) and (inside or cells[-1] == "test")
        if inside and cells[-1] not in ("test", "--- |", "---"):
            rows.append((cells[1], cells[-1]))
    return rows


@cache
def functions(name: str) -> set[str]:
    """Return the functions in the files of tests that have this name."""
    return {found for file in (ROOT / "tests").rglob(name) for found in FUNCTION.findall(file.read_text())}


DEFAULT = ("test_curious.py", "test_red_team.py")
"""The files whose functions the page names without the file."""
ROWS = [row for row in read() if set(row[0]) != {"-"}]


@pytest.mark.parametrize(("attack", "tests"), ROWS)
def test_every_row_of_attacks_names_a_test(attack: str, tests: str) -> None:
    named, files = set(TEST.findall(tests)), FILE.findall(tests)
    assert named or files, f"the row about {attack!r} names no test"
    missing = {file for _, file in files if not functions(file)}
    known = set[str]().union(*(functions(file) for file in (*DEFAULT, *(file for within, file in files if within))))
    assert not missing | (named - known), f"the tests of the row about {attack!r} are missing"


def test_a_row_without_a_test_is_found_out() -> None:
    assert len(ROWS) > 30
    for cell in ("", "none", "`test_that_nobody_wrote`", "`test_cuts` in `test_red_team.py`", "`test_nothing.py`"):
        with pytest.raises(AssertionError, match=r"names no test|are missing"):
            test_every_row_of_attacks_names_a_test("an attack", cell)
