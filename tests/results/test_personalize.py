"""Personalization takes the steps of plain PyTorch, and leaves everything else as it was."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from wafl.results.personalize import NOT_COVERED, Measured, Personalization, Personalized


def make_clients(*, regression: bool = False, test_fraction: float = 0.25) -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(16, 4)), rng.normal(size=16) if regression else np.arange(16) % 3) for _ in range(3)]
    return wafl.Federation.from_arrays(pairs, test_fraction=test_fraction)


def network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, outputs))


def trained(clients: wafl.Federation, model: nn.Module | None = None, **options: Any) -> wafl.Run:
    """Train for a round; by default the network, whose BatchNorm learns its statistics."""
    if model is None:
        model, options = network(clients.num_outputs), {"statistics": "averaged"}
    return wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=1, check_optimum=False, **options)


def descended(run: wafl.Run, client: wafl.Federation, loss: Any, names: set[str], steps: int, rate: float) -> nn.Module:
    """Fine-tune with torch's own optimizer."""
    model = copy.deepcopy(run.module).eval()
    x, y = client.train.of(0)
    sgd = torch.optim.SGD([value for name, value in model.named_parameters() if name in names], rate)
    for _ in range(steps):
        sgd.zero_grad()
        loss(model(x.float()), y).backward()
        sgd.step()
    return model


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("head", {"4.weight", "4.bias"}),
        ("0", {"0.weight", "0.bias"}),
        ("all", {"0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"}),
    ],
)
def test_it_takes_the_steps_of_sgd_in_the_chosen_layers(layers: str, names: set[str]) -> None:
    clients = make_clients()
    run = trained(clients)
    client, saved = clients.of_clients([1]), copy.deepcopy(run.module.state_dict())
    result = run.personalize(client, steps=4, learning_rate=0.2, layers=layers)
    expected = descended(run, client, nn.functional.cross_entropy, names, 4, 0.2)
    assert set(result.changed) == names
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], value, rtol=0, atol=1e-6)
        assert torch.equal(run.module.state_dict()[name], saved[name]), "the run does not change"
        assert torch.equal(value, saved[name]) == (name not in names)
    again = run.personalize(client, steps=4, learning_rate=0.2, layers=layers)
    assert all(torch.equal(again.model.state_dict()[name], value) for name, value in result.model.state_dict().items())


def test_before_and_after_are_on_held_out_examples() -> None:
    clients = make_clients()
    run = trained(clients)
    client = clients.of_clients([2])
    result = run.personalize(client, steps=3)
    x, y = client.test.of(0)
    for model, found in ((run.model, result.before), (result.model, result.after)):
        outputs = model(x.float()).detach()
        assert found.loss == pytest.approx(float(nn.functional.cross_entropy(outputs, y)), rel=1e-5)
        assert found.accuracy == float((outputs.argmax(1) == y).double().mean())
    score = wafl.evaluate(run, client)
    assert (result.before.accuracy, result.before.loss) == (score.accuracy, pytest.approx(score.loss, rel=1e-6))
    assert str(result).startswith("client 2: accuracy ")
    assert str(result).endswith(NOT_COVERED)
    assert ("use the global model" in str(result)) == (not result.better)
    content = result.to_json()
    assert (content["training_examples"], content["held_out_examples"]) == (12, 4)
    assert (content["steps"], content["layers"], content["note"]) == (3, "head", NOT_COVERED)


def test_a_regression_descends_its_own_loss() -> None:
    clients = make_clients(regression=True)
    run = trained(clients, nn.Linear(4, 1), loss="squared_error")
    client = clients.of_clients([0])
    result = run.personalize(client, steps=30, learning_rate=0.05)

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - y.float()).square().mean()

    wanted = descended(run, client, loss, {"weight", "bias"}, 30, 0.05)
    torch.testing.assert_close(result.model.state_dict()["weight"], wanted.state_dict()["weight"], rtol=0, atol=1e-5)
    assert result.before.accuracy is None
    assert "loss" in str(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 must be"),
        ({"layers": "haed"}, "layers='haed' is no layer with parameters: did you mean 'head'?"),
        ({"layers": "2"}, "layers='2' is no layer with parameters: use one of head, all, 0, 1, 4"),
    ],
)
def test_a_mistake_names_the_value_and_the_remedy(options: dict[str, Any], message: str) -> None:
    clients = make_clients()
    run = trained(clients)
    with pytest.raises(ValueError, match=re.escape(message)):
        run.personalize(clients.of_clients([0]), **options)


def test_a_loss_that_is_no_number_names_the_learning_rate() -> None:
    clients = make_clients(regression=True)
    run = trained(clients, nn.Linear(4, 1), loss="squared_error")
    message = "after 40 steps with learning_rate=10000000000.0: lower it (before, the loss was "
    with pytest.raises(ValueError, match=re.escape(message)):
        run.personalize(clients.of_clients([0]), steps=40, learning_rate=1e10)


def test_it_takes_one_client_with_held_out_examples() -> None:
    clients = make_clients(test_fraction=0.0)
    run = trained(clients)
    with pytest.raises(ValueError, match=re.escape("3 clients, and one is wanted: use clients.of_clients([0])")):
        run.personalize(clients)
    with pytest.raises(ValueError, match=r"client 0 has 16 training and 0 held-out examples"):
        run.personalize(clients.of_clients([0]))
    with pytest.raises(TypeError, match=r"client is 0: give one client, such as"):
        run.personalize(0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "better"),
    [
        (Measured(1.0, 0.5), Measured(2.0, 0.6), True),
        (Measured(1.0, 0.5), Measured(0.9, 0.5), True),
        (Measured(1.0, 0.5), Measured(1.0, 0.5), False),
        (Measured(1.0, 0.5), Measured(0.1, 0.4), False),
        (Measured(1.0, None), Measured(0.9, None), True),
        (Measured(1.0, None), Measured(math.nan, None), False),
    ],
)
def test_a_model_that_is_no_better_is_not_recommended(before: Measured, after: Measured, better: bool) -> None:
    result = Personalized(nn.Identity(), "north", ("weight",), before, after, (3, 2), Personalization())
    assert result.better == better
    assert ("use the global model" in str(result)) != better
