"""Every benchmark still runs: each at its smallest size, where its figures mean nothing."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

QUICK = {
    "certificates": [],
    "checkpoint": [],
    "claims": [],
    "flower": ["--only", "traffic"],
    "gpu": [],
    "memory": [],
    "million": [],
    "networks": [],
    "paths": [],
    "report": [],
    "speed": [],
    "transport": [],
}
# The rest of flower starts processes.
SLOW = {"flower": []}
# Imported by others, and never run.
PARTS = {"__init__", "brought_models", "live", "options"}
MOST = 12
"""The number of scripts, besides ``claims.py``, which runs some of them again."""


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # a benchmark may set it: put back afterwards
    import_module(f"benchmarks.{name}").main(["--smallest", *arguments])


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


def test_no_benchmark_is_left_out_and_there_are_few() -> None:
    result = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert result == {*QUICK, *SLOW, *PARTS}, "add it to QUICK above, or to PARTS if it is imported only"
    assert len({*QUICK, *SLOW} - {"claims"}) <= MOST, "merge it with another one; what is not about speed is research"
