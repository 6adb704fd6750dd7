"""Compare training by radius, the solver of wafl.sklearn and other solvers with the optimum, and time them.

    python -m research optimum [--smallest]

Work: scikit-learn's breast cancer data, the 398 training examples of a 70/30 split, standardized; one client, logistic
regression, the l2 balls of W_1 and W_2, and W_1's with labels that move. The table has the optimum, the worst loss of
the trained model, and the processor seconds of the training. dro 0.4.3 finds the optima of W_1 (with labels: a convex
solver), and the optima of W_2 are the limit of longer training. Where labels move, the learning rate falls.

A second table is about solvers: wafl.sklearn, SkWDRO (power 2) and dro (power 1), each if it is installed, on
these data and on the data of the peers' examples (two blobs, and dro's ``classification_basic``). One evaluator, which
shares no code with them, judges all models: the dual, with suprema on a grid. A third table is about the objective of
SkWDRO, an entropic relaxation: its model beside the model of ``wafl.SinkhornDRO``, judged by a quadrature.
"""

from __future__ import annotations

import importlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from sklearn.datasets import load_breast_cancer, make_blobs
from sklearn.model_selection import train_test_split

import wafl
from benchmarks import options
from wafl.sklearn import WassersteinClassifier

Array = NDArray[Any]
Solver = Callable[[Array, Array, float], tuple[Array, float]]

OPTIMA = {
    1: {0.05: 0.17886, 0.2: 0.34101, 0.5: 0.50721},
    2: {0.05: 0.07588, 0.2: 0.15141, 0.5: 0.26356},
}
LABELS = {(0.05, 0.5): 0.50992, (0.2, 0.5): 0.69315, (0.2, 2.0): 0.52160, (0.5, 1.0): 0.69315}
"""The optimum in the ball of W_1 by radius and label cost; 0.69315 is the loss of guessing."""
EPSILON, SIGMA = 0.02, 0.1
"""SkWDRO's regularization, and the noise of its samples, where its own objective is compared."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
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
            value = wafl.certify(run.model, clients, radii=[radius], power=power, gap=1e-4)[0].value
        else:
            value = worst_loss(run, clients, radius, label_cost)
        numbers = (f"{best:.5f}", f"{value:.5f}", f"{value / best - 1.0:.3%}", f"{seconds:.1f}")
        table.add_row(f"W_{power}", f"{radius:g}", f"{label_cost:g}", *numbers)
    Console().print(table)
    whole = given.rounds > 1
    Console().print(others(examples() if whole else dict(list(examples().items())[:1]), [1, 2] if whole else [2]))
    Console().print(relaxed(given.rounds, given.steps))


def examples() -> dict[str, tuple[Array, Array]]:
    """Return examples and their labels, 0 or 1, by name."""
    cancer = make_clients().train
    blobs: Any = make_blobs(n_samples=100, centers=2, n_features=2, random_state=0)
    split: Any = train_test_split(*blobs, test_size=0.33, random_state=42)
    x, _, y, _ = split
    sets: dict[str, tuple[Array, Array]] = {
        "blobs": (x, y),
        "breast cancer": (cancer.x.double().numpy(), cancer.y.numpy()),
    }
    with suppress(ImportError):
        loader: Any = importlib.import_module("dro.data.dataloader_classification")
        x, y = loader.classification_basic(d=2, num_samples=500, radius=2)
        sets["dro's own"] = np.asarray(x), (np.ravel(y) > 0).astype(int)
    return sets


def others(data: dict[str, tuple[Array, Array]], powers: Sequence[int]) -> Table:
    """Return the table of other solvers: the worst loss on the grid, and processor seconds."""
    table = Table("data", "ball", "radius", "solver", "worst loss", "seconds")
    for power in powers:
        for where, (x, y) in data.items():
            for radius in OPTIMA[power]:
                for name, solve in SOLVERS[power].items():
                    started = time.process_time()
                    try:
                        weight, bias = solve(x, y, radius)
                    except ImportError:
                        continue
                    except RuntimeError as error:
                        table.add_row(where, f"W_{power}", f"{radius:g}", name, f"fails: {error}", "")
                        continue
                    seconds = time.process_time() - started
                    value = judged(weight, bias, x, y, radius, power)
                    table.add_row(where, f"W_{power}", f"{radius:g}", name, f"{value:.5f}", f"{seconds:.2f}")
                    print(where, power, radius, name, f"{value:.5f}", f"{seconds:.2f}", flush=True)
    return table


def relaxed(rounds: int, steps: int) -> Table:
    """Return the table of SkWDRO's own objective: the value of its model, and of a Sinkhorn ball's."""
    table = Table("data", "radius", "solver", "entropic loss", "seconds")
    x, y = examples()["blobs"]
    for radius in (0.1, 0.2, 0.3):
        started = time.process_time()
        try:
            model = by_skwdro(x, y, radius, EPSILON, SIGMA)
        except ImportError:
            break
        taken = time.process_time() - started
        value, price = entropic(*model, x, y, radius)
        table.add_row("blobs", f"{radius:g}", "SkWDRO", f"{value:.5f}", f"{taken:.2f}")
        started = time.process_time()
        # At a price of transport, the Gaussian of SkWDRO's samples is this one of smaller noise.
        noise = 1.0 / math.sqrt(1.0 / SIGMA**2 + 2.0 * price / EPSILON)
        method = wafl.SinkhornDRO(gamma=EPSILON / (2.0 * noise**2), noise=noise, samples=16)
        clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0)
        run = wafl.fit(
            wafl.models.mlr(clients), clients, method, rounds=rounds, local_steps=steps,
            batch_size=None, learning_rate=0.5, momentum=0.9,
        )  # fmt: skip
        weight, bias = (tensor.double().numpy() for tensor in run.params.values())
        value, _ = entropic(weight[1] - weight[0], float(bias[1] - bias[0]), x, y, radius)
        row = "blobs", f"{radius:g}", "wafl.SinkhornDRO", f"{value:.5f}", f"{time.process_time() - started:.2f}"
        table.add_row(*row)
    return table


def entropic(weight: Array, bias: float, x: Array, y: Array, radius: float) -> tuple[float, float]:
    """Return SkWDRO's objective of a linear classifier, by a quadrature along its weights, and its price."""
    slope, margin = float(np.linalg.norm(weight)), (2 * y - 1) * (x @ weight + bias)
    nodes, masses = np.polynomial.hermite_e.hermegauss(201)

    def dual(log_price: float) -> float:
        price = math.exp(log_price)
        # The Gaussian of the samples times exp(-price |d|^2 / epsilon) is a Gaussian of less variance.
        shrink = 1.0 + 2.0 * price * SIGMA**2 / EPSILON
        losses = np.logaddexp(0, -margin[:, None] - slope * SIGMA / math.sqrt(shrink) * nodes)
        soft = logsumexp(losses / EPSILON, b=masses / masses.sum(), axis=1) - x.shape[1] / 2 * math.log(shrink)
        return price * radius**2 + EPSILON * float(np.mean(soft))

    result: Any = minimize_scalar(dual, bounds=(-12.0, 8.0), method="bounded", options={"xatol": 1e-7})
    return float(result.fun), math.exp(result.x)


def judged(weight: Array, bias: float, x: Array, y: Array, radius: float, power: int) -> float:
    """Return the worst loss of a linear classifier of two classes in the l2 ball: the dual, with suprema on a grid."""
    slope, margin = float(np.linalg.norm(weight)), (2 * y - 1) * (x @ weight + bias)
    if power == 1:
        return float(np.logaddexp(0, -margin).mean()) + radius * slope

    def dual(log_gamma: float) -> float:
        gamma = math.exp(log_gamma)
        t = np.linspace(0.0, slope / (2 * gamma), 4001)
        return gamma * radius**2 + float((np.logaddexp(0, slope * t - margin[:, None]) - gamma * t**2).max(1).mean())

    result: Any = minimize_scalar(dual, bounds=(-10.0, 10.0), method="bounded", options={"xatol": 1e-7})
    return float(result.fun)


def by_wafl(power: int) -> Solver:
    """Return the solver of wafl for an order of the ball."""

    def solve(x: Array, y: Array, radius: float) -> tuple[Array, float]:
        model = WassersteinClassifier(radius, power=power).fit(x, y)
        return model.coef_[0], float(model.intercept_[0])

    return solve


def by_skwdro(
    x: Array, y: Array, radius: float, epsilon: float = 1e-4, sigma: float = 1e-2, rate: float | None = None
) -> tuple[Array, float]:
    """Fit SkWDRO with fixed labels at this regularization and learning rate, and default options otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        skwdro: Any = importlib.import_module("skwdro.linear_models")
        model = skwdro.LogisticRegression(
            rho=radius, cost="t-NC-2-2", solver_reg=epsilon, sampler_reg=sigma, learning_rate=rate
        )
        model.fit(x, 2 * y - 1)
    return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])


def by_dro(x: Array, y: Array, radius: float) -> tuple[Array, float]:
    """Fit dro's classifier."""
    dro: Any = importlib.import_module("dro.linear_model.wasserstein_dro")
    model = dro.WassersteinDRO(input_dim=x.shape[1], model_type="logistic")
    model.update({"cost_matrix": np.eye(x.shape[1]), "eps": radius, "p": 2, "kappa": "inf"})
    result = model.fit(x, 2 * y - 1)
    return np.ravel(result["theta"]), float(np.ravel(result["b"])[0])


SOLVERS = {
    1: {"wafl.sklearn": by_wafl(1), "dro": by_dro},
    2: {"wafl.sklearn": by_wafl(2), "SkWDRO": by_skwdro, "SkWDRO, rate 0.1": partial(by_skwdro, rate=0.1)},
}


def falling(part: float) -> float:
    """Return the learning rate after this part of the rounds, where labels move: whole for a third of them."""
    return 0.1 * min(1.0, 1.5 * (1.0 - part)) ** 2


def worst_loss(run: wafl.Run, clients: wafl.Federation, radius: float, label_cost: float) -> float:
    """Return the worst loss in the l2 ball of W_1 for two classes: the dual at the best gamma.

    The best gamma is the slope, or a gamma at which a label begins to change.
    """
    weight, bias = (value.double() for value in run.params.values())
    losses = -(clients.train.x.double() @ weight.T + bias).log_softmax(-1)
    of_label = losses.gather(1, clients.train.y[:, None])[:, 0]
    other = losses.sum(1) - of_label
    slope = (weight[1] - weight[0]).norm()
    gammas = torch.cat([slope[None], ((other - of_label) / label_cost).clamp_min(slope)])
    pays = torch.maximum(of_label, other - gammas[:, None] * label_cost)
    return float((gammas * radius + pays.mean(1)).min())


def make_clients() -> wafl.Federation:
    """Return the training examples of breast cancer as one client."""
    x, y = load_breast_cancer(return_X_y=True)
    split: Any = train_test_split(x, y, test_size=0.3, random_state=0)
    x, _, y, _ = split
    return wafl.Federation.from_arrays([((x - x.mean(0)) / x.std(0), y)], test_fraction=0.0)


if __name__ == "__main__":
    main()
