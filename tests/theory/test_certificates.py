"""Certificates against random and ascending shifts, closed forms, attacks and plain loops over clients."""

import functools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

import wafl
from tests.oracles import objective as oracles
from tests.oracles import phi as phi_oracles
from tests.oracles import theory
from tests.theory.cases import NORMS, SIZES, WEIGHTS, a_case, certificates_of, clients_of, curvature_of, hinge
from wafl.objectives import ObjectiveState
from wafl.tasks.losses import CrossEntropy
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.theory import certify
from wafl.theory.certificates.dual import search_dual
from wafl.theory.certificates.mixture import Means
from wafl.theory.certificates.upper import UpperBound
from wafl.theory.constants.layer_by_layer import loss_steepness

# What clients report: upper bounds on phi.


@pytest.mark.parametrize("ratio", [1.001, 1.2, 4.0])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["mlr", "regression", "tanh"])
def test_the_upper_bound_is_never_below_phi(name, norm, ratio):
    case = a_case(name)
    curvature = curvature_of(case, norm)
    gamma = ratio * curvature / 2.0
    rows = np.arange(4)
    if name == "regression":
        residual = theory.plain_outputs(case.model, case.x[rows])[:, 0] - case.y[rows]
        phi = theory.squared_error_phi(case.model.weight.detach().numpy()[0], residual, gamma, norm)
    else:
        longest = case.slopes(norm).max() / gamma + 2.0 * np.sqrt(8.0 / gamma)
        phi = np.array([theory.searched_phi(case, row, gamma, norm, longest) for row in rows])
    task = make_task(case.model, case.loss)
    problem = Problem(task, task.initial()[None])
    x, y = torch.from_numpy(case.x[rows])[None], torch.from_numpy(case.y[rows])[None]
    scalars = {"gamma": x.new_tensor([gamma]), "curvature": x.new_tensor([float(curvature)])}
    for steps in (1, 3, 300):
        upper = UpperBound(norm, steps=steps)(problem, x, y, ObjectiveState(scalars)).value[0].numpy()
        assert (upper >= phi - 1e-9 * np.abs(phi)).all(), steps
    if norm == 2 and ratio > 1.1:
        np.testing.assert_allclose(upper, phi, rtol=1e-6)


# The minimum of the dual over gamma.

SURROGATES = {
    "inverse": (lambda g: 1.0 / g, 0.0),
    "steep": (lambda g: 1e12 / g, 0.0),
    "shallow": (lambda g: 1e-12 / g, 0.0),
    "inverse square": (lambda g: 3.0 + 2.0 / g**2, 0.0),
    "with a limit": (lambda g: 2.0 * g / (g - 1.0), 1.0),
    "optimum near the limit": (lambda g: 1e-8 * g / (g - 1.0), 1.0),
    "optimum nearer the limit": (lambda g: 1.0 + 1e-14 / (g - 3.0), 3.0),
    "large limit": (lambda g: 3.0 + 1e-3 * g / (g - 50.0), 50.0),
    "tiny limit": (lambda g: 1e-9 * g / (g - 1e-9), 1e-9),
    "flat": (lambda g: 0.7, 0.25),
    "flat without a limit": (lambda g: 0.7, 0.0),
    "zero with a limit": (lambda g: 0.0, 1.0),
    "exponential": (lambda g: math.exp(-g), 0.0),
    "negative": (lambda g: -2.0 + 1.0 / g, 0.0),
}


def least_of_the_dual(surrogate, limit, radius):
    """By scipy, from the best point of a grid over forty powers of e in either direction."""

    def dual(log_excess):
        gamma = limit + math.exp(log_excess)
        return gamma * radius**2 + surrogate(gamma)

    logs = np.linspace(-45.0 if limit == 0 else math.log(limit) - 35.0, 45.0, 1801)
    values = [dual(log) for log in logs]
    index = int(np.argmin(values))
    ends = logs[max(index - 1, 0)], logs[min(index + 1, len(logs) - 1)]
    result = optimize.minimize_scalar(dual, bounds=ends, method="bounded", options={"xatol": 1e-10})
    return min(float(result.fun), values[index])


@pytest.mark.parametrize("name", SURROGATES)
def test_the_dual_is_minimized_for_many_radii_with_few_queries(name):
    surrogate, limit = SURROGATES[name]
    questions = []

    def ask(gammas):
        questions.append(list(gammas))
        return Means([surrogate(gamma) for gamma in gammas], [cost(surrogate, gamma, limit) for gamma in gammas])

    radii = [1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3]
    dual = search_dual(ask, radii, limit)
    for radius in radii:
        value, gamma = dual.least(radius)
        assert gamma > limit
        assert value == pytest.approx(gamma * radius**2 + surrogate(gamma), rel=1e-12)
        assert value == pytest.approx(least_of_the_dual(surrogate, limit, radius), rel=1e-7)
    asked = [gamma for gammas in questions for gamma in gammas]
    assert len(set(asked)) == len(asked)
    assert min(asked) > limit
    assert len(questions) <= 30
    assert len(asked) <= 350


def cost(surrogate, gamma, limit):
    """The cost is minus the slope in gamma, here by differences."""
    step = 1e-5 * (gamma - limit)
    return (surrogate(gamma - step) - surrogate(gamma + step)) / (2.0 * step)


def test_the_kink_of_an_error_rate_is_found_where_tangents_meet():
    costs, questions = np.random.default_rng(0).chisquare(4, 1000), []

    def ask(gammas):
        questions.append(gammas)
        gains = [np.clip(1.0 - gamma * costs, 0.0, None) for gamma in gammas]
        return Means([gain.mean() for gain in gains], [(costs * (gain > 0)).mean() for gain in gains])

    for radius in (0.05, 0.3, 1.0):
        questions.clear()
        value, gamma = search_dual(ask, [radius], 0.0, 1e-9).least(radius)
        assert value == pytest.approx(
            min(radius**2 / cost + np.clip(1 - costs / cost, 0, None).mean() for cost in costs)
        )
        assert np.abs(gamma * costs - 1.0).min() <= 1e-9, "some example is just worth its move"
        assert len(questions) <= 16


def test_a_gamma_whose_answer_is_no_number_proves_nothing():
    def answer(nothing):
        return lambda gammas: Means(*[[0.0 if gamma > 2.0 else nothing for gamma in gammas]] * 2)

    for limit in (0.0, 1.9999, 2.0):
        assert search_dual(answer(math.nan), [0.5, 3.0], limit) == search_dual(answer(math.inf), [0.5, 3.0], limit)


# Certificates against every distribution in the ball.

RADII = (0.05, 0.3, 1.5)


@functools.cache
def certified(name, norm):
    return certificates_of(a_case(name), RADII, norm, achieved=name != "tanh")  # the shift of a network takes long


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["mlr", "regression", "tanh"])
def test_no_ascent_in_the_ball_finds_a_larger_loss(name, norm):
    case, certificates = a_case(name), certified(name, norm)
    assert certificates.proven
    for row in certificates.rows:
        climbed = theory.climbed_shift(case, row.radius, norm)
        assert certificates.loss <= climbed <= row.best * (1.0 + 1e-9)
        assert row.gamma > (certificates.L_zz / 2.0 if row.tolerance is None else 0.0)
        if row.achieved is not None:
            assert climbed * (1.0 - 1e-3) <= row.achieved <= row.best * (1.0 + 1e-9)
            assert row.gap == row.best - row.achieved


# Worst cases in closed form.


def projection(outputs, y):
    return outputs[..., 0] - 3.0 * y


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("weights", [WEIGHTS, (0.0, 0.1, 2.0), (1.0, 1.0, 1.0)])
def test_the_certificate_of_a_linear_loss_is_the_worst_case(norm, weights):
    case = replace(a_case("regression"), weights=weights)
    radii = [0.0, 1e-6, 0.2, 1e4]
    certificates = certificates_of(case, radii, norm, loss=projection, curvature=0.0)
    steep = np.linalg.norm(case.model.weight.detach().numpy()[0], ord=oracles.dual_order(norm))
    mean = case.share @ (theory.plain_outputs(case.model, case.x)[:, 0] - 3.0 * case.y)
    assert certificates.L_zz.kind == "attested"
    assert not certificates.proven
    assert certificates.loss == pytest.approx(mean, rel=1e-12)
    for row, radius in zip(certificates.rows, radii, strict=True):
        worst = mean + steep * radius
        assert row.value == pytest.approx(worst, rel=1e-6)
        assert row.value - mean == pytest.approx(steep * radius, rel=1e-6, abs=1e-12)
        assert row.simple == pytest.approx(worst, rel=1e-9)
        assert row.achieved == pytest.approx(worst, rel=1e-5)
        if radius > 0:
            assert row.gamma == pytest.approx(steep / (2.0 * radius), rel=1e-3)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("weights", [WEIGHTS, (0.0, 0.1, 2.0), (1.0, 1.0, 1.0)])
def test_the_certificate_of_a_squared_error_is_the_worst_case(norm, weights):
    case = replace(a_case("regression"), weights=weights)
    radii = [0.0, 1e-6, 0.2, 1e3]
    certificates = certificates_of(case, radii, norm, achieved=weights is WEIGHTS and norm == 2)
    steep = np.linalg.norm(case.model.weight.detach().numpy()[0], ord=oracles.dual_order(norm))
    size = math.sqrt(case.share @ (theory.plain_outputs(case.model, case.x)[:, 0] - case.y) ** 2)
    for row, radius in zip(certificates.rows, radii, strict=True):
        worst = (size + steep * radius) ** 2
        assert row.value == pytest.approx(worst, rel=1e-6)
        assert row.value - size**2 == pytest.approx(worst - size**2, rel=1e-6, abs=1e-9 * size**2)
        if row.achieved is not None:
            assert row.achieved == pytest.approx(worst, rel=1e-4)


def test_the_certificate_of_a_squared_error_with_two_outputs_is_the_worst_case():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(2, 3))
    case = theory.Case(
        oracles.linear_model(weight),
        "squared_error",
        rng.normal(size=(18, 3)),
        rng.normal(size=(18, 2)),
        SIZES,
        WEIGHTS,
    )
    residuals = case.x @ weight.T - case.y
    for row in certificates_of(case, [0.01, 0.3, 2.0]).rows:
        worst = oracles.squared_error_worst_case(residuals, weight, case.share, row.radius)
        assert row.value == pytest.approx(worst, rel=1e-6)


@pytest.mark.parametrize("outputs", [2, 3])
def test_the_certificate_of_several_outputs_in_l_inf_is_reached(outputs):
    """It was up to 2.87 times what is reached."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        model = oracles.linear_model(rng.normal(size=(outputs, 8)))
        y = rng.normal(size=(18, outputs))
        case = theory.Case(model, "squared_error", rng.normal(size=(18, 8)), y, SIZES, WEIGHTS)
        for row in certificates_of(case, [0.01, 0.3, 2.0, 50.0], math.inf).rows:
            assert row.achieved <= row.value <= 1.001 * row.achieved


@pytest.mark.parametrize("seed", range(2))
def test_the_certificate_is_the_minimum_of_the_dual(seed):
    case = a_case("mlr", seed)
    weight = case.model.weight.detach().numpy()
    limit = theory.farthest_rows(weight, 2) ** 2 / 8.0
    for row in certificates_of(case, [0.02, 0.2], achieved=False, gap=1e-5).rows:
        least = theory.dual_on_a_grid(case, weight, row.radius, limit)
        assert row.value == pytest.approx(least, rel=1e-6)
        assert row.gamma > 1.02 * limit  # otherwise the grid would not reach it


@pytest.mark.parametrize("norm", [1, math.inf])
def test_a_networks_certificate_for_norms_other_than_l2_is_at_most_quadratic_in_the_radius(norm):
    """The minimum of ``gamma rho^2 + E[loss + ||g||^2 / (4 gamma - 2 L)]`` over gamma, in closed form, or less."""
    case, certificates = a_case("tanh"), certified("tanh", norm)
    smallest = certificates_of(case, [0.005], norm, achieved=False)[0]
    steep = math.sqrt(case.share @ case.slopes(norm) ** 2)
    for row in (smallest, *certificates.rows):
        expected = case.mean() + steep * row.radius + certificates.L_zz * row.radius**2 / 2.0
        assert row.value <= expected * (1.0 + 1e-7)
        if row.tolerance is None:
            assert row.value == pytest.approx(expected, rel=1e-7)
    assert smallest.tolerance is None, "in a small ball the curvature proves more"


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["mlr", "tanh"])
def test_the_simple_bound_is_the_loss_plus_the_slope_times_the_radius(name, norm):
    case, certificates = a_case(name), certified(name, norm)
    if name == "mlr":
        steep = theory.farthest_rows(case.model.weight.detach().numpy(), norm)
    else:
        stretch = math.sqrt(case.x.shape[1]) if math.isinf(norm) else 1.0
        steep = loss_steepness(case.model, CrossEntropy()).slope * stretch
    assert certificates.simple_proven
    assert certificates.loss == pytest.approx(case.mean(), rel=1e-12)
    for row in certificates.rows:
        assert row.simple == pytest.approx(case.mean() + steep * row.radius, rel=1e-12)


# What is achieved.


# Clients.


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (None, SIZES),
        (wafl.weights.by_examples(), SIZES),
        (wafl.weights.uniform(), (1, 1, 1)),
        (wafl.weights.fixed([0.0, 3.0, 1.0]), (0.0, 3.0, 1.0)),
        (wafl.weights.agnostic(), (1, 1, 1)),
        (wafl.weights.snapshot(), (1, 1, 1)),
    ],
)
def test_every_rule_for_client_weights_centers_the_ball(rule, expected):
    case = replace(a_case("regression"), weights=expected)
    result = certificates_of(case, [0.0, 0.3], client_weights=rule)
    steep = np.linalg.norm(case.model.weight.detach().numpy())
    assert result.loss == pytest.approx(case.mean(), rel=1e-12)
    assert result[1].value == pytest.approx((math.sqrt(case.mean()) + 0.3 * steep) ** 2, rel=1e-6)


def test_a_runs_own_weights_loss_and_parameters_are_used():
    case = a_case("mlr")
    clients = clients_of(case)
    run = wafl.fit(nn.Linear(2, 3), clients, wafl.AFL(weights_step=0.5), rounds=5, local_steps=1, learning_rate=0.1)
    assert run.client_weights.max() - run.client_weights.min() > 0.01
    trained = replace(case, model=run.model.double(), weights=tuple(run.client_weights.tolist()))
    certificates = certify(run, clients, radii=[0.1])
    assert certificates.loss == pytest.approx(trained.mean(), rel=1e-9)
    assert certificates[0].value == pytest.approx(certificates_of(trained, [0.1])[0].value, rel=1e-9)
    given = certify(run, clients, radii=[0.1], client_weights=wafl.weights.by_examples())
    assert given.loss == pytest.approx(replace(trained, weights=SIZES).mean(), rel=1e-9)
    targets = wafl.Federation.from_arrays(a_case("regression").pairs(), test_fraction=0.0)
    regression = wafl.fit(nn.Linear(3, 1), targets, wafl.FedAvg(), loss="squared_error", rounds=1, local_steps=1)
    regressed = replace(a_case("regression"), model=regression.model.double(), weights=SIZES)
    assert certify(regression, targets, radii=[0.1]).loss == pytest.approx(regressed.mean(), rel=1e-9)


def test_the_test_part_is_certified_separately():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 2)), np.arange(n) % 3) for n in (8, 12)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.25)
    model = a_case("mlr").model
    x, y = clients.test.x.double().numpy(), clients.test.y.numpy()
    held_out = theory.Case(model, "cross_entropy", x, y, (2, 3), (1.0, 4.0))
    certificates = certify(model, clients, radii=[0.1], split="test", client_weights=wafl.weights.fixed([1, 4]))
    assert certificates.loss == pytest.approx(held_out.mean(), rel=1e-9)
    assert certificates[0].value == pytest.approx(certificates_of(held_out, [0.1])[0].value, rel=1e-9)
    assert certificates.loss != pytest.approx(certify(model, clients, radii=[0.1]).loss, rel=1e-3)


def test_float32_models_and_data_are_certified_in_float64():
    case = a_case("mlr")
    single = nn.Linear(2, 3)
    single.load_state_dict({name: value.float() for name, value in case.model.state_dict().items()})
    x32 = case.x.astype(np.float32)
    rounded = theory.Case(
        nn.Linear(2, 3).double(), "cross_entropy", x32.astype(float), case.y, case.sizes, case.weights
    )
    rounded.model.load_state_dict({name: value.double() for name, value in single.state_dict().items()})
    clients = wafl.Federation.from_arrays([(x.astype(np.float32), y) for x, y in case.pairs()], test_fraction=0.0)
    certificates = certify(single, clients, radii=[0.1], client_weights=wafl.weights.fixed(case.weights))
    assert certificates.loss == pytest.approx(rounded.mean(), rel=1e-12)
    assert certificates[0].value == pytest.approx(certificates_of(rounded, [0.1])[0].value, rel=1e-12)


# The error rate, the order of the ball, and the gap.


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
def test_the_certified_error_rate_is_the_best_use_of_the_budget(norm, power):
    """A fractional knapsack: the nearest examples cross their boundary, the last of them in part."""
    case = a_case("mlr")
    weight, outputs = case.model.weight.detach().numpy(), theory.plain_outputs(case.model, case.x)
    distance = np.array(
        [phi_oracles.distance_to_error(weight, s, y, norm) for s, y in zip(outputs, case.y, strict=True)]
    )
    certificates = certificates_of(case, [0.0, 0.1, 0.4, 3.0], norm, metric="error", power=power)
    assert certificates.loss == pytest.approx(case.share @ (distance == 0), rel=1e-12)
    for row in certificates.rows:
        left, worst = row.radius**power, 0.0
        for index in np.argsort(distance):
            price = case.share[index] * distance[index] ** power
            part = 1.0 if price <= left else left / price
            worst, left = worst + part * case.share[index], left - part * price
        assert row.value == pytest.approx(worst, rel=1e-9)
        assert row.achieved == pytest.approx(worst, rel=1e-9)
    assert certificates.proven
    assert "error rate in the" in str(certificates)


@pytest.mark.parametrize("norm", NORMS)
def test_the_ball_of_order_1_adds_the_steepest_slope_times_the_radius(norm):
    """Far mass approaches it: a share ``radius / t`` of one example goes t along the steepest direction."""
    case = a_case("mlr")
    weight = case.model.weight.detach().numpy()
    steep = theory.farthest_rows(weight, norm)
    (row,) = certificates_of(case, [0.5], norm, power=1).rows
    assert row.value == pytest.approx(case.mean() + steep * 0.5, rel=1e-12)
    pairs = [(y, k) for y in range(3) for k in range(3)]
    y, k = max(pairs, key=lambda pair: np.linalg.norm(weight[pair[1]] - weight[pair[0]], ord=oracles.dual_order(norm)))
    slope = weight[k] - weight[y]
    toward = {1: np.sign(slope) * (np.abs(slope) == np.abs(slope).max()), 2: slope, math.inf: np.sign(slope)}[norm]
    toward = toward / np.linalg.norm(toward, ord=norm)
    index = int(np.flatnonzero(case.y == y)[0])
    far = 1e5
    moved = theory.plain_losses(case.model, case.x[[index]] + far * toward, case.y[[index]])[0]
    still = theory.plain_losses(case.model, case.x[[index]], case.y[[index]])[0]
    reached = case.mean() + 0.5 / far * (moved - still)
    assert reached <= row.value
    assert reached == pytest.approx(row.value, rel=1e-3)


def test_the_squared_error_has_no_largest_value_in_a_ball_of_order_1():
    assert certificates_of(a_case("regression"), [0.5], power=1)[0].value == math.inf


@pytest.mark.parametrize("norm", [2, math.inf])
def test_the_gap_is_kept_at_every_radius(norm):
    case = a_case("mlr")
    for gap in (0.02, 1e-3):
        for row in certificates_of(case, [0.1, 0.5, 1.0, 2.0, 4.0], norm, gap=gap).rows:
            assert row.achieved <= row.value <= (1.0 + 1.2 * gap) * row.achieved


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_classes_that_all_compete_are_certified_in_l_inf_within_a_few_percent():
    """The loosest that we know: small weights, and a ball in which eight of ten classes matter. It was 1.08."""
    clients = wafl.load_dataset("digits").partition(num_clients=10, iid=True)
    schedule = {"rounds": 60, "local_epochs": 2, "learning_rate": 0.5}
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=0.5), **schedule)
    few = torch.arange(0, len(clients.train.y), 60)
    sample = [(clients.train.rows(few, torch.float32), clients.train.y[few])]
    sample = wafl.Federation.from_arrays(sample, test_fraction=0.0, num_classes=10)
    for row in certify(run.model, sample, radii=[0.3], norm=math.inf).rows:
        assert row.achieved <= row.value <= 1.03 * row.achieved


def test_questions_that_make_no_sense_are_refused():
    case = a_case("mlr")
    with pytest.raises(ValueError, match=r"gap=0\.0 must lie in"):
        certificates_of(case, [0.1], gap=0.0)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device='cuda' needs CUDA, which torch does not find here"):
            certificates_of(case, [0.1], device="cuda")
    with pytest.raises(ValueError, match="power=3 must be 1 or 2"):
        certificates_of(case, [0.1], power=3)
    with pytest.raises(ValueError, match="metric='accuracy' is not one of 'loss', 'error': pass metric='loss' for the"):
        certificates_of(case, [0.1], metric="accuracy")
    with pytest.raises(wafl.PreconditionError, match="needs a linear classifier"):
        certificates_of(a_case("regression"), [0.1], metric="error")


# Corner cases.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["mlr", "regression", "tanh"])
def test_certificates_never_decrease_as_the_radius_grows(name, norm):
    case = a_case(name)
    radii = [0.0, 1e-9, 1e-6, 0.01, 0.1, 2.0, 1e4]
    certificates = certificates_of(case, radii, norm, achieved=name == "mlr" and norm == 2)
    values = [row.value for row in certificates.rows]
    assert values == sorted(values)
    assert (
        certificates[0].value == certificates[0].simple == certificates[0].best == pytest.approx(case.mean(), rel=1e-12)
    )
    assert certificates[0].gamma == math.inf
    steep = math.sqrt(case.share @ case.slopes(norm) ** 2)
    assert certificates[2].value - case.mean() == pytest.approx(1e-6 * steep, rel=1e-3)
    for row in certificates.rows:
        assert math.isfinite(row.value)
        assert row.gamma > (certificates.L_zz / 2.0 if row.tolerance is None else 0.0)
        if row.achieved is not None:
            assert case.mean() * (1.0 - 1e-9) <= row.achieved <= row.best * (1.0 + 1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_a_model_with_zero_weights_has_the_same_loss_at_every_radius(norm):
    case = a_case("mlr")
    still = replace(case, model=oracles.linear_model(np.zeros((3, 2)), np.array([0.0, 1.0, 2.0])))
    for row in certificates_of(still, [0.0, 1e-6, 1e3], norm).rows:
        assert (row.value, row.simple, row.achieved) == pytest.approx((still.mean(),) * 3, rel=1e-9)
    regression = replace(a_case("regression"), model=oracles.linear_model(np.zeros((1, 3)), 0.5))
    for row in certificates_of(regression, [0.0, 0.5], norm).rows:
        assert (row.value, row.achieved) == pytest.approx((regression.mean(),) * 2, rel=1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_a_model_with_zero_weights_and_zero_error_has_a_certificate_of_zero(norm):
    case = a_case("regression")
    perfect = replace(case, model=oracles.linear_model(np.zeros((1, 3))), y=np.zeros(len(case.x)))
    for row in certificates_of(perfect, [0.0, 0.5], norm).rows:
        assert row.value == pytest.approx(0.0, abs=1e-9)
        assert row.achieved == 0.0


@pytest.mark.parametrize("norm", NORMS)
def test_the_certificate_is_still_the_worst_case_if_every_residual_is_zero(norm):
    """The hard case: phi is 0 above the limit and infinite below, so the worst case is ``(||w||_* rho)^2``."""
    case = a_case("regression")
    fitted = replace(case, y=theory.plain_outputs(case.model, case.x)[:, 0])
    steep = np.linalg.norm(case.model.weight.detach().numpy()[0], ord=oracles.dual_order(norm))
    for row in certificates_of(fitted, [0.5, 3.0], norm, achieved=False).rows:
        assert row.value == pytest.approx((steep * row.radius) ** 2, rel=1e-6)


def test_certificates_say_whether_they_are_proven():
    case = a_case("mlr")
    result = certificates_of(case, [0.1], loss=hinge, achieved=False)
    assert not result.proven
    assert not result.simple_proven
    assert result.L_zz.kind == "estimate"
    assert "no bound is known for the loss hinge of these layers" in str(result).splitlines()[0]
    trusted = certificates_of(case, [0.1], loss=hinge, curvature=2.0, achieved=False)
    assert not trusted.proven
    assert trusted.column == "estimate"
    assert "its curvature is only attested (curvature=)" in str(trusted).splitlines()[0]
    assert (trusted.L_zz, trusted.L_zz.kind) == (2.0, "attested")
    relu = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    kinked = certificates_of(replace(case, model=relu), [0.1], math.inf, achieved=False)
    assert kinked.proven, "along its margins"
    assert kinked.simple_proven
    assert certified("tanh", 2).proven
    assert "certified is proven" in str(certified("tanh", 2))


def test_the_ball_of_order_1_says_estimate_where_its_slope_is_one():
    case = a_case("mlr")
    elu = replace(case, model=nn.Sequential(nn.Linear(2, 4), nn.ELU(), nn.Linear(4, 3)).double())
    result = certificates_of(elu, [1.0], power=1, achieved=False)
    assert result.L_z.kind == "estimate"
    assert not result.proven
    assert "`ELU` at `self[1]` has no proof" in str(result).splitlines()[0]
    assert certificates_of(case, [1.0], power=1, achieved=False).proven


def test_a_figure_of_attested_values_is_no_proof():
    result = certificates_of(a_case("mlr"), [1e3], loss=hinge, curvature=2.0, achieved=False)
    assert not result.curve().proven


class Sloped(wafl.OutputLoss):
    """A hinge loss that states its slope, but no curvature."""

    labels = "classes"

    def value(self, outputs, y):
        return hinge(outputs.flatten(0, -2), y.flatten()).view(outputs.shape[:-1])

    def slopes(self, weight, norm=2):
        return CrossEntropy().slopes(weight, norm)


def test_neither_a_slope_that_a_loss_claims_nor_a_claimed_curvature_is_certified():
    case = replace(a_case("mlr"), model=nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)).double())
    result = certificates_of(case, [0.1], loss=Sloped(), curvature=100.0, achieved=False)
    assert not result.certifies
    assert result.column == "estimate"
    assert (result.L_z.kind, result.L_zz.kind) == ("attested", "attested")


def test_a_curvature_that_is_not_needed_is_not_used():
    for model in (nn.Linear(2, 3), nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))):
        case = replace(a_case("mlr"), model=model.double())
        plain, claimed = (certificates_of(case, [0.1], achieved=False, **given) for given in ({}, {"curvature": 0.0}))
        assert claimed.proven
        assert claimed[0] == plain[0]


@pytest.mark.parametrize("achieved", [False, True])
def test_a_false_claim_about_the_curvature_is_refused_as_such(achieved):
    """Cross-entropy as a function, of which nothing is known: at curvature 0 it would be linear."""

    def unknown(outputs, y):
        return nn.functional.cross_entropy(outputs, y, reduction="none")

    case = a_case("mlr")
    with torch.no_grad():
        case.model.weight.mul_(5.0)
    with pytest.raises(ValueError, match=r"curvature=0 is false\. It implies .* at most .*, but .* was reached: leave"):
        certificates_of(case, [1.0], loss=unknown, curvature=0.0, achieved=achieved)
    rows = certificates_of(case, [1.0], loss=unknown, curvature=1e3, achieved=achieved).rows
    assert rows[0].achieved is None or rows[0].achieved <= rows[0].value


def test_bad_input_is_refused_with_the_value_and_the_remedy():
    case = a_case("mlr")
    for radius in (-0.1, math.nan, math.inf, 1e-160, 1e160):
        with pytest.raises(ValueError, match=r"radius=.* must be 0 or lie in \[1e-100, 1e\+50\], in the unit"):
            certificates_of(case, [0.1, radius])
    with pytest.raises(ValueError, match="radii is empty: give at least one"):
        certificates_of(case, [])
    with pytest.raises(ValueError, match="2 client weights for 3 clients: give one weight each"):
        certificates_of(case, [0.1], client_weights=wafl.weights.fixed([1, 2]))
    with pytest.raises(ValueError, match="norm=3 must be 1, 2 or inf"):
        certificates_of(case, [0.1], norm=3)
    for curvature in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"curvature={curvature} must be finite and at least 0"):
            certificates_of(case, [0.1], curvature=curvature)
    with pytest.raises(ValueError, match="seed=-1 must lie in"):
        certificates_of(case, [0.1], seed=-1)
    with pytest.raises(ValueError, match="client 0 has no test examples: use split='train'"):
        certificates_of(case, [0.1], split="test")
    with pytest.raises(ValueError, match="floating-point targets"):
        certificates_of(case, [0.1], loss="squared_error")
    with pytest.raises(ValueError, match="does not take examples"):
        certificates_of(replace(case, model=nn.Linear(5, 3)), [0.1])
    run = wafl.fit(nn.Linear(2, 3), clients_of(case), wafl.FedAvg(), rounds=1, local_steps=1)
    fewer = wafl.Federation.from_arrays(case.pairs()[:2], test_fraction=0.0)
    with pytest.raises(ValueError, match="the run has 3 clients, this federation 2"):
        certify(run, fewer, radii=[0.1])


@pytest.mark.parametrize("norm", NORMS)
def test_weights_whose_fourth_powers_overflow_are_refused(norm):
    """A squared error's phi has the fourth power of the weights, and is infinite at every gamma."""
    case = a_case("regression")
    with torch.no_grad():
        case.model.weight.fill_(1e90)
    with pytest.raises(wafl.PreconditionError, match=r"no gamma gives a finite bound: .* a model of smaller weights"):
        certificates_of(case, [0.0, 0.3], norm)
    at_rest = certificates_of(case, [0.0], norm)
    assert at_rest.loss <= at_rest[0].value == pytest.approx(at_rest.loss, rel=1e-12)
    assert at_rest[0].value < math.inf


def test_a_part_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="split"):
        certificates_of(a_case("mlr"), [0.1], split="validation")


# What is printed, saved and drawn.


@pytest.mark.parametrize("name", ["mlr", "regression"])
def test_certificates_print_a_table_and_save_as_json(name):
    result = certificates_of(a_case(name), [0.0, 0.1], math.inf)
    lines = str(result).splitlines()
    assert lines[0].split() == ["radius", "achieved", "certified", "simple", "gamma"]
    assert lines[2].split()[0] == "0.1"
    assert result[1].best <= float(lines[2].split()[2]) <= result[1].best + 1e-4
    assert "l_inf ball of W_2, input units" in lines[-1]
    saved = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert saved["loss"] == result.loss
    assert saved["norm"] == "l_inf"
    assert saved["certificates"][0]["gamma"] is None
    assert saved["certificates"][1]["value"] == result[1].value
    assert saved["certificates"][1]["achieved"] == result[1].achieved
    assert saved["constants"]["L_zz"]["kind"] == result.L_zz.kind
    assert saved["constants"]["L_zz"]["value"] == pytest.approx(float(result.L_zz), rel=1e-12)
    unreached = certificates_of(a_case(name), [0.1], achieved=False)
    assert unreached.to_json()["certificates"][0]["achieved"] is None
    assert str(unreached).splitlines()[1].split()[1] == "-"


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


@pytest.mark.slow
def test_certificates_of_several_runs_share_a_figure(tmp_path):
    one = certificates_of(a_case("mlr"), [0.3, 0.0, 0.1])
    other = certificates_of(a_case("tanh"), [0.0, 0.2], achieved=False)
    guess = certificates_of(a_case("mlr"), [0.0, 0.2], loss=lambda s, y: s[..., 0])
    figure = one.plot(tmp_path / "certificates.png", tanh=other, custom=guess)
    assert is_png(tmp_path / "certificates.png")
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["this run", "tanh", "custom (estimate)"]
    assert axes.get_title().splitlines() == [
        "Not proven: an estimate can be below the truth",
        "worst case inside the ball: certified or estimate (solid), reached (dashed)",
    ]
    assert one.plot().axes[0].get_title() == "worst case inside the ball: certified (solid), reached (dashed)"
    solid = axes.lines[0]
    assert list(solid.get_xdata()) == [0.0, 0.1, 0.3]
    assert list(solid.get_ydata()) == [one[1].best, one[2].best, one[0].best]
    assert len(axes.lines) == 5  # the second has no achieved losses
    assert "l2 ball" in axes.get_xlabel()
    assert certificates_of(a_case("regression"), [0.1]).plot().axes


def test_a_figure_shows_losses_below_zero(tmp_path):
    case = a_case("regression")
    result = certificates_of(case, [0.0, 0.1], loss=lambda s, y: s[..., 0] - 100.0, curvature=0.0)
    low, high = result.plot().axes[0].get_ylim()
    assert low <= result[0].value <= high
