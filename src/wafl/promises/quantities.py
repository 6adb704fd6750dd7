"""The quantities that the checker can prove something about, by the metric that a file holds."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.base.errors import PreconditionError
from wafl.promises.attack import error_candidates, loss_candidates
from wafl.promises.bound import (
    error_surrogate,
    logistic_surrogate,
    squared_surrogate,
    steepest_slope,
    surrogates,
    worst_margins,
)
from wafl.promises.known import UNIT, Known, Outputs
from wafl.promises.quantity import Ball, Candidate, Gammas, Quantity, Range, Target

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
        return "" if loss is None else f" ({loss.replace('_', ' ')})"

    def check(self, model: Known, power: int, bounds: tuple[float, float] | None, confidence: float | None) -> None:
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
        return radius > 0 and power == 2

    def gammas(self, model: Known, ball: Ball, x: Tensor, y: Tensor, share: Tensor, radius: float) -> Range:
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

    def values(self, model: Known, outputs: Tensor, y: Tensor) -> Tensor:
        return model.loss.value(outputs, y)

    def candidates(self, target: Target) -> list[Candidate]:
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
        return " (the share of examples for which another answer has at least the score of the right one)"

    def check(self, model: Known, power: int, bounds: tuple[float, float] | None, confidence: float | None) -> None:
        if not model.classifies:
            raise PreconditionError("metric='error' needs a classifier: certify the loss of this model")

    def needs_gamma(self, power: int, radius: float) -> bool:
        return radius > 0

    def gammas(self, model: Known, ball: Ball, x: Tensor, y: Tensor, share: Tensor, radius: float) -> Range:
        return 1e-9 / ball.cost(radius), 1.0 / ball.cost(radius)  # from there on 1 is the smaller bound

    def surrogates(self, model: Known, ball: Ball, outputs: Outputs, y: Tensor, gammas: Gammas, inputs: int) -> Tensor:
        worst, slopes = worst_margins(outputs, y), model.margins(ball.norm, inputs)
        return torch.stack([error_surrogate(ball, worst, slopes[y], y, gamma) for gamma in gammas])

    def values(self, model: Known, outputs: Tensor, y: Tensor) -> Tensor:
        others = outputs.scatter(1, y[:, None], -torch.inf).amax(1)
        return (others >= outputs.gather(1, y[:, None])[:, 0]).double()

    def candidates(self, target: Target) -> list[Candidate]:
        return error_candidates(target)


QUANTITIES: dict[str, Quantity] = {each.metric: each for each in (ExpectedLoss(), ErrorRate())}


def quantity_of(metric: str) -> Quantity:
    """Return the quantity with this name, or raise ValueError with the choices."""
    if metric not in QUANTITIES:
        choices = " or ".join(f"metric={name!r} for the {each.noun}" for name, each in QUANTITIES.items())
        raise ValueError(f"metric={metric!r} is none of {', '.join(map(repr, QUANTITIES))}: pass {choices}")
    return QUANTITIES[metric]
