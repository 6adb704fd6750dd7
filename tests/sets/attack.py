"""An attack on prediction sets: it moves a client's examples inside a Wasserstein ball, each to just above a threshold.

It shares no code with the certified distances.
"""

import math

import numpy as np
import torch
from torch import nn

from wafl.base.norms import dual

NORMS = (1, 2, math.inf)


def length(delta, norm):
    return np.linalg.norm(delta, ord=norm, axis=-1)


def rows_of(outputs, y, score):
    """The score of each example, in numpy."""
    if score == "residual":
        return np.abs(np.ravel(y) - outputs[:, 0])
    others = outputs.copy()
    others[np.arange(len(y)), y] = -np.inf
    return others.max(1) - outputs[np.arange(len(y)), y]


def toward(gradients, norm):
    """Moves of length 1 that raise linear functions with these gradients ``[n, features]`` the most."""
    if norm == math.inf:
        return np.sign(gradients)
    if norm == 2:
        return gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    largest = np.abs(gradients).argmax(1)[:, None]
    moves = np.zeros_like(gradients)
    np.put_along_axis(moves, largest, np.sign(np.take_along_axis(gradients, largest, 1)), 1)
    return moves


def linear_moves(model, x, y, threshold, norm, score):
    """The shortest move of each example to just above the threshold, by trying every class, or both signs."""
    weight, bias = (value.detach().numpy() for value in (model[0].weight, model[0].bias))
    outputs, everyone = x @ weight.T + bias, np.arange(len(y))
    if score == "residual":
        values = (outputs[:, :1] - np.reshape(y, (-1, 1))) * [1.0, -1.0]
        gradients = np.repeat(np.stack([weight[0], -weight[0]])[None], len(y), axis=0)
    else:
        values, gradients = outputs - outputs[everyone, y][:, None], weight[None] - weight[y][:, None]
        values[everyone, y] = -np.inf
    steep = np.linalg.norm(gradients, ord=dual(norm), axis=2)
    gaps = np.divide(threshold - values, steep, out=np.full_like(values, np.inf), where=steep > 0.0)
    best = gaps.argmin(1)
    gap = gaps[everyone, best]
    size = np.where(gap < 0.0, 0.0, gap * (1.0 + 1e-9) + 1e-12)
    return size[:, None] * toward(gradients[everyone, best], norm)


def network_moves(model, x, y, threshold, norm, score, steps=8, halvings=12):
    """Short moves of examples above the threshold, by steps along gradients; infinite where none was found."""

    def values_at(inputs):
        outputs = model(inputs)
        if score == "residual":
            return (outputs[:, 0] - torch.as_tensor(y)).abs()
        label = torch.as_tensor(y)[:, None]
        return outputs.scatter(1, label, -math.inf).amax(1) - outputs.gather(1, label)[:, 0]

    delta = np.zeros_like(x)
    for _ in range(steps):
        inputs = torch.tensor(x + delta, requires_grad=True)
        values = values_at(inputs)
        (gradients,) = torch.autograd.grad(values.sum(), inputs)
        left = ~(values.detach().numpy() > threshold)
        steep = np.linalg.norm(gradients.numpy(), ord=dual(norm), axis=1)
        left &= steep > 1e-9
        if not left.any():
            break
        size = (threshold - values.detach().numpy()[left]) / steep[left] * 1.0001 + 1e-9
        delta[left] += np.minimum(size, 1.0)[:, None] * toward(gradients.numpy()[left], norm)

    def crosses(moves):
        with torch.no_grad():
            return values_at(torch.tensor(x + moves)).numpy()[:, None] > threshold

    low, high = np.zeros((len(x), 1)), np.ones((len(x), 1))
    high[crosses(np.zeros_like(x))] = 0.0
    for _ in range(halvings):
        middle = (low + high) / 2.0
        across = crosses(middle * delta)
        low, high = np.where(across, low, middle), np.where(across, middle, high)
    return np.where(crosses(high * delta), high * delta, np.inf)


def moved_within(x, moves, radius, norm, power):
    """Move the nearest examples first, each whole, while the budget lasts."""
    cost = length(moves, norm) ** power
    order = np.argsort(cost)
    chosen = order[np.cumsum(cost[order]) <= len(x) * radius**power]
    result = x.copy()
    result[chosen] += moves[chosen]
    assert np.mean(length(result - x, norm) ** power) <= radius**power * (1.0 + 1e-9)
    return result


def random_model(rng, score, features, hidden):
    outputs = 1 if score == "residual" else int(rng.integers(2, 5))
    layers = (
        [nn.Linear(features, outputs)] if not hidden else [nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, outputs)]
    )
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.tensor(rng.normal(size=parameter.shape)) * (0.5 if hidden else 1.0))
    return model


def attack(case, score, norm, radius, power, hidden):
    """Return how many scores are above the threshold after the attack."""
    model, x, y, threshold = case
    moves = (network_moves if hidden else linear_moves)(model, x, y, threshold, norm, score)
    moved = moved_within(x, moves, radius, norm, power)
    with torch.no_grad():
        return int((rows_of(model(torch.tensor(moved)).numpy(), y, score) > threshold).sum())
