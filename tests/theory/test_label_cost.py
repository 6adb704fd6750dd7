"""Certificates of balls in which labels change at a price, against brute force over labels and moves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import nn

import wafl
from tests.oracles import objective as oracles
from tests.oracles import phi as phi_oracles
from tests.oracles import reached, theory
from tests.theory.networks import ARCHITECTURES, KINDS, drawn, losses
from wafl.base.errors import UnsoundError
from wafl.theory.certificates import certify as certificates
from wafl.theory.certificates.mixture import LabelsMove

Array = NDArray[np.float64]
NORMS = (1, 2, math.inf)
RADII = [0.1, 0.5, 1.5]


def a_case(classes: int = 3, seed: int = 0) -> theory.Case:
    rng = np.random.default_rng(seed)
    model = oracles.linear_model(rng.normal(size=(classes, 2)), rng.normal(size=classes))
    return theory.Case(model, "cross_entropy", rng.normal(size=(6, 2)), np.arange(6) % classes, (2, 4), (0.4, 0.6))


def a_network() -> theory.Case:
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    rng = np.random.default_rng(1)
    for value in model.parameters():
        value.data = torch.from_numpy(0.8 * rng.normal(size=tuple(value.shape)))
    case = a_case()
    return theory.Case(model, case.loss, case.x, case.y, case.sizes, case.weights)


def certified(case: theory.Case, norm: float = 2, radii: Any = RADII, **options: Any) -> Any:
    clients = wafl.Federation.from_arrays(case.pairs(), test_fraction=0.0)
    weights = wafl.weights.fixed(case.weights)
    return wafl.certify(case.model, clients, radii=radii, norm=norm, loss=case.loss, client_weights=weights, **options)


def weight_of(case: theory.Case) -> Array:
    return next(case.model.parameters()).detach().numpy()


def worst_of(case: theory.Case, radius: float, norm: float, power: int, kappa: float) -> float:
    """The largest mean loss if examples may go to every point of a grid, with every label: mass may be split."""
    fine = [side * size for size in np.geomspace(1e-2, 60.0, 50) for side in (1, -1)]
    line = np.array([0.0, *sorted(fine)])
    moves = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    moves = moves[np.argsort(np.abs(moves).sum(1), kind="stable")]  # the first is no move
    far = np.linalg.norm(moves, ord=norm, axis=1) ** power
    values, prices = list[Array](), list[Array]()
    for x, y in zip(case.x, case.y, strict=True):
        labels = [int(y), *(k for k in range(3) if k != y and k < int(case.y.max()) + 1)]
        values.append(
            np.concatenate([theory.plain_losses(case.model, x + moves, np.full(len(moves), k)) for k in labels])
        )
        prices.append(np.concatenate([far + (kappa if k != y else 0.0) for k in labels]))
    return reached.Places(np.stack(values), np.stack(prices) ** (1.0 / power)).worst_mean(case.share, radius, power)


@pytest.mark.parametrize("kappa", [0.2, 2.0])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 3])
def test_the_loss_is_that_of_the_best_moves_and_labels(classes: int, norm: float, kappa: float) -> None:
    case = a_case(classes)
    result = certified(case, norm, label_cost=kappa, gap=1e-3)
    assert result.proven
    for row in result.rows:
        worst = worst_of(case, row.radius, norm, 2, kappa)
        assert worst <= row.value * (1.0 + 1e-9)
        assert row.value <= worst * 1.01, "of which the grid misses the most"
        assert row.achieved <= row.value <= row.achieved * 1.0025
        assert row.value <= row.simple
    assert result[2].value > 1.02 * certified(case, norm)[2].value


@pytest.mark.parametrize("kappa", [0.2, 2.0, 30.0])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 3])
def test_the_ball_of_order_1_has_the_value_of_a_linear_program(classes: int, norm: float, kappa: float) -> None:
    """``min gamma r + <share, s>``, ``s_i >= loss(x_i, k) - gamma kappa 1(k != y_i)`` and gamma at least the slope."""
    case = a_case(classes)
    rows, limits = list[Array](), list[float]()
    for index, (x, y) in enumerate(zip(case.x, case.y, strict=True)):
        for k in range(classes):
            row = np.zeros(1 + len(case.y))
            row[0], row[1 + index] = -kappa * (k != y), -1.0
            rows.append(row)
            limits.append(-float(theory.plain_losses(case.model, x[None], np.array([k]))[0]))
    steep = theory.farthest_rows(weight_of(case), norm)
    for row in certified(case, norm, [0.02, *RADII], power=1, label_cost=kappa).rows:
        bounds = [(steep, None), *[(None, None)] * len(case.y)]
        exact = optimize.linprog(np.r_[row.radius, case.share], np.stack(rows), limits, bounds=bounds).fun
        assert row.value == pytest.approx(exact, rel=1e-7)
        assert row.achieved == pytest.approx(exact, rel=1e-7)
        assert worst_of(case, row.radius, norm, 1, kappa) <= row.value * (1.0 + 1e-9)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
def test_an_error_costs_no_more_than_a_label(norm: float, power: int) -> None:
    case, kappa = a_case(), 0.15
    weight, outputs = weight_of(case), theory.plain_outputs(case.model, case.x)
    far = [phi_oracles.distance_to_error(weight, s, y, norm) for s, y in zip(outputs, case.y, strict=True)]
    prices = np.minimum(np.array(far) ** power, kappa)
    assert (prices == kappa).any()
    places = reached.Places(
        np.stack([prices == 0, np.ones(len(prices))], 1).astype(float),
        np.stack([np.zeros(len(prices)), prices ** (1.0 / power)], 1),
    )
    for row in certified(case, norm, [0.05, 0.2, 0.3], metric="error", power=power, label_cost=kappa).rows:
        worst = places.worst_mean(case.share, row.radius, power)
        assert row.value == pytest.approx(worst, rel=1e-4)
        assert row.achieved == pytest.approx(worst, rel=1e-4)


@pytest.mark.parametrize("kappa", [0.3, 4.0])
@pytest.mark.parametrize("norm", NORMS)
def test_a_regressions_target_is_one_more_input(norm: float, kappa: float) -> None:
    """With one output, ``(|r| + sqrt(||w||_*^2 + 1 / kappa) radius)^2`` in the root mean square."""
    rng = np.random.default_rng(0)
    weight, x, y = rng.normal(size=(1, 3)), rng.normal(size=(7, 3)), rng.normal(size=7)
    case = theory.Case(oracles.linear_model(weight, np.zeros(1)), "squared_error", x, y, (3, 4), (0.5, 0.5))
    size = math.sqrt(case.share @ (x @ weight[0] - y) ** 2)
    steep = math.hypot(np.linalg.norm(weight[0], ord=oracles.dual_order(norm)), 1.0 / math.sqrt(kappa))
    for row in certified(case, norm, label_cost=kappa).rows:
        assert row.value == pytest.approx((size + steep * row.radius) ** 2, rel=1e-6)
        assert row.achieved == pytest.approx(row.value, rel=1e-4)


def test_targets_of_two_outputs_are_two_more_inputs() -> None:
    rng = np.random.default_rng(0)
    weight, x, y, kappa = rng.normal(size=(2, 3)), rng.normal(size=(7, 3)), rng.normal(size=(7, 2)), 0.5
    case = theory.Case(oracles.linear_model(weight, np.zeros(2)), "squared_error", x, y, (3, 4), (0.5, 0.5))
    wide = np.concatenate([weight, -np.eye(2) / math.sqrt(kappa)], axis=1)
    inputs = np.concatenate([x, math.sqrt(kappa) * y], axis=1)
    other = theory.Case(oracles.linear_model(wide, np.zeros(2)), case.loss, inputs, 0.0 * y, case.sizes, case.weights)
    for row, same in zip(certified(case, label_cost=kappa).rows, certified(other).rows, strict=True):
        assert row.value == pytest.approx(same.value, rel=1e-6)
        assert row.achieved == pytest.approx(same.achieved, rel=1e-6)


def assert_never_below(name: str, seed: int) -> None:
    case = drawn(name, seed)
    kappa = 10.0 ** np.random.default_rng(seed).uniform(-4.0, 4.0)
    options: dict[str, Any] = {"client_weights": wafl.weights.fixed(case.share), "achieved": False}
    asked: dict[str, Any] = {"radii": case.radii, "norm": case.norm, "power": case.power, "label_cost": kappa}
    result = wafl.certify(case.model, case.clients, **asked, **options)
    every = [torch.full_like(case.y, k) for k in range(3)]
    spots = [reached.places(case.model, losses, case.x, y, case.radii, case.norm) for y in (case.y, *every)]
    tolls = [kappa * (case.y != y).double().numpy()[:, None] for y in (case.y, *every)]
    prices = [spot.distances**case.power + toll for spot, toll in zip(spots, tolls, strict=True)]
    places = reached.Places(
        np.concatenate([spot.losses for spot in spots], 1), np.concatenate(prices, 1) ** (1.0 / case.power)
    )
    lost = 1e-13 * float(case.model(case.x).detach().abs().max())
    for row in result.rows:
        worst = places.worst_mean(case.shares, row.radius, case.power)
        for bound, proven in ((row.value, result.proven), (row.simple, result.simple_proven)):
            assert not proven or bound >= worst - 1e-9 * abs(worst) - lost, (name, seed, row, worst, kappa)


CLASSIFIERS = [name for name in ARCHITECTURES if name not in KINDS]


@pytest.mark.parametrize("name", ["linear", "relu"])
def test_no_attack_with_labels_reaches_more_than_is_proven(name: str) -> None:
    assert_never_below(name, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_no_attack_with_labels_reaches_more_than_is_proven_of_many(name: str) -> None:
    for seed in range(2, 6):
        assert_never_below(name, seed)


def test_an_infinite_price_changes_no_bit() -> None:
    for case in (a_case(), a_network()):
        assert certified(case, label_cost=math.inf, achieved=False) == certified(case, achieved=False)
    asked: list[dict[str, Any]] = [{"metric": "error"}, {"power": 1}]
    for options in asked:
        assert certified(a_case(), label_cost=math.inf, **options) == certified(a_case(), **options)


def test_the_price_is_told() -> None:
    result = certified(a_case(), label_cost=0.5)
    assert "labels change at 0.5" in str(result)
    assert result.to_json()["label_cost"] == 0.5
    assert "label_cost" not in certified(a_case()).to_json()


def test_a_bound_below_what_labels_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If labels stayed in what is asked about moves, flips alone would reach more."""

    def free(self: LabelsMove, problem: Any, x: Any, y: Any, state: Any = None) -> Any:
        return called(self if self.report is None else LabelsMove(self.report, 1e9), problem, x, y, state)

    called = LabelsMove.__call__
    monkeypatch.setattr(LabelsMove, "__call__", free)
    with pytest.raises(UnsoundError, match=r"radius 1\.5 .*please report it"):
        certified(a_case(), radii=[1.5], label_cost=0.1)
    monkeypatch.setattr(certificates, "hold_flipped", lambda *_: None)
    assert certified(a_case(), radii=[1.5], label_cost=0.1).proven


def test_what_has_no_labels_to_change_is_refused() -> None:
    for price in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"label_cost=.* must be positive"):
            certified(a_case(), label_cost=price)
    rng = np.random.default_rng(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    case = theory.Case(network, "squared_error", rng.normal(size=(6, 2)), rng.normal(size=6), (2, 4), (0.4, 0.6))
    with pytest.raises(wafl.PreconditionError, match="needs classes, or a linear model with squared error"):
        certified(case, label_cost=1.0)
    pairs = [(np.zeros((8, 2)), np.arange(8) % 3)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.5, num_classes=3)
    with pytest.raises(wafl.PreconditionError, match="leave out power and label_cost"):
        wafl.certify(nn.Linear(2, 3), clients, radii=[0.1], split="test", confidence=0.9, label_cost=1.0)
