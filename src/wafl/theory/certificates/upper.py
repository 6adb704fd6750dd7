"""Define clients' reports for a certificate: bounds on phi_gamma from above or below, and the cost of the moves.

Reports from above include the possible effect of rounding (:mod:`wafl.theory.networks.rounding`): they bound the exact
loss of the float64 weights, and the loss that any evaluation in ``dtype`` computes at the example. Two parts are
added where the reports are averaged (``soundness.py``): rounding grows with the distance that examples move, and means
are rounded.

- *Outputs* are off by at most e at an example. They count with ``(8 h + 1) e``, with h hidden layers, plus e for the
  evaluation. The multiple covers values computed from the outputs of hidden layers, such as the lines of
  :class:`wafl.theory.networks.margins.Nearby`: in each layer, these are wrong by a few times its error. The
  cross-entropy's phi_gamma changes by at most twice as much as an output. The root of a squared error's phi_gamma
  is a norm of the residuals, at most ``sqrt(a gamma / (gamma - limit))`` times their length.
- *The search itself* computes with numbers as large as phi_gamma and ``K_j^2 / (4 gamma)``, with the steepest slope
  ``K_j`` of the margin ``A_j``. It may lose a few units for each term of its sums.

Small losses lose less: ``log(1 + c z) <= c log(1 + z)`` for ``c >= 1``, so margins that are larger by e make the
cross-entropy larger by the factor ``exp(e)`` at most. At the best move, it is at most phi_gamma plus the cost, and that
is at most ``exp(2 e) K^2 / gamma``. This assumes that an evaluation takes the cross-entropy of differences of outputs,
as torch does.

A class with ``A_j + K_j^2 / (2 gamma)`` far below 0 is out of reach: wherever the example goes, it adds nothing to
phi_gamma, and neither does its rounding.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from wafl.base.norms import dual, power_norm, steepest
from wafl.objectives import Move, Objective, ObjectiveState, Wasserstein
from wafl.objectives.base import lane_scalar
from wafl.tasks.inputs import Inputs, dense, shared
from wafl.tasks.losses import MarginLoss
from wafl.tasks.problem import Problem
from wafl.theory.certificates.slack import (
    TERMS,
    UNIT,
    Slack,
    each_lane,
    has_margins,
    lost_of,
    outputs_of,
    remembered,
    rounding_loss,
)
from wafl.theory.networks.margins import leads_of, margins_of
from wafl.theory.networks.rounding import Dtype, rounding_of
from wafl.theory.phi.incumbents import Ball
from wafl.theory.phi.linear_model import LinearPhi, distance_to_error


@dataclass(frozen=True)
class SearchedSurrogate(Objective):
    """The value of phi_gamma by a search, at every gamma.

    For a linear model with cross-entropy or squared error (``LinearPhi``): if ``proven`` is 1, a bound from above, at
    most ``tolerance`` too high (in l_inf, ``in_the_mean`` over a client's examples), unless the search would become too
    long. Otherwise, the value that an ascent reaches. The cost belongs to the ascent's moves. For a network with known
    layers: a bound from above, along the distance (:mod:`wafl.theory.networks.margins`), and the cost of that distance.
    """

    norm: float = 2
    dtype: Dtype = "float64"
    in_the_mean: bool = True
    """Whether the tolerance may be for a client's mean, and not for every example."""

    def scalars(self) -> dict[str, float]:
        """Return gamma, ``proven`` and the tolerance."""
        return {"gamma": 1.0, "proven": 1.0, "tolerance": 0.0}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Report phi_gamma of each lane."""
        state = state or ObjectiveState()
        numbers = [lane_scalar(state, name, value, problem.params) for name, value in self.scalars().items()]
        value = problem.params.new_zeros(y.shape[:2])
        cost = torch.zeros_like(value)
        real = torch.ones_like(value, dtype=torch.bool) if state.weight is None else state.weight > 0
        if problem.linear is None:
            value, cost = self._along_margins(problem, x, y, real, numbers[0], numbers[2])
            return Move(x, y, *_trusted(value, cost), torch.ones_like(real), state=state)
        outputs = problem.outputs(x)
        lost = each_lane(problem, x, partial(rounding_loss, self.dtype)) if bool(numbers[1].any()) else outputs
        for (gamma, proven, tolerance), lanes in _alike(torch.stack(numbers, dim=1), problem.params):
            here = torch.zeros_like(real)
            here[lanes] = real[lanes]
            weight = problem.linear[0][lanes[0]]
            phi = LinearPhi(weight, problem.output_loss, self.norm)
            if proven:
                client = here.nonzero()[:, 0] if self.in_the_mean else None
                sides = phi.bounds(outputs[here], y[here], gamma, tolerance, client)
                slack, far = Slack.of(problem, lanes[0], gamma), Ball(weight, self.norm).distances
                value[here] = slack.above(sides.upper, outputs[here], lost[here], y[here], far, phi.limit)
                cost[here] = sides.cost
            else:
                value[here], cost[here] = phi.reached(outputs[here], y[here], gamma, tolerance)
        return Move(x, y, *_trusted(value, cost), torch.ones_like(real), state=state)

    def _along_margins(
        self, problem: Problem, x: Tensor | Inputs, y: Tensor, real: Tensor, gamma: Tensor, tolerance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return value and cost of a network; lanes with the same model are computed together, at any gammas."""
        outputs, lost, x = outputs_of(problem, x, y), lost_of(problem, x, y, self.dtype), dense(x)
        results = outputs.new_zeros(*outputs.shape[:-1], 2)
        for _, lanes in _alike(torch.zeros_like(gamma)[:, None], problem.params):
            here = torch.zeros_like(real)
            here[lanes] = real[lanes]
            margins = margins_of(problem.task, problem.params[lanes[0]], x[0, 0].numel())
            if margins is None:
                raise ValueError("this network has a layer of which no Lipschitz constant is known")
            prices, allowed = (each[:, None].expand_as(real)[here] for each in (gamma, tolerance))
            slack = Slack.of(problem, lanes[0], prices)
            steep = margins.steepest(self.norm, x[0, 0].numel(), outputs.shape[-1])
            s, unit, loss = outputs[here], 1.0, problem.output_loss
            if isinstance(loss, MarginLoss):  # t times the cross-entropy of other outputs
                s, unit = loss.logits(s, y[here]), loss.temperature
                margins, prices, allowed = margins.scaled(1.0 / unit), prices / unit, allowed / unit
            upper, cost = margins.along(x[here].flatten(1), s, y[here], self.norm, prices, allowed)
            results[here] = torch.stack(
                [slack.above(unit * upper, outputs[here], lost[here], y[here], steep), cost], dim=-1
            )
        return results[..., 0], results[..., 1]


@dataclass(frozen=True)
class ErrorSurrogate(Objective):
    """The phi_gamma of the 0/1 loss, from an example's distance to the nearest error.

    For a linear classifier the distance is exact. For a network whose margins have known slopes it is a lower bound, so
    phi_gamma is an upper one. Another label is an error without a move, so an error costs at most the price of a label.
    """

    norm: float = 2
    power: int = 2
    slack: float = 0.0
    label_cost: float = math.inf
    dtype: Dtype = "float64"

    def scalars(self) -> dict[str, float]:
        """Return gamma."""
        return {"gamma": 1.0}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Report ``max(0, 1 - gamma cost)`` of each example, with the cost of its nearest error."""
        state = state or ObjectiveState()
        gamma = lane_scalar(state, "gamma", 1.0, problem.params)[:, None]
        if problem.linear is None:
            distance = remembered(problem, x, y, f"distances {self.norm} {self.slack} {self.dtype}", self.distances)
        else:
            outputs, lost = problem.outputs(x), each_lane(problem, x, partial(rounding_loss, self.dtype))
            same, shape = bool((problem.params == problem.params[:1]).all()), dense(x).shape[2:]
            lanes = [slice(None)] if same else [slice(lane, lane + 1) for lane in range(len(y))]
            distance = torch.empty_like(outputs[..., 0])
            for each in lanes:
                ball = Ball(problem.linear[0][each][0], self.norm)
                one = replace(problem, params=problem.params[each][:1])
                labels, s = y[each].flatten(), (outputs[each].flatten(0, 1), lost[each].flatten(0, 1))
                find = partial(distance_to_error, ball, y=labels, slack=self.slack)
                distance[each] = self._shorter(one, find, *s, labels, shape).view_as(y[each])
        cost = distance.pow(self.power).clamp_max(self.label_cost)
        value = (1.0 - gamma * cost).clamp_min(0.0)
        return Move(x, y, value, torch.where(value > 0, cost, 0.0), torch.ones_like(value, dtype=torch.bool))

    def distances(self, problem: Problem, x: Tensor, y: Tensor, lead: float = 0.0) -> Tensor:
        """Return lower bounds on the distances of ``x [B, ...]`` to an output that is `lead` above the label's."""
        leads = leads_of(problem.task, problem.params[0], x[0].numel())
        if leads is None:
            raise ValueError("this network has a layer of which no Lipschitz constant is known")
        outputs, lost = problem.outputs(x[None])[0].detach(), rounding_loss(self.dtype, problem, x)
        if lead:
            outputs = outputs + lead * torch.zeros_like(outputs).scatter(-1, y[:, None], 1.0)

        def find(outputs: Tensor) -> Tensor:
            return leads.distance_to_error(x.flatten(1), outputs, y, self.norm, self.slack)

        return self._shorter(problem, find, outputs, lost, y, x.shape[1:])

    def _shorter(
        self,
        problem: Problem,
        find: Callable[[Tensor], Tensor],
        outputs: Tensor,
        lost: Tensor,
        y: Tensor,
        shape: Sequence[int],
    ) -> Tensor:
        """Return distances within which no rounding makes an error.

        Up to a distance t, the errors of leads exceed those at the example by up to ``drift t``. So leads
        are reduced by this amount at the distance t that is found without it. No lead is reduced by more than
        half: beyond, distances end where drift would have used up that half.
        """
        if (rounding := rounding_of(problem.task, problem.params[0])) is None:
            return find(outputs)
        raised = outputs + lost * torch.ones_like(lost).scatter(-1, y[:, None], -1.0)
        drift = 2.0 * float(rounding.growth(shape, self.norm, self.dtype, outputs).max())
        label = torch.zeros_like(raised, dtype=torch.bool).scatter(-1, y[:, None], True)
        lead = (raised.gather(-1, y[:, None]) - raised).masked_fill(label, math.inf).amin(-1).clamp_min(0.0)
        farthest = lead / (2.0 * max(drift, 1e-300))
        first = torch.minimum(find(raised), farthest)
        second = find(torch.where(label, raised - (drift * first)[:, None], raised))
        return torch.minimum(second, first) * (1.0 - 8.0 * (TERMS + rounding.terms) * UNIT)


def _trusted(value: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and costs, both infinite where one is NaN, so that such a gamma is best at no radius."""
    lost = value.isnan() | cost.isnan()
    return value.masked_fill(lost, torch.inf), cost.masked_fill(lost, torch.inf)


def _alike(numbers: Tensor, params: Tensor) -> Iterator[tuple[list[float], Tensor]]:
    """Yield the lanes with the same numbers and the same model, which are searched together."""
    same = bool((params == params[:1]).all())
    lane = torch.arange(len(params), device=params.device)[:, None].to(numbers)
    keys = numbers if same else torch.cat([numbers, lane], dim=1)
    values, index = keys.unique(dim=0, return_inverse=True)
    for row in range(len(values)):
        yield values[row, : numbers.shape[1]].tolist(), (index == row).nonzero()[:, 0]


@dataclass(frozen=True)
class UpperBound(Objective):
    """An upper bound on ``phi_gamma(z)`` if ``2 gamma > L``, the Lipschitz constant of the loss's gradient in the norm.

    For l2 the objective ``f(x') = loss(x') - gamma ||x' - x||^2`` is concave with modulus ``2 gamma - L``, so wherever
    the ascent ends, ``sup f <= f + ||grad f||^2 / (2 (2 gamma - L))``: the solver's possible error is added. In
    every norm ``loss(x') <= loss + ||g||_* ||x' - x|| + L ||x' - x||^2 / 2``, so
    ``phi_gamma <= loss + ||g||_*^2 / (4 gamma - 2 L)``, which for l2 is the first bound without an ascent.
    """

    norm: float = 2
    steps: int = 200
    tolerance: float = 1e-5  # what the ascent misses is added, and is of second order
    dtype: Dtype | None = "float64"
    """None leaves out rounding."""

    def scalars(self) -> dict[str, float]:
        """Return gamma and the curvature."""
        return {"gamma": 1.0, "curvature": 0.0}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Report the bound at the end of an ascent, or at rest in norms other than l2."""
        state = state or ObjectiveState()
        gamma, curvature = (lane_scalar(state, *each, problem.params)[:, None] for each in self.scalars().items())
        if self.norm == 2:
            ascent = Wasserstein(steps=self.steps, tolerance=self.tolerance, bounds=None)
            move = ascent(problem, x, y, state)
        else:
            loss = problem.loss(x, y)
            move = Move(x, y, loss, torch.zeros_like(loss), torch.zeros_like(loss, dtype=torch.bool), state=state)
        modulus = 2.0 * gamma - curvature
        slope, cost = _slope_and_cost(problem, shared(x), y, move, gamma, modulus, self.norm)
        value = move.value + slope / (2.0 * modulus)
        if self.dtype is not None:
            value = self._above(problem, dense(x), y, move, value, gamma, slope, modulus)
        return Move(move.inputs, y, *_trusted(value, cost), move.converged, state=state)

    def _above(
        self,
        problem: Problem,
        x: Tensor,
        y: Tensor,
        move: Move,
        value: Tensor,
        gamma: Tensor,
        slope: Tensor,
        modulus: Tensor,
    ) -> Tensor:
        """Add the possible effect of rounding on the loss and on the gradient at the end of the ascent."""
        if not has_margins(problem) or self.dtype is None:
            return value
        temperature = problem.output_loss.temperature if isinstance(problem.output_loss, MarginLoss) else 1.0
        results: list[Tensor] = []
        for lane, moved in enumerate(move.x_adv):
            rounding = rounding_of(problem.task, problem.params[lane])
            if rounding is None or not rounding.smooth:
                return value  # and nothing is proven by a curvature
            errors, shape = rounding.errors(moved, "float64"), moved.shape[1:]
            steep, drift = rounding.slopes(shape, self.norm, "float64", moved, errors)
            wrong = errors[-1].amax(-1)
            far = power_norm((moved - x[lane]).flatten(1), self.norm, 1)
            length, terms = slope[lane].sqrt(), TERMS + rounding.terms
            # The gradient is J^T (p - e_y) with ||p - e_y||_1 <= 2, and p is off by at most 2 wrong / temperature.
            off = 2.0 * drift.amax(-1) + 4.0 * (wrong / temperature + terms * UNIT) * steep.amax(-1)
            off = off + 8.0 * terms * UNIT * (length + 2.0 * gamma[lane] * far)
            left = modulus[lane] - 32.0 * terms * UNIT * gamma[lane]
            gain = ((length + off).square() - slope[lane]).clamp_min(0.0) / (2.0 * left)
            gain = gain + slope[lane] * (1.0 / left - 1.0 / modulus[lane]) / 2.0
            computed = errors[-1] if self.dtype == "float64" else rounding.errors(moved, self.dtype)[-1]
            growth = rounding.growth(shape, self.norm, self.dtype, moved).max()
            raised = 2.0 * ((8.0 * rounding.hidden + 1.0) * wrong + computed.amax(-1) + growth * far)
            inner = 8.0 * UNIT * terms * (value[lane].abs() + gamma[lane] * far.square() + 1.0)
            results.append(torch.where(left > 0, value[lane] + gain + raised + inner, math.inf))
        return torch.stack(results)


@dataclass(frozen=True)
class AtRest(Objective):
    """A bound on the loss of examples that do not move."""

    norm: float = 2
    dtype: Dtype = "float64"

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Report the loss with room for rounding, at no cost."""
        if problem.linear is None:
            outputs, lost = outputs_of(problem, x, y), lost_of(problem, x, y, self.dtype)
        else:
            outputs, lost = problem.outputs(x).detach(), each_lane(problem, x, partial(rounding_loss, self.dtype))
        slack = Slack.of(problem, 0, math.inf)
        value = slack.above(problem.output_loss.value(outputs, y), outputs, lost, y)
        zero = torch.zeros_like(value)
        return Move(x, y, value, zero, torch.ones_like(value, dtype=torch.bool), state=state or ObjectiveState())


@dataclass(frozen=True)
class SlopeMove(Objective):
    """The loss of examples that move by ``distance`` along their slope, if it is larger: a plain test of bounds."""

    norm: float = 2
    steps: int = 2

    def scalars(self) -> dict[str, float]:
        """Return the distance."""
        return {"distance": 1.0}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Report the larger loss, at rest or after a move, and its cost."""
        distance = lane_scalar(state, "distance", 1.0, problem.params)[:, None]
        rest = moved = dense(x)
        value = problem.loss(rest, y)
        cost = torch.zeros_like(value)
        for _ in range(self.steps):
            direction = steepest(problem.gradient(moved, y).flatten(2), self.norm)
            moved = rest + (distance[..., None] * direction).view_as(rest)
            loss = problem.loss(moved, y)
            # Measured: of a gradient whose squares are lost, the direction has another length than 1.
            length = power_norm((moved - rest).flatten(2), self.norm, 2)
            better = loss > value
            value, cost = torch.where(better, loss, value), torch.where(better, length, cost)
        return Move(x, y, value, cost, torch.ones_like(value, dtype=torch.bool), state=state or ObjectiveState())


def _slope_and_cost(
    problem: Problem, x: Inputs, y: Tensor, move: Move, gamma: Tensor, modulus: Tensor, norm: float
) -> tuple[Tensor, Tensor]:
    """Return ``||grad f||_*^2`` at the end of an ascent, and the squared distance to where the bound is largest."""
    moved = move.inputs
    if isinstance(moved, Inputs) and moved.shift is not None and moved.outputs is not None and problem.linear:
        # In class space the move is W^T u and the gradient W^T r with r = dloss - 2 gamma u; ||W^T r||^2 = r^T W W^T r.
        gram = torch.bmm(problem.linear[0], problem.linear[0].mT)
        residual = problem.output_loss.gradient(moved.outputs.mT, y).mT - 2.0 * gamma[:, None] * moved.shift
        further = moved.shift + residual / modulus[:, None]
        slope, cost = ((torch.bmm(gram, part) * part).sum(1).clamp_min(0.0) for part in (residual, further))
        return slope, cost
    gradient = problem.gradient(dense(moved), y).flatten(2)
    if norm != 2:
        slope = power_norm(gradient, dual(norm), 2)
        return slope, slope / modulus.square()
    delta = (move.x_adv - x.dense()).flatten(2)
    gradient = gradient - 2.0 * gamma[..., None] * delta
    return power_norm(gradient, 2, 2), power_norm(delta + gradient / modulus[..., None], 2, 2)


Report = UpperBound | SearchedSurrogate | ErrorSurrogate | SlopeMove | AtRest
REPORTS: dict[str, type[Report]] = {
    "smooth": UpperBound,
    "linear": SearchedSurrogate,
    "error": ErrorSurrogate,
    "moved": SlopeMove,
    "rest": AtRest,
}
"""The reports that a client may be asked for, by their names in messages."""


@dataclass(frozen=True)
class Inquiry:
    """The request to clients that proves a bound ``offset + E[phi_gamma]`` on their data.

    With the report :class:`AtRest`, it is ``offset + E[loss]``, and gamma is infinite.
    """

    report: Report
    setting: Mapping[str, float]
    gamma: float
    offset: float


def setting_of(gamma: float, curvature: float, tolerance: float | None) -> dict[str, float]:
    """Return the setting that bounds phi_gamma from above: by a search if there is a tolerance, else by L_zz."""
    if tolerance is None:
        return {"gamma": gamma, "curvature": curvature}
    return {"gamma": gamma, "proven": 1.0, "tolerance": tolerance}
