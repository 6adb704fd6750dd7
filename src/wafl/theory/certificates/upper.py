"""What clients report for a certificate: phi_gamma from above or from below, and the cost of the moves behind it."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from wafl.base.norms import dual, power_norm, steepest
from wafl.objectives import Move, Objective, ObjectiveState, Wasserstein
from wafl.objectives.base import lane_scalar
from wafl.tasks.inputs import Inputs, dense, shared
from wafl.tasks.losses import MarginLoss
from wafl.tasks.problem import Problem
from wafl.tasks.task import Task
from wafl.theory.networks.margins import leads_of, margins_of
from wafl.theory.phi.incumbents import Ball
from wafl.theory.phi.linear_model import LinearPhi, distance_to_error


@dataclass(frozen=True)
class SearchedSurrogate(Objective):
    """phi_gamma by a search, at every gamma.

    Of a linear model with cross-entropy or squared error (``LinearPhi``): from above if ``proven``
    is 1, at most ``tolerance`` too high (in l_inf, ``in_the_mean`` over a client's examples), unless the search would
    become too long; otherwise what an ascent reaches. The cost is that of the ascent's moves. Of a network whose layers
    are known: from above, along the distance (:mod:`wafl.theory.networks.margins`), and the cost is that of the
    distance.
    """

    norm: float = 2
    in_the_mean: bool = True
    """Whether the tolerance may be for a client's mean, and not for every example."""

    def scalars(self) -> dict[str, float]:
        return {"gamma": 1.0, "proven": 1.0, "tolerance": 0.0}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        state = state or ObjectiveState()
        numbers = [lane_scalar(state, name, value, problem.params) for name, value in self.scalars().items()]
        value = problem.params.new_zeros(y.shape[:2])
        cost = torch.zeros_like(value)
        real = torch.ones_like(value, dtype=torch.bool) if state.weight is None else state.weight > 0
        if problem.linear is None:
            value, cost = self._along_margins(problem, x, y, real, numbers[0], numbers[2])
            return Move(x, y, *_trusted(value, cost), torch.ones_like(real), state=state)
        outputs = problem.outputs(x)
        for (gamma, proven, tolerance), lanes in _alike(torch.stack(numbers, dim=1), problem.params):
            here = torch.zeros_like(real)
            here[lanes] = real[lanes]
            phi = LinearPhi(problem.linear[0][lanes[0]], problem.output_loss, self.norm)
            if proven:
                client = here.nonzero()[:, 0] if self.in_the_mean else None
                sides = phi.bounds(outputs[here], y[here], gamma, tolerance, client)
                value[here], cost[here] = sides.upper, sides.cost
            else:
                value[here], cost[here] = phi.reached(outputs[here], y[here], gamma, tolerance)
        return Move(x, y, *_trusted(value, cost), torch.ones_like(real), state=state)

    def _along_margins(
        self, problem: Problem, x: Tensor | Inputs, y: Tensor, real: Tensor, gamma: Tensor, tolerance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Value and cost of a network: lanes with the same model go together, whatever their gammas are."""
        outputs = _remembered(problem, x, y, "outputs", lambda one, x, _: one.outputs(x[None])[0].detach())  # [L, B, C]
        x = dense(x)
        results = torch.zeros_like(outputs[..., :2])
        for _, lanes in _alike(torch.zeros_like(gamma)[:, None], problem.params):
            here = torch.zeros_like(real)
            here[lanes] = real[lanes]
            margins = margins_of(problem.task, problem.params[lanes[0]], x[0, 0].numel())
            if margins is None:
                raise ValueError("this network has a layer of which no Lipschitz constant is known")
            prices, allowed = (each[:, None].expand_as(real)[here] for each in (gamma, tolerance))
            s, unit, loss = outputs[here], 1.0, problem.output_loss
            if isinstance(loss, MarginLoss):  # t times the cross-entropy of other outputs
                s, unit = loss.logits(s, y[here]), loss.temperature
                margins, prices, allowed = margins.scaled(1.0 / unit), prices / unit, allowed / unit
            upper, cost = margins.along(x[here].flatten(1), s, y[here], self.norm, prices, allowed)
            results[here] = torch.stack([unit * upper, cost], dim=-1)
        return results[..., 0], results[..., 1]


@dataclass(frozen=True)
class ErrorSurrogate(Objective):
    """phi_gamma of the 0/1 loss, from an example's distance to the nearest error.

    For a linear classifier the distance is exact. For a network whose margins have known slopes it is a lower bound, so
    phi_gamma is an upper one. Another label is an error where the example is: an error costs no more than a label.
    """

    norm: float = 2
    power: int = 2
    slack: float = 0.0
    label_cost: float = math.inf

    def scalars(self) -> dict[str, float]:
        return {"gamma": 1.0}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        state = state or ObjectiveState()
        gamma = lane_scalar(state, "gamma", 1.0, problem.params)[:, None]
        if problem.linear is None:
            distance = _remembered(problem, x, y, f"distances {self.norm} {self.slack}", self._distances)
        else:
            weight, outputs = problem.linear[0], problem.outputs(x)
            models = weight[:1] if bool((problem.params == problem.params[:1]).all()) else weight
            shown = outputs.reshape(len(models), -1, outputs.shape[-1]), y.reshape(len(models), -1)
            parts = zip((Ball(model, self.norm) for model in models), *shown, strict=True)
            distance = torch.cat([distance_to_error(*part, self.slack) for part in parts]).view_as(y)
        cost = distance.pow(self.power).clamp_max(self.label_cost)
        value = (1.0 - gamma * cost).clamp_min(0.0)
        return Move(x, y, value, torch.where(value > 0, cost, 0.0), torch.ones_like(value, dtype=torch.bool))

    def _distances(self, problem: Problem, x: Tensor, y: Tensor) -> Tensor:
        leads = leads_of(problem.task, problem.params[0], x[0].numel())
        if leads is None:
            raise ValueError("this network has a layer of which no Lipschitz constant is known")
        outputs = problem.outputs(x[None])[0].detach()
        return leads.distance_to_error(x.flatten(1), outputs, y, self.norm, self.slack)


_OUTPUTS: WeakKeyDictionary[Task, tuple[Tensor, dict[bytes, Tensor]]] = WeakKeyDictionary()
"""The last parameters of each task, and the tensors computed with them, by the digest of the question."""


def _remembered(
    problem: Problem, x: Tensor | Inputs, y: Tensor, about: str, compute: Callable[[Problem, Tensor, Tensor], Tensor]
) -> Tensor:
    """Stack ``compute(problem of a lane, x [B, ...], y [B])`` of each lane; equal questions are computed once.

    A search asks about many gammas, and a network's outputs depend on none.
    """
    batches = shared(x).base
    each = len(y) // len(batches)
    results: list[Tensor] = []
    for group, batch in enumerate(batches):
        words = hashlib.blake2b(about.encode())
        for values in (batch, y[group * each]):
            words.update(values.detach().cpu().contiguous().numpy().tobytes())
        digest = words.digest()
        for lane in range(group * each, (group + 1) * each):
            params = problem.params[lane]
            last = _OUTPUTS.get(problem.task)
            if last is None or not torch.equal(last[0], params):
                last = _OUTPUTS[problem.task] = params.clone(), {}
            if digest not in last[1]:
                last[1][digest] = compute(replace(problem, params=params[None]), batch, y[lane])
            results.append(last[1][digest])
    return torch.stack(results)


def _trusted(value: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Values and costs, both infinite where one of them is not a number: such a gamma wins at no radius."""
    lost = value.isnan() | cost.isnan()
    return value.masked_fill(lost, torch.inf), cost.masked_fill(lost, torch.inf)


def _alike(numbers: Tensor, params: Tensor) -> Iterator[tuple[list[float], Tensor]]:
    """The lanes that have the same numbers and the same model, which are searched together."""
    same = bool((params == params[:1]).all())
    lane = torch.arange(len(params), device=params.device)[:, None].to(numbers)
    keys = numbers if same else torch.cat([numbers, lane], dim=1)
    values, index = keys.unique(dim=0, return_inverse=True)
    for row in range(len(values)):
        yield values[row, : numbers.shape[1]].tolist(), (index == row).nonzero()[:, 0]


@dataclass(frozen=True)
class UpperBound(Objective):
    """Never below ``phi_gamma(z)`` if ``2 gamma > L``, the Lipschitz constant of the loss's gradient in the norm.

    For l2 the objective ``f(x') = loss(x') - gamma ||x' - x||^2`` is concave with modulus ``2 gamma - L``, so wherever
    the ascent ends, ``sup f <= f + ||grad f||^2 / (2 (2 gamma - L))``: what the solver may have missed is added. In
    every norm ``loss(x') <= loss + ||g||_* ||x' - x|| + L ||x' - x||^2 / 2``, so
    ``phi_gamma <= loss + ||g||_*^2 / (4 gamma - 2 L)``, which for l2 is the first bound without an ascent.
    """

    norm: float = 2
    steps: int = 200
    tolerance: float = 1e-5  # what the ascent misses is added, and is of second order

    def scalars(self) -> dict[str, float]:
        return {"gamma": 1.0, "curvature": 0.0}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
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
        value, cost = _trusted(move.value + slope / (2.0 * modulus), cost)
        return Move(move.inputs, y, value, cost, move.converged, state=state)


@dataclass(frozen=True)
class SlopeMove(Objective):
    """The loss of examples that move by ``distance`` along their slope, if that is better: a plain test of bounds."""

    norm: float = 2
    steps: int = 2

    def scalars(self) -> dict[str, float]:
        return {"distance": 1.0}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
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
    """``||grad f||_*^2`` where an ascent ended, and the squared distance, farther, where the bound is largest."""
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


Report = UpperBound | SearchedSurrogate | ErrorSurrogate | SlopeMove
REPORTS: dict[str, type[UpperBound] | type[SearchedSurrogate] | type[ErrorSurrogate] | type[SlopeMove]] = {
    "smooth": UpperBound,
    "linear": SearchedSurrogate,
    "error": ErrorSurrogate,
    "moved": SlopeMove,
}
"""What a client may be asked for, by the name that travels."""


@dataclass(frozen=True)
class Inquiry:
    """What clients are asked to prove a bound ``offset + E[phi_gamma]`` for their own data.

    Without a report, it is ``offset + E[loss]``, and gamma is infinite.
    """

    report: Report | None
    setting: Mapping[str, float]
    gamma: float
    offset: float


def setting_of(gamma: float, curvature: float, tolerance: float | None) -> dict[str, float]:
    """What is asked of clients to bound phi_gamma from above: by a search if there is a tolerance, else by L_zz."""
    if tolerance is None:
        return {"gamma": gamma, "curvature": curvature}
    return {"gamma": gamma, "proven": 1.0, "tolerance": tolerance}
