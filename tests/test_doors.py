"""What people reach for is found, and what they mistype is recognized."""

from __future__ import annotations

import runpy
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import wafl
from wafl.cli.main import app

SHORT: dict[str, Any] = {"rounds": 1, "local_steps": 1}


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=4, iid=True, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.1}, "fit has no option 'lr': did you mean 'learning_rate'?"),
        ({"epochs": 1}, "fit has no option 'epochs': did you mean 'local_epochs'?"),
        ({"loss": "mse"}, "unknown loss 'mse': did you mean 'squared_error'?"),
        ({"loss": "ce"}, "unknown loss 'ce': did you mean 'cross_entropy'?"),
        ({"loss": "mae"}, "unknown loss 'mae': pass loss=lambda outputs, y:"),
    ],
)
def test_names_of_other_libraries_are_known(clients: wafl.Federation, options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as failure:
        wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), **SHORT, **options)
    assert str(failure.value).startswith(message)


def test_a_sweep_and_a_tuning_know_them_too(clients: wafl.Federation) -> None:
    model = wafl.models.mlr(clients)
    with pytest.raises(TypeError, match="did you mean 'learning_rate'"):
        wafl.sweep(model, clients, wafl.WAFL(), {"gamma": [1.0]}, lr=0.1, **SHORT)
    with pytest.raises(TypeError, match="did you mean 'learning_rate'"):
        wafl.tune(model, clients, wafl.WAFL(), trials=2, lr=0.1, **SHORT)


def test_targets_that_are_not_whole_numbers_get_the_squared_error_with_a_note() -> None:
    x = torch.rand(20, 3, generator=torch.Generator().manual_seed(0))
    clients = wafl.Federation.from_arrays([(x, x.sum(1))])
    with pytest.warns(wafl.LossWarning, match="loss='squared_error' is used"):
        run = wafl.fit(nn.Linear(3, 1), clients, wafl.FedAvg(), **SHORT)
    assert run.loss == "squared_error"
    whole = wafl.Federation.from_arrays([(x, (x.sum(1) > 1.5).float())])
    with pytest.raises(ValueError, match=r"'cross_entropy'.*'squared_error'"):
        wafl.fit(nn.Linear(3, 1), whole, wafl.FedAvg(), **SHORT)


def test_a_lazy_model_is_initialized_and_one_example_is_no_batch(clients: wafl.Federation) -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
    run = wafl.fit(model, clients, wafl.FedAvg(), **SHORT)
    assert run.outputs(clients.test.x).shape[1] == 10
    assert isinstance(model[1], nn.LazyLinear), "the model that was given stays as it is"
    with pytest.raises(ValueError, match=r"one example of shape \(1, 8, 8\): give a batch"):
        run.predict(clients.test.x[0])


def test_what_is_no_run_is_not_compared(clients: wafl.Federation) -> None:
    others: list[Any] = [{"a": wafl.FedAvg}, {"a": wafl.models.mlr(clients)}, [wafl.FedAvg()]]
    for runs in others:
        with pytest.raises(TypeError, match=r"runs contains a \w+: pass runs, which wafl.fit and wafl.sweep return"):
            wafl.compare(runs, clients)


def test_clients_of_a_frame_are_sorted() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"who": [10, 2, 10, 2, 1, 1], "x": np.arange(6.0), "y": [0, 1] * 3})
    clients = wafl.Federation.from_frame(frame, client="who", target="y", test_fraction=0.0)
    assert clients.names == ("1", "2", "10")
    assert clients.train.of(2)[0].flatten().tolist() == [0.0, 2.0]


def test_unseen_clients_are_drawn_with_the_others(clients: wafl.Federation) -> None:
    seen, unseen = clients.hold_out(0.5, seed=0)
    score = wafl.evaluate(wafl.models.mlr(clients), seen, unseen=unseen)
    (axes,) = score.plot().axes
    assert {text.get_text() for text in axes.get_legend().get_texts()} >= {"unseen clients, clean", "not attacked"}
    assert sorted(label.get_text() for label in axes.get_xticklabels()[2:]) == sorted(unseen.names)


def test_torch_does_not_complain_of_its_own_batching() -> None:
    words = torch.randint(0, 10, (6, 4), generator=torch.Generator().manual_seed(0))
    clients = wafl.Federation.from_arrays([(words, torch.arange(6) % 2)] * 2, num_classes=2)
    model = nn.Sequential(nn.EmbeddingBag(10, 3), nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "There is a performance drop")
        wafl.fit(model, clients, wafl.FedAvg(), **SHORT)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rum", "No such command 'rum': did you mean 'run'?"),
        ("run --method Wafel", "unknown method 'Wafel': did you mean 'WAFL'?"),
        ("run FedSAM --rho 0.1", "pass --method FedSAM"),
        ("run FedSAM", "pass --method FedSAM"),
        ("methods Wafel", "did you mean 'WAFL'?"),
        ("verify nope.json", "nope.json is not a file: pass a certificate, which wafl certify writes"),
        ("audit nope.json", "Missing '--data', '--model'."),
    ],
)
def test_commands_say_what_was_meant(line: str, message: str) -> None:
    result = CliRunner().invoke(app, line.split(), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_the_package_is_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["wafl", "--version"])
    with pytest.raises(SystemExit):
        runpy.run_module("wafl", run_name="__main__")
    assert capsys.readouterr().out.startswith("wafl ")
