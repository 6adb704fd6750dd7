"""Every experiment still runs: each at its smallest size, where its numbers mean nothing."""

from __future__ import annotations

import json
import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from research.__main__ import TOOLS, main
from research.catalog import EXPERIMENTS, EXPLORATORY, FURTHER, PAPER, REGISTERED
from research.experiment import Experiment
from research.tables import TABLES

ROOT = Path(__file__).parents[2]
FIGURES = {each.name for each in (*PAPER, *FURTHER)}
"""test_reproduce.py runs these; the leaderboard and the promises have tests of their own, too."""
SLOW = {"attack-frontier-2", "audit", "domains-cnn", "networks", "promised-distances", "published"}
QUICK = [name for name in EXPERIMENTS if name not in {*FIGURES, *SLOW, "leaderboard", "promises"}]
SOURCES = {
    path.stem.replace("_", "-")
    for folder in ("exploratory", "registered")
    for path in (ROOT / "research" / folder).glob("*.py")
}
# Imported by others, and never run.
PARTS = {"--init--", "figures", "hulls", "malicious-attacks", "rates", "resnet", "rival-settings", "splits"}


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():  # some experiments change the filters
        main([name, "--smallest", *arguments])


@pytest.mark.parametrize("name", QUICK)
def test_the_experiment_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, tmp_path, monkeypatch)
    assert capsys.readouterr().out.strip(), "it prints what it found"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_the_slow_experiment_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, tmp_path, monkeypatch)
    assert capsys.readouterr().out.strip(), "it prints what it found"


def test_numbers_are_written_with_the_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("leaderboard", tmp_path, monkeypatch, "--data", "turned-digits", "--done", "--output", "board.json")
    content = json.loads((tmp_path / "board.json").read_text())
    assert content["registered"]["name"] == "natural"
    assert content["results"] == {}


def test_no_experiment_is_left_out() -> None:
    listed = {each.module.rpartition(".")[2].replace("_", "-") for each in (*REGISTERED, *EXPLORATORY)}
    assert listed >= SOURCES - PARTS, "add it to research/catalog.py"
    assert not {*EXPERIMENTS} & {*TOOLS}


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_an_experiment_has_a_module_and_a_page(experiment: Experiment) -> None:
    assert find_spec(experiment.module) is not None
    assert (ROOT / experiment.shown_on).is_file()


def test_the_list_shows_the_papers_figures_apart_from_ours(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    paper, ours = capsys.readouterr().out.split("Ours, beside")
    assert re.findall(r"^  (\S+)", paper.partition("The paper's figures and tables:")[2], re.MULTILINE) == [
        *(f"figure-{number}" for number in range(2, 7)),
        *(f"table-{number}" for number in range(1, 4)),
    ]
    assert all(f"  {each.name} " in ours for each in (*FURTHER, *REGISTERED, *EXPLORATORY))


def test_an_unknown_name_is_an_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["leaderbord"])
    assert error.value.code == 2
    assert "did you mean 'leaderboard'" in capsys.readouterr().err


def test_every_table_of_numbers_has_a_command_that_makes_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    main(["tables", "--smallest"])
    assert "docs/liars.md" in capsys.readouterr().out
    # tools/methods_page.py and python -m research pages make these.
    pages = ("methods", "reproduction", "leaderboard", "promises", "attack-frontier", "certified-frontier", "domains")
    made = {ROOT / "docs" / f"{name}.md" for name in (*pages, "few-examples", "sealed-sets")}
    for page in {ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")} - made:
        name = str(page.relative_to(ROOT))
        lines = re.sub(r"<!-- table .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL).splitlines()
        for index, line in enumerate(lines[:-2]):
            if line.startswith("| option "):
                continue
            if lines[index + 1].startswith("| ---") and re.search(r"\| [\d.,]+( s| %)? ", lines[index + 2]):
                assert any(table.page == name and line.startswith(table.begins) for table in TABLES), f"{name}: {line}"
