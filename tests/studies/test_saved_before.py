"""Runs that an earlier version saved still load, predict what they predicted, and serve every command.

``saved_before`` holds runs of version 0.1.0 as it was before methods had servers and local steps.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import wafl
from wafl.cli.main import app

SAVED = Path(__file__).with_name("saved_before")
OUTPUTS = {
    "drfa": [0.2713480, -0.1037524, 0.1609127, -0.0988045, 0.0657607, -0.1150674, -0.0075849, -0.0375290, -0.0686240,
             -0.0666593],
    "fedrobust": [0.0012004, -0.0012004],
    "wafl-radius": [0.0011996, -0.0011996],
}  # fmt: skip
"""Of examples that go from 0 to 1 along their features."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_run_saved_before_loads_and_predicts_what_it_did(name: str) -> None:
    run = wafl.load_run(SAVED / name)
    first = next(iter(run.params.values()))
    x = torch.linspace(0, 1, first.shape[1])[None]
    x = x.view(1, 1, 8, 8) if name == "drfa" else x
    torch.testing.assert_close(run.outputs(x)[0], torch.tensor(OUTPUTS[name]), rtol=0, atol=1e-6)
    assert len(run.history) == 2
    assert run.diverged is None
    assert run.history[0].participants == run.history[0].cohort


def test_a_run_saved_before_is_tested_and_certified_by_the_commands(tmp_path: Path) -> None:
    """Its data are made again from the recipe that it holds."""
    (tmp_path / "drfa").mkdir()
    for file in (SAVED / "drfa").iterdir():
        (tmp_path / "drfa" / file.name).write_bytes(file.read_bytes())
    for command in (["evaluate", "--epsilon", "0.1", "--attacked", "0.5"], ["theory"]):
        result = CliRunner().invoke(app, [command[0], str(tmp_path / "drfa"), *command[1:]])
        assert result.exit_code == 0, result.output
