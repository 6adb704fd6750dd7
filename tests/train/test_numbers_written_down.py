"""Training still gives the numbers that were once written down: cohorts and batches exactly, parameters to 1e-5."""

from __future__ import annotations

import json
import warnings
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
