"""Every benchmark still runs: each at its smallest size, where its figures mean nothing."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

QUICK = {
    "attack_frontier": ["--smallest"],
    "auto_radius": ["--smallest"],
    "average_last": ["--smallest"],
    "bounds": ["--smallest"],
    "box": ["--smallest"],
    "certificates": ["--smallest"],
    "certified_frontier": ["--smallest"],
    "checkpoint": ["--smallest"],
    "claims": ["--smallest"],
    "compiled": ["--smallest"],
    "convolutions": ["--smallest"],
    "domains": ["--smallest"],
    "few_examples": ["--smallest"],
    "flower": ["--smallest", "--only", "traffic"],
    "garbage": ["--smallest"],
    "liars": ["--smallest"],
    "lipschitz": ["--smallest"],
    "memory": ["--smallest"],
    "million": ["--smallest"],
    "natural": ["--smallest"],
    "optimum": ["--smallest"],
    "paths": ["--smallest"],
    "privacy": ["--smallest"],
    "confidence": ["--smallest"],
    "radius": ["--smallest"],
    "rivals": ["--smallest"],
    "small_networks": ["--smallest"],
    "speed": ["--smallest"],
    "tables": ["--smallest"],
    "transport": ["--smallest"],
    "tune_demo": ["--smallest"],
    "gpu": ["--smallest"],
    "unequal": ["--smallest"],
}
# The rest of flower starts processes.
SLOW = {name: ["--smallest"] for name in ("audit", "flower", "networks", "published")}
SLOW["domains"] = ["--smallest", "--model", "cnn"]
# What other benchmarks import, and nobody runs.
PARTS = {"brought_models", "hulls", "options", "registered_runs", "rival_settings", "staged"}


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # a benchmark may set it: put back afterwards
    try:
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    finally:
        for module in [*PARTS, *QUICK, *SLOW]:
            sys.modules.pop(module, None)


@pytest.mark.parametrize("name", QUICK)
def test_the_benchmark_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, QUICK[name], monkeypatch)
    assert capsys.readouterr().out.strip(), "it prints what it found"


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_slow_benchmark_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, SLOW[name], monkeypatch)
    assert capsys.readouterr().out.strip(), "it prints what it found"


def test_no_benchmark_is_left_out() -> None:
    found = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert found == {*QUICK, *SLOW, *PARTS}, "add it to QUICK above, or to PARTS if it is imported only"


def test_every_table_of_numbers_has_a_command_that_makes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    known = runpy.run_path(str(BENCHMARKS / "tables.py"))["TABLES"]
    root = BENCHMARKS.parent
    # tools/methods_page.py and tools/evidence_pages.py make these.
    pages = ("methods", "reproduction", "leaderboard", "promises", "attack-frontier", "certified-frontier", "domains")
    made = {root / "docs" / f"{name}.md" for name in (*pages, "few-examples")}
    for page in {root / "README.md", *root.glob("docs/*.md"), *root.glob("examples/*/README.md")} - made:
        name, lines = str(page.relative_to(root)), page.read_text().splitlines()
        for place, line in enumerate(lines[:-2]):
            if lines[place + 1].startswith("| ---") and re.search(r"\| [\d.,]+( s| %)? ", lines[place + 2]):
                assert any(table.page == name and line.startswith(table.begins) for table in known), f"{name}: {line}"
