"""What the README opens with can be drawn again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.notebook import with_outputs

from research import front_page

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_the_picture_and_the_terminal_are_drawn(tmp_path: Path) -> None:
    front_page.main(["--rounds", "1", "--folder", str(tmp_path), "--promise", "--smallest"])
    assert (tmp_path / "front.png").stat().st_size > 20_000
    terminal = (tmp_path / "terminal.svg").read_text(encoding="utf-8")
    assert "FedAvg" in terminal
    assert "url(" not in terminal.replace("url(#", ""), "a page must open without a network"


def test_the_readme_opens_with_the_picture() -> None:
    top, _, _ = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Install")
    assert "docs/images/front.png" in top
    assert (ROOT / "docs" / "images" / "front.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_lines_of_a_page_print_what_stands_below_them(page: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = (ROOT / page).read_text(encoding="utf-8")
    found, number = with_outputs(printed), re.compile(r"\d+\.\d+")
    assert number.sub("", found) == number.sub("", printed), "run .venv/bin/python tools/notebook.py --run"
    expected = [float(each) for each in number.findall(printed)]
    assert [float(each) for each in number.findall(found)] == pytest.approx(expected, rel=2e-3)
