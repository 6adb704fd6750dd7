"""Label smoothing: as in torch's loss, for every method that descends cross-entropy, and searched like weight decay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wafl

SCHEDULE: dict[str, Any] = {"rounds": 2, "local_steps": 2, "batch_size": 8, "learning_rate": 0.2}


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4, seed=0)


def spread(outputs: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of labels of which a fifth is spread over all classes."""
    logs = outputs.log_softmax(-1)
    return -0.8 * logs.gather(-1, y[..., None])[..., 0] - 0.2 * logs.mean(-1)


METHODS = [wafl.FedAvg(), wafl.SCAFFOLD(), wafl.ScaffPD(prox=1e9), wafl.FedSAM(rho=0.5)]
"""Losses are reported without it, so weights that climb them would differ."""


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_it_is_that_of_the_loss_with_spread_labels(method: wafl.Method, clients: wafl.Federation) -> None:
    torch.testing.assert_close(
        spread(torch.eye(3), torch.tensor([0, 2, 1])),
        nn.functional.cross_entropy(torch.eye(3), torch.tensor([0, 2, 1]), label_smoothing=0.2, reduction="none"),
    )
    model = wafl.models.mlr(clients).double()
    smoothed = wafl.fit(model, clients, method, label_smoothing=0.2, **SCHEDULE)
    wanted = wafl.fit(model, clients, method, loss=spread, **SCHEDULE)
    plain = wafl.fit(model, clients, method, **SCHEDULE)
    for name, value in wanted.params.items():
        torch.testing.assert_close(smoothed.params[name], value, rtol=0, atol=1e-7)
    assert max(float((value - wanted.params[name]).abs().max()) for name, value in plain.params.items()) > 1e-3


def test_a_sweep_with_and_without_it_gives_the_runs_one_by_one(clients: wafl.Federation) -> None:
    model, values = wafl.models.mlr(clients), [0.0, 0.1, 0.3]
    runs = wafl.sweep(model, clients, wafl.WAFL(gamma=2.0), {"label_smoothing": values}, **SCHEDULE)
    for run, value in zip(runs, values, strict=True):
        alone = wafl.fit(model, clients, wafl.WAFL(gamma=2.0), label_smoothing=value, **SCHEDULE)
        assert all(torch.equal(run.params[name], alone.params[name]) for name in alone.params)


def test_another_loss_is_refused_before_any_work(clients: wafl.Federation) -> None:
    x, y = torch.rand(9, 3), torch.rand(9)
    targets = wafl.Federation.from_arrays([(x, y)] * 2)
    with pytest.raises(ValueError, match=r"label_smoothing=0.1 is for loss='cross_entropy', not 'squared_error'"):
        wafl.fit(nn.Linear(3, 1), targets, wafl.FedAvg(), loss="squared_error", label_smoothing=0.1, **SCHEDULE)


def test_every_method_can_be_searched_in_it_and_in_weight_decay(clients: wafl.Federation) -> None:
    space: dict[str, Any] = {"weight_decay": (1e-4, 1e-1), "label_smoothing": [0.0, 0.1], "learning_rate": []}
    methods = {name: preset() for name, preset in wafl.METHODS.items() if name in ("FedAvg", "WAFL", "FedSAM", "DRFL")}
    schedule = {**SCHEDULE, "rounds": 1, "local_steps": 1}
    tuning = wafl.tune(wafl.models.mlr(clients), clients, methods, trials=4, space=space, **schedule)
    for name, trials in tuning.trials.items():
        assert {trial.setting["label_smoothing"] for trial in trials} == {0.0, 0.1}, name
        assert len({trial.setting["weight_decay"] for trial in trials}) == 4, name
        assert trials[0].setting["weight_decay"] == 0.0
        assert not any("weight_decay=0 " in edge for edge in tuning.best[name].edges)
