"""Each inequality behind a bound on its own, of models so small that a grid holds all moves or all mixes of classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.oracles import phi as oracles
from tests.oracles import theory
from wafl.tasks.losses import CrossEntropy, SquaredError
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.constants.layer_by_layer import last_layer
from wafl.theory.constants.linear_models import Domain, at_parameters, over_ball
from wafl.theory.networks.activations import KNOWN
from wafl.theory.networks.margins import Hidden, Nearby
from wafl.theory.phi.branch_and_bound import branch
from wafl.theory.phi.incumbents import Ball, settle, value_at
from wafl.theory.phi.linear_model import LinearPhi, distance_to_error
from wafl.theory.phi.settled import above_tangent

WEIGHT = np.array([[1.0, 0.5], [-0.4, 1.2], [0.3, -0.9]])
OUTPUTS = np.array([[1.2, -1.3, 1.0], [0.8, 1.2, -0.9]])
LABELS = np.array([0, 1])


def tensors(*arrays: np.ndarray) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array) for array in arrays)


def truth(gamma: float, norm: float, weight: np.ndarray = WEIGHT) -> np.ndarray:
    rows = zip(OUTPUTS, LABELS, strict=True)
    return np.array([oracles.brute_force_phi(weight, row, label, gamma, norm) for row, label in rows])


def curvature(norm: float, weight: np.ndarray = WEIGHT) -> float:
    """``L_zz = max_jk ||w_j - w_k||_*^2 / 4`` of cross-entropy."""
    return theory.farthest_rows(weight, norm) ** 2 / 4.0


# linear_model.py


def test_of_two_maxima_the_one_far_away_is_found() -> None:
    """``log(1 + exp(2 t - 3.25)) - 0.3 t^2`` has two: the ascent from t = 0 ends at the lower one.

    gamma is between a half of the concavity limit, which is ``2^2 / 8``, and that limit.
    """
    t = np.linspace(0.0, 5.0, 50_001)
    value = np.log1p(np.exp(2.0 * t - 3.25)) - 0.3 * t**2
    peaks = np.flatnonzero((value[1:-1] > value[:-2]) & (value[1:-1] > value[2:]))
    assert len(peaks) == 2
    assert value[peaks[0] + 1] < value.max() - 0.05
    model = LinearPhi(torch.tensor([[0.0], [2.0]]).double(), CrossEntropy(), 2)
    outputs, label = torch.tensor([[3.25, 0.0]]).double(), torch.tensor([0])
    sides = model.bounds(outputs, label, 0.3, 1e-4)
    assert value.max() - 1e-8 <= float(sides.upper) <= value.max() + 1e-4
    assert float(model.reached(outputs, label, 0.3, 1e-6)[0]) == pytest.approx(value.max(), abs=1e-6)


def test_the_bound_by_the_curvature_is_above_phi() -> None:
    """``loss + ||g||_1^2 / (4 gamma - 2 L_zz)``, for rows that are too close for an ellipsoid."""
    weight = WEIGHT[[0, 0, 2]] + 1e-5 * np.eye(3)[:, :2]
    gamma = 1.5 * curvature(math.inf, weight)
    model = LinearPhi(torch.from_numpy(weight), CrossEntropy(), math.inf)
    upper = model.bounds(*tensors(OUTPUTS, LABELS), gamma, tolerance=0.02).upper
    assert (upper.numpy() >= truth(gamma, math.inf, weight) - 1e-9).all()


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_slack_takes_away_from_every_lead(norm: float) -> None:
    weight, outputs, labels = tensors(WEIGHT, OUTPUTS, LABELS)
    result = distance_to_error(Ball(weight, norm), outputs, labels, slack=0.1)
    less = OUTPUTS - 0.1 * np.eye(3)[LABELS]
    wanted = [oracles.distance_to_error(WEIGHT, row, label, norm) for row, label in zip(less, LABELS, strict=True)]
    assert result.tolist() == pytest.approx(wanted, rel=1e-5)


# incumbents.py, settled.py, ellipsoids.py and branch_and_bound.py: the maximum over p on the simplex


def simplex() -> np.ndarray:
    """The points of a grid, of three classes."""
    first, second = np.meshgrid(*[np.linspace(0.0, 1.0, 101)] * 2)
    inside = first + second <= 1.0 + 1e-12
    first, second = first[inside], second[inside]
    return np.stack([first, second, (1.0 - first - second).clip(0.0)], axis=1)


def entropy(p: np.ndarray) -> np.ndarray:
    return -np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum(-1)


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_no_point_of_the_simplex_is_above_the_tangent_by_more(share: float) -> None:
    """``f(p) = H(p) + ||sum_j p_j w_j||^2 / (4 gamma)`` at a p0 where f is not concave, and Bennett's bound there."""
    gamma, at, points = share * curvature(2) / 2.0, np.array([0.5, 0.3, 0.2]), simplex()
    value, here = (entropy(p) + ((p @ WEIGHT) ** 2).sum(-1) / (4.0 * gamma) for p in (points, at))
    slope = -np.log(at) - 1.0 + WEIGHT @ (at @ WEIGHT) / (2.0 * gamma)
    above = (value - here - (points - at) @ slope).max()
    x = WEIGHT - at @ WEIGHT
    lengths = np.linalg.norm(x, axis=1)
    bennett = 0.0
    for t in np.linspace(1e-3, lengths.max() / gamma, 500):
        h = (np.exp(t * lengths) - 1.0 - t * lengths) / (t * lengths) ** 2
        bend = np.linalg.eigvalsh((at * h * x.T) @ x)[-1]
        bennett = max(bennett, math.log1p(bend * t**2) - gamma * t**2)
    assert bennett > above
    gram, p0 = torch.from_numpy(WEIGHT @ WEIGHT.T)[None], torch.from_numpy(at)[None]
    coarse, fine = (float(above_tangent(gram, p0, gamma, torch.tensor([e]).double())) for e in (math.inf, bennett))
    assert bennett <= fine <= 1.1 * bennett
    assert fine <= coarse


def test_the_ascents_value_and_cost_are_those_of_its_move() -> None:
    """``<p, A> + H(p) + ||g||_*^2 / (4 gamma)``, and the move of length ``||g||_* / (2 gamma)``."""
    p = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])
    a = OUTPUTS - OUTPUTS[[0, 1], LABELS][:, None]
    pulled = p @ WEIGHT - WEIGHT[LABELS]
    for norm, order in ((2, 2), (math.inf, 1)):
        size = np.linalg.norm(pulled, order, axis=1)
        value, cost = value_at(Ball(torch.from_numpy(WEIGHT), norm), *tensors(a, LABELS, p), 0.3)
        np.testing.assert_allclose(value.numpy(), (p * a).sum(1) + entropy(p) + size**2 / 1.2, rtol=1e-12)
        np.testing.assert_allclose(cost.numpy(), (size / 0.6) ** 2, rtol=1e-12)


def test_where_the_whole_is_concave_the_tangent_anywhere_is_above_the_maximum() -> None:
    ball, gamma = Ball(torch.from_numpy(WEIGHT), 2), 1.1 * curvature(2) / 2.0
    a, labels, p = tensors(OUTPUTS - OUTPUTS[[0, 1], LABELS][:, None], LABELS, np.array([[0.2, 0.5, 0.3]] * 2))
    for tolerance, close in ((math.inf, math.inf), (1e-6, 1e-6)):
        result = settle(ball, a, labels, p, gamma, torch.full_like(a[:, 0], tolerance))
        assert ((result.value + result.missed).numpy() >= truth(gamma, 2) - 1e-9).all()
        assert (result.missed.numpy() <= close).all()


@pytest.mark.parametrize("norm", [2, math.inf])
def test_branch_and_bound_alone_encloses_phi(norm: float) -> None:
    """From the loss below and nothing above, at gammas where nothing, a part and all of the quadratic is kept."""
    ball = Ball(torch.from_numpy(WEIGHT), norm)
    a, labels = tensors(OUTPUTS - OUTPUTS[[0, 1], LABELS][:, None], LABELS)
    for share in (0.1, 0.6, 1.5):
        gamma = share * curvature(norm) / 2.0
        nothing = torch.full_like(a[:, 0], math.inf)
        lower, upper, _ = branch(ball, a, labels, gamma, a.logsumexp(-1), nothing, torch.full_like(nothing, 1e-2))
        wanted = truth(gamma, norm)
        assert (upper.numpy() >= wanted - 1e-9).all(), share
        assert (lower.numpy() <= wanted + 1e-6).all(), share
        assert (upper.numpy() <= wanted + 1e-2).all(), share


@pytest.mark.parametrize("norm", [2, math.inf])
def test_branch_and_bound_of_two_classes_misses_no_maximum(norm: float) -> None:
    """``log(1 + exp(2 t - lead)) - gamma t^2`` has two maxima, at a gamma far below the concavity limit of 1/2."""
    lead, gamma = np.linspace(1.0, 10.0, 46), 0.175
    a = torch.from_numpy(np.stack([np.zeros(46), -lead], axis=1))
    t = np.linspace(0.0, 1.0 / gamma, 10_001)
    wanted = (np.logaddexp(0.0, 2.0 * t - lead[:, None]) - gamma * t**2).max(1)
    ball, nothing = Ball(torch.tensor([[0.0], [2.0]]).double(), norm), torch.full_like(a[:, 0], math.inf)
    labels, tolerance = torch.zeros(46, dtype=torch.long), torch.full_like(nothing, 0.05)
    lower, upper, _ = branch(ball, a, labels, gamma, a.logsumexp(-1), nothing, tolerance)
    assert (lower.numpy() <= wanted + 1e-6).all()
    assert (upper.numpy() >= wanted - 1e-6).all()
    assert (upper.numpy() <= wanted + 0.05 + 1e-6).all()


# margins.py, the lines of a network


@pytest.mark.parametrize("kind", KNOWN)
def test_both_lines_of_a_single_unit_hold_up_to_their_distance(kind: type[nn.Module]) -> None:
    """``f(1.5 x - 1.2)`` from x = 0 by up to 1.6, and minus that; ReLU's own secant is exact at the end."""
    weight, bias, far, x, rows = (
        torch.tensor(numbers, dtype=torch.float64)
        for numbers in ([[1.5]], [-1.2], [1.6], np.linspace(-1.6, 1.6, 3201), [[[1.0], [-1.0]]])
    )
    near = Nearby([Hidden(weight, bias, KNOWN[kind], 1.5)], torch.zeros_like(weight), 2)
    rise = (kind()(1.5 * x + bias) - kind()(bias)) * rows[0]
    ends = []
    for offset, slope in near.lines(rows, torch.tensor([0]), far):
        assert bool((rise <= offset[0][:, None] + slope[0][:, None] * x.abs() + 1e-12).all())
        ends.append(float(offset[0, 0] + 1.6 * slope[0, 0]))
    if kind is nn.ReLU:
        assert ends[0] == pytest.approx(1.5 * 1.6 - 1.2)


# mixture.py


def test_an_example_of_the_mixture_has_its_part_of_its_clients_weight() -> None:
    pairs = [(np.zeros((1, 2)), np.array([0])), (np.zeros((3, 2)), np.array([0, 1, 1]))]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.0, num_classes=2)
    mixture = Mixture.of(nn.Linear(2, 2), clients, client_weights=wafl.weights.fixed([0.4, 0.6]))
    assert mixture.population().shares().tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])


# layer_by_layer.py


def one_unit(*weights: float) -> nn.Sequential:
    """``tanh(... tanh(weights[0] x))``, and a last layer of two outputs."""
    layers: list[nn.Module] = []
    for weight in weights:
        layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        layer.weight.data.fill_(weight)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(1, 2, dtype=torch.float64))


def slope_and_bend(model: nn.Module) -> tuple[float, float]:
    result = last_layer(model)
    assert result is not None
    return result[1].slope, result[1].bend


def test_slope_and_bend_of_single_units_are_those_of_their_second_derivatives() -> None:
    x = np.linspace(-3.0, 3.0, 60_001)
    slope, bend = slope_and_bend(one_unit(3.0))
    first = np.gradient(np.tanh(3.0 * x), x)
    assert np.abs(first).max() <= slope <= 1.001 * np.abs(first).max()
    assert np.abs(np.gradient(first, x)).max() <= bend <= 1.001 * np.abs(np.gradient(first, x)).max()
    slope, bend = slope_and_bend(one_unit(0.5, 4.0))
    assert slope == pytest.approx(2.0)
    # |(f g)''| <= |f''| g'^2 + |f'| |g''|, with f = tanh(4 .) and g = tanh(x / 2)
    assert bend == pytest.approx(0.7699 * 2.0**2 + 4.0 * 0.7699 * 0.5**2)
    second = np.gradient(np.gradient(np.tanh(4.0 * np.tanh(0.5 * x)), x), x)
    assert np.abs(second).max() <= bend


def test_an_input_counts_in_every_window_that_it_is_in() -> None:
    """Windows of three every second place: the middle of five is in four of them, and passes on to all."""
    pool, image = nn.MaxPool2d(3, stride=2), torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    image[0, 0, 2, 2] = 1.0
    slope, _ = slope_and_bend(nn.Sequential(pool, nn.Flatten(), nn.Linear(4, 2)))
    assert slope == pytest.approx(float(pool(image).norm()))
    conv = nn.Conv2d(1, 1, 3, stride=2, bias=False, dtype=torch.float64)
    conv.weight.data.fill_(1.0)
    images = torch.eye(25, dtype=torch.float64).view(25, 1, 5, 5)
    slope, _ = slope_and_bend(nn.Sequential(conv, nn.Flatten(), nn.Linear(4, 2)))
    matrix = conv(images).detach().view(25, 4)
    assert 3.0 < float(torch.linalg.matrix_norm(matrix, ord=2)) <= slope == pytest.approx(6.0)


# linear_models.py


def test_the_largest_output_is_at_a_corner_of_the_box_and_as_far_beyond_as_can_be_reached() -> None:
    domain = Domain(-1.0, 2.0, input_dim=2, reach=0.5)
    corners = np.array([[a, b] for a in (-1.0, 2.0) for b in (-1.0, 2.0)])
    turn = np.linspace(0.0, 2.0 * math.pi, 20_001)
    reached = corners[:, None] + 0.5 * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    offset = np.array([0.1, 0.2, 0.3])
    wanted = (reached.reshape(-1, 2) @ WEIGHT.T + offset).max(0)
    np.testing.assert_allclose(domain.largest(*tensors(WEIGHT, offset)).numpy(), wanted, rtol=1e-6)


def test_the_constants_of_a_squared_error_hold_at_every_point_of_a_box() -> None:
    """``(w x + b - y)^2`` with ``w = 0.7`` and ``b = 0.2``, x between -1 and 2, and y between -0.5 and 1."""
    targets = torch.tensor([[-0.5], [1.0]], dtype=torch.float64)
    weight, bias = (torch.tensor(numbers, dtype=torch.float64) for numbers in ([[0.7]], [0.2]))
    result = at_parameters(SquaredError(), weight, bias, True, Domain(-1.0, 2.0, 1, targets=targets), 2)
    x, y = np.meshgrid(np.linspace(-1.0, 2.0, 31), np.linspace(-0.5, 1.0, 16))
    r = 0.7 * x + 0.2 - y
    sizes = {
        "L_z": np.abs(2.0 * 0.7 * r),
        "L_zz": 2.0 * 0.7**2 * np.ones_like(r),
        "L_theta": 2.0 * np.abs(r) * np.hypot(x, 1.0),
        "L_theta_theta": 2.0 * (x**2 + 1.0),
        "L_theta_z": np.hypot(2.0 * 0.7 * x + 2.0 * r, 2.0 * 0.7),  # of the slope (2 r x, 2 r) in x
        "max_loss": r**2,
    }
    for name, size in sizes.items():
        assert size.max() <= result[name] * (1.0 + 1e-12) <= 1.5 * size.max(), name


def test_two_opposite_rows_share_the_radius_of_the_parameters() -> None:
    """Two classes and one input: the loss has the slope ``w_1 - w_2`` far out, and ``(w_1 - w_2)^2 / 4`` between."""
    result = over_ball(CrossEntropy(), 1.5, 2, False, Domain(-1.0, 1.0, 1), 2)
    turn = np.linspace(0.0, 2.0 * math.pi, 2_001)
    apart = 1.5 * np.abs(np.cos(turn) - np.sin(turn)).max()
    assert float(result["L_z"]) == pytest.approx(apart)
    assert float(result["L_zz"]) == pytest.approx(apart**2 / 4.0)
