"""Implement WAFL's objective: ``phi_gamma(z) = sup over z' of loss(z') - gamma d^p(z', z)``.

Section 3.3 of the paper, after Sinha et al., "Certifying some distributional robustness with principled adversarial
training" (ICLR 2018).
"""

import math
from dataclasses import replace
from functools import reduce
from typing import Annotated, Any, Literal, Self, cast

import torch
from torch import Tensor

from wafl.base.bounds import DATA, Bounds, check_bounds, is_finite
from wafl.base.checks import check_space
from wafl.base.norms import typical_length, typical_price
from wafl.base.options import Box, Choice, Count, Matrix, Norm, Positive, Range, Tunable, frozen, maker
from wafl.base.random import normal
from wafl.objectives.ball.class_space import BoxSpace, ClassSpace
from wafl.objectives.ball.cost_matrix import CostMatrix, check_cost_matrix, stretch, stretched_curvature
from wafl.objectives.ball.input_space import InputSpace, LinearSpace, num_classes
from wafl.objectives.ball.order_one import descend_dual, known_slopes
from wafl.objectives.ball.reach import gamma_of_reach
from wafl.objectives.base import Move, Objective, ObjectiveState, better, lane_scalar, move_at_layer, random_starts
from wafl.objectives.learned_gamma import AUTO, GammaLearner
from wafl.tasks.inputs import Inputs, Shifted, shared
from wafl.tasks.problem import Problem

FIRST_GAMMA = {1: 1.0, 2: 1e6}
"""The first gamma of the search for a radius's gamma, by power.

With power 2 the search starts so high that moves are proportional to ``1 / gamma``, so one move gives the gamma of any
radius. With power 1 examples do not move at all if gamma is high.
"""

BATCH_REACH = 1.25
"""The maximum move of one batch, in radii; some batches move farther than the ball of all clients together."""


class PaperGamma(float):
    """The default gamma: the paper's choice for MNIST."""


@frozen
class Wasserstein(Objective):
    """Move each example to where ``loss - gamma ||x_adv - x||^power`` is largest.

    Give ``gamma``, the price of transport, or ``radius``, the size of the ball, from which training finds gamma. If you
    give neither, gamma is 0.5, the paper's choice for MNIST. Training starts with a tenth of the radius. The ball grows
    over the first third of the rounds, at most 30, because an untrained model would become constant in a large ball.

    >>> wasserstein(gamma=0.5).norm
    2
    """

    gamma: Annotated[
        float | None,
        Positive(": a smaller gamma is a larger ball"),
        Tunable(30.0, "high", typical_price),
        "The price of transport; smaller is a larger ball.",
    ] = None
    radius: Annotated[
        float | Literal["auto"] | None,
        Positive("; without a ball use FedAvg", word=AUTO),
        Tunable(comparable=typical_length),
        "The size of the ball, instead of gamma; 'auto' chooses it by leaving clients out, which takes two more runs.",
    ] = None
    norm: Annotated[float, Norm, Tunable(), "The ground norm: 1, 2 or inf."] = 2
    power: Annotated[
        int,
        Choice((1, 2)),
        "The order of the transport cost: 1, which without bounds needs a linear model with cross-entropy, or 2.",
    ] = 2
    label_cost: Annotated[
        float,
        Positive("; inf keeps labels where they are", infinite=True),
        "The price of changing a label; inf keeps labels fixed.",
    ] = math.inf
    steps: Annotated[int, Count(), "The maximum number of steps of the inner ascent."] = 15
    tolerance: Annotated[
        float,
        Range(0, 1, "; 0 takes all steps", high_open=True),
        "The distance from its fixed point at which an example stops, relative to its move; 0 takes all steps.",
    ] = 1e-3
    restarts: Annotated[
        int,
        Count(0),
        "Random starts in addition to the example itself, and with cross-entropy also one toward each class: below the "
        "concavity limit, an example that the model is sure of may have its maximum far away.",
    ] = 0
    bounds: Annotated[
        Bounds, Box(), "Where moved examples must stay: 'data' (what the data declare), a box, or none (anywhere)."
    ] = DATA
    strict: Annotated[bool, "Keep a learned gamma above the concavity limit."] = False
    space: Annotated[
        str | None, "The name of the layer whose output is moved instead of the inputs, which may be integers."
    ] = None
    cost_matrix: Annotated[
        Any,
        Matrix(),
        "Which moves are cheap: 'clients' (along differences between clients' class means, which clients send to "
        "the server; a radius of 1 is the distance of a left-out client; with space, at that layer of the model that "
        "training starts from, so train it first), one distance per feature with the same cost, or a matrix A (a move "
        "A v costs the norm of v). Examples may then leave the bounds of the data.",
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma is not None and self.radius is not None:
            raise ValueError(
                f"give gamma or radius, not both (gamma={self.gamma}, radius={self.radius}): each determines the other"
            )
        if self.gamma is None and self.radius is None:
            object.__setattr__(self, "gamma", PaperGamma(0.5))
        check_space(self.space, self.bounds)
        object.__setattr__(self, "cost_matrix", check_cost_matrix(self.cost_matrix))
        if self.cost_matrix is not None and self.bounds not in (None, DATA):
            raise ValueError(
                f"bounds={self.bounds} are for a round ball, not for one with a cost_matrix: leave one out"
            )
        if self.radius == AUTO and (self.space is not None or self.cost_matrix is not None):
            raise ValueError("radius='auto' is for a round ball of inputs: with space or cost_matrix, give a number")
        if self.strict and (self.radius is None or self.norm != 2 or self.power != 2):
            raise ValueError(
                "strict=True needs radius=, norm=2 and power=2: otherwise there is no concavity limit to respect"
            )
        object.__setattr__(self, "bounds", check_bounds(self.bounds))
        if self.power == 1 and self.box is not None and not is_finite(self.box):
            raise ValueError(f"bounds={self.bounds} must be finite with power=1, or the supremum may be infinite")

    def changed(self, **options: Any) -> Self:
        """Return a copy with other options; a new gamma replaces a radius, and a new radius a gamma."""
        if "gamma" in options and options.get("radius") is None:
            options["radius"] = None
        elif options.get("radius") is not None and "gamma" not in options:
            options["gamma"] = None
        return replace(self, **options)

    @property
    def first_gamma(self) -> float:
        """The gamma, or the first gamma of the search for a radius's gamma."""
        return FIRST_GAMMA[self.power] if self.gamma is None else self.gamma

    def scalars(self) -> dict[str, float]:
        """Return gamma, and the radius from which gamma is learned, if one is given; see ``order_one.py``."""
        return {"gamma": self.first_gamma, **({} if self.learner is None else self.learner.scalars())}

    @property
    def reach(self) -> tuple[str, float, float] | None:
        """The name of the option ``radius``, its value and its norm; None without a radius or if labels may change."""
        radius = self.target_radius if math.isinf(self.label_cost) else None  # a label that moves is paid from it too
        return None if radius is None else ("radius", radius, self.norm)

    @property
    def learner(self) -> GammaLearner | None:
        """The object that learns gamma from the radius; None if gamma is fixed."""
        if self.radius is None:
            return None
        endless = self.power == 1 and self.box is None
        averages_cost = endless and math.isfinite(self.label_cost)
        return GammaLearner(self.radius, self.power, self._lowest_gamma, endless, averages_cost)

    @property
    def target_radius(self) -> float | None:
        """The radius as a number, or None; an error if it still has to be chosen."""
        return None if self.learner is None else self.learner.target

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the moved examples, and the moved labels if they have a price."""
        if self.space is not None:
            return move_at_layer(replace(self, space=None), self.space, problem, x, y, state)
        x, state = shared(x), state or ObjectiveState()
        if self.cost_matrix is not None:
            return self._move_stretched(problem, x, y, state)
        learner = self.learner
        if learner is not None and learner.endless:
            return descend_dual(problem, x, y, state, learner.target, self.norm, self.label_cost)
        gamma = lane_scalar(state, "gamma", self.first_gamma, problem.params)
        if self.target_radius is not None and self.power == 2:
            reach = BATCH_REACH * lane_scalar(state, "radius", self.target_radius, problem.params)
            least = gamma_of_reach(problem, x, y, state.weight, reach, self.norm, self.box)
            gamma = torch.maximum(gamma, least)
        if math.isinf(self.label_cost):
            move = self._move_inputs(problem, x, y, gamma, state)
        elif y.is_floating_point():
            move = self._move_targets(problem, x, y, gamma, state)
        else:
            move = self._move_classes(problem, x, y, gamma, state)
        return replace(move, state=state)

    def _move_stretched(self, problem: Problem, x: Inputs, y: Tensor, state: ObjectiveState) -> Move:
        """Return the move of a round ball in the space of ``A^-1 x``."""
        if not isinstance(self.cost_matrix, CostMatrix):
            raise ValueError(f"cost_matrix={self.cost_matrix!r} needs clients, and there are none here: give a matrix")
        stretched = stretch(problem, x, self.cost_matrix)
        move = replace(self, cost_matrix=None, bounds=None)(stretched, x, y, state)
        assert not isinstance(move.inputs, Shifted)
        terms = tuple(replace(term, inputs=stretched.real(cast(Tensor | Inputs, term.inputs))) for term in move.terms)
        return replace(move, inputs=stretched.real(move.inputs), terms=terms)

    def check_model(self, problem: Problem) -> None:
        """Raise ValueError if ``strict`` is set and the model's curvature is unknown."""
        if self.strict and self.curvature(problem) is None:
            raise ValueError(
                "strict=True needs a model whose curvature L_zz is known: use a linear one, or leave it out"
            )

    def _lowest_gamma(self, problem: Problem) -> float:
        """Return the smallest gamma with finite losses and, if strict, at least the concavity limit."""
        if self.learner is not None and self.learner.endless:
            return self.slope(problem)
        targets = 1.05 * (problem.output_loss.quadratic or 0.0) / self.label_cost
        limit = self.concavity_limit(problem) if self.strict else None
        return max(targets, limit or 0.0)

    def concavity_limit(self, problem: Problem) -> float | None:
        """Return the gamma above which the inner problem with the squared l2 cost is concave.

        If the targets of a loss ``quadratic (f - t)^2`` move too (:meth:`_move_targets`), the problem is concave for
        ``gamma - quadratic / label_cost > L_zz / 2``.
        """
        curvature = self.curvature(problem)
        if curvature is None or self.norm != 2 or self.power != 2:
            return None
        return float(curvature[0]) / 2.0 + (problem.output_loss.quadratic or 0.0) / self.label_cost

    def curvature(self, problem: Problem) -> Tensor | None:
        """Return L_zz in the space where the ball is round, per lane, or None if it is unknown."""
        matrix = self.cost_matrix if isinstance(self.cost_matrix, CostMatrix) else None
        return stretched_curvature(problem, matrix)

    def slope(self, problem: Problem) -> float:
        """Return L_z of the first lane's linear model with cross-entropy, in the space where the ball is round."""
        matrix = self.cost_matrix.like(problem.params) if isinstance(self.cost_matrix, CostMatrix) else None
        return float(known_slopes(problem, self.norm, matrix)[0].max())

    def concave(self, problem: Problem, gamma: Tensor) -> Tensor | None:
        """Return whether the maximizer is known to be unique, per lane, or None if that is unknown."""
        if self.norm != 2 or self.power != 2:
            return torch.zeros_like(gamma, dtype=torch.bool)
        curvature, targets = self.curvature(problem), (problem.output_loss.quadratic or 0.0) / self.label_cost
        return None if curvature is None else 2.0 * (gamma - targets) > curvature

    def _move_inputs(self, problem: Problem, x: Inputs, y: Tensor, gamma: Tensor, state: ObjectiveState) -> Move:
        if self.power == 1 and self.box is None:
            return _stay_or_escape(problem, x, y, gamma, self.norm)
        space = self._space(problem, x, y, gamma)
        best = space.ascend(None, self.steps, self.tolerance)
        if self.restarts:
            for start in space.class_starts():
                best = better(best, space.ascend(start, self.steps, self.tolerance))
            for draw in random_starts(normal, state, gamma, (y.shape[1], self.restarts, space.features)):
                best = better(best, space.ascend(space.random_start(draw), self.steps, self.tolerance))
        return best

    def _space(self, problem: Problem, x: Inputs, y: Tensor, gamma: Tensor) -> ClassSpace | InputSpace:
        if self.norm == 2 and self.power == 2 and problem.linear is not None:
            if self.box is None:
                return ClassSpace(problem, x, y, gamma)
            if problem.output_loss.convex:
                return BoxSpace(problem, x, y, gamma, self.box)
        loss = problem.output_loss
        tame = problem.linear is not None and loss.convex and loss.probabilities is not None
        kind = LinearSpace if tame else InputSpace
        return kind(problem, x, y, gamma, self.norm, self.power, self.box)

    def _move_classes(self, problem: Problem, x: Inputs, y: Tensor, gamma: Tensor, state: ObjectiveState) -> Move:
        """Return the best of one ascent per label; a changed class costs ``gamma label_cost``."""

        def as_label(label: int) -> Move:
            move = self._move_inputs(problem, x, torch.full_like(y, label), gamma, state)
            toll = self.label_cost * (y != label).to(gamma)
            return replace(move, value=move.value - gamma[:, None] * toll, cost=move.cost + toll)

        return reduce(better, map(as_label, range(num_classes(problem, x))))

    def _move_targets(self, problem: Problem, x: Inputs, y: Tensor, gamma: Tensor, state: ObjectiveState) -> Move:
        """Move inputs and targets of a quadratic loss ``a (f - t)^2``; the best target t has a closed form.

        If ``gamma k > a``, where k is the label cost, ``sup over t of a (f - t)^2 - gamma k (t - y)^2`` is ``c a (f -
        y)^2`` with ``c = gamma k / (gamma k - a)``, attained at ``t = y - a (f - y) / (gamma k - a)``. Otherwise it is
        infinite. The input therefore ascends ``c`` times the loss, which equals an ascent of the loss at ``gamma / c``.
        """
        factor = problem.output_loss.quadratic
        if factor is None:
            raise ValueError(f"label_cost needs classes or loss='squared_error', not loss={problem.output_loss.name!r}")
        price = gamma * self.label_cost
        if bool((price <= factor).any()):
            raise ValueError(
                f"gamma * label_cost = {float(price.min()):g} must exceed {factor:g}, or moving the target alone "
                "makes the loss infinite: raise label_cost"
            )
        scale = price / (price - factor)
        move = self._move_inputs(problem, x, y, gamma / scale, state)
        outputs = problem.outputs(move.inputs)
        gap = outputs - (y if y.ndim == outputs.ndim else y[..., None])
        shift = (factor * gap / (factor - price[:, None, None])).view_as(y)
        toll = self.label_cost * shift.square().view(*move.cost.shape, -1).sum(-1)
        return replace(move, y_adv=y + shift, value=move.value * scale[:, None], cost=move.cost + toll)


def _stay_or_escape(problem: Problem, x: Inputs, y: Tensor, gamma: Tensor, norm: float) -> Move:
    """Return ``sup of loss - gamma ||d||`` without bounds: the loss at rest, or infinity.

    Along the best unit vector, the convex loss of a linear model grows at most at its slope, and in the limit exactly:
    for the cross-entropy this is the largest ``||w_j - w_y||_*``. If gamma is at least the slope, no move gains;
    otherwise the supremum is infinite.
    """
    slopes = known_slopes(problem, norm)
    stays = gamma[:, None] >= slopes.gather(1, y)
    value = torch.where(stays, problem.loss(x, y), math.inf)
    return Move(x, y, value, torch.where(stays, 0.0, math.inf).to(value), stays)


wasserstein = maker(Wasserstein)
