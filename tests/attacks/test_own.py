"""Your own function as an attack."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer import Typer
from typer.testing import CliRunner

import wafl
from wafl.cli.commands.saved_runs import evaluate


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=4, iid=True, seed=0)


@pytest.fixture(scope="module")
def runs(clients: wafl.Federation) -> wafl.Runs:
    grid = {"gamma": [0.5, 5.0]}
    return wafl.sweep(wafl.models.mlr(clients), clients, wafl.WAFL(), grid, rounds=3, local_steps=5)


def one_step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x.requires_grad_()
    loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
    (slope,) = torch.autograd.grad(loss, x)
    return (x + 0.1 * slope.sign()).clamp(0.0, 1.0)


def test_a_function_is_an_attack_on_every_model(clients: wafl.Federation, runs: wafl.Runs) -> None:
    same = wafl.FGSM(epsilon=0.1)
    comparison = wafl.compare(runs, clients, attacks=[one_step, same], attacked=[0.5, 1.0])
    values = [row.score.loss for row in comparison.rows]
    assert values[0:2] == pytest.approx(values[2:4], rel=1e-5)
    assert values[4:6] == pytest.approx(values[6:8], rel=1e-5)
    assert comparison.rows[0].score.attack == "one_step"
    assert wafl.evaluate(runs[0], clients, attack=one_step, attacked=0.5).loss == pytest.approx(values[0], rel=1e-6)


def test_random_numbers_of_an_attack_repeat(clients: wafl.Federation, runs: wafl.Runs) -> None:
    def noisy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return x + 0.3 * torch.randn_like(x)

    first, again, other = (wafl.evaluate(runs[0], clients, attack=noisy, seed=seed).loss for seed in (0, 0, 1))
    assert first == again != other


def test_what_is_no_attack_is_refused(clients: wafl.Federation, runs: wafl.Runs) -> None:
    with pytest.raises(ValueError, match=r"gave shape \(3,\) for examples of shape"):
        wafl.evaluate(runs[0], clients, attack=lambda model, x, y: torch.zeros(3))
    with pytest.raises(ValueError, match="PGD is a class: pass an instance"):
        wafl.evaluate(runs[0], clients, attack=wafl.PGD)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="is not an attack"):
        wafl.evaluate(runs[0], clients, attack=SimpleNamespace())  # pyright: ignore[reportArgumentType]


def test_the_command_takes_a_function(runs: wafl.Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app: Any = Typer()
    app.command()(evaluate)
    runs[0].save(tmp_path / "saved")
    (tmp_path / "still_here.py").write_text("def stay(model, x, y):\n    return x\n")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["saved", "--attack", "still_here:stay", "--attacked", "1"])
    assert result.exit_code == 0, result.output
    assert "still_here:stay" in result.output
    result = CliRunner().invoke(app, ["saved", "--attack", "pdg"])
    assert result.exit_code == 2
    assert "did you mean 'pgd'?" in result.output
