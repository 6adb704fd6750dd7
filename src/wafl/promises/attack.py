"""Attack certificates independently of the search: no certificate may be below the loss of a distribution in the ball.

Examples move independently, and a joint step decides how much of the mass moves, so that the ball's budget is met.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wafl.base.norms import power_norm, steepest
from wafl.promises.known import Ball, Candidate, Known, Target
from wafl.tasks.losses import OutputLoss

STEPS = 2
"""Gradients after the first, from each of two starts."""
SCALES = (0.8, 1.25)
FARTHER = (1.0, 10.0, 1000.0)
"""The distance that a little mass moves, in radii, if the cost is the distance itself."""


def candidates(
    model: Known, ball: Ball, x: Tensor, y: Tensor, gamma: float | None, radius: float
) -> tuple[Tensor, Tensor]:
    """Return the values that each example can reach, and their costs: ``[n, candidates]`` each, the first at rest."""
    with torch.set_grad_enabled(radius > 0.0):
        flat = x.flatten(1).clone().requires_grad_(radius > 0.0)
        target = Target(model, ball, x, y, gamma, radius, flat, model.plain(flat.view_as(x)))
    here = flat.detach()
    moves = [(here, ball.quantity.values(model.loss, target.outputs.detach(), y))]
    if radius > 0.0:
        moves += ball.quantity.candidates(target)
    costs = [power_norm(point - here, ball.norm, ball.power) for point, _ in moves]
    return torch.stack([value for _, value in moves], 1), torch.stack(costs, 1)


@dataclass(frozen=True)
class Unproven:
    """A model without a proof, for which only the outputs and the loss are known."""

    module: nn.Module
    loss: OutputLoss

    def plain(self, x: Tensor) -> Tensor:
        """Compute the outputs."""
        return self.module(x)

    def worst(self, ball: Ball, x: Tensor, y: Tensor, radii: Sequence[float]) -> Tensor:
        """Return the larger value of each example, at rest or moved by each radius: ``[radii, n]``.

        The value is infinite where an example has none, because an output or the loss is not a number.
        """
        try:
            points = [x, *moved(self, ball.norm, x, y, radii)]
            with torch.no_grad():
                outputs = [self.plain(point) for point in points]
                values = torch.stack([ball.quantity.values(self.loss, each, y) for each in outputs])
        except Exception as error:  # the module's code may raise any error
            raise ValueError(
                f"the model and its loss cannot be computed on these data ({error}): pass its data and its loss"
            ) from error
        missing = outputs[0].isnan().flatten(1).any(1) | values[0].isnan()
        return values[1:].fmax(torch.where(missing, torch.inf, values[0]))


def moved(model: Known | Unproven, norm: float, x: Tensor, y: Tensor, radii: Sequence[float]) -> list[Tensor]:
    """Return the examples moved by each radius along the gradient of their loss; if there is no gradient, unmoved."""
    with torch.enable_grad():
        flat = x.flatten(1).clone().requires_grad_()
        y = y.to(x) if y.is_floating_point() else y
        loss = model.loss.value(model.plain(flat.view_as(x)), y).sum()
        slope = torch.autograd.grad(loss, flat, allow_unused=True)[0] if loss.requires_grad else None
    if slope is None:
        return [x] * len(radii)
    toward = steepest(slope, norm).view_as(x)
    return [x + radius * toward if radius > 0.0 else x for radius in radii]


def reached(values: Tensor, costs: Tensor, share: Tensor, budget: float) -> float:
    """Return the largest expected value of a mixture of candidates that costs at most the budget."""
    gains = values - values[:, :1]

    def mixture(price: float) -> tuple[float, float]:
        choice = (gains - price * costs).argmax(1, keepdim=True)
        return float(share @ values.gather(1, choice)[:, 0]), float(share @ costs.gather(1, choice)[:, 0])

    low, high = 0.0, float((gains / costs.clamp_min(1e-300)).amax()) + 1.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (low, middle) if mixture(middle)[1] <= budget else (middle, high)
    (most, dear), (least, cheap) = mixture(low), mixture(high)
    if dear <= budget:
        return most
    return least + (most - least) * max(0.0, (budget - cheap) / (dear - cheap)) if cheap <= budget else 0.0


def error_candidates(target: Target) -> list[Candidate]:
    """Return candidates toward the nearest other class, at about its distance."""
    y, flat, norm = target.y, target.start.detach(), target.ball.norm
    margins, slopes = _margins(target)
    lengths = (-margins / slopes).scatter(1, y[:, None], torch.inf).clamp_min(0.0)
    rival = lengths.argmin(1)
    toward = steepest(_gradient(target, target.start, target.outputs, rival), norm)
    length = lengths.gather(1, rival[:, None]).nan_to_num(0.0, 0.0, 0.0)
    return [target.at(flat + scale * length * toward) for scale in (1.0 + 1e-9, 1.5, 3.0)]


def loss_candidates(target: Target) -> list[Candidate]:
    """Return candidates along the gradients of the loss and of the margin of the class that gains most."""
    ball, gamma, flat = target.ball, target.gamma, target.start.detach()
    starts = [_gradient(target, target.start, target.outputs)]
    if target.model.classifies:
        margins, slopes = _margins(target)
        worth = slopes if ball.power == 1 or gamma is None else margins + slopes.square() / (4.0 * gamma)
        rival = worth.scatter(1, target.y[:, None], -torch.inf).argmax(1)
        starts.insert(0, _gradient(target, target.start, target.outputs, rival))
    if ball.power == 1 or gamma is None:
        toward = [scale * target.radius * steepest(start, ball.norm) for start in starts for scale in FARTHER]
        return [target.at(flat + move) for move in toward]
    best, reached, most = flat, torch.zeros_like(flat[:, 0]), torch.full_like(flat[:, 0], -torch.inf)
    for slope in starts:
        # Where <g, v> - gamma ||v||^2 is largest; a convex loss is above its tangents, so each step gains.
        moved = flat + _step(slope, ball, gamma)
        for _ in range(STEPS):
            with torch.enable_grad():
                near = moved.requires_grad_()
                outputs = target.model.plain(near.view_as(target.x))
            moved = flat + _step(_gradient(target, near, outputs), ball, gamma)
        moved, value = target.at(moved)
        worth = value - gamma * power_norm(moved - flat, ball.norm, ball.power)
        better = worth > most
        best, reached = torch.where(better[:, None], moved, best), torch.where(better, value, reached)
        most = worth.maximum(most)
    return [(best, reached), *(target.at(flat + scale * (best - flat)) for scale in SCALES)]


def _step(slope: Tensor, ball: Ball, gamma: float) -> Tensor:
    length = power_norm(slope, {1: torch.inf, 2: 2, torch.inf: 1}[ball.norm], 1) / (2.0 * gamma)
    return length[:, None] * steepest(slope, ball.norm)


def _margins(target: Target) -> tuple[Tensor, Tensor]:
    """Return the margins ``[n, C]`` of all classes over the label at the start, and their slopes."""
    values, y = target.outputs.detach(), target.y
    slopes = target.model.margins(target.ball.norm, target.x[0].numel())[y]
    return values - values.gather(1, y[:, None]), slopes


def _gradient(target: Target, at: Tensor, outputs: Tensor, rival: Tensor | None = None) -> Tensor:
    """Return the gradient of the loss where the flat examples are ``at``, or of the margin of a rival class."""
    y = target.y
    with torch.enable_grad():
        if rival is None:
            total = target.model.loss.value(outputs, y).sum()
        else:
            total = (outputs.gather(1, rival[:, None]) - outputs.gather(1, y[:, None])).sum()
        return torch.autograd.grad(total, at, retain_graph=True)[0]
