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
SCALES = (1.0, 0.8, 1.25)
FARTHER = (1.0, 10.0, 1000.0)
"""How many times the radius a little mass goes if the cost is the distance itself."""


def candidates(
    model: Known, ball: Ball, x: Tensor, y: Tensor, gamma: float | None, radius: float
) -> tuple[Tensor, Tensor]:
    """What each example reaches, and at what cost: ``[n, places]`` each, the first of which is where it is."""
    places = [x.flatten(1), *(() if radius == 0.0 else _places(model, ball, x, y, gamma, radius))]
    values = [_losses(model, ball, place.view_as(x), y) for place in places]
    costs = [power_norm(place - places[0], ball.norm, ball.power) for place in places]
    return torch.stack(values, 1), torch.stack(costs, 1)


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


def _places(model: Known, ball: Ball, x: Tensor, y: Tensor, gamma: float | None, radius: float) -> list[Tensor]:
    flat, inputs = x.flatten(1), x[0].numel()
    if not model.classifies:
        starts = [_gradient(model, x, flat, y)]
    else:
        slopes, outputs = model.margins(ball.norm, inputs)[y], model.plain(x)
        margins = outputs - outputs.gather(1, y[:, None])
        if ball.metric == "error":
            lengths = (-margins / slopes).scatter(1, y[:, None], torch.inf).clamp_min(0.0)
            rival = lengths.argmin(1)
            toward = steepest(_gradient(model, x, flat, y, rival), ball.norm)
            length = lengths.gather(1, rival[:, None]).nan_to_num(0.0, 0.0, 0.0)
            return [flat + scale * length * toward for scale in (1.0 + 1e-9, 1.5, 3.0)]
        worth = slopes if ball.power == 1 or gamma is None else margins + slopes.square() / (4.0 * gamma)
        rival = worth.scatter(1, y[:, None], -torch.inf).argmax(1)
        starts = [_gradient(model, x, flat, y, rival), _gradient(model, x, flat, y)]
    if ball.power == 1 or gamma is None:
        return [flat + scale * radius * steepest(start, ball.norm) for start in starts for scale in FARTHER]
    best, most = flat, torch.full_like(flat[:, 0], -torch.inf)
    for slope in starts:
        # Where <g, v> - gamma ||v||^2 is largest; a convex loss is above its tangents, so each step gains.
        moved = flat + _step(slope, ball, gamma)
        for _ in range(STEPS):
            moved = flat + _step(_gradient(model, x, moved, y), ball, gamma)
        worth = _losses(model, ball, moved.view_as(x), y) - gamma * power_norm(moved - flat, ball.norm, ball.power)
        best, most = torch.where((worth > most)[:, None], moved, best), worth.maximum(most)
    return [flat + scale * (best - flat) for scale in SCALES]


def _step(slope: Tensor, ball: Ball, gamma: float) -> Tensor:
    length = power_norm(slope, {1: torch.inf, 2: 2, torch.inf: 1}[ball.norm], 1) / (2.0 * gamma)
    return length[:, None] * steepest(slope, ball.norm)


def _losses(model: Known, ball: Ball, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        outputs = model.plain(x)
    if ball.metric == "loss":
        return model.loss.value(outputs, y)
    others = outputs.scatter(1, y[:, None], -torch.inf).amax(1)
    return (others >= outputs.gather(1, y[:, None])[:, 0]).double()


def _gradient(model: Known, x: Tensor, flat: Tensor, y: Tensor, rival: Tensor | None = None) -> Tensor:
    """The gradient of the loss where the flat examples are, or of the margin of a rival class."""
    with torch.enable_grad():
        at = flat.detach().clone().requires_grad_()
        outputs = model.plain(at.view_as(x))
        if rival is None:
            total = model.loss.value(outputs, y).sum()
        else:
            total = (outputs.gather(1, rival[:, None]) - outputs.gather(1, y[:, None])).sum()
        return torch.autograd.grad(total, at)[0]
