"""phi_gamma of small linear models by brute force: a grid over all moves, and ascents from its best points."""

import math

import numpy as np
from scipy import optimize


def cross_entropy(weight, outputs, label, moves):
    """Return the loss of one example after each of ``moves [m, d]``."""
    moved = outputs + moves @ weight.T
    return np.log(np.exp(moved - moved[..., [label]]).sum(-1))


def length(moves, norm):
    return np.linalg.norm(moves, ord=norm, axis=-1)


def brute_force_phi(weight, outputs, label, gamma, norm, points=61, starts=3):
    """Return the largest ``loss(x + delta) - gamma ||delta||^2`` over delta in the plane, from below, almost exactly.

    No good move is longer than ``max_j ||w_j - w_y||_* / (2 gamma)`` in the norm, nor then in any coordinate.
    """
    order = {1: math.inf, 2: 2, math.inf: 1}[norm]
    far = np.linalg.norm(weight - weight[label], ord=order, axis=1).max() / (2.0 * gamma)
    line = np.linspace(-far, far, points)
    grid = np.stack(np.meshgrid(*[line] * weight.shape[1]), axis=-1).reshape(-1, weight.shape[1])

    def value(moves):
        return cross_entropy(weight, outputs, label, moves) - gamma * length(moves, norm) ** 2

    values = value(grid)
    best = values.max()
    for index in np.argsort(-values)[:starts]:
        result = optimize.minimize(
            lambda move: -value(move[None])[0],
            grid[index],
            method="Nelder-Mead",
            options={
                "xatol": 1e-7,
                "fatol": 1e-10,
                "maxiter": 150,
                "initial_simplex": grid[index] + far / points * _corners(weight),
            },
        )
        best = max(best, -result.fun)
    return best


def _corners(weight):
    return np.vstack([np.zeros(weight.shape[1]), np.eye(weight.shape[1])])


def distance_to_error(weight, outputs, label, norm):
    """Return the shortest move to another class with at least the label's output: one linear program per class."""
    least = math.inf
    for rival in range(len(weight)):
        if rival == label:
            continue
        toward, behind = weight[rival] - weight[label], outputs[label] - outputs[rival]
        if behind <= 0:
            return 0.0
        if norm == 2:
            result = optimize.minimize(
                lambda move: move @ move,
                toward * behind / (toward @ toward) + 0.1,
                constraints={"type": "ineq", "fun": lambda move, t=toward, b=behind: t @ move - b},
                options={"ftol": 1e-14, "maxiter": 500},
            )
            least = min(least, math.sqrt(result.fun))
        else:
            least = min(least, _least_move(toward, behind, norm))
    return least


def _least_move(toward, behind, norm):
    """``min ||delta||`` with ``<toward, delta> >= behind``: delta = plus - minus, and for l_inf one bound on all."""
    size = len(toward)
    if norm == 1:
        return optimize.linprog(np.ones(2 * size), [np.r_[-toward, toward]], [-behind]).fun
    rows = [np.r_[-toward, 0.0]]
    rows += [np.r_[sign * np.eye(size)[i], -1.0] for i in range(size) for sign in (1.0, -1.0)]
    limits = [-behind] + [0.0] * (2 * size)
    return optimize.linprog(np.r_[np.zeros(size), 1.0], rows, limits, bounds=[(None, None)] * (size + 1)).fun
