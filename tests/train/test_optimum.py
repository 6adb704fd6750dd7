"""A training that ends away from its optimum warns, with what may help; one that is there says nothing."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import wafl
from wafl.train import optimum

APART: dict[str, Any] = {"rounds": 100, "cohort": 5, "local_epochs": 2, "learning_rate": 0.3}
TOGETHER: dict[str, Any] = {"rounds": 300, "local_steps": 1, "learning_rate": 1.0}


@pytest.fixture(scope="module")
def digits() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)


def fit(clients: wafl.Federation, method: wafl.Method, **options: Any) -> wafl.Run:
    return wafl.fit(wafl.models.mlr(clients), clients, method, **options)


def small() -> wafl.Federation:
    generator = torch.Generator().manual_seed(0)
    pairs = [(torch.rand(12, 4, generator=generator), torch.arange(12) % 3) for _ in range(4)]
    return wafl.Federation.from_arrays(pairs, test_fraction=0)


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
@pytest.mark.parametrize("method", [wafl.FedAvg(), wafl.WAFL(radius=0.3)])
def test_clients_that_pull_apart_in_small_cohorts_are_said(digits: wafl.Federation, method: wafl.Method) -> None:
    with pytest.warns(wafl.OptimumWarning, match=rf"{method.name} is not at its optimum: 10 steps") as caught:
        fit(digits, method, **APART)
    (one,) = [each for each in caught if each.category is wafl.OptimumWarning]  # and one of concavity
    assert one.filename == __file__
    assert re.search(r"lower the objective by [345]\.\d%", str(one.message))
    for remedy in ("control_variates()", "fewer local steps", "a larger cohort", "more rounds"):
        assert remedy in str(one.message)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_at_the_optimum_nothing_is_said(digits: wafl.Federation) -> None:
    fit(digits, wafl.WAFL(radius=0.3), **TOGETHER)  # a warning would be an error


def test_the_steps_are_those_of_full_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against autograd on all examples at once, with weight decay; nothing of the run changes."""
    clients, decay = small(), 0.1
    run = fit(clients, wafl.FedAvg(), rounds=3, local_steps=3, learning_rate=0.5, weight_decay=decay)
    model = run.model
    x, y = clients.train.x, clients.train.y
    losses: list[float] = []
    for _ in range(optimum.STEPS + 1):
        squares = torch.stack([value.square().sum() for value in model.parameters()]).sum()
        loss = nn.functional.cross_entropy(model(x), y) + decay / 2 * squares
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for value, gradient in zip(model.parameters(), gradients, strict=True):
                value -= 0.5 * gradient
    monkeypatch.setattr(optimum, "MOST_FALL", 1.0 - min(losses) / losses[0] - 1e-4)
    options = {"rounds": 3, "local_steps": 3, "learning_rate": 0.5, "weight_decay": decay, "check_optimum": True}
    with pytest.warns(wafl.OptimumWarning, match=f"to {min(losses):.4g}"):
        again = fit(clients, wafl.FedAvg(), **options)
    assert all(torch.equal(value, again.params[name]) for name, value in run.params.items())


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (wafl.FedAvg(), {"rounds": 5}),
        (wafl.FedAvg(), {"rounds": 200, "check_optimum": False}),
        (wafl.DRFA(), {"rounds": 200, "check_optimum": True}),
        (wafl.FedRobust(), {"rounds": 5, "check_optimum": True}),
    ],
    ids=["too dear", "not wanted", "learned weights", "clients remember"],
)
def test_where_it_is_too_dear_or_says_nothing_it_is_left_out(
    method: wafl.Method, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimum, "MOST_FALL", -1.0)  # anything would be said
    fit(small(), method, local_steps=1, learning_rate=0.1, **options)


def test_networks_and_sweeps_are_checked_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimum, "MOST_FALL", -1.0)
    clients, options = small(), {"rounds": 50, "local_steps": 1, "learning_rate": 0.1}
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    wafl.fit(network, clients, wafl.FedAvg(), **options)
    with pytest.warns(wafl.OptimumWarning):
        wafl.fit(network, clients, wafl.FedAvg(), **options, check_optimum=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wafl.sweep(wafl.models.mlr(clients), clients, wafl.WAFL(), {"gamma": [1.0, 2.0]}, **options, check_optimum=True)
    assert [re.match(r"WAFL \(gamma=\d", str(each.message)) is not None for each in caught] == [True, True]


def test_each_round_records_how_far_updates_agree() -> None:
    """The length of the mean update over the mean length: 1 for clients that are alike, less for others."""
    x, y = torch.rand(12, 4), torch.arange(12) % 3
    alike = wafl.Federation.from_arrays([(x, y)] * 3, test_fraction=0)
    options = {"rounds": 2, "local_steps": 2, "batch_size": None, "learning_rate": 0.1}
    assert fit(alike, wafl.FedAvg(), **options).history.column("agreement") == pytest.approx([1.0, 1.0])
    apart = wafl.Federation.from_arrays([(x, torch.full((12,), label)) for label in (0, 0, 1)], test_fraction=0)
    for server in (wafl.servers.averaging(), wafl.servers.averaging(wafl.servers.adam()), wafl.servers.krum(0)):
        run = fit(apart, wafl.FedAvg(server=server), **options)
        assert run.history[0].agreement == pytest.approx(1 / 3, abs=1e-6), "of the mean, whatever the server makes"
        assert run.history.rows()[0]["agreement"] == run.history[0].agreement
