"""From examples to the distributions they come from: an upper bound on the mean of phi_gamma, with a probability.

Examples ``X_ik`` of client i, ``n_i`` of them and N in all, are independent draws in ``[0, B]`` with mean ``mu_i``, and
the clients' weights are ``lambda_i > 0``; write ``mu = sum_i lambda_i mu_i``. A gambler bets that the means are small
(Waudby-Smith and Ramdas, JRSSB 2024): with ``b_i`` in ``(0, 1/B)``, chosen without these examples, each of them
multiplies the capital by ``(1 - b_i X_ik) / (1 - b_i mu_i)``, which is 1 in the mean.

**Theorem.** With probability ``1 - delta``, ``mu`` is less than every m at which

    sum_ik log(1 - b_i X_ik)  -  sum_i n_i log(n_i b_i / lambda_i)  -  N log((sum_i lambda_i / b_i - m) / N)

is at least ``log(1 / delta)``.

*Proof.* Let ``r_i = n_i b_i / lambda_i``. A geometric mean is at most the arithmetic one, so
``prod_i ((1 - b_i mu_i) / r_i)^n_i <= (sum_i n_i (1 - b_i mu_i) / (r_i N))^N``, which is
``((sum_i lambda_i / b_i - mu) / N)^N``. So at ``m = mu`` the expression is at most the logarithm of the capital, which
is positive with mean 1, and so is ``1 / delta`` or more with probability ``delta`` at most (Markov). It grows with m. ∎

It is the product of the clients' capitals, at the client means with the mixture's mean at which it is smallest
(Spertus, Sridhar and Stark, arXiv 2409.06680): there ``1 - b_i mu_i`` is proportional to ``r_i``. The same holds for
shares of capital that make bets of different sizes, here also 4, 16 and 64 times smaller ones, in case the examples
spread more than those from which the bets come.

Clients send the mean and the second moment of their numbers. **Among numbers in** ``[0, B]`` **with these moments,**
``sum_k log(1 - b X_k)`` **is smallest if some are B and all others the same**: the quadratic in x that meets
``log(1 - b x)`` at B and touches it at that other value is nowhere above it, because the third derivative of the
logarithm has one sign, and its mean depends on the two moments alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.base.errors import PreconditionError
from wafl.base.norms import dual, power_norm
from wafl.data.federation import Federation
from wafl.objectives import Move, Objective, ObjectiveState
from wafl.objectives.base import lane_scalar
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem
from wafl.tasks.task import Task
from wafl.theory.certificates.mixture import Asked
from wafl.theory.certificates.upper import Report
from wafl.theory.constants import linear_models as linear
from wafl.theory.constants.constant import Constant

STAKES = ((0.85, 1.0), (0.05, 1.0 / 4.0), (0.05, 1.0 / 16.0), (0.05, 1.0 / 64.0))
"""Shares of the capital, and the factors by which they multiply the bets."""
ODDS = tuple(math.exp(step / 2.0) for step in range(-18, 9))
"""The odds of the possible bets: theta is its largest value times ``odds / (1 + odds)``."""


@dataclass(frozen=True)
class Sample:
    """The clients' statistics of numbers in ``[0, most]``: their count, their mean and their second moment."""

    sizes: Sequence[int]
    means: Sequence[float]
    seconds: Sequence[float]
    most: float

    @classmethod
    def pooled(cls, values: Sequence[float], most: float) -> Sample:
        """Return the sample of a single client, from all of its numbers."""
        count = len(values)
        return cls([count], [math.fsum(values) / count], [math.fsum(v * v for v in values) / count], most)

    def upper_mean(self, weights: Sequence[float], bets: Sequence[float], delta: float) -> float:
        """Return a bound on ``sum_i lambda_i mu_i`` that fails with probability ``delta`` at most (the theorem)."""
        if not all(0.0 <= bet * self.most < 1.0 for bet in bets):
            raise ValueError(f"every bet must lie in [0, 1 / {self.most:g}), under 1 over the largest possible number")
        share, size, bet = (torch.tensor(each, dtype=torch.float64) for each in (weights, self.sizes, bets))
        here = share > 0
        share, size, bet = share[here], size[here], bet[here]
        if not bool((bet > 0).all()):
            return self.most
        count, level, stakes = float(size.sum()), math.log(1.0 / delta), list[tuple[float, float]]()
        for part, smaller in STAKES:
            reach = share / (smaller * bet)
            wealth = size * (self._least_logs(here, smaller * bet) - (size / reach).log())
            stakes.append((math.log(part) + math.fsum(wealth.tolist()), math.fsum(reach.tolist())))

        def refuted(mean: float) -> bool:
            if min(reach for _, reach in stakes) <= mean:  # no numbers below ``most`` have such a mean
                return True
            logs = [wealth - count * math.log((reach - mean) / count) for wealth, reach in stakes]
            return max(logs) + math.log(math.fsum(math.exp(each - max(logs)) for each in logs)) >= level

        low, high = 0.0, self.most
        if not refuted(high):
            return high
        while low < (middle := (low + high) / 2.0) < high:
            low, high = (low, middle) if refuted(middle) else (middle, high)
        return high

    def _least_logs(self, here: Tensor, bet: Tensor) -> Tensor:
        """Return the least mean of ``log(1 - b x)`` that the mean and the second moment of each client allow."""
        mean, second = (torch.tensor(each, dtype=torch.float64)[here] for each in (self.means, self.seconds))
        room, variance = (self.most - mean).clamp_min(1e-12 * self.most), (second - mean.square()).clamp_min(0.0)
        largest, other = variance / (variance + room.square()), mean - variance / room
        return largest * torch.log1p(-bet * self.most) + (1.0 - largest) * torch.log1p(-bet * other)

    def bets(self, weights: Sequence[float], sizes: Sequence[int], delta: float) -> list[float]:
        """Return the best bets for ``sizes`` examples that spread as these do.

        Half of one more example is assumed to have the largest value. Client i bets ``l_i = theta lambda_i / n_i`` on
        being below its mean ``c_i`` here: ``1 + l (c - x)`` is a multiple of ``1 - b x`` with ``b = l / (1 + l c)``.
        The gain then depends little on how the clients' means make up the mixture's mean.
        """
        share = [weight / size for weight, size in zip(weights, sizes, strict=True)]
        farthest = max(a * (self.most - mean) for a, mean in zip(share, self.means, strict=True))
        if not farthest > 0.0:
            return [0.0] * len(sizes)  # all examples were the largest possible
        moments, count = zip(self.means, self.seconds, strict=True), sum(self.sizes)
        seconds = [second + (self.most - mean) ** 2 / (2 * count) for mean, second in moments]
        like, tried = Sample(sizes, self.means, seconds, self.most), list[tuple[float, list[float]]]()
        for odds in ODDS:
            theta = odds / (1.0 + odds) / farthest
            bets = [theta * a / (1.0 + theta * a * mean) for a, mean in zip(share, self.means, strict=True)]
            tried.append((like.upper_mean(weights, bets, delta), bets))
        return min(tried)[1]


@dataclass(frozen=True)
class Moments(Objective):
    """An upper bound on each example's phi_gamma, cut off at ``most``, with its square in place of the cost.

    phi_gamma itself is never above ``most``, so the cut-off value is still an upper bound. Without a ``bound`` it is
    the loss of the examples at rest.
    """

    bound: Report | None = None

    def scalars(self) -> dict[str, float]:
        """Return the bound's scalars and ``most``."""
        return {"most": math.inf, **({} if self.bound is None else self.bound.scalars())}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Report the bound, cut off, and its square."""
        state = state or ObjectiveState()
        most = lane_scalar(state, "most", math.inf, problem.params)[:, None]
        if self.bound is None:
            loss = problem.loss(x, y)
            move = Move(x, y, loss, loss, torch.ones_like(loss, dtype=torch.bool), state=state)
        else:
            move = self.bound(problem, x, y, state)
        value = move.value.minimum(most)
        return Move(move.inputs, y, value, value.square(), move.converged, state=state)

    def ask(self, mixture: Asked, setting: Mapping[str, float], most: float, seed: int = 0) -> Sample:
        """Return the sample of the clients of a mixture: their means and second moments at one setting."""
        replies = mixture.answers(self, [{**setting, "most": most}], seed)
        return Sample(list(replies.sizes), replies.value[0].tolist(), replies.cost[0].tolist(), most)


@dataclass(frozen=True)
class Domain:
    """The properties of examples that are known before any example is seen: shape, box and number of classes."""

    shape: tuple[int, ...]
    box: tuple[float, float] | None
    num_classes: int | None

    @classmethod
    def of(cls, clients: Federation) -> Domain:
        """Return the domain that clients declare."""
        return cls(clients.input_shape, clients.bounds, clients.num_classes)


def largest_surrogate(task: Task, params: Tensor, domain: Domain, steep: Constant, gamma: float, norm: float) -> float:
    """Return an upper bound on phi_gamma for every example in the box; at ``gamma=inf`` this bounds the loss.

    For a linear model with cross-entropy ``phi_gamma <= logsumexp_j(s_j - s_y + ||w_j - w_y||_*^2 / (4 gamma))``, with
    the largest value of each ``s_j - s_y`` in the box. For others ``phi_gamma <= loss + L_z^2 / (4 gamma)``, and
    the loss is at most the loss at the center of the box plus L_z times the distance.
    """
    if domain.box is None:
        raise PreconditionError(
            "confidence needs bounds of the data, from which the largest possible loss follows: declare them "
            "(bounds=(low, high), or preprocess='unit')"
        )
    if domain.num_classes is None or not task.loss.logistic:
        raise PreconditionError(
            f"confidence needs cross-entropy, which is bounded on bounded data: {task.loss.name} has targets without "
            "bounds, or may be negative"
        )
    if not steep.proven:
        raise PreconditionError("confidence needs a proven L_z: certify a linear model, or a network of known layers")
    layer = task.linear(params[None])
    if layer is not None:
        weight, bias = layer[0][0], layer[1][0]
        box = linear.Domain(*domain.box, weight.shape[1])
        largest = 0.0
        for label in range(len(weight)):
            difference = weight - weight[label]
            gain = power_norm(difference, dual(norm), 2) / (4.0 * gamma)
            gaps = box.largest(difference, bias - bias[label]) + gain
            largest = max(largest, float(gaps.logsumexp(0)))
        return largest
    low, high = domain.box
    middle = low + (high - low) / 2.0
    center = params.new_full((1, 1, *domain.shape), middle)
    outputs = task.outputs(params[None], center)[0].detach()
    labels = torch.arange(domain.num_classes)
    highest = float(task.loss.value(outputs.expand(len(labels), -1), labels).max())
    features, half = math.prod(domain.shape), max(high - middle, middle - low)  # the middle is rounded
    reach = {1: features * half, 2: math.sqrt(features) * half, math.inf: half}[norm]
    return highest + float(steep) * reach + float(steep) ** 2 / (4.0 * gamma)
