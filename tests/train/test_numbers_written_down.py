"""Training still gives the numbers that were once written down: cohorts and batches exactly, parameters to 1e-5."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.oracles import numbers

GOLDEN: dict[str, Any] = json.loads(numbers.GOLDEN.read_text())


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gammas below the concavity limit are among the cases
        return {name: numbers.plain(run) for name, run in numbers.small_cases()}


def test_batches_are_the_ones_written_down() -> None:
    assert numbers.batches() == GOLDEN["batches"]


def test_every_case_is_written_down(runs: dict[str, Any]) -> None:
    assert set(runs) == set(GOLDEN["runs"])


@pytest.mark.parametrize("name", GOLDEN["runs"])
def test_cohorts_and_parameters_are_the_ones_written_down(runs: dict[str, Any], name: str) -> None:
    assert runs[name]["cohorts"] == GOLDEN["runs"][name]["cohorts"]
    torch.testing.assert_close(
        torch.tensor(runs[name]["params"]), torch.tensor(GOLDEN["runs"][name]["params"]), rtol=0, atol=1e-5
    )


@pytest.mark.slow
def test_all_numbers_can_be_compared_with_those_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of docs/extending.md, once for the version before a change and once for the version after it."""
    before, after = (str(tmp_path / f"{name}.npz") for name in ("before", "after"))
    for arguments in ([before], [after, "--against", before]):
        monkeypatch.setattr("sys.argv", ["numbers", *arguments])
        with suppress(SystemExit):
            numbers.main()
    assert " 0 missing, 0 changed, " in capsys.readouterr().out
