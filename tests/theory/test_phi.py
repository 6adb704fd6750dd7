"""Both sides of phi_gamma for linear models, against brute force and closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from tests.oracles import phi as oracles
from tests.oracles import theory
from wafl.objectives import ObjectiveState
from wafl.objectives.surrogate import single_lane
from wafl.tasks.losses import CrossEntropy, SquaredError, output_loss
from wafl.theory.certificates.upper import ErrorSurrogate
from wafl.theory.phi import linear_model as phi
from wafl.theory.phi.branch_and_bound import Kept, Search, edge_lengths, squared_distances
from wafl.theory.phi.incumbents import Ball, Incumbent, climb, value_at
from wafl.theory.phi.linear_model import LinearPhi, distance_to_error, shared_tolerance
from wafl.theory.phi.lines import along_lines
from wafl.theory.phi.settled import settled_above, within_ellipsoids

NORMS = (1, 2, math.inf)


def a_case(classes, seed=0, examples=4, features=2, scale=2.0):
    rng = np.random.default_rng(seed)
    weight = scale * rng.normal(size=(classes, features))
    return weight, rng.normal(size=(examples, classes)), np.arange(examples) % classes


def tensors(*arrays):
    return tuple(torch.from_numpy(array) for array in arrays)


# Cross-entropy.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_phi_by_brute_force_lies_between_both_sides(classes, norm):
    """From far below the concavity limit, where rest and every class compete, to far above it."""
    weight, outputs, y = a_case(classes, examples=2)
    result = LinearPhi(torch.from_numpy(weight), CrossEntropy(), norm)
    limit = theory.farthest_rows(weight, norm) ** 2 / 8.0
    for gamma in (0.1 * limit, 0.7 * limit, 10.0 * limit):
        truth = np.array(
            [oracles.brute_force_phi(weight, s, label, gamma, norm) for s, label in zip(outputs, y, strict=True)]
        )
        sides = result.bounds(*tensors(outputs, y), gamma, tolerance=1e-3)
        assert (sides.upper.numpy() >= truth - 1e-9).all(), gamma
        assert (sides.upper - sides.lower).max() <= 1e-3 + 1e-12, gamma
        # Nelder-Mead can stop at the ridges of l1 and l_inf, so the ascent may be a little better.
        assert (sides.lower.numpy() <= truth + 1e-5).all(), gamma


@pytest.mark.parametrize("norm", NORMS)
def test_a_tolerance_that_a_group_shares_keeps_its_mean_and_every_bound(norm):
    weight, outputs, y = a_case(4, examples=24)
    model, group = LinearPhi(torch.from_numpy(weight), CrossEntropy(), norm), torch.arange(24) // 8
    gamma = 0.3 * theory.farthest_rows(weight, norm) ** 2 / 8.0
    truth = model.bounds(*tensors(outputs, y), gamma, tolerance=1e-3)
    shared = model.bounds(*tensors(outputs, y), gamma, tolerance=0.05, group=group)
    assert (shared.upper >= truth.lower).all()
    for one in range(3):
        assert (shared.upper - shared.lower)[group == one].mean() <= 0.05


def test_easy_examples_leave_their_tolerance_to_hard_ones():
    gap, group = torch.tensor([0.0, 0.5, 30.0, 7.0, 4.0, math.inf]).double(), torch.tensor([0, 0, 0, 2, 2, 2])
    level = shared_tolerance(gap, group, 3.0)
    assert level.tolist() == pytest.approx([8.5, 8.5, 8.5, 3.0, 3.0, 3.0])
    assert shared_tolerance(gap[:2], group[:2], 3.0).min() >= 3.0, "nothing to search"


@pytest.mark.parametrize("norm", [2, math.inf])
def test_both_sides_close_for_ten_classes_in_many_dimensions(norm):
    """Every pair of sides is proven, so wherever they meet they are right; here the first bounds are far apart."""
    weight, outputs, y = a_case(10, examples=6, features=30, scale=0.5)
    limit = theory.farthest_rows(weight, norm) ** 2 / 8.0
    model = LinearPhi(torch.from_numpy(weight), CrossEntropy(), norm)
    for share in (0.1, 0.5):
        sides = model.bounds(*tensors(outputs, y), share * limit, tolerance=0.05)
        rough = model.bounds(*tensors(outputs, y), share * limit, tolerance=1e9)
        assert (rough.upper >= sides.lower).all()
        assert (rough.upper - sides.upper >= -1e-12).all()
        assert float((rough.upper - rough.lower).mean()) > 2.0 * float((sides.upper - sides.lower).mean())


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_around_a_settled_ascent_nothing_is_missed(classes):
    """Wherever it settles, at a local maximum too; and even if it is stopped before."""
    weight, outputs, y = a_case(classes, seed=classes, examples=3)
    ball, (s, labels) = Ball(torch.from_numpy(weight), 2), tensors(outputs, y)
    a, limit = s - s.gather(1, labels[:, None]), theory.farthest_rows(weight, 2) ** 2 / 8.0
    for gamma in (0.15 * limit, 0.5 * limit, 0.9 * limit):
        truth = np.array(
            [oracles.brute_force_phi(weight, each, label, gamma, 2) for each, label in zip(outputs, y, strict=True)]
        )
        for start in (a.softmax(-1), (6.0 * torch.eye(classes, dtype=a.dtype)[(labels + 1) % classes]).softmax(-1)):
            begun = Incumbent(start, *value_at(ball, a, labels, start, gamma))
            for allowed in (1e-4, 1e-2, math.inf):
                result = settled_above(ball, a, labels, begun, gamma, torch.full_like(a[:, 0], allowed))
                assert ((result.value + result.missed).numpy() >= truth - 1e-9).all()
                assert (result.value.numpy() <= truth + 1e-5).all()


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_no_ellipsoid_leaves_out_a_part_of_the_ball(classes):
    """Around any p, the p of a sure example and the p of a class among them."""
    weight, outputs, y = a_case(classes, seed=classes, examples=3)
    ball, (s, labels) = Ball(torch.from_numpy(weight), math.inf), tensors(outputs, y)
    a, limit = s - s.gather(1, labels[:, None]), theory.farthest_rows(weight, math.inf) ** 2 / 8.0
    corners = torch.eye(classes, dtype=a.dtype)
    for gamma in (0.5 * limit, 2.0 * limit):
        truth = np.array(
            [oracles.brute_force_phi(weight, s, label, gamma, math.inf) for s, label in zip(outputs, y, strict=True)]
        )
        for p in (a.softmax(-1), corners[labels], corners[(labels + 1) % classes]):
            lower, _ = value_at(ball, a, labels, p, gamma)
            for allowed in (1e-3, 1.0, 30.0):
                upper = within_ellipsoids(ball, a, labels, p, lower, gamma, torch.full_like(lower, allowed))
                assert (upper.numpy() >= truth - 1e-9).all()
    assert upper.isfinite().all()


@pytest.mark.parametrize("norm", [2, math.inf])
def test_after_cuts_the_bound_of_a_part_is_above_the_value_of_each_point_in_it(norm):
    """Every point lies in a part, and the lengths of edges that cuts update fit their vertices."""
    weight, outputs, y = a_case(4, examples=3)
    ball, (s, labels) = Ball(torch.from_numpy(weight), norm), tensors(outputs, y)
    a, gamma = s - s.gather(1, labels[:, None]), 0.2 * theory.farthest_rows(weight, norm) ** 2 / 8.0
    kept, nothing = Kept.of(ball, gamma), torch.full_like(a[:, 0], -math.inf)
    search = Search(ball, kept, a, labels, gamma)
    parts = search.whole(nothing)
    for _ in range(5):
        parts = search.cut(parts, nothing)
    p = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(4, 0.5), size=500))
    for one, label in enumerate(labels):
        mine = parts.where(parts.example == one)
        inside = (torch.linalg.solve(mine.vertices, p.T) >= -1e-9).all(1)
        assert inside.any(0).all()
        value, _ = value_at(ball, a[one].expand(500, -1), label.expand(500), p, gamma)
        assert (value <= torch.where(inside, mine.bound[:, None], math.inf) + 1e-9).all()
        edges = mine.vertices[:, :, :, None] - mine.vertices[:, :, None, :]
        lengths = -torch.einsum("ncij,cd,ndij->nij", edges, edge_lengths(ball, kept)[label], edges) / 2.0
        torch.testing.assert_close(mine.apart, lengths, rtol=1e-9, atol=1e-9)


def test_around_a_settled_ascent_the_bound_is_tight_where_the_problem_is_concave_there():
    """Ten classes in many dimensions, below the concavity limit of the whole."""
    weight, outputs, y = a_case(10, seed=2, examples=50, features=20, scale=0.4)
    ball, (s, labels) = Ball(torch.from_numpy(weight), 2), tensors(outputs, y)
    a, gamma = s - s.gather(1, labels[:, None]), 0.6 * theory.farthest_rows(weight, 2) ** 2 / 8.0
    allowed = torch.full_like(a[:, 0], 1e-3)
    result = settled_above(ball, a, labels, climb(ball, a, labels, gamma, allowed), gamma, allowed)
    assert (result.missed <= allowed).double().mean() > 0.9


def test_what_is_kept_is_concave_and_the_rest_convex():
    weight = torch.from_numpy(a_case(6, features=5)[0])
    ball, rng = Ball(weight, 2), np.random.default_rng(0)
    for gamma in (0.01, 0.5, 100.0):
        kept = Kept.of(ball, gamma)
        assert torch.linalg.eigvalsh(kept.rest).min() >= -1e-9
        torch.testing.assert_close(kept.quadratic + kept.rest, ball.gram)
        for p in rng.dirichlet(np.full(6, 0.3), size=30):
            spread = np.diag(p) - np.outer(p, p)
            assert np.linalg.eigvals(spread @ kept.quadratic.numpy()).real.max() <= 2.0 * gamma * (1.0 + 1e-9)
        widest = float(squared_distances(ball.gram).max())
        assert float(squared_distances(kept.quadratic).max()) == pytest.approx(min(widest, 8.0 * gamma))


def test_threads_change_no_bit(monkeypatch):
    weight, outputs, y = a_case(4, examples=9)
    model = LinearPhi(torch.from_numpy(weight), CrossEntropy(), 2)
    monkeypatch.setattr(phi, "PIECE", 4)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(model.bounds(*tensors(outputs, y), 0.5, 1e-3))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(getattr(results[0], side), getattr(results[1], side)) for side in ("lower", "upper", "cost"))


def test_a_line_between_two_classes_is_searched_to_any_tolerance():
    a, s = torch.tensor([[0.0, -3.0], [0.0, 1.0]]).double(), torch.tensor([[0.0, 4.0], [0.0, 0.0]]).double()
    for tolerance in (1e-2, 1e-5):
        line = along_lines(a, s, 0.7, torch.full((2,), tolerance).double())
        t = np.linspace(0, 4, 400_001)
        truth = np.logaddexp(0.0, -3.0 + 4.0 * t) - 0.7 * t**2
        assert line.lower[0] <= truth.max() + 1e-9
        assert truth.max() - 1e-9 <= line.upper[0] <= line.lower[0] + tolerance
        assert float(line.upper[1]) == pytest.approx(math.log1p(math.e), rel=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_a_model_that_ignores_its_input_has_phi_equal_to_its_loss(norm):
    outputs, y = a_case(3)[1:]
    sides = LinearPhi(torch.zeros(3, 2).double(), CrossEntropy(), norm).bounds(*tensors(outputs, y), 0.1, 1e-6)
    loss = CrossEntropy().value(*tensors(outputs, y))
    torch.testing.assert_close(sides.upper, loss)
    torch.testing.assert_close(sides.lower, loss)
    assert float(sides.cost.max()) == 0.0


# Squared error.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_phi_of_a_squared_error_agrees_with_brute_force(outputs, norm):
    rng = np.random.default_rng(0)
    weight, residual = rng.normal(size=(outputs, 2)), rng.normal(size=(5, outputs))
    model = LinearPhi(torch.from_numpy(weight), SquaredError(), norm)
    zero = torch.zeros(5, outputs).double()
    for ratio in (1.05, 2.0, 50.0):
        gamma = ratio * model.limit
        sides = model.bounds(torch.from_numpy(residual), zero, gamma, 0.0)
        reach = 3.0 * np.sqrt(float(sides.cost.max())) + 1e-6
        for row, low, high, cost in zip(
            residual, sides.lower.tolist(), sides.upper.tolist(), sides.cost.tolist(), strict=True
        ):
            line = np.linspace(-1, 1, 401)
            moves = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
            # Finer near the best length, which is known: the objective is a parabola along each ray.
            moves = np.concatenate([reach * moves, np.sqrt(cost) * moves])
            values = ((row + moves @ weight.T) ** 2).sum(-1) - gamma * oracles.length(moves, norm) ** 2
            assert high >= values.max() - 1e-9
            assert low <= high
            in_closed_form = outputs == 1 or norm != math.inf
            assert low == pytest.approx(high, rel=1e-12 if in_closed_form else 1e-6)
            assert values.max() == pytest.approx(high, rel=2e-3)


def test_phi_of_many_squared_errors_in_l_inf_lies_below_its_upper_side():
    """A convex gain is largest at a corner of the cube: ``max over s of (r W s)^2 / (gamma - ||W s||^2)``."""
    rng = np.random.default_rng(0)
    weight, residual = rng.normal(size=(6, 5)), rng.normal(size=(40, 6))
    model = LinearPhi(torch.from_numpy(weight), SquaredError(), math.inf)
    ends = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 5), axis=-1).reshape(-1, 5) @ weight.T
    for ratio in (1.05, 2.0, 50.0):
        gamma = ratio * model.limit
        sides = model.bounds(torch.from_numpy(residual), torch.zeros(40, 6).double(), gamma, 0.0)
        gain = ((residual @ ends.T) ** 2 / (gamma - (ends**2).sum(-1))).max(-1)
        phi = (residual**2).sum(-1) + gain
        assert (sides.upper.numpy() >= phi * (1.0 - 1e-12)).all()
        assert (sides.lower.numpy() <= phi * (1.0 + 1e-12)).all()


def a_weight(kind, outputs, inputs, rng):
    """Whole numbers make columns parallel, coplanar or zero."""
    if kind == "whole":
        return rng.integers(-1, 2, size=(outputs, inputs)).astype(float)
    weight = rng.normal(size=(outputs, inputs))
    if kind == "nearly parallel":
        weight[:, 1] = -2.0 * weight[:, 0] + 1e-11 * rng.normal(size=outputs)
    return weight


@pytest.mark.parametrize("kind", ["random", "whole", "nearly parallel"])
@pytest.mark.parametrize("outputs", [2, 3])
def test_phi_of_a_squared_error_in_l_inf_is_that_of_the_best_corner_of_the_box(outputs, kind):
    rng = np.random.default_rng(outputs)
    for inputs in (2, 3, 5, 8):
        weight, residual = a_weight(kind, outputs, inputs, rng), rng.normal(size=(6, outputs))
        ends = np.array(list(itertools.product([-1.0, 1.0], repeat=inputs))) @ weight.T
        model = LinearPhi(torch.from_numpy(weight), SquaredError(), math.inf)
        limit = (ends**2).sum(1).max()
        assert limit <= model.limit * (1.0 + 1e-12)
        assert model.limit <= limit * (1.0 + 1e-7)
        for gamma in (1.001 * model.limit + 1e-6, 2.0 * model.limit + 1e-6):
            gains = (residual @ ends.T) ** 2 / (gamma - (ends**2).sum(1))
            exact = (residual**2).sum(1) + gains.max(1)
            sides = model.bounds(torch.from_numpy(residual), torch.zeros(6, outputs).double(), gamma, 0.0)
            assert (sides.lower.numpy() <= exact * (1.0 + 1e-12)).all()
            assert (sides.upper.numpy() >= exact * (1.0 - 1e-12)).all()
            np.testing.assert_allclose(sides.upper.numpy(), exact, rtol=1e-4)
            np.testing.assert_allclose(sides.lower.numpy(), exact, rtol=1e-4)


def test_phi_of_a_squared_error_is_infinite_up_to_its_limit():
    weight = torch.tensor([[1.0, 2.0]]).double()
    model = LinearPhi(weight, SquaredError(), 2)
    assert model.limit == pytest.approx(5.0)
    one = torch.ones(1, 1).double()
    assert model.bounds(one, 0.0 * one, 4.9, 0.0).upper.tolist() == [math.inf]
    assert model.bounds(one, 0.0 * one, 5.1, 0.0).upper.isfinite().all()


def test_another_loss_is_refused():
    def hinge(outputs, y):
        return outputs[:, 0]

    with pytest.raises(ValueError, match="known for cross-entropy and squared error, not for hinge"):
        LinearPhi(torch.zeros(2, 2).double(), output_loss(hinge), 2)


# Errors.


@pytest.mark.parametrize("norm", NORMS)
def test_the_distance_to_an_error_is_the_least_move_that_makes_one(norm):
    weight, outputs, y = a_case(4, examples=12, features=3)
    rows, values, labels = tensors(weight, outputs, y)
    result = distance_to_error(Ball(rows, norm), values, labels)
    for s, label, far in zip(outputs, y, result.tolist(), strict=True):
        assert far == pytest.approx(oracles.distance_to_error(weight, s, label, norm), rel=1e-5, abs=1e-7)
    assert (result == 0).any()
    assert (result > 0).any()


def test_phi_of_the_error_is_one_for_errors_and_falls_with_the_squared_distance():
    model = nn.Linear(2, 2, bias=False)
    model.load_state_dict({"weight": torch.tensor([[1.0, 0.0], [-1.0, 0.0]])})
    problem, x, y = single_lane(model, torch.tensor([[2.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0, 0]))
    near, far = (ErrorSurrogate()(problem, x, y, ObjectiveState({"gamma": torch.tensor([g])})) for g in (0.2, 10.0))
    assert near.value[0].tolist() == pytest.approx([0.2, 1.0, 1.0])
    assert near.cost[0].tolist() == pytest.approx([4.0, 0.0, 0.0])
    assert far.value[0].tolist() == pytest.approx([0.0, 1.0, 1.0])


def test_a_rival_with_the_same_weights_never_causes_an_error_it_does_not_have():
    weight = torch.tensor([[1.0], [1.0]]).double()
    outputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    assert distance_to_error(Ball(weight, 2), outputs, torch.tensor([0, 0])).tolist() == [math.inf, 0.0]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("apart", "far", "radius"), [(1e-3, 1e6, 100.0), (1e-3, 1e6, 1000.0), (0.1, 1e6, 10.0)])
def test_classes_that_are_close_together_and_far_from_another_are_told_apart(
    apart: float, far: float, radius: float, norm: float
) -> None:
    """The third class is out of reach, but its products with the others have no digits left for their difference."""
    rng = np.random.default_rng(0)
    x, row, other, third = rng.normal(size=(10, 6)), *rng.normal(size=(3, 6))
    model = nn.Linear(6, 3, dtype=torch.float64)
    weight = torch.from_numpy(np.stack([row, row + apart * other, far * third]))
    model.load_state_dict({"weight": weight, "bias": torch.tensor([0.0, 0.0, -1e13 * far], dtype=torch.float64)})
    clients = wafl.Federation.from_arrays([(x, np.zeros(10, dtype=int))], test_fraction=0.0, num_classes=3)
    result = wafl.certify(model, clients, radii=[radius], norm=norm)[0]
    slope = np.linalg.norm(apart * other, {1: np.inf, 2: 2, math.inf: 1}[norm])
    everyone_moves = np.logaddexp(0.0, x @ (apart * other) + slope * radius).mean()
    assert result.best >= everyone_moves
    assert result.achieved is not None
    assert result.achieved <= result.best
