"""What the README opens with can be drawn again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import front_page

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_the_picture_and_the_terminal_are_drawn(tmp_path: Path) -> None:
    front_page.main(["--rounds", "1", "--folder", str(tmp_path)])
    assert (tmp_path / "front.png").stat().st_size > 20_000
    terminal = (tmp_path / "terminal.svg").read_text(encoding="utf-8")
    assert "FedAvg" in terminal
    assert "url(" not in terminal.replace("url(#", ""), "a page must open without a network"


def test_the_readme_opens_with_them() -> None:
    top, _, _ = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Use it")
    for name in ("front.png", "terminal.svg"):
        assert f"docs/images/{name}" in top
        assert (ROOT / "docs" / "images" / name).is_file()
