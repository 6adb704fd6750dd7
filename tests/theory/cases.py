"""Small models on three clients of unequal size, whose certificates can be checked by plain loops."""

import math

import numpy as np
import torch
from torch import nn

import wafl
from tests.oracles import objective as oracles
from tests.oracles import theory
from wafl.theory import certify, constants

NORMS = (1, 2, math.inf)
SIZES = (3, 6, 9)
WEIGHTS = (0.5, 0.2, 0.3)


def a_case(name, seed=0):
    """A multinomial logistic regression, a regression or a tanh network, on three clients of unequal size."""
    rng = np.random.default_rng(seed)
    features = 3 if name == "regression" else 2
    x = rng.normal(size=(sum(SIZES), features))
    if name == "regression":
        model = oracles.linear_model(rng.normal(size=(1, features)), rng.normal(size=1))
        return theory.Case(model, "squared_error", x, rng.normal(size=len(x)), SIZES, WEIGHTS)
    y = np.arange(len(x)) % 3
    if name == "mlr":
        model = oracles.linear_model(rng.normal(size=(3, features)), rng.normal(size=3))
    else:
        model = nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        for value in model.parameters():
            value.data = torch.from_numpy(0.7 * rng.normal(size=tuple(value.shape)))
    return theory.Case(model, "cross_entropy", x, y, SIZES, WEIGHTS)


def clients_of(case, **options):
    return wafl.Federation.from_arrays(case.pairs(), test_fraction=0.0, **options)


def certificates_of(case, radii, norm=2, **options):
    given = {"client_weights": wafl.weights.fixed(case.weights), "loss": case.loss, **options}
    return certify(case.model, clients_of(case), radii=radii, norm=norm, **given)


def curvature_of(case, norm):
    """A bound on L_zz, from the equations."""
    if case.loss == "squared_error":
        weight = case.model.weight.detach().numpy()
        return 2.0 * float(np.linalg.norm(weight[0], ord=oracles.dual_order(norm))) ** 2
    if isinstance(case.model, nn.Linear):
        return theory.farthest_rows(case.model.weight.detach().numpy(), norm) ** 2 / 4.0
    return constants(case.model, (case.x, case.y), norm=norm).L_zz


def hinge(outputs, y):
    return torch.relu(1.0 - outputs[torch.arange(len(y)), y])
