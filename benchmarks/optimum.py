"""How close training by radius, the solver of wafl.sklearn and others come to the optimum, and how long it takes.

    .venv/bin/python benchmarks/optimum.py [--smallest]

Work: scikit-learn's breast cancer data, the 398 training examples of a 70/30 split, standardized; one client, logistic
regression, the l2 balls of W_1 and W_2, and W_1's with labels that move. Printed are the optimum, the worst loss of the
trained model, and the processor seconds of the training. The optima of W_1 are those that dro 0.4.3 finds (with labels:
a convex solver), and those of W_2 what longer training tends to. Where labels move, the learning rate falls.

A second table is about solvers: that of wafl.sklearn, SkWDRO (power 2) and dro (power 1), each if it is installed. One
evaluator, which shares nothing with them, judges all models: the dual, with suprema on a grid.
"""

from __future__ import annotations

import importlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import options
import wafl
from wafl.sklearn import WassersteinClassifier

Array = NDArray[Any]
Solver = Callable[[Array, Array, float], tuple[Array, float]]

OPTIMA = {
    1: {0.05: 0.17886, 0.2: 0.34101, 0.5: 0.50721},
    2: {0.05: 0.07588, 0.2: 0.15141, 0.5: 0.26356},
}
LABELS = {(0.05, 0.5): 0.50992, (0.2, 0.5): 0.69315, (0.2, 2.0): 0.52160, (0.5, 1.0): 0.69315}
"""The optimum in the ball of W_1 by radius and label cost; 0.69315 is that of guessing."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20, help="per round")
    given = options.read(parser, argv, rounds=1, steps=1)
    clients = make_clients()
    table = Table("ball", "radius", "label cost", "optimum", "trained", "above by", "seconds")
    cases = [(power, radius, math.inf, best) for power, optima in OPTIMA.items() for radius, best in optima.items()]
    for power, radius, label_cost, best in [*cases, *((1, *case, best) for case, best in LABELS.items())]:
        method = wafl.WAFL(power=power, radius=radius, label_cost=label_cost, bounds=None)
        rate = 0.5 if math.isinf(label_cost) else lambda number: falling(number / given.rounds)
        started = time.process_time()
        run = wafl.fit(
            wafl.models.mlr(clients), clients, method, rounds=given.rounds, local_steps=given.steps,
            batch_size=None, learning_rate=rate, momentum=0.9,
        )  # fmt: skip
        seconds = time.process_time() - started
        if math.isinf(label_cost):
            found = wafl.certify(run.model, clients, radii=[radius], power=power, gap=1e-4)[0].value
        else:
            found = worst_loss(run, clients, radius, label_cost)
        numbers = (f"{best:.5f}", f"{found:.5f}", f"{found / best - 1.0:.3%}", f"{seconds:.1f}")
        table.add_row(f"W_{power}", f"{radius:g}", f"{label_cost:g}", *numbers)
    Console().print(table)
    Console().print(others(clients, [1, 2] if given.rounds > 1 else [2]))


def others(clients: wafl.Federation, powers: Sequence[int]) -> Table:
    """The worst loss of what other solvers fit, by the grid, and the processor seconds that they take."""
    x, y = clients.train.x.double().numpy(), clients.train.y.numpy()
    table = Table("ball", "radius", "solver", "worst loss", "seconds")
    for power in powers:
        for radius in OPTIMA[power]:
            for name, solve in SOLVERS[power].items():
                started = time.process_time()
                try:
                    weight, bias = solve(x, y, radius)
                except ImportError:
                    continue
                seconds = time.process_time() - started
                value = judged(weight, bias, x, y, radius, power)
                table.add_row(f"W_{power}", f"{radius:g}", name, f"{value:.5f}", f"{seconds:.2f}")
    return table


def judged(weight: Array, bias: float, x: Array, y: Array, radius: float, power: int) -> float:
    """The worst loss of a linear classifier of two classes in the l2 ball: the dual, each supremum on a grid."""
    slope, margin = float(np.linalg.norm(weight)), (2 * y - 1) * (x @ weight + bias)
    if power == 1:
        return float(np.logaddexp(0, -margin).mean()) + radius * slope

    def dual(log_gamma: float) -> float:
        gamma = math.exp(log_gamma)
        t = np.linspace(0.0, slope / (2 * gamma), 4001)
        return gamma * radius**2 + float((np.logaddexp(0, slope * t - margin[:, None]) - gamma * t**2).max(1).mean())

    found: Any = minimize_scalar(dual, bounds=(-10.0, 10.0), method="bounded", options={"xatol": 1e-7})
    return float(found.fun)


def by_wafl(power: int) -> Solver:
    def solve(x: Array, y: Array, radius: float) -> tuple[Array, float]:
        model = WassersteinClassifier(radius, power=power).fit(x, y)
        return model.coef_[0], float(model.intercept_[0])

    return solve


def by_skwdro(x: Array, y: Array, radius: float) -> tuple[Array, float]:
    """SkWDRO with fixed labels at a regularization of 1e-4, and its default options otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        skwdro: Any = importlib.import_module("skwdro.linear_models")
        model = skwdro.LogisticRegression(rho=radius, cost="t-NC-2-2", solver_reg=1e-4, sampler_reg=1e-2)
        model.fit(x, 2 * y - 1)
    return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])


def by_dro(x: Array, y: Array, radius: float) -> tuple[Array, float]:
    dro: Any = importlib.import_module("dro.linear_model.wasserstein_dro")
    model = dro.WassersteinDRO(input_dim=x.shape[1], model_type="logistic")
    model.update({"cost_matrix": np.eye(x.shape[1]), "eps": radius, "p": 2, "kappa": "inf"})
    found = model.fit(x, 2 * y - 1)
    return np.ravel(found["theta"]), float(np.ravel(found["b"])[0])


SOLVERS = {
    1: {"wafl.sklearn": by_wafl(1), "dro": by_dro},
    2: {"wafl.sklearn": by_wafl(2), "SkWDRO": by_skwdro},
}


def falling(part: float) -> float:
    """The learning rate after this part of the rounds, where labels move: whole for a third of them."""
    return 0.1 * min(1.0, 1.5 * (1.0 - part)) ** 2


def worst_loss(run: wafl.Run, clients: wafl.Federation, radius: float, label_cost: float) -> float:
    """In the l2 ball of W_1, for two classes: the dual at the best gamma, the slope or where a label begins to pay."""
    weight, bias = (value.double() for value in run.params.values())
    losses = -(clients.train.x.double() @ weight.T + bias).log_softmax(-1)
    own = losses.gather(1, clients.train.y[:, None])[:, 0]
    other = losses.sum(1) - own
    slope = (weight[1] - weight[0]).norm()
    gammas = torch.cat([slope[None], ((other - own) / label_cost).clamp_min(slope)])
    pays = torch.maximum(own, other - gammas[:, None] * label_cost)
    return float((gammas * radius + pays.mean(1)).min())


def make_clients() -> wafl.Federation:
    x, y = load_breast_cancer(return_X_y=True)
    split: Any = train_test_split(x, y, test_size=0.3, random_state=0)
    x, _, y, _ = split
    return wafl.Federation.from_arrays([((x - x.mean(0)) / x.std(0), y)], test_fraction=0.0)


if __name__ == "__main__":
    main()
