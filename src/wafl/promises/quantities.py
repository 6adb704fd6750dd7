"""Define the quantities that the checker can prove, and bound the gain of an example by moving from above.

The gain is in ``phi_gamma(z) = max over x' of loss(x') - gamma ||x' - x||^p``. Everything is rounded outwards: outputs
are as bad as float64 may have made them, and the possible rounding of the sums below is added. With
``A_j = s_j - s_y`` and the slopes ``K_yj`` of :mod:`wafl.promises.known`:

- **Cross-entropy, p = 2.** Along the distance t alone, ``loss(x') <= logsumexp_j(A_j + K_yj t)``. For a linear model
  also ``loss(x') <= loss + ||g||_* t + L t^2 / 2``, with the gradient g at x and ``L = max ||w_j - w_k||_*^2 / 4``
  (a variable with range R has a variance of at most ``R^2 / 4``). Both are convex in t, so between two distances they
  lie below their chords, and a chord minus ``gamma t^2`` has its maximum in closed form. From
  ``t = max_j K_yj / gamma`` on, nothing is gained. For a linear model in l2 with ``2 gamma > L`` the objective is
  concave with modulus ``2 gamma - L``, so wherever an ascent ends,
  ``phi_gamma <= f + ||grad f||^2 / (2 (2 gamma - L))``. For a linear model, :mod:`wafl.promises.shares` has one more
  bound. The least of these counts.
- **MarginLoss** ``t CE((s - u e_y) / t)`` is t times the cross-entropy with ``(A_j + u) / t`` and ``K_yj / t``, at
  ``gamma / t``.
- **Squared error, p = 2.** If the outputs move by at most ``B t``, ``phi_gamma <= ||r||^2 / (1 - B^2 / gamma)``.
- **p = 1.** At a gamma that is the steepest slope nothing is gained: phi_gamma is the loss.
- **Errors.** Another class is at least ``max(0, min_j -A_j / K_yj)`` away, so ``phi_gamma <= max(0, 1 - gamma d^p)``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.base.errors import PreconditionError
from wafl.base.norms import dual, power_norm
from wafl.promises.attack import error_candidates, loss_candidates
from wafl.promises.known import Ball, Candidate, Gammas, Known, Outputs, Quantity, Range, Target
from wafl.promises.layers import UNIT, WIDER
from wafl.promises.shares import shares_of
from wafl.tasks.losses import OutputLoss

PIECES = 64
"""The number of pieces into which the distances are cut."""
ASCENT = 40
"""Steps of the ascent of a linear model in l2, which costs C^2 numbers per example and step."""


def surrogates(model: Known, ball: Ball, x: Tensor, y: Tensor, gammas: Gammas) -> Tensor:
    """Return an upper bound on phi_gamma for each gamma and example, ``[G, n]``; infinite where there is none.

    None is a gamma at which nothing moves.
    """
    return ball.quantity.surrogates(model, ball, model.outputs(x), y, gammas, x[0].numel())


def worst_margins(outputs: Outputs, y: Tensor, offset: float = 0.0) -> Tensor:
    """Return ``A_j + u``, as large as float64 may have made them; 0 for the label."""
    label = y[:, None]
    margins = outputs.values - outputs.values.gather(1, label) + offset
    worst = margins + 2.0 * outputs.error[:, None] + 4.0 * UNIT * (margins.abs() + offset)
    return worst.scatter_(1, label, 0.0)


def squared_surrogate(model: Known, ball: Ball, output: Outputs, y: Tensor, gamma: float | None, inputs: int) -> Tensor:
    """Return the bound on phi_gamma of a squared error."""
    residual = output.values - y.view(len(y), -1)
    error = output.error[:, None] + 2.0 * UNIT * residual.abs()
    square = (residual.abs() + error).square().sum(1) * (1.0 + 2.0 * (residual.shape[1] + 8) * UNIT)
    if gamma is None:
        return square
    left = 1.0 - model.widest(ball.norm, inputs) ** 2 / gamma - 8.0 * UNIT if ball.power == 2 else 0.0
    return square / left * (1.0 + 4.0 * UNIT) if left > 0 else torch.full_like(square, math.inf)


def error_surrogate(ball: Ball, worst: Tensor, slopes: Tensor, y: Tensor, gamma: float | None) -> Tensor:
    """Return the bound on phi_gamma of the 0/1 loss."""
    lead = (-worst).clamp_min(0.0).scatter(1, y[:, None], math.inf)
    distance = torch.where(lead > 0, lead / slopes, 0.0).amin(1) * (1.0 - 8.0 * UNIT)
    if gamma is None:
        return 1.0 - (distance > 0).double()  # a distance that is not a number counts as no distance
    gained = 1.0 - gamma * distance.pow(ball.power)
    return (gained + 16.0 * UNIT).clamp(0.0, 1.0)


def logistic_surrogate(
    weight: Tensor | None, ball: Ball, outputs: Outputs, worst: Tensor, slopes: Tensor, y: Tensor, gamma: float | None
) -> Tensor:
    """Return an upper bound on phi_gamma of the cross-entropy; ``weight`` belongs to a linear model, or is None."""
    rounding = (2 * worst.shape[1] + 64) * UNIT
    loss = worst.logsumexp(1)
    loss = loss + rounding * (1.0 + loss.abs())
    if gamma is None:
        return loss
    steepest = slopes[y].amax(1)
    far = steepest / gamma
    extra = rounding * (1.0 + loss.abs() + 2.0 * steepest * far)
    if weight is None:
        return _highest(loss, worst, slopes[y], far, gamma).maximum(loss) + extra
    widest = float(slopes.max().square()) / 4.0 * WIDER
    upper = _highest(loss, worst, slopes[y], far, gamma, (_slope(weight, ball, outputs, y), widest))
    shares = shares_of(weight.numpy().tobytes(), len(weight), ball.norm)
    upper = upper.minimum(shares.surrogate(worst, slopes[y], y, gamma))
    if ball.norm == 2 and 2.0 * gamma > widest:
        upper = upper.minimum(_ascended(weight, outputs, y, gamma, widest))
    return upper.maximum(loss) + extra


def _highest(
    loss: Tensor, worst: Tensor, slopes: Tensor, far: Tensor, gamma: float, bend: tuple[Tensor, float] | None = None
) -> Tensor:
    """Return the maximum over all pieces of the chord minus ``gamma t^2``, for the lower chord if there are two."""
    at = torch.linspace(0.0, 1.0, PIECES + 1, dtype=torch.float64) * far[:, None]
    lines = torch.addcmul(worst.T[..., None], slopes.T[..., None], at)  # classes first: short last sums are slow
    heights = [lines.sub_(top := lines.amax(0)).exp_().sum(0).log_().add_(top)]
    if bend is not None:
        heights.append(loss[:, None] + bend[0][:, None] * at + bend[1] / 2.0 * at.square())
    left, right = at[:, :-1], at[:, 1:]
    tops: list[Tensor] = []
    for height in heights:
        rise = (height[:, 1:] - height[:, :-1]) / (right - left)
        rise = torch.where(right > left, rise, 0.0)
        top = (rise / (2.0 * gamma)).maximum(left).minimum(right)
        tops.append(height[:, :-1] + rise * (top - left) - gamma * top.square())
    return torch.stack(tops).amin(0).amax(1)


def _slope(weight: Tensor, ball: Ball, outputs: Outputs, y: Tensor) -> Tensor:
    """Return ``||g||_*`` of a linear model's loss at each example, rounded up."""
    share = outputs.values.softmax(1).scatter_add(1, y[:, None], -torch.ones(len(y), 1, dtype=torch.float64))
    length = power_norm(share @ weight, dual(ball.norm), 1)
    size = float(power_norm(weight, dual(ball.norm), 1).max())
    off = 4.0 * outputs.error + (sum(weight.shape) + 64) * UNIT * (1.0 + outputs.values.abs().amax(1))
    return length * WIDER + 4.0 * size * off


def _ascended(weight: Tensor, at_rest: Outputs, y: Tensor, gamma: float, widest: float) -> Tensor:
    """Return the bound at the end of an ascent in u.

    As examples move by ``W^T u``, outputs move by ``G u`` with ``G = W W^T``. Any u proves a bound, and the best u
    proves the best one.
    """
    outputs = at_rest.values.T.contiguous()
    gram, size = weight @ weight.T, weight.abs() @ weight.abs().T
    label = torch.zeros_like(outputs).scatter_(0, y[None], 1.0)
    u = torch.zeros_like(label)
    for _ in range(ASCENT):
        u = ((outputs + gram @ u).softmax(0) - label) / (2.0 * gamma)
    moved, sizes = outputs + gram @ u, size @ u.abs()
    residual = moved.softmax(0) - label - 2.0 * gamma * u
    value = moved.logsumexp(0) - moved.gather(0, y[None])[0]
    price, rest = gamma * ((gram @ u) * u).sum(0), ((gram @ residual) * residual).sum(0).clamp_min(0.0)
    # The possible rounding of the sums: d products in each entry of G, C of these in each output and in each square.
    summed = 8.0 * (sum(weight.shape) + 32) * UNIT
    off = summed * (2.0 * sizes.amax(0) + gamma * (sizes * u.abs()).sum(0) + 1.0 + value.abs()) + 2.0 * at_rest.error
    # Outputs that are off by e change the residual by at most e, which W^T makes no longer than e times all rows.
    wide = float(size.diagonal().sqrt().sum())
    error = (at_rest.error + summed * sizes.amax(0) + summed) * 2.0 * wide
    longest = (rest + summed * ((size @ residual.abs()) * residual.abs()).sum(0)).sqrt() + error
    return value - price + longest.square() / (2.0 * (2.0 * gamma - widest)) * (1.0 + 64.0 * UNIT) + off


def steepest_slope(model: Known, ball: Ball, inputs: int) -> float:
    """Return the maximum gain of the loss per distance: at this gamma, phi_gamma of the distance itself is the loss."""
    return float(model.margins(ball.norm, inputs).max()) * (1.0 + 8.0 * UNIT)


def largest_surrogate(
    model: Known, ball: Ball, shape: Sequence[int], box: tuple[float, float], gamma: float | None
) -> float:
    """Return an upper bound on phi_gamma of a classifier's loss for every example in the box.

    For the cross-entropy it is at most ``logsumexp_j(A_j + K_yj^2 / (4 gamma))``, and each A_j is at most its value at
    the center of the box, plus the gain from moving every input by half of the box's width.
    """
    (low, high), (offset, soft) = box, model.margin
    inputs, middle = math.prod(shape), low + (high - low) / 2.0
    half = max(high - middle, middle - low)  # for a narrow box far from 0, rounding moves the center
    center = model.outputs(torch.full((1, *shape), middle, dtype=torch.float64))
    scores = center.values[0]
    margins = scores - scores[:, None] + 2.0 * center.error + model.margins(math.inf, inputs) * half * WIDER
    gained = 0.0 if gamma is None else model.margins(ball.norm, inputs).square() / (4.0 * gamma)
    raised = (margins + offset * (1.0 - torch.eye(len(scores), dtype=torch.float64)) + gained) / soft
    most = float(raised.logsumexp(1).max())
    return soft * (most + 64.0 * len(scores) * UNIT * (1.0 + abs(most) + float(raised.abs().max())))


LEAST = 1e-40
"""A gamma at which moves cost nothing, for models that gain nothing from them."""


@dataclass(frozen=True)
class ExpectedLoss(Quantity):
    """The mean of the model's loss."""

    metric = "loss"
    noun = "expected loss"
    largest = math.inf
    needs_classes = False
    has_points = True

    def meaning(self, loss: str | None) -> str:
        """Return the name of the loss."""
        return "" if loss is None else f" ({loss.replace('_', ' ')})"

    def check(self, model: Known, power: int, bounds: tuple[float, float] | None, confidence: float | None) -> None:
        """Raise an error unless the loss has a bound for this power and confidence."""
        if power == 1 and not model.classifies:
            raise PreconditionError("a squared error has no slope, so nothing is proven for power=1: use power=2")
        if confidence is not None and bounds is None:
            raise PreconditionError(
                "confidence needs bounds of the data, from which the largest possible loss follows: declare them "
                "(bounds=(low, high), or preprocess='unit')"
            )
        if confidence is not None and not model.classifies:
            raise PreconditionError("confidence needs cross-entropy, which is bounded on bounded data")

    def needs_gamma(self, power: int, radius: float) -> bool:
        """Return whether the ball moves examples at a squared cost."""
        return radius > 0 and power == 2

    def gammas(self, model: Known, ball: Ball, x: Tensor, y: Tensor, share: Tensor, radius: float) -> Range:
        """Return the range around the best gamma: its closed form for a squared error."""
        inputs = x[0].numel()
        if model.classifies:
            most = steepest_slope(model, ball, inputs) / (2.0 * radius)  # where the bound is at most loss + L_z radius
            return max(most * 1e-4, LEAST), max(most, LEAST)
        # gamma radius^2 + R / (1 - B^2 / gamma) is least at B^2 + B sqrt(R) / radius.
        wide = model.widest(ball.norm, inputs)
        residual = float(share @ surrogates(model, ball, x, y, [None])[0])
        best = max(wide**2 + wide * math.sqrt(residual) / radius, wide**2 * (1.0 + 1e-6), LEAST)
        return best, best

    def surrogates(self, model: Known, ball: Ball, outputs: Outputs, y: Tensor, gammas: Gammas, inputs: int) -> Tensor:
        """Bound phi_gamma of the loss."""
        if not model.classifies:
            return torch.stack([squared_surrogate(model, ball, outputs, y, gamma, inputs) for gamma in gammas])
        offset, soft = model.margin
        worst, slopes = worst_margins(outputs, y, offset) / soft, model.margins(ball.norm, inputs) / soft
        # The loss is t times the cross-entropy of scores (s - u e_y) / t, and so is phi_gamma, at gamma / t.
        scores = outputs.values.scatter_add(1, y[:, None], torch.full_like(outputs.values[:, :1], -offset)) / soft
        shifted = Outputs(scores, outputs.error / soft * (1.0 + 4.0 * UNIT))
        weight, prices = model.last / soft if model.linear else None, [gamma and gamma / soft for gamma in gammas]
        return soft * torch.stack(
            [logistic_surrogate(weight, ball, shifted, worst, slopes, y, price) for price in prices]
        )

    def values(self, loss: OutputLoss, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the losses."""
        return loss.value(outputs, y)

    def candidates(self, target: Target) -> list[Candidate]:
        """Return moves along gradients."""
        return loss_candidates(target)


@dataclass(frozen=True)
class ErrorRate(Quantity):
    """The share of examples for which another class has at least the output of the label."""

    metric = "error"
    noun = "error rate"
    largest = 1.0
    needs_classes = True
    has_points = False

    def meaning(self, loss: str | None) -> str:
        """Explain the error rate."""
        return " (the share of examples for which another answer has at least the score of the right one)"

    def check(self, model: Known, power: int, bounds: tuple[float, float] | None, confidence: float | None) -> None:
        """Raise an error unless the model is a classifier."""
        if not model.classifies:
            raise PreconditionError("metric='error' needs a classifier: certify the loss of this model")

    def needs_gamma(self, power: int, radius: float) -> bool:
        """Return whether the ball moves examples."""
        return radius > 0

    def gammas(self, model: Known, ball: Ball, x: Tensor, y: Tensor, share: Tensor, radius: float) -> Range:
        """Return the range in which 1 is not the smaller bound."""
        return 1e-9 / ball.cost(radius), 1.0 / ball.cost(radius)  # above this gamma, 1 is the smaller bound

    def surrogates(self, model: Known, ball: Ball, outputs: Outputs, y: Tensor, gammas: Gammas, inputs: int) -> Tensor:
        """Bound phi_gamma by the distance to the nearest error."""
        worst, slopes = worst_margins(outputs, y), model.margins(ball.norm, inputs)
        return torch.stack([error_surrogate(ball, worst, slopes[y], y, gamma) for gamma in gammas])

    def values(self, loss: OutputLoss, outputs: Tensor, y: Tensor) -> Tensor:
        """Return 1 for errors and 0 for other examples."""
        others = outputs.scatter(1, y[:, None], -torch.inf).amax(1)
        return (others >= outputs.gather(1, y[:, None])[:, 0]).double()

    def candidates(self, target: Target) -> list[Candidate]:
        """Return moves toward the nearest other class."""
        return error_candidates(target)


QUANTITIES: dict[str, Quantity] = {each.metric: each for each in (ExpectedLoss(), ErrorRate())}


def quantity_of(metric: str) -> Quantity:
    """Return the quantity with this name, or raise ValueError with the choices."""
    if metric not in QUANTITIES:
        choices = " or ".join(f"metric={name!r} for the {each.noun}" for name, each in QUANTITIES.items())
        raise ValueError(f"metric={metric!r} is not one of {', '.join(map(repr, QUANTITIES))}: pass {choices}")
    return QUANTITIES[metric]
