"""An attack of the checker's own: distributions inside the ball, whose loss no certificate may be below.

Examples move on their own, and how much of the mass moves is decided together, so that the ball's budget is kept.
"""

import torch
from torch import Tensor

from wafl.base.norms import power_norm, steepest
from wafl.promises.bound import Ball
from wafl.promises.known import Known

STEPS = 2
"""Gradients after the first, from each of two starts."""
SCALES = (0.8, 1.25)
FARTHER = (1.0, 10.0, 1000.0)
"""How many times the radius a little mass goes if the cost is the distance itself."""


def candidates(
    model: Known, ball: Ball, x: Tensor, y: Tensor, gamma: float | None, radius: float
) -> tuple[Tensor, Tensor]:
    """What each example reaches, and at what cost: ``[n, places]`` each, the first of which is where it is."""
    with torch.set_grad_enabled(radius > 0.0):
        flat = x.flatten(1).clone().requires_grad_(radius > 0.0)
        outputs = model.plain(flat.view_as(x))
    here = flat.detach(), _values(model, ball, outputs.detach(), y)
    places = [here, *(() if radius == 0.0 else _places(model, ball, x, y, gamma, radius, flat, outputs))]
    costs = [power_norm(place - here[0], ball.norm, ball.power) for place, _ in places]
    return torch.stack([value for _, value in places], 1), torch.stack(costs, 1)


def reached(values: Tensor, costs: Tensor, share: Tensor, budget: float) -> float:
    """The largest expected value of a mixture of candidates that costs at most the budget."""
    gains = values - values[:, :1]

    def mixture(price: float) -> tuple[float, float]:
        place = (gains - price * costs).argmax(1, keepdim=True)
        return float(share @ values.gather(1, place)[:, 0]), float(share @ costs.gather(1, place)[:, 0])

    low, high = 0.0, float((gains / costs.clamp_min(1e-300)).amax()) + 1.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (low, middle) if mixture(middle)[1] <= budget else (middle, high)
    (most, dear), (least, cheap) = mixture(low), mixture(high)
    if dear <= budget:
        return most
    return least + (most - least) * max(0.0, (budget - cheap) / (dear - cheap)) if cheap <= budget else 0.0


def _places(
    model: Known, ball: Ball, x: Tensor, y: Tensor, gamma: float | None, radius: float, at: Tensor, outputs: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Where examples may go, and what they reach there; the outputs are those where they are now, ``at``."""
    flat, inputs = at.detach(), x[0].numel()
    if not model.classifies:
        starts = [_gradient(model, at, outputs, y)]
    else:
        slopes, values = model.margins(ball.norm, inputs)[y], outputs.detach()
        margins = values - values.gather(1, y[:, None])
        if ball.metric == "error":
            lengths = (-margins / slopes).scatter(1, y[:, None], torch.inf).clamp_min(0.0)
            rival = lengths.argmin(1)
            toward = steepest(_gradient(model, at, outputs, y, rival), ball.norm)
            length = lengths.gather(1, rival[:, None]).nan_to_num(0.0, 0.0, 0.0)
            return [_at(model, ball, x, y, flat + scale * length * toward) for scale in (1.0 + 1e-9, 1.5, 3.0)]
        worth = slopes if ball.power == 1 or gamma is None else margins + slopes.square() / (4.0 * gamma)
        rival = worth.scatter(1, y[:, None], -torch.inf).argmax(1)
        starts = [_gradient(model, at, outputs, y, rival), _gradient(model, at, outputs, y)]
    if ball.power == 1 or gamma is None:
        toward = [scale * radius * steepest(start, ball.norm) for start in starts for scale in FARTHER]
        return [_at(model, ball, x, y, flat + move) for move in toward]
    best, reached, most = flat, torch.zeros_like(flat[:, 0]), torch.full_like(flat[:, 0], -torch.inf)
    for slope in starts:
        # Where <g, v> - gamma ||v||^2 is largest; a convex loss is above its tangents, so each step gains.
        moved = flat + _step(slope, ball, gamma)
        for _ in range(STEPS):
            with torch.enable_grad():
                near = moved.requires_grad_()
                there = model.plain(near.view_as(x))
            moved = flat + _step(_gradient(model, near, there, y), ball, gamma)
        moved, value = _at(model, ball, x, y, moved)
        worth = value - gamma * power_norm(moved - flat, ball.norm, ball.power)
        better = worth > most
        best, reached = torch.where(better[:, None], moved, best), torch.where(better, value, reached)
        most = worth.maximum(most)
    others = [_at(model, ball, x, y, flat + scale * (best - flat)) for scale in SCALES]
    return [(best, reached), *others]


def _step(slope: Tensor, ball: Ball, gamma: float) -> Tensor:
    length = power_norm(slope, {1: torch.inf, 2: 2, torch.inf: 1}[ball.norm], 1) / (2.0 * gamma)
    return length[:, None] * steepest(slope, ball.norm)


def _at(model: Known, ball: Ball, x: Tensor, y: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """A place of the flat examples, and what they reach there."""
    with torch.no_grad():
        return place, _values(model, ball, model.plain(place.view_as(x)), y)


def _values(model: Known, ball: Ball, outputs: Tensor, y: Tensor) -> Tensor:
    if ball.metric == "loss":
        return model.loss.value(outputs, y)
    others = outputs.scatter(1, y[:, None], -torch.inf).amax(1)
    return (others >= outputs.gather(1, y[:, None])[:, 0]).double()


def _gradient(model: Known, at: Tensor, outputs: Tensor, y: Tensor, rival: Tensor | None = None) -> Tensor:
    """The gradient of the loss where the flat examples are ``at``, or of the margin of a rival class."""
    with torch.enable_grad():
        if rival is None:
            total = model.loss.value(outputs, y).sum()
        else:
            total = (outputs.gather(1, rival[:, None]) - outputs.gather(1, y[:, None])).sum()
        return torch.autograd.grad(total, at, retain_graph=True)[0]
