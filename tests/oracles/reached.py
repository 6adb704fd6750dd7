"""An attack inside a ball: moves of single examples, and the best use of the budget for them.

It shares nothing with the library's attacks. Each example is moved to many distances, from many starts, along what the
ground norm calls steepest; a linear model's best moves toward each class are among the starts. Mass may be split, so
the best distribution on the places found is a linear program with one constraint, which a greedy choice along each
example's concave envelope solves exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]
Losses = Callable[[Tensor, Tensor], Tensor]
DOUBLINGS = range(-3, 12)
"""Distances of moves: the radius times these powers of 2."""
STEPS = 6


@dataclass(frozen=True)
class Places:
    """Candidate positions of each example: loss and distance, both ``[n, m]``; the first is its own position."""

    losses: Array
    distances: Array

    def worst_mean(self, share: Array, radius: float, power: int) -> float:
        """Return the largest mean loss, for examples with these shares of the mass, within ``radius``."""
        gains: list[tuple[float, float]] = []  # loss and cost, in all
        at_rest = float(share @ self.losses[:, 0])
        for mass, losses, distances in zip(share, self.losses, self.distances, strict=True):
            if mass > 0:
                steps = envelope(distances**power, losses)
                gains += [(mass * gain, mass * cost) for gain, cost in steps]
        gains.sort(key=lambda step: -step[0] / step[1])
        budget, reached = radius**power, at_rest
        for gain, cost in gains:
            part = min(1.0, budget / cost)
            reached, budget = reached + part * gain, budget - part * cost
            if budget <= 0.0:
                break
        return reached


def envelope(costs: Array, losses: Array) -> list[tuple[float, float]]:
    """Return the steps of the concave envelope of points, from the first point: gain and cost, the best ratio first."""
    steps: list[tuple[float, float]] = []
    here = 0
    while True:
        ahead = (costs > costs[here]) & (losses > losses[here])
        if not ahead.any():
            return steps
        ratio = np.where(ahead, (losses - losses[here]) / np.where(ahead, costs - costs[here], 1.0), -1.0)
        best = int(ratio.argmax())
        steps.append((float(losses[best] - losses[here]), float(costs[best] - costs[here])))
        here = best


def places(model: nn.Module, loss: Losses, x: Tensor, y: Tensor, radii: Sequence[float], norm: float) -> Places:
    """Return candidate positions of the examples ``x [n, ...]``, at distances around each radius."""
    far = torch.tensor(sorted({radius * 2.0**k for radius in radii for k in DOUBLINGS}), dtype=torch.float64)
    result = [(loss(model(x), y).detach()[:, None], torch.zeros(len(x), 1, dtype=torch.float64))]
    slopes = _starts(model, loss, x, y)
    for slope in slopes:
        rest = x.flatten(1)[:, None].expand(-1, len(far), -1)
        label = y.repeat_interleave(len(far), dim=0)
        direction = steepest(slope.flatten(1), norm)[:, None].expand_as(rest)
        for _ in range(STEPS):
            moved = rest + far[:, None] * direction
            inputs = moved.reshape(-1, *x.shape[1:]).requires_grad_()
            values = loss(model(inputs), label)
            result.append((values.detach().view(len(moved), -1), _distances(moved, rest, norm)))
            (gradient,) = torch.autograd.grad(values.sum(), inputs)
            direction = steepest(gradient.reshape(moved.shape), norm)
    losses, distances = (torch.cat(parts, dim=1).numpy() for parts in zip(*result, strict=True))
    usable = np.isfinite(losses) & np.isfinite(distances)
    return Places(np.where(usable, losses, -np.inf), np.where(usable, distances, np.inf))


def steepest(slope: Tensor, norm: float) -> Tensor:
    """Return the direction of length 1 of steepest ascent for a function with this slope."""
    if norm == math.inf:
        return torch.where(slope >= 0, 1.0, -1.0).to(slope)
    largest = slope.abs().amax(-1, keepdim=True)
    scaled = torch.where(largest > 0, slope / torch.where(largest > 0, largest, 1.0), 1.0)
    if norm == 2:
        return scaled / scaled.norm(dim=-1, keepdim=True)
    return torch.zeros_like(slope).scatter(-1, scaled.abs().argmax(-1, keepdim=True), 1.0) * scaled.sign()


def _starts(model: nn.Module, loss: Losses, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the slopes of the loss and of each output's lead over the label's, and a few random slopes."""
    inputs = x.clone().requires_grad_()
    outputs = model(inputs)
    goals = [
        loss(outputs, y).sum(),
        *(sign * outputs[:, index].sum() for index in range(outputs.shape[1]) for sign in (1, -1)),
    ]
    if not y.is_floating_point():
        local_value = outputs.gather(1, y[:, None])
        goals += [(outputs[:, [index]] - local_value).sum() for index in range(outputs.shape[1])]
    slopes = [torch.autograd.grad(goal, inputs, retain_graph=True)[0] for goal in goals]
    random = torch.Generator().manual_seed(0)
    return [*slopes, *(torch.randn(x.shape, generator=random, dtype=x.dtype) for _ in range(2))]


def _distances(moved: Tensor, rest: Tensor, norm: float) -> Tensor:
    """Return the true distances of the moved examples, rounded up."""
    length = torch.linalg.vector_norm(moved - rest, ord=norm, dim=-1)
    lost = torch.linalg.vector_norm(moved, ord=norm, dim=-1)
    return (1.0 + 1e-12) * length + 1e-15 * lost


def errors(weight: Array, outputs: Array, y: Array, norm: float) -> Places:
    """Return the positions for a linear classifier: each example's own, and on the nearest boundary."""
    dual = {1: np.inf, 2: 2, math.inf: 1}[norm]
    lead = outputs[np.arange(len(y)), y][:, None] - outputs
    apart = np.stack([np.linalg.norm(weight - weight[label], ord=dual, axis=1) for label in y])
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(lead <= 0, 0.0, lead / apart)
    distance[np.arange(len(y)), y] = np.inf
    nearest = distance.min(1)
    wrong = (nearest == 0).astype(float)
    return Places(np.stack([wrong, np.ones(len(y))], 1), np.stack([np.zeros(len(y)), nearest], 1))
