"""From examples to the distributions they come from: an upper bound on the mean of phi_gamma, with a probability.

Examples ``X_ik`` of client i, ``n_i`` of them, are independent draws in ``[0, B]`` with mean ``mu_i``, and the clients'
weights are ``lambda_i``; write ``a_i = lambda_i / n_i``, ``S = sum_i lambda_i mean_i``, ``mu = sum_i lambda_i mu_i``.
Clients send the mean and the second moment of what they hold.

**Theorem.** Let the centers ``c_i`` in ``[0, B]`` be chosen without these examples. With ``L = log(2 / delta)``,
``w = sum_i a_i^2 sum_k (X_ik - c_i)^2`` and ``M = max_i a_i^2 max(c_i, B - c_i)^2``, with probability ``1 - delta``

    mu <= S + sqrt(2 L) (sqrt(w + L M / 2) + sqrt(L M / 2)) + L max_i a_i B / 3.

*Proof.* ``mu - S`` is a sum of independent centered variables ``a_i (mu_i - X_ik) <= a_i B`` with total variance
``v <= E w``. Bernstein's inequality gives ``mu - S <= sqrt(2 L v) + L max_i a_i B / 3`` but for probability
``delta / 2``. The terms W of w are not negative and at most M. For such variables ``e^-x <= 1 - x + x^2 / 2`` gives
``E w - w <= sqrt(2 L sum E W^2) <= sqrt(2 L M E w)`` but for probability ``delta / 2``, which is a quadratic inequality
in ``sqrt(E w)``: ``sqrt(E w) <= sqrt(L M / 2) + sqrt(w + L M / 2)``. ∎

This is the empirical Bernstein bound (Maurer and Pontil, COLT 2009) for strata with weights.
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
from wafl.theory.certificates.upper import ErrorSurrogate, Report, report_for
from wafl.theory.constants import linear_models as linear
from wafl.theory.constants.constant import Constant


@dataclass(frozen=True)
class Sample:
    """What clients send about numbers in ``[0, most]``: how many, their mean and their second moment."""

    sizes: Sequence[int]
    means: Sequence[float]
    seconds: Sequence[float]
    most: float

    def upper_mean(self, weights: Sequence[float], centers: Sequence[float], delta: float) -> float:
        """At least ``sum_i lambda_i mu_i``, but for probability ``delta``: the theorem above."""
        log = math.log(2.0 / delta)
        share = [weight / size for weight, size in zip(weights, self.sizes, strict=True)]
        spread = math.fsum(
            a * a * size * max(second - 2.0 * center * mean + center * center, 0.0)
            for a, size, mean, second, center in zip(share, self.sizes, self.means, self.seconds, centers, strict=True)
        )
        far = max((a * max(c, self.most - c)) ** 2 for a, c in zip(share, centers, strict=True)) * log / 2.0
        mean = math.fsum(weight * value for weight, value in zip(weights, self.means, strict=True))
        deviation = math.sqrt(spread + far) + math.sqrt(far)
        return mean + math.sqrt(2.0 * log) * deviation + log * max(share) * self.most / 3.0


@dataclass(frozen=True)
class Moments(Objective):
    """What an upper bound on phi_gamma is, at most ``most``, and its square in place of the cost.

    phi_gamma itself is never above ``most``, so neither is the smaller of the two below phi_gamma. Without an upper
    bound it is the loss where the examples are.
    """

    bound: Report | None = None

    def scalars(self) -> dict[str, float]:
        return {"most": math.inf, **({} if self.bound is None else self.bound.scalars())}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        state = state or ObjectiveState()
        most = lane_scalar(state, "most", math.inf, problem.params)[:, None]
        if self.bound is None:
            value = problem.loss(x, y)
            settled = torch.ones_like(value, dtype=torch.bool)
            value = value.minimum(most)
            return Move(x, y, value, value.square(), settled, state=state)
        move = self.bound(problem, x, y, state)
        value = move.value.minimum(most)
        return Move(move.inputs, y, value, value.square(), move.converged, state=state)

    def ask(self, mixture: Asked, setting: Mapping[str, float], most: float, seed: int = 0) -> Sample:
        """What the clients of a mixture send."""
        found = mixture.answers(self, [{**setting, "most": most}], seed)
        return Sample(list(found.sizes), found.value[0].tolist(), found.cost[0].tolist(), most)


@dataclass(frozen=True)
class Domain:
    """What is known about examples before any is seen: their shape, the box they lie in, and how many classes."""

    shape: tuple[int, ...]
    box: tuple[float, float] | None
    num_classes: int | None

    @classmethod
    def of(cls, clients: Federation) -> Domain:
        return cls(clients.input_shape, clients.bounds, clients.num_classes)


@dataclass(frozen=True)
class Drawn:
    """The test examples of all clients as a sample, with centers from their training examples."""

    sample: Sample
    centers: Sequence[float]
    weights: Sequence[float]

    @classmethod
    def ask(
        cls,
        training: Asked,
        test: Asked,
        domain: Domain,
        steep: Constant,
        norm: float,
        setting: Mapping[str, float] | None,
        seed: int = 0,
    ) -> Drawn:
        """Of an upper bound on phi_gamma, if ``setting`` has a gamma, and otherwise of the loss."""
        gamma = math.inf if setting is None else setting["gamma"]
        most = largest_surrogate(test.task, test.params, domain, steep, gamma, norm)
        moments = Moments(None if setting is None else report_for(setting, norm))
        centers = moments.ask(training, setting or {}, most, seed).means
        return cls(moments.ask(test, setting or {}, most, seed), centers, test.weights.tolist())

    @classmethod
    def of_errors(
        cls, training: Asked, test: Asked, norm: float, gamma: float, seed: int = 0, slack: float = 0.0
    ) -> Drawn:
        """Of phi_gamma of the error rate, which lies between 0 and 1 wherever examples are."""
        moments, setting = Moments(ErrorSurrogate(norm, slack=slack)), {"gamma": gamma}
        centers = moments.ask(training, setting, 1.0, seed).means
        return cls(moments.ask(test, setting, 1.0, seed), centers, test.weights.tolist())

    @property
    def mean(self) -> float:
        return math.fsum(weight * mean for weight, mean in zip(self.weights, self.sample.means, strict=True))

    def upper_mean(self, level: float) -> float:
        return self.sample.upper_mean(self.weights, self.centers, level)


def largest_surrogate(task: Task, params: Tensor, domain: Domain, steep: Constant, gamma: float, norm: float) -> float:
    """phi_gamma is never above this for an example in the box; at ``gamma=inf`` this is the largest loss.

    For a linear model with cross-entropy ``phi_gamma <= logsumexp_j(s_j - s_y + ||w_j - w_y||_*^2 / (4 gamma))``, in
    which each ``s_j - s_y`` is at most what it is in the box. For others ``phi_gamma <= loss + L_z^2 / (4 gamma)``, and
    the loss is at most that in the center of the box plus L_z times the distance.
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
    center = params.new_full((1, 1, *domain.shape), (low + high) / 2.0)
    outputs = task.outputs(params[None], center)[0].detach()
    labels = torch.arange(domain.num_classes)
    highest = float(task.loss.value(outputs.expand(len(labels), -1), labels).max())
    features, half = math.prod(domain.shape), (high - low) / 2.0
    reach = {1: features * half, 2: math.sqrt(features) * half, math.inf: half}[norm]
    return highest + float(steep) * reach + float(steep) ** 2 / (4.0 * gamma)
