"""phi_gamma and the moves that attain it, against closed forms, solvers, and models that hide their structure."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.oracles import objective as oracles
from wafl import robust_loss
from wafl.base.random import Key
from wafl.models import CNN
from wafl.objectives import ObjectiveState, wasserstein
from wafl.tasks.losses import output_loss
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

NORMS = (1, 2, math.inf)


def random_linear(seed, classes=3, features=4, scale=1.0):
    rng = np.random.default_rng(seed)
    return rng, scale * rng.normal(size=(classes, features)), rng.normal(size=classes)


def limit(weight):
    """Half of L_zz of the cross-entropy: above this gamma the inner problem is concave."""
    return max(float(np.sum((a - b) ** 2)) for a in weight for b in weight) / 8.0


def lanes_problem(seed, lanes=3, batch=5, classes=3, features=6, loss="cross_entropy", dtype=torch.float64):
    """One linear model per lane, each with its own examples."""
    task = make_task(nn.Linear(features, classes).to(dtype), loss)
    draw = torch.Generator().manual_seed(seed)
    params = torch.randn(lanes, task.num_params, generator=draw, dtype=dtype)
    x = torch.randn(lanes, batch, features, generator=draw, dtype=dtype)
    if loss == "squared_error":
        return Problem(task, params), x, torch.randn(lanes, batch, classes, generator=draw, dtype=dtype)
    return Problem(task, params), x, torch.randint(classes, (lanes, batch), generator=draw)


# The ascent of a linear model runs in one dimension per output: the moves must be those on the inputs.


def ridged(outputs, y):
    """A smooth convex loss whose curvature is not known."""
    return functional.cross_entropy(outputs, y, reduction="none") + 0.1 * outputs.square().sum(-1)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("above", [0.3, 1.5])
def test_the_ascent_in_class_space_takes_the_steps_of_the_one_on_the_inputs(loss, above):
    """``d <- d + a (gradient / 2 gamma - d)``: the first step shows the damping a, and the others follow."""
    rng, weight, bias = random_linear(0)
    x = rng.normal(size=(5, 4))
    y = rng.integers(3, size=5) if loss == "cross_entropy" else rng.normal(size=(5, 3))
    gamma = above * (limit(weight) if loss == "cross_entropy" else np.linalg.norm(weight, 2) ** 2)

    def moved(steps):
        model = oracles.linear_model(weight, bias)
        return robust_loss(model, x, y, gamma=gamma, steps=steps, tolerance=0.0, loss=loss).x_adv.numpy() - x

    aim = oracles.input_gradient(weight, bias, x, y, loss) / (2.0 * gamma)
    damping = np.sum(moved(1) * aim) / np.sum(aim**2)
    delta = np.zeros_like(x)
    for step in range(1, 31):
        delta += damping * (oracles.input_gradient(weight, bias, x + delta, y, loss) / (2.0 * gamma) - delta)
        if step in (1, 2, 5, 30):
            np.testing.assert_allclose(moved(step), delta, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 4, 30])
def test_with_an_unknown_curvature_hidden_linearity_changes_nothing(steps):
    rng, weight, bias = random_linear(2)
    x, y, model = rng.normal(size=(5, 4)), rng.integers(3, size=5), oracles.linear_model(weight, bias)
    for gamma in (0.3 * limit(weight), 2.0 * limit(weight)):
        seen, unseen = (
            robust_loss(m, x, y, gamma=gamma, steps=steps, tolerance=0.0, loss=ridged)
            for m in (model, oracles.Hidden(model))
        )
        torch.testing.assert_close(seen.x_adv, unseen.x_adv, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(seen.value, unseen.value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_float32_settles_where_float64_does(norm):
    rng, weight, bias = random_linear(3, classes=5, features=20, scale=0.2)
    x, y = rng.normal(size=(50, 20)), rng.integers(5, size=50)
    hidden = oracles.Hidden(oracles.linear_model(weight, bias))
    assert bool(robust_loss(hidden, x, y, gamma=1.0, norm=norm).converged.all())
    assert bool(robust_loss(hidden.float(), x, y, gamma=1.0, norm=norm).converged.all())


# The value of phi_gamma.


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(["mlr", "regression", "tanh", "cnn"]))
    bounds = draw(st.sampled_from([None, (0.0, 1.0), (-0.3, 1.4)]))
    power = draw(st.sampled_from([1, 2] if bounds or kind == "mlr" else [2]))
    gamma = draw(st.sampled_from([0.02, 0.1, 0.5, 2.0, 10.0]))
    tolls = [math.inf, 1.5 / gamma, 20.0 / gamma] if kind == "regression" else [math.inf, 0.05, 1.0]
    return {
        "kind": kind,
        "seed": draw(st.integers(0, 10**6)),
        "bounds": bounds,
        "power": power,
        "gamma": gamma,
        "norm": draw(st.sampled_from(NORMS)),
        "label_cost": draw(st.sampled_from(tolls)),
        "restarts": draw(st.integers(0, 1)),
        "steps": draw(st.sampled_from([1, 3, 15])),
    }


def build(kind, seed):
    draw = torch.Generator().manual_seed(seed)
    shape = (1, 4, 4) if kind == "cnn" else (5,)
    model = {
        "mlr": lambda: nn.Linear(5, 3),
        "regression": lambda: nn.Linear(5, 1),
        "tanh": lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)),
        "cnn": lambda: CNN((1, 4, 4), 3, (2, 2)),
    }[kind]().double()
    for value in model.parameters():
        value.data = torch.randn(value.shape, generator=draw, dtype=torch.float64)
        value.data *= 1.5 / math.sqrt(value[0].numel())
    x = torch.rand(3, *shape, generator=draw, dtype=torch.float64)
    if kind == "regression":
        return model, x, torch.randn(3, generator=draw, dtype=torch.float64), "squared_error"
    return model, x, torch.randint(3, (3,), generator=draw), "cross_entropy"


@pytest.mark.slow
@oracles.settings(oracles.quick, max_examples=60)
@given(cases())
def test_phi_is_at_least_the_loss_and_equals_the_objective_at_its_point(case):
    kind, seed = case.pop("kind"), case.pop("seed")
    model, x, y, loss = build(kind, seed)
    robust = robust_loss(model, x, y, loss=loss, **case)

    def value(x, y):
        return output_loss(loss).value(model(x).detach(), y)

    assert bool((robust.value >= value(x, y) - 1e-12).all())
    if case["bounds"] is not None:
        assert float(robust.x_adv.min()) >= case["bounds"][0]
        assert float(robust.x_adv.max()) <= case["bounds"][1]
    if bool(torch.isfinite(robust.value).all()):
        cost = torch.linalg.vector_norm((robust.x_adv - x).flatten(1), ord=case["norm"], dim=-1) ** case["power"]
        if math.isfinite(case["label_cost"]):
            shift = robust.y_adv - y
            cost += case["label_cost"] * (shift.square() if loss == "squared_error" else (shift != 0).double())
        worth = value(robust.x_adv, robust.y_adv) - case["gamma"] * cost
        scale = 1.0 + float(value(robust.x_adv, robust.y_adv).max())
        torch.testing.assert_close(robust.value, worth, rtol=1e-8, atol=1e-10 * scale)
        assert robust.achieved_radius == pytest.approx(float(cost.mean()) ** (1.0 / case["power"]), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("gamma", [1e-2, 1e-4, 1e-6])
def test_phi_is_at_least_the_loss_in_float32_at_a_tiny_gamma(gamma):
    rng, weight, bias = random_linear(0, features=6)
    x, y = rng.normal(size=(50, 6)), rng.integers(3, size=50)
    model = oracles.linear_model(weight, bias).float()
    loss = functional.cross_entropy(model(torch.from_numpy(x).float()).detach(), torch.from_numpy(y), reduction="none")
    for steps in (1, 15):
        assert bool((robust_loss(model, x, y, gamma=gamma, steps=steps).value >= loss - 1e-6).all())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["mlr", "tanh"])
def test_more_steps_never_lower_phi(kind, norm):
    model, x, y, _ = build(kind, 3)
    for options in ({}, {"gamma": 1.0}, {"bounds": (0.0, 1.0)}, {"bounds": (0.0, 1.0), "power": 1}):
        options = {"gamma": 0.05, "norm": norm, "tolerance": 0.0, **options}
        values = [robust_loss(model, x, y, steps=steps, **options).value for steps in (1, 2, 5, 20)]
        assert bool((torch.stack(values).diff(dim=0) >= -1e-12).all())


@pytest.mark.parametrize("above", [0.02, 0.1, 0.5, 1.01, 1.5])
def test_known_structure_never_costs_steps(above):
    """In the default number of steps a linear model is solved as well as one whose linearity is hidden."""
    rng, weight, bias = random_linear(0, classes=10, features=50, scale=0.3)
    x, y = rng.normal(size=(50, 50)), rng.integers(10, size=50)
    model, gamma = oracles.linear_model(weight, bias), above * limit(weight)
    objective = wasserstein(gamma=gamma)
    seen, unseen = (
        float(robust_loss(m, x, y, gamma=gamma, steps=objective.steps, tolerance=objective.tolerance).value.mean())
        for m in (model, oracles.Hidden(model))
    )
    assert seen >= (1.0 - 1e-3) * unseen


@pytest.mark.parametrize("above", [0.05, 0.3, 1.01])
def test_an_extrapolated_ascent_never_descends(above):
    rng, weight, bias = random_linear(2, classes=6, features=20, scale=0.5)
    x, y, model = rng.normal(size=(40, 20)), rng.integers(6, size=40), oracles.linear_model(weight, bias)
    options = {"gamma": above * limit(weight), "tolerance": 1e-12}
    values = [robust_loss(model, x, y, steps=steps, **options).value for steps in range(4, 41, 4)]
    assert bool((torch.stack(values).diff(dim=0) >= -1e-12).all())


@pytest.mark.parametrize("seed", range(4))
def test_phi_is_the_maximum_where_the_problem_is_concave(seed):
    rng, weight, bias = random_linear(seed)
    x, y, gamma = rng.normal(size=4), int(rng.integers(3)), 1.2 * limit(weight)
    point, top = oracles.concave_maximum(
        lambda z: float(oracles.cross_entropy(weight, bias, z, y)) - gamma * float(np.sum((z - x) ** 2)), x
    )
    robust = robust_loss(oracles.linear_model(weight, bias), x[None], [y], gamma=gamma, steps=1000, tolerance=1e-12)
    assert float(robust.value[0]) == pytest.approx(top, abs=1e-9)
    np.testing.assert_allclose(robust.x_adv[0], point, rtol=0, atol=1e-6)


# Claims about concavity and convergence.


def test_concave_is_claimed_exactly_above_half_the_curvature():
    for seed in range(5):
        _, weight, bias = random_linear(seed)
        model, edge = oracles.linear_model(weight, bias), limit(weight)

        def says(gamma, model=model, **options):
            return robust_loss(model, np.zeros((1, 4)), [0], gamma=gamma, steps=1, **options).concave

        assert says(edge * (1 + 1e-9)) is True
        assert says(edge * (1 - 1e-9)) is False
        assert says(edge * 9, bounds=(-1.0, 1.0)) is True
        assert says(edge * 9, norm=1) is False
        assert says(edge * 9, norm=math.inf) is False
        assert says(edge * 9, power=1, bounds=(-1.0, 1.0)) is False
        assert says(edge * 9, model=nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()) is None
        assert says(edge * 9, loss=ridged) is None


@pytest.mark.parametrize(("above", "sure"), [(1.01, True), (0.99, False)])
def test_concave_counts_the_target_that_moves_too(above, sure):
    """With ``c = gamma k / (gamma k - 1)`` the problem in (x, y) is concave exactly if ``gamma > c ||w||^2``."""
    weight = np.array([[1.0, 2.0]])
    label_cost = 0.5
    edge = 5.0 + 1.0 / label_cost  # gamma = c ||w||^2 solved for gamma
    gamma = above * edge
    hessian = np.zeros((3, 3))
    hessian[:2, :2] = 2.0 * weight.T @ weight - 2.0 * gamma * np.eye(2)
    hessian[2, :2] = hessian[:2, 2] = -2.0 * weight[0]
    hessian[2, 2] = 2.0 - 2.0 * gamma * label_cost
    assert (np.linalg.eigvalsh(hessian)[-1] < 0) == sure
    robust = robust_loss(
        oracles.linear_model(weight), np.ones((1, 2)), [1.0], gamma=gamma, label_cost=label_cost, loss="squared_error"
    )
    assert robust.concave is sure


def test_an_infinite_supremum_is_never_called_converged():
    """Below the limit the squared error grows faster than its price."""
    for dtype in (torch.float32, torch.float64):
        model = oracles.linear_model(np.array([[1.0, 2.0]])).to(dtype)
        for norm in NORMS:
            robust = robust_loss(model, np.ones((2, 2)), [0.0, 1.0], gamma=0.5, norm=norm, loss="squared_error")
            assert not bool(robust.converged.any())
            assert bool((robust.value > 1e6).all())
            assert robust.concave is False


def share_reached(norm, restarts, cases=30):
    """How many random problems are solved to 1e-6; no value may ever exceed the enumerated maximum."""
    reached = 0
    for case in range(cases):
        rng = np.random.default_rng(case)
        weight = rng.normal(size=(int(rng.integers(2, 5)), int(rng.integers(2, 11))))
        bias, x, y = rng.normal(size=len(weight)), rng.normal(size=weight.shape[1]), int(rng.integers(len(weight)))
        gamma = float(np.exp(rng.uniform(np.log(0.05), np.log(5.0))))
        exact = oracles.cross_entropy_phi(weight, bias, x, y, gamma, norm)
        robust = robust_loss(
            oracles.linear_model(weight, bias), x[None], [y], gamma=gamma, norm=norm, restarts=restarts, tolerance=1e-6
        )
        assert robust.concave is False
        assert float(robust.value[0]) <= exact + 1e-9
        reached += float(robust.value[0]) >= exact - 1e-6
    return reached


@pytest.mark.parametrize(("norm", "restarts", "least"), [(math.inf, 0, 20), (math.inf, 1, 30), (1, 0, 26), (1, 1, 30)])
def test_with_a_restart_l1_and_linf_reach_the_enumerated_maximum(norm, restarts, least):
    assert share_reached(norm, restarts) >= least


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
def test_within_a_box_the_best_restart_reaches_the_maximum_of_a_dense_search(norm, power):
    reached = 0
    for case in range(5):
        rng = np.random.default_rng(case)
        weight, bias, x = 4.0 * rng.normal(size=(3, 2)), rng.normal(size=3), rng.uniform(size=2)
        y, gamma = int(rng.integers(3)), float(rng.uniform(0.2, 5.0))

        def objective(z, weight=weight, bias=bias, x=x, y=y, gamma=gamma):
            cost = np.linalg.norm(z - x, ord=norm, axis=-1) ** power
            return oracles.cross_entropy(weight, bias, z, y) - gamma * cost

        exact = oracles.box_maximum(objective, 0.0, 1.0)
        robust = robust_loss(
            oracles.linear_model(weight, bias), x[None], [y], gamma=gamma, norm=norm, power=power, bounds=(0.0, 1.0),
            restarts=4, tolerance=1e-8,
        )  # fmt: skip
        assert float(robust.value[0]) <= exact + 1e-7
        reached += float(robust.value[0]) >= exact - 1e-6
    assert reached == 5


# Power 1 without bounds.


@pytest.mark.parametrize("norm", NORMS)
def test_power_one_without_bounds_stays_or_escapes(norm):
    rng, weight, bias = random_linear(7)
    x, y = rng.normal(size=(3, 4)), np.arange(3)
    slopes = [oracles.steepest(weight, label, norm) for label in y]
    for gamma in (*(slope * (1 + 1e-9) for slope in slopes), *(slope * (1 - 1e-9) for slope in slopes)):
        robust = robust_loss(oracles.linear_model(weight, bias), x, y, gamma=gamma, norm=norm, power=1)
        stays = [slope <= gamma for slope in slopes]
        expected = [
            float(oracles.cross_entropy(weight, bias, z, label)) if stay else math.inf
            for z, label, stay in zip(x, y, stays, strict=True)
        ]
        assert robust.value.tolist() == pytest.approx(expected)
        assert robust.converged.tolist() == stays
        assert np.array_equal(robust.x_adv, x)
        assert robust.achieved_radius == (0.0 if all(stays) else math.inf)


# Labels that move.


@pytest.mark.parametrize("label_cost", [0.01, 0.3, 3.0])
def test_a_finite_label_cost_tries_every_label(label_cost):
    rng, weight, bias = random_linear(5)
    x, y, gamma = rng.normal(size=(6, 4)), np.arange(6) % 3, 1.2 * limit(weight)
    robust = robust_loss(
        oracles.linear_model(weight, bias), x, y, gamma=gamma, label_cost=label_cost, steps=1000, tolerance=1e-12
    )
    for i in range(6):
        worth = [
            oracles.concave_maximum(
                lambda z, i=i, label=label: (
                    float(oracles.cross_entropy(weight, bias, z, label)) - gamma * float(np.sum((z - x[i]) ** 2))
                ),
                x[i],
            )[1] - gamma * label_cost * (label != y[i])
            for label in range(3)
        ]  # fmt: skip
        assert float(robust.value[i]) == pytest.approx(max(worth), abs=1e-8)
        assert int(robust.y_adv[i]) == int(np.argmax(worth))


@pytest.mark.parametrize("label_cost", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_regression_target_moves_with_its_input(outputs, label_cost):
    rng, weight, bias = random_linear(2, classes=outputs, features=3)
    x, y = rng.normal(size=(3, 3)), rng.normal(size=(3, outputs))
    gamma = 1.2 * (np.linalg.norm(weight, 2) ** 2 + 1.0 / label_cost)

    robust = robust_loss(
        oracles.linear_model(weight, bias), x, y if outputs > 1 else y[:, 0], gamma=gamma, label_cost=label_cost,
        loss="squared_error", steps=2000, tolerance=1e-12,
    )  # fmt: skip
    for i in range(3):

        def objective(z, i=i):
            error = np.sum((weight @ z[:3] + bias - z[3:]) ** 2)
            return float(error - gamma * np.sum((z[:3] - x[i]) ** 2) - gamma * label_cost * np.sum((z[3:] - y[i]) ** 2))

        point, top = oracles.concave_maximum(objective, np.r_[x[i], y[i]])
        assert float(robust.value[i]) == pytest.approx(top, rel=1e-8)
        np.testing.assert_allclose(robust.x_adv[i], point[:3], rtol=0, atol=1e-5)
        np.testing.assert_allclose(np.atleast_1d(robust.y_adv[i]), point[3:], rtol=0, atol=1e-5)


# Bounds.


@oracles.quick
@given(st.integers(0, 10**6), st.sampled_from(NORMS), st.sampled_from([1, 2]), st.sampled_from([0.01, 0.3, 3.0]))
def test_bounds_hold_to_the_last_bit_in_float32(seed, norm, power, gamma):
    low, high = (float(np.float32(value)) for value in (0.1, 0.7))
    draw = torch.Generator().manual_seed(seed)
    x = (low + (high - low) * torch.rand(4, 6, generator=draw)).clamp(low, high)
    model = nn.Linear(6, 3)
    model.weight.data = 2.0 * torch.randn(3, 6, generator=draw)
    moved = robust_loss(
        model, x, torch.arange(4) % 3, gamma=gamma, norm=norm, power=power, bounds=(low, high), restarts=1, steps=10
    ).x_adv
    assert moved.dtype == torch.float32
    assert float(moved.min()) >= low
    assert float(moved.max()) <= high


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("above", [1.05, 2.0, 20.0])
def test_the_l2_move_of_a_linear_model_within_bounds_is_that_of_lbfgsb(loss, above):
    """Half of the coordinates start at a bound, as in an image with a dark background."""
    rng, weight, bias = random_linear(2, classes=5, features=20)
    x = rng.uniform(size=(6, 20)) * (rng.uniform(size=(6, 20)) < 0.5)
    y = rng.integers(5, size=6) if loss == "cross_entropy" else rng.normal(size=(6, 5))
    gamma = above * (limit(weight) if loss == "cross_entropy" else np.linalg.norm(weight, 2) ** 2)
    model = oracles.linear_model(weight, bias)
    robust = robust_loss(model, x, y, gamma=gamma, bounds=(0.0, 1.0), loss=loss, steps=1000, tolerance=1e-12)
    assert robust.converged.all()
    clipped = 0
    for i in range(len(x)):

        def objective(v, i=i):
            if loss == "cross_entropy":
                value = float(oracles.cross_entropy(weight, bias, v, y[i]))
            else:
                value = float(np.sum((weight @ v + bias - y[i]) ** 2))
            gradient = oracles.input_gradient(weight, bias, v[None], y[i : i + 1], loss)[0]
            return value - gamma * float(np.sum((v - x[i]) ** 2)), gradient - 2.0 * gamma * (v - x[i])

        point, value = oracles.concave_box_maximum(objective, x[i], 0.0, 1.0)
        assert float(robust.value[i]) == pytest.approx(value, rel=1e-9)
        np.testing.assert_allclose(robust.x_adv[i].numpy(), point, rtol=0, atol=1e-6)
        clipped += int(((point == 0.0) | (point == 1.0)).sum())
    assert clipped > len(x), "the bounds must matter"


@pytest.mark.parametrize("gamma", [0.05, 0.3])
def test_below_the_concavity_limit_a_bounded_l2_move_still_gains(gamma):
    """Where the solution without bounds is far away, or infinite, the one within them is finite and no worse."""
    for loss in ("cross_entropy", "squared_error"):
        problem, x, y = lanes_problem(6, loss=loss)
        objective = wasserstein(gamma=gamma, steps=60, tolerance=1e-6, bounds=(-4.0, 4.0))
        move, rest = objective(problem, x, y), problem.loss(x, y)
        assert bool((move.value >= rest).all())
        assert float((move.value - rest).mean()) > 0.5
        hidden = Problem(make_task(oracles.Hidden(nn.Linear(6, 3).double()), loss), problem.params)
        slow = objective(hidden, x, y)
        assert float(move.value.mean()) >= float(slow.value.mean()) - 1e-6


# Neighbors.

OPTIONS = [
    {},
    {"norm": 1},
    {"norm": math.inf},
    {"bounds": (-3.0, 3.0)},
    {"norm": math.inf, "bounds": (-3.0, 3.0)},
    {"norm": 1, "bounds": (-3.0, 3.0)},
    {"norm": math.inf, "power": 1, "bounds": (-5.0, 5.0)},
    {"label_cost": 0.1},
]


def take(problem, x, y, state, lanes, examples):
    """Some lanes of a problem, and some examples of each."""
    key = Key(*(part[lanes] for part in (state.key.seed, state.key.round, state.key.client, state.key.step)))
    state = replace(state, scalars={name: value[lanes] for name, value in state.scalars.items()}, key=key)
    return Problem(problem.task, problem.params[lanes]), x[lanes][:, examples], y[lanes][:, examples], state


def crowd(seed=3, hidden=False):
    """Lanes with gammas from far below to far above the concavity limit, so that examples settle at different times."""
    problem, x, y = lanes_problem(seed)
    if hidden:
        problem = Problem(make_task(oracles.Hidden(nn.Linear(6, 3).double())), problem.params)
    lanes = torch.arange(3)
    state = ObjectiveState({"gamma": torch.tensor([0.3, 2.0, 20.0]).double()}, Key(lanes, lanes, lanes, lanes))
    return problem, x, y, state


def assert_same_move(one, other):
    for name in ("x_adv", "value", "cost"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-12)
    assert torch.equal(one.converged, other.converged)
    assert torch.equal(one.y_adv, other.y_adv)


def part_of(move, lanes, examples):
    return replace(
        move,
        **{name: getattr(move, name)[lanes][:, examples] for name in ("inputs", "y_adv", "value", "cost", "converged")},
    )


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_no_example_depends_on_its_neighbors(options, hidden):
    objective = wasserstein(gamma=1.0, steps=8, **options)
    whole = crowd(hidden=hidden)
    together = objective(*whole)
    together = replace(together, inputs=together.x_adv)
    assert bool(together.converged.any())
    assert options or not bool(together.converged.all())
    for lanes, examples in (([0], [0, 1, 2, 3, 4]), ([1], [2]), ([2], [4]), ([0, 1], [3]), ([2, 0], [0, 1])):
        alone = objective(*take(*whole, torch.tensor(lanes), torch.tensor(examples)))
        assert_same_move(alone, part_of(together, torch.tensor(lanes), torch.tensor(examples)))


@pytest.mark.parametrize("norm", NORMS)
def test_a_random_start_does_not_depend_on_how_many_examples_share_the_lane(norm):
    """A short batch is padded to the longest of its cohort: that must change no draw."""
    objective = wasserstein(gamma=1.0, norm=norm, restarts=2, steps=2)
    whole = crowd()
    together = objective(*whole)
    together = replace(together, inputs=together.x_adv)
    alone = objective(*take(*whole, torch.arange(3), torch.arange(2)))
    assert_same_move(alone, part_of(together, torch.arange(3), torch.arange(2)))


# The price of a radius.


def test_gamma_falls_slowly_near_the_radius_fast_far_below_it_and_at_most_doubles():
    learner = wasserstein(radius=2.0).learner
    assert learner.next_gamma(3.0, 4.0, 2.0) == pytest.approx(3.0)
    assert learner.next_gamma(3.0, 2.2**2, 2.0) == pytest.approx(3.3)
    assert learner.next_gamma(3.0, 1e6, 2.0) == pytest.approx(6.0)
    assert learner.next_gamma(3.0, 1.62**2, 2.0) == pytest.approx(2.7)
    assert learner.next_gamma(3.0, 2e-6**2, 2.0) == pytest.approx(6e-6), "where half the radius is achieved"
    assert learner.next_gamma(3.0, 0.0, 2.0) == 3.0, "a flat model does not move, at any gamma"


def test_with_power_1_gamma_falls_even_if_no_example_moves():
    learner = wasserstein(radius=2.0, power=1, bounds=(0, 1)).learner
    assert learner.next_gamma(3.0, 0.0, 2.0) == pytest.approx(1.5)
    assert learner.next_gamma(3.0, 1e6, 2.0) == pytest.approx(6.0)


def layered(gamma):
    """Two lanes of a network, and the state of a training step; with a gamma of 0.05, some examples overshoot."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = make_task(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    draw = torch.Generator().manual_seed(1)
    params = 2.0 * torch.randn(2, task.num_params, generator=draw)
    x, y = torch.randn(2, 5, 6, generator=draw), torch.randint(3, (2, 5), generator=draw)
    return Problem(task, params), x, y, ObjectiveState({"gamma": torch.full((2,), gamma)})


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("gamma", [0.05, 100.0])
def test_the_gradient_is_that_of_the_moved_examples_whichever_pass_it_comes_from(gamma, options):
    problem, x, y, state = layered(gamma)
    move = wasserstein(gamma=gamma, steps=3, tolerance=0.0, **options)(problem, x, y, state)
    share = torch.full((2, 5), 0.2)
    again = Problem(problem.task, problem.params)
    assert torch.equal(move.descent(problem, share), again.descent(move.x_adv.clone(), move.y_adv, share))
    assert torch.equal(problem.outputs(move.inputs), again.outputs(move.x_adv.clone()))


@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
@pytest.mark.parametrize(("gamma", "settles"), [(1e-30, False), (0.05, None), (1e30, True)])
def test_an_example_that_stays_at_rest_has_settled_unless_its_step_overflowed(gamma, settles, tolerance):
    problem, x, y, state = layered(gamma)
    move = wasserstein(gamma=gamma, steps=3, tolerance=tolerance)(problem, x, y, state)
    unmoved = move.cost == 0
    assert bool(unmoved.any())
    if settles is not None:
        assert bool(unmoved.all())
        assert bool((move.converged == settles).all())
