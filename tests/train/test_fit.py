"""What holds for every training: chunks and sweeps change nothing, and an error or warning says what went wrong."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import wafl
from tests.oracles import reference

ONE_STEP = {"local_steps": 1, "local_epochs": None, "cohort": None}
METHODS: dict[str, tuple[wafl.Method, dict[str, Any]]] = {
    "FedAvg": (wafl.FedAvg(), {}),
    "WAFL": (wafl.WAFL(gamma=0.5), {}),
    "WAFL, radius": (wafl.WAFL(radius=0.5), {}),
    "WAFL, DRFA's weights": (wafl.WAFL(gamma=0.5, client_weights=wafl.weights.snapshot(0.05)), {}),
    "FedPGM": (wafl.FedPGM(epsilon=0.1, steps=3), {}),
    "FedRobust": (wafl.FedRobust(), {}),
    "AFL": (wafl.AFL(), ONE_STEP),
    "DRFA": (wafl.DRFA(weights_step=0.05), {}),
    "QFFL": (wafl.QFFL(q=0.5), {}),
}


@pytest.fixture(scope="module")
def digits() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)


@pytest.fixture(scope="module")
def few() -> wafl.Federation:
    """Seven clients with 4 to 40 digits each."""
    data = wafl.load_dataset("digits")
    sizes = [4, 11, 18, 24, 29, 35, 40]
    parts = zip(data.x_train.split(40), data.y_train.split(40), sizes, strict=False)
    pairs = [(x[:size] / data.max_value, y[:size]) for x, y, size in parts]
    return wafl.Federation.from_arrays(pairs, test_fraction=0, bounds=(0.0, 1.0), num_classes=10)


def start() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "1.weight": 0.1 * torch.randn(10, 64, generator=generator),
        "1.bias": 0.1 * torch.randn(10, generator=generator),
    }


def schedule(**changes: Any) -> dict[str, Any]:
    usual = {"rounds": 4, "cohort": 4, "local_epochs": 1, "batch_size": 8, "learning_rate": 0.1}
    return {**usual, "init": start(), **changes}


def fit(clients: wafl.Federation, method: wafl.Method, **changes: Any) -> wafl.Run:
    return wafl.fit(wafl.models.mlr(clients), clients, method, **schedule(**changes))


def sweep(clients: wafl.Federation, method: wafl.Method, grid: dict[str, Any], **changes: Any) -> list[wafl.Run]:
    return wafl.sweep(wafl.models.mlr(clients), clients, method, grid, **schedule(**changes))


def assert_same(one: wafl.Run, other: wafl.Run) -> None:
    """The same draws exactly, the same numbers up to the rounding of sums taken in another order."""
    assert one.history.column("cohort") == other.history.column("cohort")
    for name, value in one.params.items():
        torch.testing.assert_close(value, other.params[name], rtol=0, atol=1e-5)
    torch.testing.assert_close(one.client_weights, other.client_weights, rtol=0, atol=1e-5)
    assert one.history.column("loss") == pytest.approx(other.history.column("loss"), abs=1e-5)
    gammas = [(one.history[t].gamma or 0.0, other.history[t].gamma or 0.0) for t in range(len(one.history))]
    assert all(first == pytest.approx(second, rel=1e-5) for first, second in gammas)


def distance(one: wafl.Run, other: wafl.Run) -> float:
    return max(float((value - other.params[name]).abs().max()) for name, value in one.params.items())


def mlr_limit(weight: Tensor) -> float:
    return reference.mlr_curvature({"weight": weight.double()}) / 2


# -- One seed, one result -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_the_chunk_size_changes_nothing(few: wafl.Federation, name: str):
    method, timing = METHODS[name]
    whole = fit(few, method, **timing)
    for chunk_size in (1, 3):
        assert_same(whole, fit(few, method, chunk_size=chunk_size, **timing))


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("WAFL", {"gamma": [0.3, 2.0, 40.0], "seed": [0, 5]}),
        ("WAFL, radius", {"radius": [0.2, 1.0], "seed": [0, 5]}),
        ("WAFL, DRFA's weights", {"gamma": [0.3, 2.0], "seed": [0, 5]}),
        ("FedPGM", {"epsilon": [0.05, 0.2], "seed": [0, 5]}),
        ("FedRobust", {"penalty": [0.1, 1.0], "seed": [0, 5]}),
        ("AFL", {"weights_step": [0.1, 0.5], "seed": [0, 5]}),
        ("DRFA", {"weights_step": [0.01, 0.1], "seed": [0, 5, 6]}),
        ("FedAvg", {"learning_rate": [0.1, 0.3], "momentum": [0.0, 0.9], "cohort": [2, None]}),
        ("FedAvg", {"weight_decay": [0.0, 0.1], "server_learning_rate": [1.0, 0.5]}),
    ],
)
def test_each_run_of_a_sweep_equals_the_same_run_alone(few: wafl.Federation, name: str, grid: dict[str, Any]):
    method, timing = METHODS[name]
    runs = sweep(few, method, grid, **timing)
    points = [run.settings["sweep"] for run in runs]
    assert len(runs) == math.prod(len(values) for values in grid.values())
    for point, run in zip(points, runs, strict=True):
        options = {key: value for key, value in point.items() if key in method.options()}
        rest = {key: value for key, value in point.items() if key not in options}
        assert_same(run, fit(few, method.with_options(**options), **{**timing, **rest}))


@pytest.mark.slow
def test_a_sweep_over_different_shapes_equals_the_same_runs_alone(few: wafl.Federation):
    grid = {"norm": [2, math.inf], "batch_size": [5, None], "gamma": [0.5, 3.0]}
    points = list(itertools.product(*grid.values()))
    for (norm, size, gamma), run in zip(points, sweep(few, wafl.WAFL(), grid), strict=True):
        assert_same(run, fit(few, wafl.WAFL(norm=norm, gamma=gamma), batch_size=size))
    for rounds, run in zip([2, 3], sweep(few, wafl.WAFL(), {"rounds": [2, 3]}), strict=True):
        assert_same(run, fit(few, wafl.WAFL(), rounds=rounds))


def test_a_sweep_over_the_radius_starts_from_the_gamma_that_a_radius_starts_from(few: wafl.Federation):
    (run,) = sweep(few, wafl.WAFL(), {"radius": [0.5]})
    assert_same(run, fit(few, wafl.WAFL(radius=0.5)))


def test_a_cohort_without_any_weight_leaves_the_model_as_it_is(few: wafl.Federation):
    seen: list[tuple[tuple[int, ...], Tensor]] = []
    weights = wafl.weights.fixed([0, 0, 0, 1, 1, 1, 1])
    run = fit(
        few, wafl.FedAvg(client_weights=weights), cohort=1, rounds=12,
        callbacks=[lambda moment: seen.append((moment.record.cohort, moment.state.params))],
    )  # fmt: skip
    idle = [t for t in range(1, 12) if run.history[t].cohort[0] < 3]
    busy = [t for t in range(1, 12) if run.history[t].cohort[0] >= 3]
    assert idle
    assert all(torch.equal(seen[t][1], seen[t - 1][1]) for t in idle)
    assert not any(torch.equal(seen[t][1], seen[t - 1][1]) for t in busy)


# -- WAFL between its extremes --------------------------------------------------------------------------------


def gammas_and_limits(clients: wafl.Federation, method: wafl.Method, **changes: Any) -> list[tuple[float, float]]:
    """Gamma and the concavity limit after each round."""
    seen: list[tuple[float, float]] = []

    def note(moment: Any) -> None:
        state = moment.state
        seen.append((state.scalars["gamma"], mlr_limit(state.params[:640].view(10, 64))))

    fit(clients, method, **{"callbacks": [note], "batch_size": 32, "init": None, **changes})
    return seen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.UnitWarning")
def test_a_strict_radius_keeps_gamma_above_the_limit_and_warns_if_it_is_missed(digits: wafl.Federation):
    with pytest.warns(wafl.RadiusWarning, match=r"radius=30 cannot be reached .* from round 20 on it was \d") as caught:
        seen = gammas_and_limits(digits, wafl.WAFL(radius=30.0, strict=True), rounds=40, cohort=10)
    assert [each.category for each in caught].count(wafl.RadiusWarning) == 1
    assert all(gamma >= limit * (1 - 1e-5) for gamma, limit in seen)
    assert any(gamma <= limit * (1 + 1e-5) for gamma, limit in seen)


def large_start() -> dict[str, Tensor]:
    """Parameters whose concavity limit is well above 1, where a learned gamma starts."""
    large = {name: 3 * value for name, value in start().items()}
    assert mlr_limit(large["1.weight"]) > 2
    return large


def test_a_strict_radius_holds_from_the_first_round(digits: wafl.Federation):
    run = fit(digits, wafl.WAFL(radius=0.2, strict=True), init=large_start(), learning_rate=0.02, rounds=1)
    assert run.history[0].gamma >= mlr_limit(large_start()["1.weight"]) * (1 - 1e-5)


def test_a_strict_radius_that_is_reached_late_does_not_warn(digits: wafl.Federation):
    """Gamma touches the limit on its way up, which says nothing about the final radius."""
    options = {"init": large_start(), "learning_rate": 0.02, "rounds": 10, "cohort": 10}
    run = fit(digits, wafl.WAFL(radius=0.2, strict=True), **options)
    assert run.history[-1].achieved_radius == pytest.approx(0.2, rel=0.1)


# -- Warnings, errors and records -----------------------------------------------------------------------------


def test_gamma_below_the_limit_warns_once_with_the_round_and_the_limit(digits: wafl.Federation):
    with pytest.warns(wafl.ConcavityWarning) as caught:
        seen = gammas_and_limits(
            digits, wafl.WAFL(gamma=0.2), rounds=8, cohort=10, learning_rate=lambda t: 0.05 if t < 4 else 3.0
        )
    assert len(caught) == 1
    message = str(caught[0].message)
    match = re.match(r"round (\d+): gamma=0\.2 is below the concavity limit ([\d.]+) ", message)
    assert match is not None
    first = next(index for index, (gamma, limit) in enumerate(seen, start=1) if gamma < limit)
    assert first > 1
    assert int(match[1]) == first
    assert float(match[2]) == pytest.approx(seen[first - 1][1], rel=1e-3)
    assert "raise gamma" in message
    assert "weight_decay" in message


def test_gamma_below_the_limit_at_the_start_warns_in_round_0(digits: wafl.Federation):
    with pytest.warns(wafl.ConcavityWarning, match=r"round 0: gamma=0\.5 is below"):
        fit(digits, wafl.WAFL(gamma=0.5), init=large_start(), learning_rate=0.02, rounds=1)


def test_only_the_client_that_diverged_is_named():
    """Only client c has outliers, and so overflows."""
    y = torch.zeros(4)
    pairs = [(scale * torch.ones(4, 3), y + scale) for scale in (1.0, 1.0, 1e20)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0, names=["a", "b", "c"])
    with pytest.raises(wafl.DivergedError, match="round 0, c: "):
        wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_steps=2, loss="squared_error")


@pytest.mark.parametrize("name", METHODS)
def test_the_history_has_one_record_per_round_with_what_the_method_has(few: wafl.Federation, name: str):
    method, timing = METHODS[name]
    history = fit(few, method, **timing).history
    assert history.column("round") == [0, 1, 2, 3]
    assert all(math.isfinite(record.loss) and record.seconds > 0 for record in history)
    assert all(len(record.cohort) <= 7 and set(record.cohort) <= set(range(7)) for record in history)
    moves = name.startswith("WAFL") or name in ("FedPGM", "FedRobust")
    assert all((record.achieved_radius is not None) == moves for record in history)
    assert all((record.gamma is not None) == name.startswith("WAFL") for record in history)
    learned = "DRFA" in name or name in ("AFL", "QFFL")
    assert all((record.client_weights is not None) == learned for record in history)
