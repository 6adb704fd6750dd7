"""Every script of the gallery runs, is short, draws its picture, and stands on the page with it."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
QUICK = ("learned_weights", "mixture_for_a_target")
LONGEST = 60


def cases() -> list[object]:
    return [
        pytest.param(script, id=script.stem, marks=[] if script.stem in QUICK else [pytest.mark.slow])
        for script in SCRIPTS
    ]


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")  # said to who runs it, and no reason to stop
@pytest.mark.filterwarnings("ignore::wafl.OptimumWarning")  # small cohorts and local epochs are what they show
@pytest.mark.parametrize("script", cases())
def test_a_script_of_the_gallery_draws_its_picture(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    plt.close("all")
    assert [path.name for path in tmp_path.iterdir()] == [f"{script.stem}.png"]
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 5000


def test_the_gallery_has_a_dozen_short_scripts_and_the_page_shows_each() -> None:
    assert len(SCRIPTS) >= 12
    page = (ROOT / "docs" / "gallery.md").read_text()
    for script in SCRIPTS:
        text = script.read_text()
        assert len(text.splitlines()) < LONGEST, f"{script.name} is too long: one idea each"
        assert f"images/gallery/{script.stem}.png" in page
        assert f"examples/gallery/{script.name}" in page
        assert ast.get_docstring(ast.parse(text)) in page.replace("\n", " "), "the page says what the script says"
        assert (ROOT / "docs" / "images" / "gallery" / f"{script.stem}.png").exists()
