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


ROW = re.compile(r"[SNF]\d+")


def read(page: str) -> list[tuple[str, str]]:
    """Return the attack and the tests of each row; attacks and tests are in two tables with the same first column."""
    assert page.count("| attack | defense |") == page.count("| | tests |") == 3
    attacks, tests = dict[str, str](), dict[str, str]()
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else [""]
        if ROW.fullmatch(cells[0]):
            assert len(cells) in (2, 4), f"row {cells[0]} has {len(cells)} cells"
            rows, cell = (tests, cells[1]) if len(cells) == 2 else (attacks, cells[2])
            assert cells[0] not in rows, f"two rows are called {cells[0]}"
            rows[cells[0]] = cell.removesuffix(" |")
    assert attacks.keys() == tests.keys(), f"without its other row: {sorted(attacks.keys() ^ tests.keys())}"
    return [(attack, tests[row]) for row, attack in attacks.items()]


@cache
def functions(name: str) -> set[str]:
    """Return the functions in the files of tests that have this name."""
    return {found for file in (ROOT / "tests").rglob(name) for found in FUNCTION.findall(file.read_text())}


DEFAULT = ("test_curious.py", "test_red_team.py")
"""The files whose functions the page names without the file."""
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = read(PAGE)


@pytest.mark.parametrize(("attack", "tests"), ROWS)
def test_every_row_of_attacks_names_a_test(attack: str, tests: str) -> None:
    named, files = set(TEST.findall(tests)), FILE.findall(tests)
    assert named or files, f"the row about {attack!r} names no test"
    missing = {file for _, file in files if not functions(file)}
    known = set[str]().union(*(functions(file) for file in (*DEFAULT, *(file for within, file in files if within))))
    assert not missing | (named - known), f"the tests of the row about {attack!r} are missing"


def test_a_row_without_a_test_is_found_out() -> None:
    assert len(ROWS) == 47
    for tests in ("| S5 | `test_mean", "| N9 | `link", "| F18 | `test_an"):
        without = "\n".join(line for line in PAGE.splitlines() if not line.startswith(tests))
        assert without != PAGE.strip()
        with pytest.raises(AssertionError, match=f"without its other row: .*{tests.split()[1]}"):
            read(without)
    for cell in ("", "none", "`test_that_nobody_wrote`", "`test_cuts` in `test_red_team.py`", "`test_nothing.py`"):
        with pytest.raises(AssertionError, match=r"names no test|are missing"):
            test_every_row_of_attacks_names_a_test("an attack", cell)
