"""A run that diverges ends alone: the others of its sweep keep every bit, and all diverging is an error."""

from __future__ import annotations

import math
import re
import warnings
from functools import cache
from typing import Any

import pytest
import torch

import wafl

TOO_LARGE = 1e38


@cache
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=6, labels_per_client=3, seed=0)


def sweep(method: wafl.Method, grid: dict[str, Any], **options: Any) -> list[wafl.Run]:
    model = options.pop("model", wafl.models.mlr(clients()))
    schedule = {"rounds": 4, "cohort": 3, "local_steps": 2, "batch_size": 8, **options}
    return wafl.sweep(model, clients(), method, grid, **schedule)


def same(one: wafl.Run, other: wafl.Run) -> bool:
    return all(torch.equal(one.params[name], other.params[name]) for name in one.params)


METHODS = {
    "FedAvg": wafl.FedAvg(),
    "WAFL": wafl.WAFL(gamma=0.5),
    "FedRobust": wafl.FedRobust(step_size=0.1),
    "DRFA": wafl.DRFA(),
    "SCAFFOLD": wafl.SCAFFOLD(),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_diverging_run_changes_no_bit_of_the_others_in_its_sweep(name: str) -> None:
    rates = [0.05, TOO_LARGE, 0.1]
    runs = sweep(METHODS[name], {"learning_rate": rates})
    alone = sweep(METHODS[name], {"learning_rate": [0.05, 0.1]})
    assert [run.diverged is None for run in runs] == [True, False, True]
    assert same(runs[0], alone[0])
    assert same(runs[2], alone[1])
    assert [len(run.history) for run in (runs[0], runs[2])] == [4, 4]


def test_a_diverged_run_says_where_and_why_and_keeps_its_last_good_round() -> None:
    good, bad = sweep(wafl.FedAvg(), {"learning_rate": [0.05, TOO_LARGE]})
    assert bad.diverged is not None
    assert bad.diverged.startswith(f"round {len(bad.history)}, client ")
    assert "learning_rate=1e+38 is likely too large: lower it" in bad.diverged
    assert all(bool(torch.isfinite(value).all()) for value in bad.params.values())
    assert "diverged" in repr(bad)
    assert "diverged" not in repr(good)


@pytest.mark.filterwarnings("ignore:no example moved:wafl.RadiusWarning")  # of the large gamma
def test_an_infinite_supremum_ends_its_run_alone() -> None:
    """With power 1, the supremum is infinite if gamma is below the slope of the loss."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    small, large = sweep(wafl.WAFL(power=1, bounds=None), {"gamma": [1e-4, 1e4]}, model=model, learning_rate=0.01)
    assert small.diverged is not None
    assert "the supremum is infinite" in small.diverged
    assert large.diverged is None


@pytest.mark.filterwarnings("ignore::wafl.DivergenceWarning")
def test_a_server_whose_step_overflows_ends_its_run_alone() -> None:
    servers = [wafl.servers.sgd(1.0), wafl.servers.sgd(1e38)]
    good, bad = sweep(wafl.FedAvg(), {"server": servers}, learning_rate=10.0)
    assert good.diverged is None
    assert bad.diverged is not None
    assert all(bool(torch.isfinite(value).all()) for value in bad.params.values())


@pytest.mark.filterwarnings("ignore::wafl.UnitWarning")
def test_a_strict_run_that_diverges_at_once_ends_alone() -> None:
    """While strict holds gamma at the limit, the warning about a missed radius has no round to look at."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    grid = {"learning_rate": [1e-3, TOO_LARGE]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wafl.RadiusWarning)
        good, bad = sweep(wafl.WAFL(radius=50.0, strict=True), grid, model=model, rounds=6)
    assert good.diverged is None
    assert bad.diverged is not None


def test_a_diverging_run_ends_alone_also_where_failing_clients_are_tolerated() -> None:
    """The clients are not to blame: in the other run their replies count."""
    grid = {"learning_rate": [0.05, TOO_LARGE]}
    good, bad = sweep(wafl.FedAvg(), grid, tolerance=wafl.Tolerance())
    assert good.diverged is None
    assert bad.diverged is not None
    assert "3 clients: update with NaN or infinity" in bad.diverged
    (alone,) = sweep(wafl.FedAvg(), {"learning_rate": [0.05]}, tolerance=wafl.Tolerance())
    assert same(good, alone)


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
@pytest.mark.parametrize("norm", [2, math.inf])
def test_an_objective_that_overflows_ends_its_run_and_does_not_train_fedavg_in_silence(norm: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    method = wafl.WAFL(norm=norm, bounds=None)
    tiny, fine = sweep(method, {"gamma": [1e-30, 50.0]}, model=model, learning_rate=0.01)
    assert tiny.diverged is not None
    assert re.search(r"round 0, client \d: the objective overflows at gamma=1e-30: raise gamma, or keep", tiny.diverged)
    (alone,) = sweep(method, {"gamma": [50.0]}, model=model, learning_rate=0.01)
    assert fine.diverged is None
    assert fine.history.column("loss") == alone.history.column("loss")


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_a_loss_that_is_lost_in_rounding_ends_its_run_with_how_far_examples_moved() -> None:
    with pytest.raises(wafl.DivergedError, match=r"the loss is \d\S+, and was 2.3 .*examples moved by \d\S+: raise"):
        sweep(wafl.WAFL(bounds=None), {"gamma": [1e-8]}, learning_rate=0.1)
